"""Races of undrop with a new table of the name, with the purge, and with another undrop; races of
approvals."""

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    ApprovalRequired,
    CatalogError,
    InvalidApprovalState,
    NotRecoverable,
    TableAlreadyExists,
    TrashItemNotFound,
)
from catalog.models import (
    ApprovalRequest,
    Job,
    JobStatus,
    Namespace,
    Table,
    TableState,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.governance import approvals
from catalog.services.lance.ledger import registration_operations
from catalog.services.maintenance import job_runner
from catalog.services.recovery import purge, undrop
from catalog.services.recovery.undrop_operations import Undrop
from catalog.services.tables import namespace_operations, table_operations
from tests.factories import (
    files,
    make_administrator,
    make_lance_table,
    make_namespace,
    make_root,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]

ADA, BOB, EVE = (Principal(name, Privilege.ALL) for name in ("ada", "bob", "eve"))


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, settings):
    settings.MONODON_TRASH_SECONDS = 3600
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_root()


def together(*calls: Callable[[], object]) -> list[object]:
    """Make the calls concurrently. Return their results or refusals."""
    barrier = threading.Barrier(len(calls))
    results: list[object] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            barrier.wait(30)
            results[index] = calls[index]()
        except CatalogError as error:
            results[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def dropped(*name: str) -> TrashItem:
    make_lance_table(name)
    commit([table_operations.DropTable(table=name)], actor=SYSTEM)
    return TrashItem.objects.latest("pk")


@pytest.mark.parametrize("round", range(5))
def test_undrop_races_with_a_new_table_of_the_name(round):
    item = dropped("ws", "t")
    back, new = together(
        lambda: undrop.undrop(actor=SYSTEM, item=item.pk),
        lambda: commit([registration_operations.DeclareTable(table=("ws", "t"))], actor=SYSTEM),
    )
    winner = Table.objects.named(("ws", "t")).get()
    if winner.pk == item.table_id:
        assert isinstance(new, TableAlreadyExists)
        assert not TrashItem.objects.exists()
    else:
        assert isinstance(back, TableAlreadyExists)
        assert TrashItem.objects.get() == item
        assert Job.objects.get().status == JobStatus.QUEUED


@pytest.mark.parametrize("round", range(5))
def test_undrop_races_with_the_purge(round):
    item = dropped("ws", "t")
    before = files(item.table.location)
    Job.objects.update(lease_until=None)
    back, _ = together(
        lambda: undrop.undrop(actor=SYSTEM, item=item.pk),
        lambda: job_runner.run_job(item.job_id),
    )
    table, job = Table.objects.get(), Job.objects.get()
    if isinstance(back, Table):
        assert (table.state, job.status) == (TableState.LIVE, JobStatus.CANCELED)
        assert files(table.location) == before
    else:
        assert isinstance(back, NotRecoverable | TrashItemNotFound)
        assert (table.state, job.status) == (TableState.DROPPED, JobStatus.SUCCEEDED)
        assert files(table.location) == {}


def test_a_worker_removes_nothing_of_a_restored_table(monkeypatch):
    """The worker reads the table during the undrop: it waits, and removes nothing."""
    item = dropped("ws", "t")
    before = files(item.table.location)
    Job.objects.update(lease_until=None)
    real = job_runner.locks.lock_table_row
    calls = []

    def first_bring_back(pk: int) -> Table:
        if not calls:
            calls.append(together(lambda: undrop.undrop(actor=SYSTEM, item=item.pk))[0])
        return real(pk)

    # The undrop needs the row that the worker's transaction is about to lock.
    monkeypatch.setattr(job_runner.locks, "lock_table_row", first_bring_back)
    job_runner.run_job(item.job_id)
    assert isinstance(calls[0], Table)
    assert Job.objects.get().status == JobStatus.CANCELED
    assert Table.objects.get().state == TableState.LIVE
    assert files(item.table.location) == before


def test_undrop_waits_for_a_running_purge_and_is_refused(monkeypatch):
    item = dropped("ws", "t")
    Job.objects.update(lease_until=None)
    real, begun, results = purge.holder, threading.Event(), []

    def slow(table: Table):
        begun.set()  # the row is locked
        return real(table)

    monkeypatch.setattr(purge, "holder", slow)

    def bring_back() -> object:
        begun.wait(30)
        return undrop.undrop(actor=SYSTEM, item=item.pk)

    results = together(bring_back, lambda: job_runner.run_job(item.job_id))
    assert isinstance(results[0], NotRecoverable | TrashItemNotFound)
    assert Job.objects.get().status == JobStatus.SUCCEEDED


def test_concurrent_undrops_have_one_winner():
    item = dropped("ws", "t")
    results = together(
        lambda: undrop.undrop(actor=SYSTEM, item=item.pk, new=("ws", "a")),
        lambda: undrop.undrop(actor=SYSTEM, item=item.pk, new=("ws", "b")),
    )
    assert sorted(isinstance(result, Table) for result in results) == [False, True]
    assert any(isinstance(result, TrashItemNotFound) for result in results)
    assert Table.objects.present().count() == 1


@pytest.mark.parametrize("new", [None, ("a", "b", "other")])
def test_undrop_of_a_parent_waits_for_undrop_of_its_child(monkeypatch, new):
    """Undrop also restores dropped parents, which it locks first. A rival waits for the whole
    transaction."""
    item = dropped("a", "b", "t")
    commit([namespace_operations.DropNamespace(namespace=("a", "b"))], actor=SYSTEM)
    commit([namespace_operations.DropNamespace(namespace=("a",))], actor=SYSTEM)
    above = undrop.last_dropped(actor=SYSTEM, name=("a",), is_namespace=True)
    real, rivals, results, pids = Undrop.chain, [], [], []

    def bring_elsewhere() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pids.append(cursor.fetchone()[0])
            results.append(undrop.undrop(actor=SYSTEM, item=above.pk, new=("c",)))
        except CatalogError as error:
            results.append(error)
        finally:
            connections.close_all()

    def read_then_meet(self, lowest):
        chain = real(self, lowest)
        if not rivals:
            rivals.append(threading.Thread(target=bring_elsewhere))
            rivals[0].start()
            while rivals[0].is_alive() and not waits():
                rivals[0].join(0.01)
        return chain

    def waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE pid = ANY(%s) AND NOT granted", [pids]
            )
            return bool(cursor.fetchone()[0])

    monkeypatch.setattr(Undrop, "chain", read_then_meet)
    back = undrop.undrop(actor=SYSTEM, item=item.pk, new=new, with_parents=True)
    rivals[0].join(60)
    assert [type(result) for result in results] == [TrashItemNotFound]
    assert back.identifier == (new or ("a", "b", "t"))
    live = Namespace.objects.live().exclude(path=[])
    assert sorted(tuple(row.path) for row in live) == [("a",), ("a", "b")]
    assert not TrashItem.objects.exists()


@pytest.mark.parametrize("round", range(3))
def test_concurrent_approvals_have_one_winner(round):
    make_namespace("a", "b")
    make_administrator(ADA.name)
    undrop.set_approval_rule(actor=SYSTEM, namespace=("a",), actions=["purge"])
    item = dropped("a", "b", "t")
    with pytest.raises(ApprovalRequired):
        undrop.purge_now(actor=ADA, item=item.pk)
    request = ApprovalRequest.objects.get()
    results = together(
        lambda: approvals.approve(actor=BOB, request=request.pk),
        lambda: approvals.approve(actor=EVE, request=request.pk),
    )
    refused = [isinstance(result, InvalidApprovalState) for result in results]
    assert sorted(refused) == [False, True], results
    request.refresh_from_db()
    assert request.status == "done"
    assert request.transaction.operations[0]["operation"] == "PurgeNow"


def test_an_approval_races_with_a_rejection():
    make_namespace("a")
    make_administrator(ADA.name)
    undrop.set_approval_rule(actor=SYSTEM, namespace=("a",), actions=["purge"])
    item = dropped("a", "t")
    due = item.purge_at
    with pytest.raises(ApprovalRequired):
        undrop.purge_now(actor=ADA, item=item.pk)
    request = ApprovalRequest.objects.get()
    results = together(
        lambda: approvals.approve(actor=BOB, request=request.pk),
        lambda: approvals.refuse(actor=EVE, request=request.pk, reason="no"),
    )
    refused = [isinstance(result, InvalidApprovalState) for result in results]
    assert sorted(refused) == [False, True], results
    request.refresh_from_db()
    item.refresh_from_db()
    assert (request.status, item.purge_at < due) in {("done", True), ("refused", False)}


def test_undrop_locks_rows_in_the_global_order():
    """Namespaces, then tables, then trash items, all before the first write."""
    make_lance_table(("a", "b", "t"))
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=SYSTEM)
    item = undrop.last_dropped(actor=SYSTEM, name=("a",), is_namespace=True)
    with ExitStack() as stack:
        queries = stack.enter_context(CaptureQueriesContext(connection))
        undrop.undrop(actor=SYSTEM, item=item.pk)
    locked = [
        next(name for name in ("trashitem", "table", "namespace") if f'"catalog_{name}".' in sql)
        for sql in (query["sql"] for query in queries.captured_queries)
        if "FOR NO KEY UPDATE" in sql and 'FROM "catalog_transaction"' not in sql
    ]
    assert locked[-3:] == ["namespace", "table", "trashitem"]
    first_write = next(
        index
        for index, query in enumerate(queries.captured_queries)
        if query["sql"].startswith(("UPDATE", "INSERT", "DELETE"))
    )
    last_lock = max(
        index
        for index, query in enumerate(queries.captured_queries)
        if 'FROM "catalog_trashitem"' in query["sql"] and "FOR NO KEY" in query["sql"]
    )
    assert last_lock < first_write
