"""Moves do not bypass the rules of the source and the target."""

from dataclasses import replace

import pytest

from catalog import access
from catalog.access import SYSTEM, On
from catalog.errors import LocationTaken, PermissionDenied
from catalog.models import PrincipalKind, PrincipalLevel, Table, TableFormat, TrashItem
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys, grant_operations, principals
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.events import feed as event_feed
from catalog.services.governance import annotation_operations
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.commits import commit_table
from catalog.services.lance.ledger.registration_operations import DeclareTable, RegisterTable
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.recovery import rule_operations, undrop_operations
from catalog.services.tables import table_operations
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    unchanged,
    wait_for_readers,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]
T = ("a", "t")


@pytest.fixture
def etl() -> access.Principal:
    """A principal that manages ``a`` and owns ``mine``."""
    make_root()
    make_lance_table(T)
    make_namespace("mine")
    principals.create_principal(actor=SYSTEM, name="etl", kind=PrincipalKind.SERVICE)
    grant = grant_operations.SetGrant(
        on=On.namespace(("a",)), principal="etl", privileges=Privilege.MANAGE
    )
    own = annotation_operations.SetOwner(target=("mine",), is_table=False, owner="etl")
    commit([grant, own], actor=SYSTEM)
    principal = access.named("etl")
    assert principal is not None
    return principal


def test_moving_a_table_home_does_not_grant_ownership(etl):
    move = table_operations.RenameTable(table=T, new=("mine", "t"))
    with unchanged(), pytest.raises(PermissionDenied, match="would hold more on it: grant"):
        commit([move], actor=etl)
    commit([table_operations.RenameTable(table=T, new=("a", "u"))], actor=etl)
    commit([table_operations.DropTable(table=("a", "u"))], actor=etl)
    item = TrashItem.objects.get().pk
    with unchanged(), pytest.raises(PermissionDenied, match="would hold more"):
        commit([undrop_operations.UndropTable(item=item, new=("mine", "t"))], actor=etl)
    commit([undrop_operations.UndropTable(item=item)], actor=etl)
    commit([table_operations.RenameTable(table=("a", "u"), new=("mine", "t"))], actor=SYSTEM)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_limited_key_does_not_hide_what_a_move_would_grant(etl, is_dropped):
    """Its principal would hold more on the table with another key."""
    limited = replace(etl, ceiling=closure(Privilege.MANAGE))
    move: Operation = table_operations.RenameTable(table=T, new=("mine", "t"))
    if is_dropped:
        commit([table_operations.DropTable(table=T)], actor=limited)
        move = undrop_operations.UndropTable(item=TrashItem.objects.get().pk, new=("mine", "t"))
    with unchanged(), pytest.raises(PermissionDenied, match="would hold more on it: grant"):
        commit([move], actor=limited)
    own = annotation_operations.SetOwner(target=("a",), is_table=False, owner="etl")
    commit([own], actor=SYSTEM)
    commit([move], actor=limited)


def test_moves_do_not_bypass_required_approvals(etl):
    rule = rule_operations.SetApprovalRule(namespace=("a",), actions=["purge"])
    commit([rule], actor=SYSTEM)
    with unchanged(), pytest.raises(PermissionDenied, match="takes a second person in 'a'"):
        commit([table_operations.RenameTable(table=T, new=("mine", "t"))], actor=SYSTEM)
    commit([table_operations.DropTable(table=T, purge=False)], actor=SYSTEM)
    item = TrashItem.objects.get().pk
    with unchanged(), pytest.raises(PermissionDenied, match="takes a second person in 'a'"):
        commit([undrop_operations.UndropTable(item=item, new=("mine", "t"))], actor=SYSTEM)
    commit([rule_operations.SetApprovalRule(namespace=("mine",), actions=["purge"])], actor=SYSTEM)
    commit([undrop_operations.UndropTable(item=item, new=("mine", "t"))], actor=SYSTEM)


@pytest.mark.parametrize("is_batch", [False, True])
def test_registering_again_does_not_bypass_required_approvals(etl, is_batch):
    """Deregistered and registered elsewhere, a table could be purged there without a second person."""
    rule = rule_operations.SetApprovalRule(namespace=("a",), actions=["purge"])
    commit([rule], actor=SYSTEM)
    location = Table.objects.named(T).get().location
    deregister = table_operations.DeregisterTable(table=T)

    def register(*names: str) -> RegisterTable:
        return RegisterTable(table=names, location=location)

    if not is_batch:
        commit([deregister], actor=SYSTEM)
    before = [deregister] if is_batch else []
    with unchanged(), pytest.raises(PermissionDenied, match="takes a second person in 'a'"):
        commit([*before, register("mine", "t")], actor=SYSTEM)
    commit([*before, register("a", "u")], actor=SYSTEM)
    commit([rule_operations.SetApprovalRule(namespace=("mine",), actions=["purge"])], actor=SYSTEM)
    commit([table_operations.DeregisterTable(table=("a", "u"))], actor=SYSTEM)
    commit([register("mine", "t")], actor=SYSTEM)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_naming_directories_does_not_bypass_required_approvals(etl, warehouse, is_dropped):
    """A table that gets another's directory, or one in it, removes the files there with its own purge."""
    shared = f"{warehouse}/shared"
    named = {"write.data.path": f"file://{shared}"}
    make_iceberg_table("a", "guarded", properties=named)
    make_iceberg_table("mine", "t")
    location = Table.objects.named(("a", "guarded")).get().location
    commit([rule_operations.SetApprovalRule(namespace=("a",), actions=["purge"])], actor=SYSTEM)
    if is_dropped:
        drop = table_operations.DropTable(
            table=("a", "guarded"), purge=False, format=TableFormat.ICEBERG
        )
        commit([drop], actor=SYSTEM)

    def name(*table: str, path: str) -> None:
        update = {"action": "set-properties", "updates": {"write.data.path": f"file://{path}"}}
        change = TableChange(table=table, requirements=[], updates=[update])
        commit_table(actor=SYSTEM, change=change)

    directories = [shared, f"{shared}/deep"]
    if is_dropped:
        directories += [f"{location}/data", location]
    for directory in directories:
        with unchanged(), pytest.raises(PermissionDenied, match="takes a second person in 'a'"):
            name("mine", "t", path=directory)
    for at in (shared, f"{shared}/deep", f"{warehouse}/shared/deep/down"):
        with unchanged(), pytest.raises((PermissionDenied, LocationTaken)):
            commit([DeclareTable(table=("mine", "u"), location=at)], actor=SYSTEM)
    make_iceberg_table("a", "other")
    name("a", "other", path=directories[-1])


def test_a_job_writes_only_to_its_own_table(etl, monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_lance_table(("a", "other"))
    api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.GRANTED)
    started = maintenance_scheduler.start(actor=etl, table=T, kind="clean_up")
    job = jobs.take(started.pk)
    assert job is not None
    acts = jobs.principal(job)
    access.require(acts, Privilege.ALL, On.table(T))
    access.require(acts, Privilege.READ, On.table(("a", "other")))
    for table in (("a", "other"), ("mine", "x")):
        assert not access.holds(acts, Privilege.WRITE, On.table(table))


def test_browsers_do_not_see_the_content_of_changes(etl):
    wait_for_readers()
    start = event_feed.newest_position()
    commit([table_operations.RenameTable(table=T, new=("a", "u"))], actor=SYSTEM)
    grant = grant_operations.SetGrant(
        on=On.table(("a", "u")), principal="etl", privileges=Privilege.READ
    )
    commit([grant], actor=SYSTEM)
    wait_for_readers()
    browses = replace(etl, ceiling=Privilege.BROWSE)
    (row,) = event_feed.read(actor=browses, after=start).rows
    assert (row.action, row.before, row.after) == ("table.rename", None, None)
    assert len(event_feed.read(actor=SYSTEM, after=start).rows) == 2
