"""A commit is prepared on the result of the previous one, which may fail."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    CommitConflict,
    OutcomeUnknown,
    RequirementFailed,
    TableNotFound,
)
from catalog.identifiers import digest
from catalog.models import IcebergMetadata, StagedFile, Table, TableVersion
from catalog.services.engine import commit_queue, table_cache
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.tables import LoadedTable
from catalog.storage import local_files, locations
from tests.factories import files, make_iceberg_table, make_root
from tests.rivals import commit_without_turns

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("root"),
]
T = ("ns", "t")
U = ("ns", "u")
Requirement = dict[str, Any]


@pytest.fixture
def root(transactional_db, warehouse, monkeypatch) -> None:
    make_root()
    monkeypatch.setattr(commit_queue._queue(digest(T)), "_count", 0)  # no back-off in this test


@pytest.fixture
def occupied_turn(root) -> Iterator[None]:
    """Overlapping turns: the next commit is based on the result of the last one."""
    queue = commit_queue._queue(digest(T))
    queue.wait()
    queue.lock.release()
    yield
    queue.leave()


def commit_to(
    table: tuple[str, ...], properties: dict[str, str], *requirements: Requirement
) -> LoadedTable:
    updates = [{"action": "set-properties", "updates": properties}]
    change = TableChange(table=table, requirements=list(requirements), updates=updates)
    return iceberg_commits.commit_table(actor=SYSTEM, change=change)


def commit_elsewhere(table: tuple[str, ...], properties: dict[str, str]) -> LoadedTable:
    """A commit by another machine, unknown to this process."""
    with pytest.MonkeyPatch.context() as patch:
        commit_without_turns(patch)
        patch.setattr(table_cache, "documents", table_cache.DocumentCache())
        return commit_to(table, properties)


def load(table: tuple[str, ...] = T) -> LoadedTable:
    return iceberg_tables.load_table(actor=SYSTEM, table=table)


def properties(table: tuple[str, ...] = T) -> dict[str, str]:
    properties_: dict[str, str] = load(table).document["properties"]
    return properties_


def same_table(table: LoadedTable) -> Requirement:
    return {"type": "assert-table-uuid", "uuid": table.document["table-uuid"]}


def agrees(warehouse: Path) -> None:
    """Assert that metadata files on disk and in the ledger are the same, and that no file is
    recorded as pending."""
    assert not StagedFile.objects.exists()
    paths = set(TableVersion.objects.values_list("manifest_path", flat=True))
    assert {str(warehouse / name) for name in files(warehouse)} == {
        locations.iceberg_path(path) for path in paths
    }
    for table in Table.objects.present():
        versions = list(table.versions.order_by("version").values_list("version", flat=True))
        assert versions == list(range(len(versions)))
        last = table.versions.latest("version")
        assert last.manifest_path == table.iceberg_metadata.metadata_location
    # The cached document equals the database's.
    for entry in table_cache.documents._documents.values():
        assert metadata_files.read_answer(entry.answer) == entry.document


# --- preparation during another commit ---------------------------------------------------------


class Held:
    """The first commit waits at its swap, and then continues or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_there, self.may_go_on = Event(), Event()
        self.error: Exception | None = None
        self._waits = False
        self._real = iceberg_commits.commit
        self._pool = ThreadPoolExecutor(8)
        monkeypatch.setattr(iceberg_commits, "commit", self._commit)

    def _commit(self, *args: Any, **kwargs: Any) -> Any:
        if self._waits:
            self._waits = False
            self.is_there.set()
            assert self.may_go_on.wait(30)
            if self.error is not None:
                raise self.error
        return self._real(*args, **kwargs)

    def start(self, call: Callable[[], LoadedTable]) -> "Future[LoadedTable | CatalogError]":
        def run() -> LoadedTable | CatalogError:
            try:
                return call()
            except CatalogError as error:
                return error
            finally:
                connection.close()

        return self._pool.submit(run)

    def start_first(self, call: Callable[[], LoadedTable]) -> "Future[LoadedTable | CatalogError]":
        self._waits = True
        started = self.start(call)
        assert self.is_there.wait(30)
        return started

    def resume(self, error: Exception | None = None) -> None:
        self.error = error
        self.may_go_on.set()

    def end(self) -> None:
        self.may_go_on.set()
        self._pool.shutdown()


@pytest.fixture
def held(root, monkeypatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.end()


class Written:
    """Waits until a number of metadata files were written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._events = [Event() for _ in range(16)]
        self._real = local_files.write_new_file
        self._count = 0
        monkeypatch.setattr(local_files, "write_new_file", self._write)

    def _write(self, path: str, content: bytes) -> None:
        self._real(path, content)
        self._events[self._count].set()
        self._count += 1

    def wait_for(self, count: int) -> None:
        assert self._events[count - 1].wait(30)


@pytest.fixture
def written(held, monkeypatch) -> Written:
    make_iceberg_table(*T)
    return Written(monkeypatch)


def test_files_are_written_while_one_commits(warehouse, held, written):
    first = held.start_first(lambda: commit_to(T, {"a": "1"}))
    others = []
    for number, name in enumerate("bc", 2):
        others.append(held.start(lambda name=name: commit_to(T, {name: "1"})))
        written.wait_for(number)
    assert not any(other.done() for other in others)
    assert load().sequence == 0
    held.resume()
    assert [future.result().sequence for future in (first, *others)] == [1, 2, 3]
    assert properties() == {"a": "1", "b": "1", "c": "1"}
    agrees(warehouse)


@pytest.mark.parametrize("error", [CommitConflict("no"), OutcomeUnknown("lost"), TableNotFound(U)])
def test_a_commit_based_on_a_failed_commit_is_rebuilt(warehouse, held, written, error):
    first = held.start_first(lambda: commit_to(T, {"a": "1"}))
    others = []
    for number, name in enumerate("bc", 2):
        others.append(held.start(lambda name=name: commit_to(T, {name: "1"})))
        written.wait_for(number)
    held.resume(error)
    assert first.result() is error
    assert sorted(other.result().sequence for other in others) == [1, 2]
    assert properties() == {"b": "1", "c": "1"}
    if isinstance(error, OutcomeUnknown):
        staged_file = StagedFile.objects.get()  # a file for the sweep
        Path(staged_file.path).unlink()
        staged_file.delete()
    agrees(warehouse)


def test_a_requirement_based_on_a_failed_commit_is_checked_again(warehouse, held, written):
    """The second commit adds its column to the schema of the first, which fails."""
    schema = load().document["schemas"][-1]
    column = {"id": 50, "name": "c", "type": "int", "required": False}

    def add_column(last: int, number: int) -> LoadedTable:
        fields = [*schema["fields"], {**column, "id": last + 1, "name": f"c{number}"}]
        change = TableChange(
            table=T,
            requirements=[
                {"type": "assert-last-assigned-field-id", "last-assigned-field-id": last}
            ],
            updates=[
                {"action": "add-schema", "schema": {**schema, "fields": fields}},
                {"action": "set-current-schema", "schema-id": -1},
            ],
        )
        return iceberg_commits.commit_table(actor=SYSTEM, change=change)

    last = load().document["last-column-id"]
    first = held.start_first(lambda: add_column(last, 1))
    second = held.start(lambda: add_column(last + 1, 2))
    written.wait_for(2)
    held.resume(CommitConflict("no"))
    assert isinstance(first.result(), CommitConflict)
    assert isinstance(second.result(), RequirementFailed)
    assert load().sequence == 0
    agrees(warehouse)


@pytest.mark.parametrize("stands", [True, False])
def test_a_refusal_waits_for_the_commit_it_depends_on(warehouse, held, written, stands):
    """The table has another last column only if the running commit succeeds."""
    schema, last = load().document["schemas"][-1], load().document["last-column-id"]
    column = {"id": last + 1, "name": "c", "type": "int", "required": False}
    add = TableChange(
        table=T,
        requirements=[],
        updates=[
            {"action": "add-schema", "schema": {**schema, "fields": [*schema["fields"], column]}}
        ],
    )
    first = held.start_first(lambda: iceberg_commits.commit_table(actor=SYSTEM, change=add))
    requirement = {"type": "assert-last-assigned-field-id", "last-assigned-field-id": last}
    second = held.start(lambda: commit_to(T, {"a": "1"}, requirement))
    with pytest.raises(TimeoutError):
        second.result(timeout=0.3)
    held.resume(None if stands else CommitConflict("no"))
    assert isinstance(first.result(), LoadedTable if stands else CommitConflict)
    assert isinstance(second.result(), RequirementFailed if stands else LoadedTable)
    assert load().sequence == 1
    agrees(warehouse)


@pytest.mark.parametrize("stands", [True, False])
def test_a_no_op_waits_for_the_commit_it_depends_on(warehouse, held, written, stands):
    first = held.start_first(lambda: commit_to(T, {"a": "1"}))
    second = held.start(lambda: commit_to(T, {"a": "1"}))
    with pytest.raises(TimeoutError):
        second.result(timeout=0.3)
    held.resume(None if stands else CommitConflict("no"))
    first.result()
    answered = second.result()
    assert isinstance(answered, LoadedTable)
    assert (answered.sequence, answered.document["properties"]) == (1, {"a": "1"})
    assert load().metadata_location == answered.metadata_location
    assert TableVersion.objects.count() == 2
    agrees(warehouse)


def test_a_commit_of_another_machine_precedes_two_local_ones(warehouse, held, written):
    first = held.start_first(lambda: commit_to(T, {"a": "1"}))
    second = held.start(lambda: commit_to(T, {"b": "1"}))
    written.wait_for(2)
    commit_elsewhere(T, {"c": "1"})
    held.resume()
    assert {first.result().sequence, second.result().sequence} == {2, 3}
    assert properties() == {"a": "1", "b": "1", "c": "1"}
    agrees(warehouse)


def test_a_transaction_waits_for_running_commits(warehouse, held, written):
    make_iceberg_table(*U)
    first = held.start_first(lambda: commit_to(T, {"a": "1"}))
    changes = [
        TableChange(
            table=table,
            requirements=[],
            updates=[{"action": "set-properties", "updates": {"b": "1"}}],
        )
        for table in (T, U)
    ]
    both = held.start(
        lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=changes)[0],
    )
    with pytest.raises(TimeoutError):
        both.result(timeout=0.3)
    third = held.start(lambda: commit_to(T, {"c": "1"}))
    held.resume()
    assert [future.result().sequence for future in (first, both, third)] == [1, 2, 3]
    assert properties() == {"a": "1", "b": "1", "c": "1"}
    agrees(warehouse)


# --- results that are no longer current --------------------------------------------------------


def statements(call: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        call()
    return [" ".join(query["sql"].split()) for query in captured]


@pytest.mark.usefixtures("occupied_turn")
def test_the_result_of_the_last_commit_is_not_read_again(warehouse):
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    note, swap = statements(lambda: commit_to(T, {"b": "1"}))
    assert "INSERT INTO catalog_stagedfile" in note
    assert "UPDATE catalog_icebergmetadata" in swap
    assert properties() == {"a": "1", "b": "1"}
    agrees(warehouse)


@pytest.mark.usefixtures("occupied_turn")
def test_a_refusal_reads_the_table(warehouse):
    made = make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    wrong = {"type": "assert-table-uuid", "uuid": "0e0e0e0e-0e0e-4e0e-8e0e-0e0e0e0e0e0e"}

    def refused() -> None:
        with pytest.raises(RequirementFailed):
            commit_to(T, {"b": "1"}, wrong)

    (read,) = statements(refused)
    assert "SELECT t.digest" in read
    assert commit_to(T, {"b": "1"}, same_table(made)).sequence == 2


@pytest.mark.usefixtures("occupied_turn")
def test_a_commit_sees_changes_of_another_machine(warehouse):
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    commit_elsewhere(T, {"b": "1"})
    assert commit_to(T, {"c": "1"}).sequence == 3
    assert properties() == {"a": "1", "b": "1", "c": "1"}
    agrees(warehouse)


@pytest.mark.usefixtures("occupied_turn")
def test_a_requirement_met_by_another_machine_holds(warehouse):
    """The requirement fails by this process's cached state."""
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    with pytest.MonkeyPatch.context() as patch:
        commit_without_turns(patch)
        schema = load().document["schemas"][-1]
        added = {"id": 9, "name": "c", "type": "int", "required": False}
        fields = [*schema["fields"], added]
        updates = [{"action": "add-schema", "schema": {**schema, "fields": fields}}]
        change = TableChange(table=T, requirements=[], updates=updates)
        iceberg_commits.commit_table(actor=SYSTEM, change=change)
    requirement = {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9}
    assert commit_to(T, {"b": "1"}, requirement).sequence == 3
    agrees(warehouse)


@pytest.mark.usefixtures("occupied_turn")
def test_a_commit_to_a_dropped_table_fails(warehouse):
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    with pytest.raises(TableNotFound):
        commit_to(T, {"b": "1"})
    with pytest.raises(TableNotFound):
        commit_to(T, {"a": "1"})  # the commit would change nothing
    agrees(warehouse)


@pytest.mark.usefixtures("occupied_turn")
def test_a_commit_to_a_recreated_table_sees_the_new_table(warehouse):
    old = make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    new = make_iceberg_table(*T)
    with pytest.raises(RequirementFailed):
        commit_to(T, {"b": "1"}, same_table(old))
    assert properties() == {}
    result = commit_to(T, {"b": "1"}, same_table(new))
    assert (result.pk, result.sequence, properties()) == (new.pk, 1, {"b": "1"})
    agrees(warehouse)


@pytest.mark.usefixtures("occupied_turn")
def test_a_commit_without_requirements_changes_the_new_table(warehouse):
    """Without a requirement, the commit is applied to the new table."""
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    new = make_iceberg_table(*T)
    result = commit_to(T, {"b": "1"})
    assert (result.pk, result.sequence) == (new.pk, 1)
    assert load().document == result.document
    assert properties() == {"b": "1"}
    agrees(warehouse)


@pytest.mark.usefixtures("occupied_turn")
def test_a_commit_to_a_table_that_was_registered_again(warehouse):
    """Another row with the same metadata file."""
    make_iceberg_table(*T)
    old = commit_to(T, {"a": "1"})
    iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    new = iceberg_commits.register_table(
        actor=SYSTEM, table=T, metadata_location=old.metadata_location
    )
    result = commit_to(T, {"b": "1"})
    assert result.pk == new.pk != old.pk
    assert IcebergMetadata.objects.get(table=old.pk).metadata_location == old.metadata_location
    assert IcebergMetadata.objects.get(table=new.pk).metadata_location == result.metadata_location
    assert properties() == {"a": "1", "b": "1"}


@pytest.mark.usefixtures("occupied_turn")
def test_a_commit_to_a_renamed_table_fails(warehouse):
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    iceberg_tables.rename_table(actor=SYSTEM, table=T, new=U)
    with pytest.raises(TableNotFound):
        commit_to(T, {"b": "1"})
    assert commit_to(U, {"c": "1"}).sequence == 2
    assert properties(U) == {"a": "1", "c": "1"}
    agrees(warehouse)


@pytest.mark.usefixtures("occupied_turn")
def test_a_commit_to_a_reused_name_sees_the_new_table(warehouse):
    make_iceberg_table(*T)
    make_iceberg_table(*U)
    commit_to(T, {"a": "1"})
    iceberg_tables.rename_table(actor=SYSTEM, table=T, new=("ns", "old"))
    iceberg_tables.rename_table(actor=SYSTEM, table=U, new=T)
    commit_to(T, {"b": "1"})
    assert properties() == {"b": "1"}
    assert properties(("ns", "old")) == {"a": "1"}
    agrees(warehouse)


# --- the cache of documents --------------------------------------------------------------------


@pytest.fixture
def parsed(monkeypatch) -> list[int]:
    """Sizes of the parsed answers."""
    sizes: list[int] = []
    real = metadata_files.read_answer

    def read_answer(content: bytes) -> dict[str, Any]:
        sizes.append(len(content))
        return real(content)

    monkeypatch.setattr(metadata_files, "read_answer", read_answer)
    return sizes


def test_own_commits_are_not_parsed_again(warehouse, parsed):
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    assert len(parsed) == 1
    assert len(statements(lambda: commit_to(T, {"b": "1"}))) == 2
    assert len(parsed) == 1
    again = commit_to(T, {"b": "1"})  # a no-op with a complete answer
    assert (again.sequence, again.answer) == (2, load().answer)
    assert len(parsed) == 1
    assert properties() == {"a": "1", "b": "1"}
    agrees(warehouse)


def test_commits_of_another_process_are_read(warehouse, parsed):
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    commit_elsewhere(T, {"b": "1"})
    before = len(parsed)
    assert commit_to(T, {"c": "1"}).sequence == 3
    assert len(parsed) == before + 1
    assert properties() == {"a": "1", "b": "1", "c": "1"}
    assert TableVersion.objects.count() == 4  # every attempt succeeded
    agrees(warehouse)


def test_a_refusal_rests_on_current_metadata_only(warehouse):
    first = make_iceberg_table(*T)
    old = commit_to(T, {"a": "1"})
    commit_elsewhere(T, {"b": "1"})
    snapshot = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}
    with pytest.raises(RequirementFailed):
        commit_to(T, {"c": "1"}, snapshot)
    # Would change nothing on the outdated metadata, and does on the current.
    commit_elsewhere(T, {"a": "2"})
    assert commit_to(T, {"a": "1"}).sequence == 4
    assert properties() == {"a": "1", "b": "1"}
    assert commit_to(T, {"d": "1"}, same_table(first)).sequence == 5
    assert old.sequence == 1
    agrees(warehouse)


def test_nothing_is_written_for_a_table_that_lost_its_name(warehouse):
    lost = make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    documents = table_cache.documents._documents.copy()
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    shutil.rmtree(lost.location)
    new = make_iceberg_table(*T)
    table_cache.documents._documents.update(documents)  # as in a process that has not seen the drop
    assert commit_to(T, {"b": "1"}).location == new.location
    assert properties() == {"b": "1"}
    assert not Path(lost.location).exists()
    assert not StagedFile.objects.exists()


def test_a_dropped_table_gets_no_file(warehouse):
    lost = make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    documents = table_cache.documents._documents.copy()
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    shutil.rmtree(lost.location)
    table_cache.documents._documents.update(documents)
    with pytest.raises(TableNotFound):
        commit_to(T, {"b": "1"})
    assert not Path(lost.location).exists()
    assert not StagedFile.objects.exists()


def test_a_commit_whose_staging_was_lost_is_repeated(warehouse, monkeypatch):
    make_iceberg_table(*T)
    commit_to(T, {"a": "1"})
    real, calls = metadata_files.outcomes.repeated, 0

    def lose_first_answer(work: Callable[[], Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            work()
        return real(work)

    monkeypatch.setattr(metadata_files.outcomes, "repeated", lose_first_answer)
    assert commit_to(T, {"b": "1"}).sequence == 2
    assert calls == 2  # the second file was staged after the table was read
    assert properties() == {"a": "1", "b": "1"}
    assert StagedFile.objects.count() == 1  # of the file that was not written; the sweep deletes it


def test_a_transaction_uses_and_fills_the_cache(warehouse, parsed):
    make_iceberg_table(*T)
    make_iceberg_table(*U)
    for name in "ab":
        updates = [{"action": "set-properties", "updates": {name: "1"}}]
        changes = [TableChange(table=t, requirements=[], updates=updates) for t in (T, U)]
        iceberg_commits.commit_tables(actor=SYSTEM, changes=changes)
        assert len(parsed) == 2
    assert properties() == properties(U) == {"a": "1", "b": "1"}
    agrees(warehouse)


def document(size: int) -> table_cache.CachedDocument:
    return table_cache.CachedDocument(f'"{size}"', b"", {}, size)


def test_the_document_cache_is_bounded_in_bytes():
    cache = table_cache.DocumentCache(limit=100)
    names = [digest(("ns", str(number))) for number in range(6)]
    for name in names[:4]:
        cache.put(name, document(25))
    assert cache.get(names[0]) is not None  # and is the newest entry now
    cache.put(names[4], document(20))
    assert [cache.get(name) is not None for name in names[:5]] == [True, False, True, True, True]
    cache.put(names[4], document(25))  # replaces the previous one
    assert [cache.get(name) is not None for name in names[:5]] == [True, False, True, True, True]
    cache.put(names[5], document(1))  # the limit is exceeded by one byte
    assert [cache.get(name) is not None for name in names] == [False, False, True, True, True, True]
    cache.put(names[0], document(26))  # a larger one is not cached, nor is the one it replaces
    assert cache.get(names[0]) is None
    cache.clear()
    assert cache.get(names[4]) is None
