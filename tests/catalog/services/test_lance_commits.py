"""Writes during which something else happens to the table."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from django.db import OperationalError, connection
from django.db.models import QuerySet

from catalog.errors import CommitConflict, ServiceUnavailable
from catalog.models import TableVersion
from catalog.services import lance_commits, lance_data, lance_datasets, seen
from catalog.services import operations as ops
from catalog.services.access import SYSTEM
from catalog.services.commit import commit
from tests.factories import make_lance_table, make_root

pytestmark = pytest.mark.django_db(transaction=True)

T, OTHER = ("w", "t"), ("w", "other")
NEW = pa.table({"id": [7]})


@pytest.fixture(autouse=True)
def _warehouse(tmp_path, settings) -> None:
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    make_lance_table(T, pa.table({"id": [1]}))


def drop() -> None:
    commit([ops.DropTable(table=T)], actor=SYSTEM)
    make_lance_table(T, NEW)


def rename() -> None:
    commit([ops.RenameTable(table=T, new=OTHER)], actor=SYSTEM)
    make_lance_table(T, NEW)


def overwrite() -> None:
    lance_data.create_table(actor=SYSTEM, table=T, data=NEW, mode="overwrite")


def insert(data: pa.RecordBatchReader) -> None:
    lance_data.insert(actor=SYSTEM, table=T, data=data)


def merge(data: pa.RecordBatchReader) -> None:
    clauses = lance_data.MergeClauses(on=("id",), when_not_matched_insert_all=True)
    lance_data.merge_insert(actor=SYSTEM, table=T, data=data, clauses=clauses)


def during(action: Callable[[], None]) -> pa.RecordBatchReader:
    """A row of data that comes when the action was done."""
    data = pa.table({"id": [100]})

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
def test_another_table_of_the_name_gets_nothing_of_what_was_written_to_the_first(write, action):
    with pytest.raises(CommitConflict, match=r"'w\.t' was replaced meanwhile"):
        write(during(action))
    assert lance_datasets.read(actor=SYSTEM, table=T).to_table() == NEW
    assert TableVersion.objects.filter(table__name="t", version=2).count() == 0
    insert(NEW.to_reader())  # what this process knew of the first table is forgotten
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 2


def test_the_first_version_of_a_declared_table_is_of_that_table():
    commit([ops.DropTable(table=T), ops.DeclareTable(table=T)], actor=SYSTEM)
    with pytest.raises(CommitConflict, match=r"'w\.t' was replaced meanwhile"):
        insert(during(drop))
    assert lance_datasets.read(actor=SYSTEM, table=T).to_table() == NEW


def test_a_note_that_cannot_be_renewed_does_not_leave_lance_waiting(monkeypatch):
    """It asks while the request's thread fails, and once more when that is gone."""
    monkeypatch.setattr(lance_commits, "_RENEW_SECONDS", 0.05)
    failed = threading.Event()

    def update(*_: object, **__: object) -> int:
        failed.set()
        raise OperationalError("away")

    def slow() -> None:
        monkeypatch.setattr(QuerySet, "update", update)
        assert failed.wait(10)
        monkeypatch.undo()

    lance_data.create_table(actor=SYSTEM, table=OTHER, data=during(slow))
    assert lance_datasets.read(actor=SYSTEM, table=OTHER).count_rows() == 1


def test_what_asks_after_the_request_is_refused(monkeypatch):
    asked: list[lance_commits._Ledger] = []

    def interrupted(ledger: lance_commits._Ledger) -> None:
        asked.append(ledger)
        raise KeyboardInterrupt

    monkeypatch.setattr(lance_commits._Ledger, "_attend", interrupted)
    with pytest.raises(KeyboardInterrupt):
        insert(NEW.to_reader())
    with pytest.raises(ServiceUnavailable, match="has ended"):
        asked[0]._ask(lambda: 1)
    monkeypatch.undo()
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 1


def test_who_saw_the_first_table_of_a_name_writes_to_the_second():
    insert(NEW.to_reader())
    known = dict(seen.tables._rows)
    drop()
    seen.tables._rows.update(known)  # as in a process that did not drop it
    insert(NEW.to_reader())
    assert lance_datasets.read(actor=SYSTEM, table=T).count_rows() == 2
    assert all(row.location != known[digest].location for digest, row in seen.tables._rows.items())
