"""The event stream contains every commit once and in order."""

import threading
from itertools import pairwise
from typing import Any

import pytest
from django.db import connections, transaction

from catalog import access, models
from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidInput, NamespaceNotFound
from catalog.models import AuditEvent, Grant, Namespace
from catalog.privileges import Privilege
from catalog.services.engine import audit_records
from catalog.services.engine.commit import commit
from catalog.services.events import feed as event_feed
from catalog.services.lance.ledger import registration_operations
from catalog.services.tables import table_operations
from tests.cases import shared_cases
from tests.factories import make_namespace, make_root, make_table, wait_for_readers

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]


def read(**options: Any) -> event_feed.Page:
    wait_for_readers()
    return event_feed.read(**{"actor": SYSTEM, **options})


def newest_position() -> event_feed.Position:
    wait_for_readers()
    return event_feed.newest_position()


def types(page: event_feed.Page) -> list[str]:
    return [event_feed.as_cloud_event(row)["type"] for row in page.rows]


def test_a_reader_gets_events_after_its_position():
    make_root()
    start = newest_position()
    make_namespace("ws")
    commit([registration_operations.DeclareTable(table=("ws", "t"))], actor=SYSTEM)
    page = read(after=start)
    assert types(page) == ["monodon.namespace.create", "monodon.table.declare"]
    assert page.is_last
    again = read(after=page.position)
    assert (again.rows, again.is_last) == ([], True)
    first = read(after=start, limit=1)
    assert (len(first.rows), first.is_last) == (1, False)
    assert types(read(after=first.position)) == ["monodon.table.declare"]


def test_an_event_describes_its_commit():
    make_root()
    make_namespace("ws")
    start = newest_position()
    result = commit([registration_operations.DeclareTable(table=("ws", "t"))], actor=SYSTEM)
    (row,) = read(after=start).rows
    event = event_feed.as_cloud_event(row)
    assert event["specversion"] == "1.0"
    assert event["id"] == f"{row.xid}-{row.pk}"
    assert event["subject"] == "ws.t"
    assert event["time"].endswith("Z")
    assert event["data"]["transaction_id"] == result.id
    assert event["data"]["actor"] == "system"
    (lines,) = event_feed.as_stream([row])
    assert lines.startswith(f"id: {event['id']}\nevent: monodon.table.declare\ndata: {{")
    assert lines.endswith("}\n\n")
    assert lines.count("\n") == 4


def test_late_commits_appear_late_and_are_not_lost():
    make_root()
    start = newest_position()
    began, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            audit_records.record(SYSTEM, "slow.one", "x")  # its transaction has an id now
            began.set()
            may_end.wait(30)
        connections.close_all()

    thread = threading.Thread(target=slow)
    thread.start()
    assert began.wait(30)
    audit_records.record(SYSTEM, "quick.one", "x")
    page = event_feed.read(actor=SYSTEM, after=start)
    assert types(page) == []  # after the slow transaction, which is still open
    may_end.set()
    thread.join()
    assert types(read(after=page.position)) == [
        "monodon.slow.one",
        "monodon.quick.one",
    ]


def test_rollbacks_and_refusals_emit_no_event():
    make_root()
    start = newest_position()
    with transaction.atomic():
        audit_records.record(SYSTEM, "never.was", "x")
        transaction.set_rollback(True)
    AuditEvent.objects.create(actor="ada", action="table.drop", target="x", outcome="refused")
    audit_records.record(SYSTEM, "it.was", "x")
    assert types(read(after=start)) == ["monodon.it.was"]


def test_events_are_filtered_by_type_and_namespace():
    make_root()
    make_namespace("ws")
    make_namespace("ws2")
    start = newest_position()
    make_namespace("ws", "inner")
    make_table("ws", "inner", "t")
    make_table("ws2", "t")
    commit([table_operations.RenameTable(table=("ws2", "t"), new=("ws2", "u"))], actor=SYSTEM)

    def matching(*patterns: str, namespace: tuple[str, ...] = ()) -> list[str]:
        choice = event_feed.EventFilter(types=patterns, namespace=namespace)
        rows = read(after=start, event_filter=choice).rows
        return [f"{row.action} {row.target}" for row in rows]

    assert matching("table.rename") == ["table.rename ws2.u"]
    assert matching("namespace.*") == ["namespace.create ws.inner"]
    inside = matching(namespace=("ws",))
    assert inside[0] == "namespace.create ws.inner"
    assert {line.split(" ")[1] for line in inside} == {"ws.inner", "ws.inner.t"}
    assert matching("table.*", namespace=("ws", "inner"))
    with pytest.raises(NamespaceNotFound):
        matching(namespace=("nowhere",))


@pytest.mark.parametrize("pattern", ["", "a b", "x" * 101, "table.[ab]", "*'; --"])
def test_invalid_types_are_refused(pattern):
    with pytest.raises(InvalidInput, match="not an event type"):
        event_feed.EventFilter(types=(pattern,))


@shared_cases("text", ["", "1", "-", "1-", "a-b", "1-2-3", "-1-2", "9" * 30 + "-1"])
def test_invalid_positions_are_refused(text):
    with pytest.raises(InvalidInput, match="not a position"):
        event_feed.Position.parse(text)


def test_readers_without_grants_get_no_events():
    make_root()
    start = newest_position()
    make_table("ws", "t")
    nobody = Principal("nobody")
    page = read(actor=nobody, after=start)
    assert (page.rows, page.is_last) == ([], True)
    assert page.position > start


def test_former_names_in_hidden_namespaces_are_not_in_events():
    make_root()
    table = make_table("secret", "moved")
    make_namespace("open")
    names = [("secret", "moved"), ("open", "moved"), ("open", "last")]
    for old, new in pairwise(names):
        commit([table_operations.RenameTable(table=old, new=new)], actor=SYSTEM)
    row = models.Principal.objects.create(name="user:bob", kind="user")
    where = Namespace.objects.get(name="open")
    Grant.objects.create(principal=row, namespace=where, mask=Privilege.BROWSE)
    page = read(actor=access.of_row(row), after=event_feed.BEGINNING)
    subjects = {event["subject"] for event in map(event_feed.as_cloud_event, page.rows)}
    assert subjects == {"open.moved", "open.last"}
    assert all(event.table_uuid == table.uuid for event in page.rows)


def test_readers_continue_after_a_restore_into_another_server():
    make_root()
    audit_records.record(SYSTEM, "read.before", "x")
    last = AuditEvent.objects.latest("pk").pk
    audit_records.record(SYSTEM, "written.since", "x")
    ahead = event_feed.Position(1 << 60, last)  # the transaction id on the other server
    page = read(after=ahead)
    assert types(page) == ["monodon.written.since"]
    assert page.position < ahead
    nothing = read(after=event_feed.Position(1 << 60, last + 1))
    assert (nothing.rows, nothing.is_last) == ([], True)
    assert nothing.position < ahead
    audit_records.record(SYSTEM, "goes.on", "x")
    for position in (page.position, nothing.position):
        assert types(read(after=position)) == ["monodon.goes.on"]


def test_many_writers_and_one_reader_agree():
    """The reader gets each event once, in any order of commits."""
    make_root()
    start = position = newest_position()
    stop = threading.Event()

    def write(number: int) -> None:
        for count in range(60):
            with transaction.atomic():
                audit_records.record(SYSTEM, f"writer{number}.n", str(count))
        connections.close_all()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    got: list[tuple[str, str]] = []
    while any(writer.is_alive() for writer in writers) or not stop.is_set():
        if not any(writer.is_alive() for writer in writers):
            stop.set()
        page = event_feed.read(actor=SYSTEM, after=position, limit=7)
        got += [(row.action, row.target) for row in page.rows]
        position = page.position
    while rows := (page := read(after=position)).rows:
        got += [(row.action, row.target) for row in rows]
        position = page.position
    assert sorted(got) == sorted(
        (f"writer{number}.n", str(count)) for number in range(4) for count in range(60)
    )
    assert len(read(after=start, limit=1000).rows) == 240
