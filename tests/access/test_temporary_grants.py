"""Privileges with an end cannot be turned into privileges without one, or with a later one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from catalog import access
from catalog.access import On
from catalog.errors import InvalidInput, PermissionDenied
from catalog.models import AuditEvent, Grant, Namespace, Principal, PrincipalKind, Table, TrashItem
from catalog.privileges import NOTHING, Privilege
from catalog.services.access import grant_operations, grants
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.governance import access_requests, annotations, approvals
from catalog.services.recovery import undrop, undrop_operations
from catalog.services.tables import table_operations
from catalog.services.tables.namespace_operations import CreateNamespace, DropNamespace
from tests.factories import make_namespace, make_root, make_table, unchanged

PROD, USERS, OWN = On.namespace(("prod",)), On.table(("prod", "users")), On.namespace(("own",))
SOON = datetime(2100, 1, 1, tzinfo=UTC)
LATER = SOON + timedelta(days=1)


@pytest.fixture(autouse=True)
def _catalog(db, settings, tmp_path):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    make_table("prod", "users")
    make_table("own", "mine")
    for name in ("ada", "bob"):
        Principal.objects.create(name=name, kind=PrincipalKind.SERVICE)
    Namespace.objects.filter(name="own").update(owner="ada")


def actor(name: str = "ada") -> access.Principal:
    principal = access.named(name)
    assert principal is not None
    return principal


def give(privileges: Privilege, on: On = PROD, name: str = "ada", end: datetime | None = SOON):
    grants.set_grant(
        actor=access.SYSTEM, on=on, principal=name, privileges=privileges, expires_at=end
    )


def refused(message: str, call) -> None:
    with unchanged(), pytest.raises(PermissionDenied, match=message):
        call()


@pytest.mark.parametrize("on", [PROD, USERS])
@pytest.mark.parametrize("to", ["ada", "bob"])
@pytest.mark.parametrize("end", [None, LATER])
def test_nobody_grants_a_privilege_for_longer_than_they_hold_it(on, to, end):
    give(Privilege.READ | Privilege.GRANT)
    Principal.objects.create(name="carol", kind=PrincipalKind.SERVICE)
    give(Privilege.READ | Privilege.GRANT, name="carol", end=None)
    refused(
        "for a limited time",
        lambda: grants.set_grant(
            actor=actor(), on=on, principal=to, privileges=Privilege.READ, expires_at=end
        ),
    )


def test_only_privileges_without_an_end_are_lasting():
    row = Namespace.objects.get(name="prod")
    assert not access.holds_lasting(actor(), Privilege.READ, row)
    give(Privilege.READ)
    give(Privilege.READ, OWN, end=None)
    assert not access.holds_lasting(actor(), Privilege.READ, row)
    table = Table.objects.get(name="users")
    assert not access.holds_lasting(actor(), Privilege.READ, table)
    assert access.holds_lasting(replace(actor(), tables=(table.pk,)), Privilege.GRANT, table)
    # An object that the same commit creates.
    new = Table(namespace=Namespace.objects.get(name="own"), name="new")
    assert access.holds_lasting(actor(), Privilege.GRANT, new)
    give(Privilege.READ, end=None)
    assert access.holds_lasting(actor(), Privilege.READ, row)
    assert not access.holds_lasting(actor(), Privilege.WRITE, row)


def test_until_the_own_end_privileges_may_be_granted_shortened_and_revoked():
    give(Privilege.READ | Privilege.GRANT)

    def set_grant(privileges: Privilege, end: datetime | None) -> None:
        grants.set_grant(
            actor=actor(), on=PROD, principal="bob", privileges=privileges, expires_at=end
        )

    set_grant(Privilege.READ, SOON)
    give(Privilege.READ, name="bob", end=None)
    set_grant(Privilege.READ, SOON)
    assert Grant.objects.get(principal__name="bob").expires_at == SOON
    set_grant(NOTHING, None)
    assert not Grant.objects.filter(principal__name="bob").exists()


def test_privileges_without_an_end_from_any_source_may_be_granted_without_one():
    group = Principal.objects.create(name="group:readers", kind=PrincipalKind.GROUP)
    Principal.objects.get(name="ada").groups.add(group)
    give(Privilege.READ | Privilege.GRANT)
    give(Privilege.READ, On.namespace(()), "group:readers", end=None)
    grants.set_grant(actor=actor(), on=USERS, principal="bob", privileges=Privilege.READ)
    assert access.holds(actor("bob"), Privilege.READ, USERS)
    refused(
        "holds grant on 'prod.users' for a limited time",
        lambda: grants.set_grant(
            actor=actor(), on=USERS, principal="bob", privileges=Privilege.READ | Privilege.GRANT
        ),
    )


def test_a_grant_that_was_shortened_meanwhile_is_not_prolonged_by_its_holder():
    give(Privilege.ALL, USERS)
    refused(
        "for a limited time",
        lambda: grants.set_grant(
            actor=actor(), on=USERS, principal="ada", privileges=Privilege.ALL, expires_at=None
        ),
    )


@pytest.mark.parametrize("is_table", [True, False])
@pytest.mark.parametrize("owner", ["ada", "bob"])
def test_a_temporary_administrator_of_an_object_sets_no_owner(is_table, owner):
    give(Privilege.ALL)
    changes = annotations.Changes(owner=owner)
    refused(
        "for a limited time",
        lambda: (
            annotations.annotate_table(actor=actor(), table=("prod", "users"), changes=changes)
            if is_table
            else annotations.annotate_namespace(actor=actor(), namespace=("prod",), changes=changes)
        ),
    )
    give(Privilege.ALL, end=None)
    annotations.annotate_table(actor=actor(), table=("prod", "users"), changes=changes)
    assert Table.objects.get(name="users").owner == owner


def test_a_temporary_administrator_may_remove_an_owner():
    Table.objects.filter(name="users").update(owner="bob")
    give(Privilege.ALL)
    changes = annotations.Changes(owner="")
    annotations.annotate_table(actor=actor(), table=("prod", "users"), changes=changes)
    assert Table.objects.get(name="users").owner == ""


def test_a_move_does_not_prolong_the_privileges_on_a_table():
    give(Privilege.ALL)
    rename = table_operations.RenameTable(table=("prod", "users"), new=("own", "users"))
    refused("would hold more on it", lambda: commit([rename], actor=actor()))
    give(Privilege.ALL, end=None)
    commit([rename], actor=actor())
    assert Table.objects.get(name="users").identifier == ("own", "users")


def test_a_move_does_not_prolong_privileges_to_a_later_end():
    make_namespace("later")
    give(Privilege.ALL)
    give(Privilege.ALL, On.namespace(("later",)), end=LATER)
    rename = table_operations.RenameTable(table=("prod", "users"), new=("later", "users"))
    refused("would hold more on it", lambda: commit([rename], actor=actor()))


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_move_gives_a_table_to_nobody_for_longer_than_the_mover_manages_it(is_dropped):
    """Whoever holds privileges on the new namespace would have them on the table, also after the end."""
    give(Privilege.ALL)
    commit([CreateNamespace(namespace=("prod", "new"), properties={})], actor=actor())
    annotations.annotate_namespace(
        actor=actor(), namespace=("prod", "new"), changes=annotations.Changes(owner="bob")
    )
    new = ("prod", "new", "users")
    move: Operation = table_operations.RenameTable(table=("prod", "users"), new=new)
    if is_dropped:
        commit([table_operations.DropTable(table=("prod", "users"))], actor=actor())
        item = undrop.last_dropped(actor=actor(), name=("prod", "users")).pk
        move = undrop_operations.UndropTable(item=item, new=new)
    refused("for a limited time", lambda: commit([move], actor=actor()))
    give(Privilege.ALL, end=None)
    commit([move], actor=actor())
    assert access.holds(actor("bob"), Privilege.ALL, On.table(new))


def test_a_namespace_is_not_restored_elsewhere_by_its_temporary_manager(settings):
    settings.MONODON_TRASH_SECONDS = 3600
    make_namespace("new")
    Namespace.objects.filter(name="new").update(owner="bob")
    for on in (PROD, On.namespace(("new",))):
        give(Privilege.ALL, on)
    give(Privilege.CREATE, On.namespace(()))
    commit([DropNamespace(namespace=("prod",), cascade=True)], actor=actor())
    item = TrashItem.objects.get(namespace__name="prod").pk
    elsewhere = undrop_operations.UndropNamespace(item=item, new=("new", "prod"))
    refused("for a limited time", lambda: commit([elsewhere], actor=actor()))
    commit([undrop_operations.UndropNamespace(item=item)], actor=actor())


def test_a_temporary_manager_renames_a_table_within_its_namespace():
    give(Privilege.ALL)
    commit(
        [table_operations.RenameTable(table=("prod", "users"), new=("prod", "people"))],
        actor=actor(),
    )
    assert Table.objects.present().filter(name="people").exists()


def test_an_undrop_does_not_prolong_privileges_to_a_later_end():
    make_namespace("later")
    give(Privilege.ALL)
    give(Privilege.ALL, On.namespace(("later",)), end=LATER)
    commit([table_operations.DropTable(table=("prod", "users"))], actor=actor())
    item = undrop.last_dropped(actor=actor(), name=("prod", "users")).pk
    refused(
        "would hold more on it",
        lambda: undrop.undrop(actor=actor(), item=item, new=("later", "users")),
    )


def test_an_undrop_does_not_prolong_the_privileges_on_a_table():
    give(Privilege.ALL)
    commit([table_operations.DropTable(table=("prod", "users"))], actor=actor())
    item = undrop.last_dropped(actor=actor(), name=("prod", "users")).pk
    refused(
        "would hold more on it",
        lambda: undrop.undrop(actor=actor(), item=item, new=("own", "users")),
    )
    undrop.undrop(actor=actor(), item=item)


def test_an_approval_grants_nothing_for_longer_than_the_approver_holds_it():
    give(Privilege.MANAGE | Privilege.GRANT, end=timezone.now() + timedelta(days=1))
    request = access_requests.request_access(
        actor=actor("bob"), on=USERS, privileges=Privilege.READ, reason="reports"
    ).pk
    refused("for a limited time", lambda: approvals.approve(actor=actor(), request=request))
    refused("for a limited time", lambda: approvals.approve(actor=actor(), request=request, days=9))
    assert not Grant.objects.filter(principal__name="bob").exists()


def test_owners_and_administrators_grant_without_an_end():
    give(Privilege.ALL, OWN)  # besides the ownership
    grants.set_grant(actor=actor(), on=OWN, principal="bob", privileges=Privilege.ALL)
    Principal.objects.filter(name="ada").update(level="admin")
    grants.set_grant(actor=actor(), on=PROD, principal="bob", privileges=Privilege.ALL)
    assert access.held_on(actor("bob"), USERS) == Privilege.ALL


def test_an_expired_grant_does_not_prevent_another_grant():
    """Until the periodic task deletes it, the expired grant permits nothing, and may have been of any privilege."""
    give(Privilege.READ | Privilege.GRANT, end=None)
    give(Privilege.ALL, name="bob")
    Grant.objects.filter(principal__name="bob").update(
        expires_at=timezone.now() - timedelta(minutes=1)
    )
    set_grant = grant_operations.SetGrant(on=PROD, principal="bob", privileges=Privilege.READ)
    change = commit([set_grant], actor=actor()).results[0]
    assert change.withdrawn == NOTHING
    assert access.held_on(actor("bob"), USERS) == Privilege.READ | Privilege.BROWSE
    _, expired, granted = AuditEvent.objects.filter(
        action__startswith="grant.", before__principal="bob"
    ).order_by("pk")
    assert (expired.action, expired.actor) == ("grant.expire", "system")
    assert "grant" in expired.before["privileges"]
    assert (granted.action, granted.actor) == ("grant.set", "ada")
    assert granted.before == {"principal": "bob", "privileges": []}


def test_an_expired_grant_is_revoked_without_its_privileges():
    give(Privilege.READ | Privilege.GRANT, end=None)
    give(Privilege.ALL, name="bob")
    Grant.objects.filter(principal__name="bob").update(
        expires_at=timezone.now() - timedelta(minutes=1)
    )
    grants.set_grant(actor=actor(), on=PROD, principal="bob", privileges=NOTHING)
    assert not Grant.objects.valid().filter(principal__name="bob").exists()


@pytest.mark.parametrize("days", [0, -1, 3651, 10**9])
def test_access_is_requested_and_granted_for_at_most_ten_years(days):
    def request(days: int | None) -> int:
        return access_requests.request_access(
            actor=actor("bob"), on=USERS, privileges=Privilege.READ, reason="reports", days=days
        ).pk

    with unchanged(), pytest.raises(InvalidInput, match="granted for 1 to 3650 days"):
        request(days)
    pending = request(None)
    with unchanged(), pytest.raises(InvalidInput, match="granted for 1 to 3650 days"):
        approvals.approve(actor=access.SYSTEM, request=pending, days=days)
