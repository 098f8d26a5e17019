"""The rules of API keys: messages, limits and the ends of validity."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, tokens
from catalog.errors import (
    CatalogError,
    InvalidInput,
    KeyNotFound,
    PermissionDenied,
    Unauthenticated,
)
from catalog.models import ApiKey, AuditEvent, PrincipalKind, PrincipalLevel
from catalog.privileges import Privilege
from catalog.services.access import api_keys, authentication, key_rules, known_keys, principals
from tests.cases import shared_cases
from tests.factories import make_namespace, unchanged

pytestmark = pytest.mark.django_db

SECRET = "mnd_0123456789abcdefghijklmnopqrstuvwxyz"
HOUR = timedelta(hours=1)
OTHER_NAME = "choose another name"
IN_USE = f"An API key named 'etl', or with the same secret, exists already: {OTHER_NAME}"


def make_key(name: str = "etl", level: PrincipalLevel = PrincipalLevel.GRANTED, **more) -> ApiKey:
    return api_keys.create_api_key(actor=SYSTEM, name=name, level=level, **more)[0]


def actor_of(key: ApiKey) -> access.Principal:
    return access.of_row(key.principal, key)


def add(actor: access.Principal = SYSTEM, **changes) -> ApiKey:
    return api_keys.add_key(actor=actor, **{"principal": "etl", "name": "two", **changes})[0]


def prepare() -> None:
    make_key(key=SECRET)
    principals.create_principal(actor=SYSTEM, name="group:g", kind=PrincipalKind.GROUP)


def rotate(**changes) -> None:
    key = ApiKey.objects.get(name="etl")
    api_keys.rotate(actor=SYSTEM, key=key, **{"overlap": HOUR, **changes})


@shared_cases(
    ("call", "message"),
    [
        (
            lambda: make_key(level=PrincipalLevel.READ),
            f"The service account 'etl' exists already, with level granted: {OTHER_NAME}, or that level",
        ),
        (
            make_key,
            IN_USE,
        ),
        (lambda: make_key("new", key="1234567"), "An API key needs at least 8 characters"),
        (lambda: add(principal="no\x00body"), "Principal 'no\x00body' does not exist"),
        (
            lambda: add(principal="group:g"),
            "'group:g' is a group and has no keys: choose one of its members",
        ),
        (
            lambda: add(scopes=[]),
            "A key needs at least one scope: leave the scopes out to permit all privileges",
        ),
        (
            lambda: add(expires_at=timezone.now() + HOUR, never_expires=True),
            "A key cannot both never expire and have an end: leave out one of the two",
        ),
        (
            lambda: add(name="etl"),
            IN_USE,
        ),
        *(
            (
                lambda name=name: add(name=name),
                "A key's name must be printable, not blank, and without a colon",
            )
            for name in ("a:b", "a\nb", "", " ")
        ),
        (lambda: add(name="x" * 101), "A key's name has at most 100 characters"),
        (lambda: add(name="system"), "The name 'system' is reserved for the catalog itself"),
        (lambda: rotate(overlap=timedelta(seconds=-1)), "The overlap must be 0 to 30 days"),
        (lambda: rotate(overlap=timedelta(days=30, seconds=1)), "The overlap must be 0 to 30 days"),
        (
            lambda: rotate(name="etl"),
            IN_USE,
        ),
        (
            lambda: api_keys.find_api_key(actor=SYSTEM, name="a\x00b"),
            "API key 'a?b' does not exist",
        ),
        (
            lambda: api_keys.find_client(client_id="other", client_secret=SECRET),
            "The client's id or its secret is wrong",
        ),
        (
            lambda: known_keys.find_key("mnd_unknown"),
            "The API key is unknown, expired or revoked",
        ),
        (
            lambda: authentication.authenticate(None),
            "No API key was given: send it as x-api-key or as a bearer token",
        ),
    ],
    prepare=prepare,
)
def test_refusals_name_the_rule_and_the_remedy(call, message):
    with unchanged(), pytest.raises(CatalogError) as error:
        call()
    assert error.value.message == message


def test_refusals_for_principals_name_their_limits():
    make_namespace("a")
    key = make_key()
    narrow = add(name="narrow", scopes=["read"], namespace=("a",))
    actor, limited = actor_of(key), actor_of(narrow)
    row = ApiKey.objects.get(name="etl")
    within = "is limited to one namespace; a new key must lie within it"
    cases = (
        (
            lambda: key_rules.require_own(actor, "other"),
            "'etl' may not manage the API keys of 'other'",
        ),
        (
            lambda: key_rules.require_own(access.Principal("etl"), "etl"),
            "'etl' may not manage the API keys of 'etl'",
        ),
        (
            lambda: key_rules.require_own(access.Principal("etl", ids=(1,), tables=(1,)), "etl"),
            "A job may not manage API keys",
        ),
        (
            lambda: key_rules.require_no_more(limited, ["write"], narrow.namespace),
            "The key that 'etl' presented permits read only; a new key cannot permit more",
        ),
        (
            lambda: key_rules.require_no_more(
                access.Principal("etl", ceiling=Privilege(0)), None, None
            ),
            "The key that 'etl' presented permits nothing only; a new key cannot permit more",
        ),
        (
            lambda: key_rules.require_no_more(limited, ["read"], None),
            f"The key that 'etl' presented {within}",
        ),
        (
            lambda: api_keys.revoke_api_key(actor=limited, key=row),
            "The limited key 'narrow' may revoke only itself",
        ),
        (
            lambda: add(actor, never_expires=True),
            "Only an administrator may create an API key that never expires",
        ),
    )
    for call, message in cases:
        with unchanged(), pytest.raises(PermissionDenied) as error:
            call()
        assert error.value.message == message
    assert error.value.detail == "Set an end, or leave it out: the key is then valid for 90 days."
    api_keys.revoke_api_key(actor=limited, key=narrow)
    assert AuditEvent.objects.filter(action="api_key.revoke", target="narrow").count() == 1
    with pytest.raises(InvalidInput, match=r"^The end 20\S+\+00:00 is in the past: choose a later"):
        add(expires_at=timezone.now() - HOUR)


def test_the_bounds_of_names_secrets_and_overlaps_are_accepted():
    assert make_key("x" * 100).name == "x" * 100
    assert [make_key(f"k{n}", key=SECRET[:n]).prefix for n in (8, 31, 32, 40)] == [
        SECRET[:2],
        SECRET[:7],
        SECRET[:8],
        SECRET[:8],
    ]
    for overlap in (timedelta(0), timedelta(days=30)):
        row = make_key(f"k{overlap.days}")
        before = timezone.now()
        api_keys.rotate(actor=SYSTEM, key=row, overlap=overlap)
        row.refresh_from_db()
        assert before <= row.expires_at - overlap <= timezone.now()
        event = AuditEvent.objects.get(action="api_key.rotate", target=row.name)
        assert event.after == {
            "replaced_by": key_rules.next_name(row.name),
            "ends": row.expires_at.isoformat(),
        }


def test_a_key_that_was_deleted_meanwhile_is_not_rotated():
    row = make_key()
    ApiKey.objects.all().delete()
    with unchanged(), pytest.raises(KeyNotFound) as error:
        api_keys.rotate(actor=SYSTEM, key=row, overlap=HOUR)
    assert error.value.name == "etl"


@pytest.mark.parametrize(
    ("name", "successor"),
    [
        ("etl", "etl-2"),
        ("etl-2", "etl-3"),
        ("etl-99999", "etl-100000"),
        ("etl-100000", "etl-100000-2"),
        ("a-b", "a-b-2"),
        ("etl-", "etl--2"),
        ("-5", "-5-2"),
        ("etl-\u00b2", "etl-\u00b2-2"),
        ("etl-\u0663", "etl-\u0663-2"),
        ("5", "5-2"),
    ],
)
def test_the_name_of_a_successor(name, successor):
    assert key_rules.next_name(name) == successor


def test_scopes_are_stored_as_the_fewest_words():
    assert key_rules.normalized_scopes(["browse", "read"]) == ["read"]
    assert key_rules.normalized_scopes(["all"]) is None


def test_a_client_is_named_by_its_key_its_prefix_or_not_at_all():
    row = make_key(key=SECRET)
    for name in ("", "etl", SECRET[:8]):
        assert api_keys.find_client(client_id=name, client_secret=SECRET) == row
    ApiKey.objects.update(name=f"admin-{row.digest[:8]}")
    assert api_keys.find_client(client_id="admin", client_secret=SECRET) == row
    token = tokens.issue_token(row.pk)
    with pytest.raises(Unauthenticated, match=r"^The client's id or its secret is wrong$"):
        api_keys.find_client(client_id="", client_secret=token)
    other = make_key("other")
    with pytest.raises(Unauthenticated, match=r"^The token belongs to another client$"):
        api_keys.find_subject(token=token, client=other)
    assert api_keys.find_subject(token=token, client=row) == row


def test_the_keys_of_a_person_are_valid_while_its_user_is_active():
    user = get_user_model().objects.create_user("ada")
    row, secret = api_keys.add_key(actor=SYSTEM, principal="user:ada", name="laptop")
    assert known_keys.find_key(secret) == row
    get_user_model().objects.filter(pk=user.pk).update(is_active=False)
    with pytest.raises(Unauthenticated):
        known_keys.find_key(secret)


def test_the_last_use_of_a_key_is_recorded_once_a_minute():
    row = make_key(key=SECRET)
    for seconds, is_recorded in ((30, False), (61, True)):
        used = timezone.now() - timedelta(seconds=seconds)
        ApiKey.objects.update(last_used_at=used)
        known_keys.find_key(SECRET)
        row.refresh_from_db()
        assert (row.last_used_at > used) is is_recorded


def test_cached_keys_are_trusted_for_four_seconds_and_are_bounded(monkeypatch):
    monkeypatch.setattr(known_keys, "_CACHE_LIMIT", 2)
    principal = access.Principal("etl")
    known_keys.forget_keys()
    known_keys.remember("a", principal, 9)
    known_keys.remember("b", principal, -1)
    assert known_keys.cached_principal("a") is principal
    assert known_keys.cached_principal("b") is None
    known_keys.remember("c", principal, 9)
    known_keys.remember("d", principal, 9)
    assert [name for name in "abcd" if known_keys.cached_principal(name)] == ["d"]
    known_keys.forget_keys()


def test_a_token_ends_with_its_key():
    end = timezone.now() + timedelta(minutes=5)
    row = make_key(key=SECRET, expires_at=end)
    for secret in (SECRET, tokens.issue_token(row.pk, Privilege.READ)):
        assert authentication.authenticate(secret).ends_at == end
    ApiKey.objects.update(expires_at=None)
    known_keys.forget_keys()
    assert authentication.authenticate(SECRET).ends_at is None
    principal = authentication.authenticate(
        tokens.issue_token(row.pk, Privilege.READ), request_id="r", interface="lance"
    )
    lifetime = principal.ends_at - timezone.now()
    assert timedelta(minutes=59) < lifetime <= HOUR
    assert (principal.ceiling, principal.request_id, principal.interface) == (
        Privilege.READ,
        "r",
        "lance",
    )


def test_a_request_ends_if_its_principal_has_lost_privileges(monkeypatch):
    monkeypatch.setattr(known_keys, "TRUST_SECONDS", 0)
    make_key(level=PrincipalLevel.ADMIN, key=SECRET)
    principal = authentication.authenticate(SECRET)
    principal.confirm()
    principals.update_principal(actor=SYSTEM, name="etl", description="nightly")
    principal.confirm()
    make_key("other", PrincipalLevel.ADMIN)
    principals.update_principal(actor=SYSTEM, name="etl", level=PrincipalLevel.READ)
    with pytest.raises(PermissionDenied) as error:
        principal.confirm()
    assert error.value.message == "'etl' has lost privileges since this request began"


def test_a_key_is_looked_up_with_one_statement():
    make_key(key=SECRET)
    known_keys.find_key(SECRET)
    with CaptureQueriesContext(connection) as queries:
        known_keys.find_key(SECRET)
    assert len(queries) == 1
