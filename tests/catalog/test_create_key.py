from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import ApiKey, Principal
from catalog.services.access import api_keys, known_keys
from tests.cases import shared_cases
from tests.factories import make_namespace, unchanged


def run(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("create_key", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_a_service_account_is_created_with_its_key(db):
    key, output = run("etl", "--days", "7", "--scope", "write", "--scope", "create")
    assert "'etl' of 'etl'" in output
    row = ApiKey.objects.get()
    assert known_keys.find_key(key.strip()) == row
    assert (row.principal.level, row.scopes) == ("granted", ["write", "create"])
    lifetime = row.expires_at - timezone.now()
    assert timedelta(days=6, hours=23) < lifetime <= timedelta(days=7)
    assert key.strip() not in output


def test_a_key_may_be_limited_to_a_namespace(db):
    api_keys.create_api_key(actor=SYSTEM, name="etl")
    namespace = make_namespace("a", "b")
    run("etl-b", "--principal", "etl", "--namespace", "a$b")
    row = ApiKey.objects.get(name="etl-b")
    assert (row.principal.name, row.namespace, row.scopes) == ("etl", namespace, None)


@shared_cases(
    ("arguments", "text"),
    [
        (["known"], "exists already"),
        (["x", "--principal", "nobody"], "'nobody' does not exist"),
        (["x", "--principal", "known", "--level", "read"], "--level"),
        (["x", "--scope", "rule"], "no privilege"),
        (["x", "--namespace", "gone"], "'gone' does not exist"),
        (["x", "--days", "-1"], "is in the past"),
        (["x", "--days", "1e30"], "too large"),
        (["x", "--days", "7", "--never-expires"], "not allowed with"),
        (["a:b"], "colon"),
        (["system"], "reserved for the catalog itself"),
    ],
    prepare=lambda: api_keys.create_api_key(actor=SYSTEM, name="known"),
)
def test_invalid_arguments_create_nothing(db, arguments, text):
    principals = list(Principal.objects.values())
    with unchanged(), pytest.raises(CommandError, match=text):
        run(*arguments)
    assert list(Principal.objects.values()) == principals


def test_a_key_is_valid_for_90_days_by_default(db):
    run("etl")
    row = ApiKey.objects.select_related("principal").get(name="etl")
    lifetime = row.expires_at - timezone.now()
    assert timedelta(days=89, hours=23) < lifetime <= timedelta(days=90)
    assert (row.principal.level, row.scopes, row.namespace) == ("granted", None, None)
    run("endless", "--never-expires")
    assert ApiKey.objects.get(name="endless").expires_at is None
