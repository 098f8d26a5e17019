"""Replaced objects: the trail, events and history record that the former object was dropped."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.errors import Protected
from catalog.models import AuditEvent, Namespace, Table, TrashItem
from catalog.services.engine.commit import commit
from catalog.services.events import feed as event_feed
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance.ledger import registration_operations
from catalog.services.recovery import undrop
from catalog.services.tables import namespace_operations, table_operations
from tests.catalog.services.audit.test_history import now, present, state
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    unchanged,
    wait_for_readers,
)

pytestmark = pytest.mark.django_db(transaction=True)
T = ("ws", "t")


@pytest.fixture(autouse=True)
def _catalog(transactional_db, warehouse, settings):
    settings.MONODON_TRASH_SECONDS = 3600
    make_root()
    make_namespace("ws")


def register_lance(warehouse: Path) -> None:
    operation = registration_operations.RegisterTable(
        table=T, location=str(warehouse / "elsewhere"), overwrite=True
    )
    commit([operation], actor=SYSTEM)


def register_iceberg(warehouse: Path) -> None:
    other = make_iceberg_table("ws", "other")
    commit(
        [table_operations.DeregisterTable(table=("ws", "other"), format="iceberg")], actor=SYSTEM
    )
    iceberg_commits.register_table(
        actor=SYSTEM, table=T, metadata_location=other.metadata_location, overwrite=True
    )


def create_lance(warehouse: Path) -> None:
    data = pa.table({"id": [1]}).to_reader()
    lance_data.create_table(actor=SYSTEM, table=T, data=data, mode="overwrite")


def overwrite_namespace(warehouse: Path) -> None:
    operation = namespace_operations.CreateNamespace(
        namespace=("ws",), mode=namespace_operations.CreateMode.OVERWRITE
    )
    commit([operation], actor=SYSTEM)


REPLACED: dict[str, tuple[Callable[..., object], Callable[[Path], None], str]] = {
    "register_lance": (make_lance_table, register_lance, "table.deregister"),
    "register_iceberg": (
        lambda table: make_iceberg_table(*table),
        register_iceberg,
        "table.deregister",
    ),
    "create_lance": (make_lance_table, create_lance, "table.drop"),
    "overwrite_namespace": (make_lance_table, overwrite_namespace, "namespace.drop"),
}
each_replacement = pytest.mark.parametrize("replacement", REPLACED)


@each_replacement
def test_overwrite_emits_a_drop_event(warehouse, replacement):
    make, replace, action = REPLACED[replacement]
    make(T)
    old = Table.objects.named(T).get()
    wait_for_readers()
    position = event_feed.newest_position()
    replace(warehouse)
    old.refresh_from_db()
    event = AuditEvent.objects.get(action=action, table_uuid=old.uuid)
    assert (event.target, event.before["location"], event.after) == ("ws.t", old.location, None)
    assert event.outcome == "done"
    # In the transaction of the replacement, and before it.
    last = AuditEvent.objects.filter(transaction_id=event.transaction_id).latest("pk")
    assert last.after is not None
    assert last.table_uuid != old.uuid
    assert event.pk < last.pk
    # No other event concerns the former object, and no creation looks like a drop.
    wait_for_readers()
    feed = event_feed.read(actor=SYSTEM, after=position).rows
    assert [row.action for row in feed if row.table_uuid == old.uuid] == [action]
    assert not [row for row in feed if row.action.endswith(".create") and row.after is None]


def test_overwrite_of_a_namespace_emits_a_drop_event(warehouse):
    overwrite_namespace(warehouse)
    actions = AuditEvent.objects.filter(target="ws").order_by("pk").values_list("action", "after")
    assert [action for action, _ in actions][-2:] == ["namespace.drop", "namespace.create"]
    assert list(actions)[-2][1] is None


@each_replacement
@pytest.mark.parametrize("records_before", [True, False])
def test_history_is_right_before_and_after_a_replacement(
    warehouse, replacement, records_before, monkeypatch
):
    """Also when a replaced object is restored under another name, whether or not that event
    contains the state before, as former events did not."""
    make, replace, _ = REPLACED[replacement]
    moments, pictures = [now()], [present()]

    def note() -> None:
        moments.append(now())
        pictures.append(present())

    make(T)
    old = Table.objects.named(T).get()
    note()
    replace(warehouse)
    note()
    make_namespace("ws2")
    note()
    item = TrashItem.objects.get(table=old)
    if not records_before:
        monkeypatch.setattr(
            "catalog.services.recovery.undrop_operations._audit_before", lambda row: None
        )
    undrop.undrop(actor=SYSTEM, item=item.pk, new=("ws2", "back"))
    note()
    assert old.pk in pictures[1][1]
    assert [old.pk in tables for _, tables in pictures] == [False, True, False, False, True]
    assert [state(moment) for moment in moments] == pictures


@each_replacement
def test_a_refused_overwrite_emits_no_drop_event(warehouse, replacement):
    make, replace, _ = REPLACED[replacement]
    protected = make(T)
    undrop.set_table_protection(actor=SYSTEM, table=T, is_protected=True)
    if replacement == "register_iceberg":
        # That of another table would be refused before, since its location is taken.
        location = protected.metadata_location

        def replace(_warehouse: Path) -> None:
            iceberg_commits.register_table(
                actor=SYSTEM, table=T, metadata_location=location, overwrite=True
            )

    with pytest.raises(Protected), unchanged():
        replace(warehouse)
    assert Namespace.objects.named(("ws",)).exists()
