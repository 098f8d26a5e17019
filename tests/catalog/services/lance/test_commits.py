"""Writes to Lance tables that change while data is written."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from django.db import OperationalError, connection
from django.db.models import QuerySet
from lance.dataset import LanceDataset

from api.request_id import request_id
from catalog.access import SYSTEM
from catalog.errors import CommitConflict, ServiceUnavailable, TableNotFound
from catalog.models import StagedFile, TableVersion
from catalog.services.engine import table_cache
from catalog.services.engine.commit import commit
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations, ledger_namespace, open_versions
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import registration_operations
from catalog.services.tables import table_operations
from tests.factories import make_lance_table

pytestmark = pytest.mark.django_db(transaction=True)

T_ = TypeVar("T_")
T, OTHER = ("w", "t"), ("w", "other")
NEW = pa.table({"id": [7]})


@pytest.fixture(autouse=True)
def _table(everywhere) -> None:
    make_lance_table(T, pa.table({"id": [1]}))


def drop() -> None:
    commit([table_operations.DropTable(table=T)], actor=SYSTEM)
    make_lance_table(T, NEW)


def rename() -> None:
    commit([table_operations.RenameTable(table=T, new=OTHER)], actor=SYSTEM)
    make_lance_table(T, NEW)


def overwrite() -> None:
    lance_data.create_table(actor=SYSTEM, table=T, data=NEW, mode="overwrite")


def insert(data: pa.RecordBatchReader) -> None:
    lance_data.insert(actor=SYSTEM, table=T, data=data)


def merge(data: pa.RecordBatchReader) -> None:
    clauses = lance_data.MergeClauses(on=("id",), when_not_matched_insert_all=True)
    lance_data.merge_insert(actor=SYSTEM, table=T, data=data, clauses=clauses)


def during(action: Callable[[], object], number: int = 100) -> pa.RecordBatchReader:
    """A stream of one row, which runs an action before it returns the row."""
    data = pa.table({"id": [number]})

    def act() -> None:
        action()
        connection.close()

    def batches() -> Iterator[pa.RecordBatch]:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
        yield from data.to_batches()

    return pa.RecordBatchReader.from_batches(data.schema, batches())


@pytest.mark.parametrize("action", [drop, rename, overwrite])
@pytest.mark.parametrize("write", [insert, merge])
def test_a_reused_name_gets_no_data_of_the_first_table(write, action):
    with pytest.raises(CommitConflict, match=r"'w\.t' was replaced meanwhile"):
        write(during(action))
    assert lance_datasets.read(actor=SYSTEM, table=T).to_table() == NEW
    assert TableVersion.objects.filter(table__name="t", version=2).count() == 0
    insert(NEW.to_reader())  # the caches of the first table are cleared
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 2


def test_a_merge_of_a_stream_is_repeated_after_a_conflict():
    """The row that it updates is deleted meanwhile, so the repetition inserts it."""
    clauses = lance_data.MergeClauses(
        on=("id",), when_matched_update_all=True, when_not_matched_insert_all=True
    )
    delete = partial(lance_data.delete, actor=SYSTEM, table=T, predicate="id = 1")
    written = lance_data.merge_insert(
        actor=SYSTEM, table=T, data=during(delete, number=1), clauses=clauses
    )
    assert (written.result["num_inserted_rows"], written.result["num_updated_rows"]) == (1, 0)
    assert lance_datasets.read(actor=SYSTEM, table=T).to_table() == pa.table({"id": [1]})


def test_the_first_version_belongs_to_its_declared_table():
    commit(
        [table_operations.DropTable(table=T), registration_operations.DeclareTable(table=T)],
        actor=SYSTEM,
    )
    with pytest.raises(CommitConflict, match=r"'w\.t' was replaced meanwhile"):
        insert(during(drop))
    assert lance_datasets.read(actor=SYSTEM, table=T).to_table() == NEW


def here(action: Callable[[], T_]) -> T_:
    return action()


def in_a_thread(action: Callable[[], T_]) -> T_:
    """Run the action in a thread, as a web server does. It gets no signals, so it calls Lance
    itself."""

    def act() -> T_:
        try:
            return action()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(act).result()


@pytest.mark.parametrize("run", [here, in_a_thread])
def test_lance_uses_the_connection_of_the_request(monkeypatch, run):
    real, seen_at_commit = commit, []

    def committing(*args: Any, **kwargs: Any) -> Any:
        seen_at_commit.append((threading.get_ident(), connection.connection, request_id.get()))
        return real(*args, **kwargs)

    def act() -> tuple[int, object, object]:
        token = request_id.set("abc")
        own = connection.connection
        lance_data.insert(actor=SYSTEM, table=T, data=NEW)
        request_id.reset(token)
        assert connection.vendor == "postgresql"
        connection.validate_thread_sharing()
        assert not connection.allow_thread_sharing
        return threading.get_ident(), own, connection.connection

    monkeypatch.setattr(ledger_namespace, "commit", committing)
    thread, before, after = run(lambda: (connection.ensure_connection(), act())[1])
    assert before is after
    [(asked_from, used, known_as)] = seen_at_commit
    assert asked_from != thread
    assert (used, known_as) == (before, "abc")
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 2


@pytest.mark.parametrize("run", [here, in_a_thread])
def test_a_refusal_of_the_engine_is_passed_on(monkeypatch, run):
    def refuse(*_: Any, **__: Any) -> Any:
        raise CommitConflict("no")

    monkeypatch.setattr(ledger_namespace, "commit", refuse)
    with pytest.raises(CommitConflict, match=r"^no$"):
        run(lambda: insert(NEW.to_reader()))
    monkeypatch.undo()
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 1
    insert(NEW.to_reader())  # and the connection is as it was
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 2


@pytest.mark.parametrize("run", [here, in_a_thread])
def test_a_failed_lease_renewal_does_not_block_lance(monkeypatch, run):
    monkeypatch.setattr(ledger_namespace, "_RENEW_SECONDS", 0.05)
    failed = threading.Event()

    def update(*_: object, **__: object) -> int:
        failed.set()
        raise OperationalError("away")

    def slow() -> None:
        monkeypatch.setattr(QuerySet, "update", update)
        assert failed.wait(10)
        monkeypatch.undo()

    run(lambda: lance_data.create_table(actor=SYSTEM, table=OTHER, data=during(slow)))
    assert lance_datasets.read(actor=SYSTEM, table=OTHER).count_rows() == 1


@pytest.mark.parametrize("run", [here, in_a_thread])
def test_the_lease_is_renewed_during_the_work(monkeypatch, run):
    monkeypatch.setattr(ledger_namespace, "_RENEW_SECONDS", 0.05)
    times: list[datetime] = []

    def slow() -> None:
        [note] = StagedFile.objects.all()
        deadline = time.monotonic() + 10
        while StagedFile.objects.get().created_at == note.created_at:
            assert time.monotonic() < deadline
        times.append(StagedFile.objects.get().created_at)

    run(lambda: lance_data.create_table(actor=SYSTEM, table=OTHER, data=during(slow)))
    assert len(times) == 1
    assert not StagedFile.objects.exists()
    deadline = time.monotonic() + 10
    while any(thread.name == "note" for thread in threading.enumerate()):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("kind", [OSError, pa.ArrowInvalid, RuntimeError])
def test_files_removed_with_their_table_are_not_a_failure(kind):
    """Lance detects this before it asks the catalog, with different messages."""

    def work(_: LanceDataset) -> None:
        act = threading.Thread(target=lambda: (drop_it(), connection.close()))
        act.start()
        act.join()
        raise kind("LanceError(IO): Object at location /t/data/1.lance not found")

    def drop_it() -> None:
        commit([table_operations.DropTable(table=T)], actor=SYSTEM)

    def fail(_: LanceDataset) -> None:
        raise kind("LanceError(IO): os error 5")

    write = partial(
        lance_commits.write, actor=SYSTEM, table=T, operation=data_operations.InsertIntoTable
    )
    with pytest.raises(kind):  # for an existing table, it is a failure
        write(work=fail)
    versions = list(TableVersion.objects.values())
    with pytest.raises(TableNotFound):
        write(work=work)
    assert list(TableVersion.objects.values()) == versions


def test_calls_of_lance_after_the_request_are_refused(monkeypatch):
    """A signal ends the request while its data is still awaited."""
    go_on, work, ledgers = threading.Event(), [], []

    def interrupted(task: partial[Any]) -> None:
        ledgers.append(task.args[0])
        work.append(threads.submit(task))
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger_namespace, "_run_work", interrupted)
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(KeyboardInterrupt):
            insert(during(lambda: go_on.wait(10)))
        go_on.set()
        with pytest.raises(OSError):  # noqa: PT011 -- what Lance says is its own affair
            work[0].result()
    with pytest.raises(ServiceUnavailable, match="has ended"):
        ledgers[0]._call(lambda: 1)
    monkeypatch.undo()
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 1


@pytest.fixture
def opened(monkeypatch) -> list[int]:
    """The versions that writers open."""
    versions = []

    def opening(location: str, version: int, **options: Any) -> LanceDataset:
        versions.append(version)
        return LanceDataset(location, version, **options)

    monkeypatch.setattr(open_versions, "LanceDataset", opening)
    return versions


def test_an_insert_reuses_the_open_dataset_of_the_last_one(opened):
    for _ in range(3):
        insert(NEW.to_reader())
    assert opened == [1]
    snapshot = lance_datasets.find_snapshot(actor=SYSTEM, table=T)
    assert lance_datasets.cache_key(snapshot) in lance_datasets.writers._entries
    lance_data.delete(actor=SYSTEM, table=T, predicate="id = 1")
    insert(NEW.to_reader())
    assert opened == [1, 5]
    lance_data.insert(actor=SYSTEM, table=T, data=NEW, overwrite=True)
    insert(NEW.to_reader())
    assert opened == [1, 5]
    assert lance_datasets.read(actor=SYSTEM, table=T).to_table() == pa.table({"id": [7, 7]})


def test_an_open_dataset_is_used_by_one_insert_at_a_time(opened):
    insert(NEW.to_reader())
    insert(during(lambda: insert(NEW.to_reader())))
    assert opened == [1, 2]
    insert(NEW.to_reader())
    assert opened == [1, 2]
    ids = lance_datasets.read(actor=SYSTEM, table=T).to_table()["id"].to_pylist()
    assert sorted(ids) == [1, 7, 7, 7, 100]


def test_a_failed_insert_leaves_no_open_dataset(monkeypatch, opened):
    insert(NEW.to_reader())

    def refuse(*_: Any, **__: Any) -> Any:
        raise CommitConflict("no")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_namespace, "commit", refuse)
        with pytest.raises(CommitConflict):
            insert(NEW.to_reader())
    insert(NEW.to_reader())
    assert opened == [1, 2]
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 3


def test_a_reused_name_does_not_reuse_the_open_dataset(opened):
    insert(NEW.to_reader())
    drop()
    insert(NEW.to_reader())
    assert opened == [1, 1]
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 2


def test_writers_of_a_replaced_table_write_to_the_new_one():
    insert(NEW.to_reader())
    cached = dict(table_cache.tables._rows)
    drop()
    table_cache.tables._rows.update(cached)  # as in a process that did not drop the table
    insert(NEW.to_reader())
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 2
    assert all(
        row.location != cached[digest].location for digest, row in table_cache.tables._rows.items()
    )
