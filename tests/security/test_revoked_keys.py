"""Keys that are revoked, or lose privileges, while a request runs that they have begun."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, tokens
from catalog.errors import PermissionDenied, Unauthenticated
from catalog.models import ApiKey, Principal, PrincipalKind, PrincipalLevel
from catalog.privileges import Privilege
from catalog.services.access import api_keys, authentication, known_keys, principals
from catalog.services.engine.commit import commit
from catalog.services.tables.namespace_operations import CreateNamespace
from tests import clocks
from tests.access.protocols import give
from tests.factories import make_root, unchanged

pytestmark = pytest.mark.django_db


@pytest.fixture
def secret() -> str:
    """The key of a principal that has its privileges by a group."""
    give(_group(), Privilege.CREATE, make_root())
    row, secret = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.GRANTED)
    principals.add_member(actor=SYSTEM, group="group:writers", member=row.principal.name)
    return secret


def _group() -> Principal:
    return principals.create_principal(actor=SYSTEM, name="group:writers", kind=PrincipalKind.GROUP)


def _revoke() -> None:
    ApiKey.objects.update(revoked_at=timezone.now())


def _expire() -> None:
    ApiKey.objects.update(expires_at=timezone.now())


def _deactivate() -> None:
    Principal.objects.filter(name="etl").update(is_active=False)


def _leave_group() -> None:
    principals.remove_member(actor=SYSTEM, group="group:writers", member="etl")


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Function that lets the time pass for which a process trusts a key."""
    moved = [0.0]
    for module in (authentication, known_keys):
        clocks.replace(monkeypatch, module, monotonic=lambda: time.monotonic() + moved[0])

    def move() -> None:
        moved[0] += known_keys.TRUST_SECONDS + 1

    return move


def create(actor: access.Principal, name: str) -> None:
    commit([CreateNamespace(namespace=(name,))], actor=actor)


@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize("lose", [_revoke, _expire, _deactivate, _leave_group])
def test_an_upload_does_not_outlast_its_key(secret, wait, monkeypatch, lose, is_token):
    """A client that sends rows slowly would commit with a key that was revoked long ago."""
    error = PermissionDenied if lose is _leave_group else Unauthenticated
    row = ApiKey.objects.get()
    actor = authentication.authenticate(tokens.issue_token(row.pk) if is_token else secret)
    wait()
    create(actor, "a")
    if is_token:
        monkeypatch.setattr(tokens, "LIFETIME_SECONDS", -1)
        create(actor, "b")
    lose()
    wait()
    with unchanged(), pytest.raises(error):
        create(replace(actor, idempotency=None), "c")
