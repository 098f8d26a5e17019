import threading

import pytest
from django.db import connection

from catalog.access import SYSTEM
from catalog.errors import InvalidInput, LastAdministrator
from catalog.models import AuditEvent, Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import api_keys, principals
from tests.cases import shared_cases
from tests.factories import make_root, unchanged


@pytest.mark.django_db(transaction=True)
def test_concurrent_demotions_keep_one_administrator():
    """Each transaction sees the other administrator at its start. One of them must remain."""
    make_root()
    for name in ("one", "two"):
        api_keys.create_api_key(actor=SYSTEM, name=name)
    barrier, outcomes = threading.Barrier(2), []

    def lower(name: str) -> None:
        barrier.wait()
        try:
            principals.update_principal(actor=SYSTEM, name=name, level=PrincipalLevel.READ)
            outcomes.append("lowered")
        except LastAdministrator:
            outcomes.append("stays")
        finally:
            connection.close()

    threads = [threading.Thread(target=lower, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lowered", "stays"]
    assert Principal.objects.filter(level=PrincipalLevel.ADMIN).count() == 1
    assert AuditEvent.objects.filter(action="principal.update").count() == 1


@pytest.mark.django_db
def test_a_key_of_an_existing_account_has_the_requested_level():
    make_root()
    Principal.objects.create(name="etl", kind="service", level=PrincipalLevel.ADMIN)
    with pytest.raises(InvalidInput, match="with level admin"), unchanged():
        api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.READ)
    key, _ = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.ADMIN)
    assert key.principal.name == "etl"


def test_the_last_administrator_is_not_removed_by_deactivating_a_group(db):
    """Members have the level of a group while it is active."""
    principals.create_principal(
        actor=SYSTEM, name="group:admins", kind=PrincipalKind.GROUP, level=PrincipalLevel.ADMIN
    )
    key, _ = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.READ)
    principals.add_member(actor=SYSTEM, group="group:admins", member="etl")
    assert list(principals.administrators()) == [key.principal]
    with unchanged(), pytest.raises(LastAdministrator):
        principals.update_principal(actor=SYSTEM, name="group:admins", is_active=False)


def test_a_new_principal_has_no_description_issuer_and_privileges(db):
    row = principals.create_principal(actor=SYSTEM, name="etl", kind=PrincipalKind.SERVICE)
    row.refresh_from_db()
    assert (row.level, row.description, row.issuer, row.subject) == ("granted", "", "", "")
    assert (row.is_active, row.user, row.groups.count()) == (True, None, 0)


@shared_cases(
    "name",
    [
        "ada\u034f",
        "\uff41da",
        "ada\ufe0f",
        "a\u200bda",
        "ada\u3164",
        "e\u0301ve",
        "\ufb01lip",
        "\u202eada",
        "\u0430da",
        "ada.m\u03bfore",
    ],
)
def test_names_that_look_like_others_are_refused(db, name):
    with unchanged(), pytest.raises(InvalidInput):
        principals.create_principal(actor=SYSTEM, name=f"user:{name}", kind=PrincipalKind.USER)


def test_names_in_other_scripts_are_accepted(db):
    for name in ("user:Ève", "user:Ольга", "user:Ольга (IT)", "user:田中", "user:राम"):
        assert principals.check_name(name, PrincipalKind.USER) == name
