"""The access that clients keep with credentials that they hold."""

from datetime import UTC, datetime, timedelta

import pytest

from catalog.access import SYSTEM, Principal
from catalog.models import Namespace, PrincipalKind, Table
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege, closure
from catalog.services.audit import issued_credentials
from catalog.services.audit.issued_credentials import RemainingAccess
from catalog.services.engine import audit_records
from tests.factories import make_table

# Far enough away that they stay in the past and in the future.
PAST, SOON, LATER = (datetime(year, 6, 1, 12, 30, 45, tzinfo=UTC) for year in (2020, 2090, 2095))


@pytest.fixture
def table(db) -> Table:
    for name in ("user:ada", "user:bob"):
        PrincipalRow.objects.create(name=name, kind=PrincipalKind.USER)
    group = PrincipalRow.objects.create(name="group:team", kind=PrincipalKind.GROUP)
    group.members.set(PrincipalRow.objects.filter(kind=PrincipalKind.USER))
    make_table("other", "u")
    return make_table("prod", "t")


def issued(
    principal: str,
    table: Table,
    until: datetime,
    client_access: str = "sts",
    profile: str = "lake",
) -> None:
    audit_records.record(
        Principal(principal),
        "credentials.issue",
        str(table),
        table=table,
        after={
            "client_access": client_access,
            "profile": profile,
            "until": until.isoformat(timespec="seconds"),
        },
    )


def remaining_access(
    principal: str, on: Namespace | Table | None = None, actor: Principal = SYSTEM
) -> RemainingAccess:
    return issued_credentials.remaining_access(principal, on, actor=actor)


def test_the_last_end_counts(table: Table):
    other = Table.objects.get(name="u")
    issued("user:ada", table, LATER)
    issued("user:ada", table, SOON)
    issued("user:bob", other, LATER + timedelta(hours=1))
    issued("user:bob", table, PAST)
    assert remaining_access("user:ada") == RemainingAccess(LATER, ())
    assert remaining_access("user:ada", table).until == LATER
    assert remaining_access("user:ada", table.namespace).until == LATER
    assert remaining_access("user:ada", other) == RemainingAccess(None, ())
    assert remaining_access("user:bob", table) == RemainingAccess(None, ())
    assert str(remaining_access("user:bob", table)) == ""
    assert remaining_access("group:team", table).until == LATER
    root = Namespace.objects.get(path=[])
    assert remaining_access("group:team", root).until == LATER + timedelta(hours=1)


def test_a_key_of_a_profile_has_no_end(table: Table):
    issued("user:ada", table, PAST, "static")
    for on in (None, table, table.namespace):
        remaining = remaining_access("user:ada", on)
        assert remaining == RemainingAccess(None, ("lake",))
        assert str(remaining) == (
            "Clients that got the key of storage profile 'lake' keep access until it is replaced."
        )
    assert remaining_access("group:team", table).profiles == ("lake",)
    assert remaining_access("user:ada", Table.objects.get(name="u")) == RemainingAccess()


def test_profiles_whose_key_the_principal_did_not_get_are_not_named(table: Table, make_profile):
    make_profile(name="lake", roots=["s3://lake/root"], client_access="static")
    Table.objects.filter(pk=table.pk).update(location="s3://lake/root/t")
    issued("user:bob", table, LATER, "static")
    assert remaining_access("user:ada") == RemainingAccess()


def test_only_administrators_get_the_names_of_profiles(table: Table):
    issued("user:ada", table, LATER, "static")
    remaining = remaining_access("user:ada", actor=Principal("user:ada", closure(Privilege.MANAGE)))
    assert remaining == RemainingAccess(has_hidden_profiles=True)
    assert str(remaining) == (
        "Clients that got the key of a storage profile keep access until it is replaced."
    )


def test_only_the_newest_events_are_read(table: Table, monkeypatch):
    monkeypatch.setattr(issued_credentials, "_MAX_EVENTS", 3)
    issued("user:ada", table, LATER + timedelta(hours=1))
    issued("user:ada", table, LATER, "static")
    assert remaining_access("user:ada").is_complete
    issued("user:ada", table, SOON)
    audit_records.record(Principal("user:ada"), "tag.create", str(table), table=table)
    remaining = remaining_access("user:ada")
    assert remaining == RemainingAccess(SOON, ("lake",), is_complete=False)
    assert f"keep access at least until {SOON:%Y-%m-%d %H:%M:%S} UTC." in remaining.text
    assert remaining.text.endswith("Only the newest events were examined for credentials.")


def test_the_events_of_a_limited_number_of_members_are_read(table: Table, monkeypatch):
    monkeypatch.setattr(issued_credentials, "_MAX_MEMBERS", 1)
    issued("user:ada", table, SOON)
    issued("user:bob", table, LATER)
    assert remaining_access("group:team") == RemainingAccess(SOON, is_complete=False)
