"""Metadata files are recorded before they are written. The sweep removes those that a commit leaves
behind."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.errors import CommitConflict, OutcomeUnknown, ServiceUnavailable
from catalog.models import Namespace, StagedFile, StorageProfile, Table, TableState, TableVersion
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.metadata_files import Document, MetadataFile
from catalog.services.iceberg.metadata_operations import CommitMetadata, CreateFromMetadata
from catalog.services.storage.file_owners import FutureTable
from catalog.services.storage.table_files import TableFiles
from catalog.storage import local_files, stores
from catalog.storage.stores import StorageUnavailable
from tasks import maintenance as tasks
from tests.factories import (
    files,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

T = ("ns", "t")


def draft(number: int = 1) -> tuple[str, MetadataFile]:
    """The next metadata file of a new table, and the location of the current file."""
    loaded = make_iceberg_table(*T)
    document = loaded.document | {"properties": {"number": str(number)}}
    return loaded.metadata_location, draft_of(document, loaded.sequence + number)


def draft_of(document: Document, sequence: int) -> MetadataFile:
    location = document["location"].removeprefix("file://")
    return metadata_files.draft(TableFiles(FutureTable(T, location)), document, sequence)


def age(minutes: float = 16) -> None:
    StagedFile.objects.update(created_at=Now() - timedelta(minutes=minutes))


def leave(file: MetadataFile) -> None:
    """Create a file and its record, as a server leaves them if it is killed before the commit."""
    with pytest.raises(OutcomeUnknown), metadata_files.staged([file]):
        raise OutcomeUnknown("killed")


def test_the_sweep_is_scheduled():
    entry = django_settings.CELERY_BEAT_SCHEDULE["sweep-metadata-files"]
    assert (entry["task"], entry["schedule"]) == (tasks.sweep_metadata_files.name, 60.0)


def test_new_records_and_their_files_are_kept(warehouse):
    leave(draft()[1])
    age(minutes=14)
    before = files(warehouse)
    with unchanged():
        assert tasks.sweep_metadata_files() == 0
    assert files(warehouse) == before
    assert len(before) == 2


def test_the_file_of_an_old_record_is_removed_before_the_record(warehouse, monkeypatch):
    _, file = draft()
    before = files(warehouse)
    leave(file)
    age()
    real, noted = local_files.remove_file_in_place, []

    def remove(path: str) -> bool:
        noted.append((path, StagedFile.objects.get().is_condemned))
        return real(path)

    monkeypatch.setattr(local_files, "remove_file_in_place", remove)
    assert tasks.sweep_metadata_files() == 1
    assert noted == [(file.path, True)]
    assert files(warehouse) == before
    assert not StagedFile.objects.exists()
    with unchanged():
        assert tasks.sweep_metadata_files() == 0


def test_the_record_of_a_file_that_was_never_written_is_removed(warehouse):
    _, file = draft()
    StagedFile.objects.create(path=file.path)
    age()
    assert metadata_files.sweep() == 1
    assert not StagedFile.objects.exists()


def test_the_record_of_a_file_that_cannot_be_removed_is_kept(warehouse, monkeypatch):
    _, file = draft()
    leave(file)
    other = draft_of(file.document, 7)
    leave(other)
    age()
    real = local_files.remove_file_in_place

    def remove(path: str) -> bool:
        if path == file.path:
            raise PermissionError("not allowed")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(local_files, "remove_file_in_place", remove)
        assert metadata_files.sweep() == 1
    assert StagedFile.objects.get().path == file.path
    assert Path(file.path).exists()
    assert not Path(other.path).exists()
    assert metadata_files.sweep() == 1
    assert not StagedFile.objects.exists()
    assert len(files(warehouse)) == 1


def commit_late(operation: Operation, file: MetadataFile, swept: str) -> None:
    """A commit that is delayed until the sweep considers it dead."""
    with metadata_files.staged([file]):
        match swept:
            case "condemned":
                StagedFile.objects.update(is_condemned=True)
            case "removed":
                Path(file.path).unlink()
                StagedFile.objects.all().delete()
            case "before it was written":
                StagedFile.objects.all().delete()
        commit([operation], actor=SYSTEM)


SWEPT = pytest.mark.parametrize("swept", ["condemned", "removed", "before it was written"])


@SWEPT
def test_a_commit_that_the_sweep_considered_dead_fails(warehouse, swept):
    base, file = draft()
    before = files(warehouse)
    with unchanged(), pytest.raises(CommitConflict):
        commit_late(CommitMetadata(table=T, base=base, file=file), file, swept)
    assert files(warehouse) == before


@SWEPT
def test_a_creation_that_the_sweep_considered_dead_fails(warehouse, swept):
    make_namespace("ns")
    document = {"location": f"file://{warehouse}/new", "properties": {}}
    file = draft_of(document, 0)
    create = CreateFromMetadata(table=T, file=file, location=f"{warehouse}/new")
    with unchanged(), pytest.raises(CommitConflict, match="The commit took too long"):
        commit_late(create, file, swept)
    assert files(warehouse) == {}


def test_a_table_commit_that_the_sweep_considered_dead_is_repeated(warehouse, monkeypatch):
    make_iceberg_table(*T)
    real, calls = local_files.write_new_file, []

    def write_late(path: str, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 1:
            age()
            metadata_files.sweep()
        real(path, content)

    monkeypatch.setattr(local_files, "write_new_file", write_late)
    change = TableChange(
        table=T,
        requirements=[],
        updates=[{"action": "set-properties", "updates": {"a": "b"}}],
    )
    committed = iceberg_commits.commit_table(actor=SYSTEM, change=change)
    assert committed.sequence == 1
    assert len(calls) == 2
    assert not Path(calls[0]).exists()
    assert Path(calls[1]).exists()
    assert len(files(warehouse)) == 2
    assert not StagedFile.objects.exists()


def test_a_failed_commit_leaves_no_file_and_no_record(warehouse):
    _, file = draft()
    before = files(warehouse)
    with unchanged(), pytest.raises(ZeroDivisionError), metadata_files.staged([file]):
        raise ZeroDivisionError
    assert files(warehouse) == before


def commit_and_fail(operation: Operation, file: MetadataFile) -> None:
    with metadata_files.staged([file]):
        commit([operation], actor=SYSTEM)
        raise OSError("a broken pipe")


def test_a_failure_after_the_commit_keeps_the_current_file(warehouse):
    """The steps after a commit may fail in any way. The file is the current metadata by then."""
    base, file = draft()
    with pytest.raises(OSError, match="a broken pipe"):
        commit_and_fail(CommitMetadata(table=T, base=base, file=file), file)
    assert Path(file.path).read_bytes() == file.content
    assert TableVersion.objects.get(version=1).manifest_path == file.location
    assert not StagedFile.objects.exists()


def test_if_one_of_two_files_cannot_be_written_neither_remains(warehouse, monkeypatch):
    _, file = draft()
    other = draft_of(file.document, 7)
    before, real = files(warehouse), local_files.write_new_file

    def write(path: str, content: bytes) -> None:
        if path == other.path:
            Path(path).write_bytes(content[:7])
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(local_files, "write_new_file", write)
    with (
        unchanged(),
        pytest.raises(ServiceUnavailable, match="No space left on device"),
        metadata_files.staged([file, other]),
    ):
        pytest.fail("the commit was tried")
    assert files(warehouse) == before


@pytest.mark.django_db(transaction=True)
def test_the_sweep_waits_for_a_commit_that_is_about_to_finish(warehouse):
    """The record is old, but the transaction is still open. The sweep waits, and finds the record
    deleted."""
    make_root()
    base, file = draft()
    leave(file)
    age()
    at_the_end, go_on, swept = threading.Event(), threading.Event(), []

    def commit_slowly() -> None:
        with transaction.atomic():
            commit([CommitMetadata(table=T, base=base, file=file)], actor=SYSTEM)
            at_the_end.set()
            go_on.wait(60)
        connection.close()

    def sweep() -> None:
        swept.append(metadata_files.sweep())
        connection.close()

    committing, sweeping = threading.Thread(target=commit_slowly), threading.Thread(target=sweep)
    committing.start()
    assert at_the_end.wait(60)
    sweeping.start()
    _wait_for_a_lock()
    go_on.set()
    committing.join(60)
    sweeping.join(60)
    assert swept == [0]
    assert Path(file.path).exists()
    assert not StagedFile.objects.exists()


def _wait_for_a_lock() -> None:
    with connection.cursor() as cursor:
        for _ in range(3000):
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock'"
            )
            if cursor.fetchone() != (0,):
                return
            threading.Event().wait(0.02)
    pytest.fail("nobody waits")


@pytest.mark.django_db(transaction=True)
def test_concurrent_sweeps_remove_each_file_once(warehouse):
    make_root()
    _, file = draft()
    for number in range(40):
        leave(draft_of(file.document, number + 10))
    age()
    barrier, swept = threading.Barrier(2), []

    def sweep() -> None:
        barrier.wait(60)
        swept.append(metadata_files.sweep())
        connection.close()

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(swept) >= 40
    assert not StagedFile.objects.exists()
    assert len(files(warehouse)) == 1


def test_a_file_that_cannot_be_removed_does_not_delay_others(warehouse, monkeypatch):
    monkeypatch.setattr(metadata_files, "_SWEPT_AT_ONCE", 1)
    stuck, plain = warehouse / "a", warehouse / "b"
    stuck.mkdir()
    plain.touch()
    for path in (stuck, plain):
        StagedFile.objects.create(path=str(path))
    age()
    assert metadata_files.sweep() == 1
    assert not plain.exists()
    assert StagedFile.objects.get().path == str(stuck)


# --- staging and removing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequences", "waits"), [([0], True), ([1], False), ([3, 0], True), ([1, 2], False)]
)
def test_only_the_records_of_first_files_wait_for_the_disk(sequences, waits):
    """The removal of orphan files finds all others, in the directory of their table."""
    document = make_iceberg_table(*T).document
    drafted = [draft_of(document, sequence) for sequence in sequences]
    with CaptureQueriesContext(connection) as captured:
        metadata_files._stage(drafted)
        metadata_files._stage(drafted)  # as after a lost answer
    assert ["synchronous_commit" not in query["sql"] for query in captured] == [waits, waits]
    staged = StagedFile.objects.order_by("path").values_list("path", "is_condemned")
    assert list(staged) == sorted((file.path, False) for file in drafted)


@pytest.mark.parametrize("change", [None, "etag", "key", "name", "dropped"])
def test_a_file_is_staged_on_the_current_metadata(change):
    loaded = make_iceberg_table(*T)
    file = draft_of(loaded.document, 1)
    if change == "dropped":
        Table.objects.update(state=TableState.DROPPED)
    is_staged = metadata_files.stage_on(
        file,
        0 if change == "key" else loaded.pk,
        ("ns", "u") if change == "name" else T,
        '"older"' if change == "etag" else loaded.etag,
    )
    assert is_staged is (change is None)
    assert StagedFile.objects.count() == (1 if change is None else 0)


@pytest.mark.parametrize(
    "change", [None, "dropped", "digest", "property", "location", "profile", "name"]
)
def test_a_first_file_is_staged_in_a_namespace_without_a_location(change):
    """The location and the profile are those of the namespace above."""
    namespace = make_namespace("ns", "below")
    above = Namespace.objects.filter(name="ns")
    if change == "dropped":
        Namespace.objects.filter(pk=namespace.pk).update(dropped_at=Now())
    elif change == "digest":
        namespace.digest = above.get().digest
    elif change == "property":
        Namespace.objects.filter(pk=namespace.pk).update(properties={"location": "file:///x"})
    elif change == "location":
        above.update(location="/x")
    elif change == "profile":
        above.update(
            storage_profile=StorageProfile.objects.create(name="l", kind="s3", roots=["s3://l"])
        )
    elif change == "name":
        make_table("ns", "below", "t")
    file = draft_of(make_iceberg_table("other", "t").document, 0)
    is_staged = metadata_files.stage_in_warehouse(file, ("ns", "below", "t"), namespace)
    assert is_staged is (change is None)
    assert StagedFile.objects.count() == (1 if change is None else 0)


def test_files_of_one_store_are_removed_together(monkeypatch):
    monkeypatch.setattr(stores, "configuration_of", lambda path: path.partition("/")[0])
    paths = [
        *("/t/1", "s3://lake/t/1", "/t/2", "s3://lake/u/2", "s3://other/t/1", "s3://lake/new/"),
        "s3://lake/t/3",
    ]
    assert list(metadata_files._groups(paths)) == [
        ["/t/1"],
        ["s3://lake/t/1", "s3://lake/u/2", "s3://lake/t/3"],
        ["/t/2"],
        ["s3://other/t/1"],
        ["s3://lake/new/"],
    ]


def test_a_table_that_the_catalog_was_writing_is_removed_with_its_directory(warehouse):
    written = warehouse / "new" / "data"
    written.mkdir(parents=True)
    (written / "1.parquet").write_bytes(b"x")
    (warehouse / "new.txt").write_bytes(b"x")
    StagedFile.objects.create(path=f"{warehouse}/new/", is_condemned=True)
    assert metadata_files.remove_recorded([f"{warehouse}/new/"]) == 1
    assert [path.name for path in warehouse.iterdir()] == ["new.txt"]
    assert not StagedFile.objects.exists()


def test_a_store_that_is_busy_states_when_to_try_again():
    error = StorageUnavailable("lake", "503", retry_seconds=9)
    refusal = metadata_files._unwritable(
        "s3://lake/t", "The metadata file cannot be written", error
    )
    assert isinstance(refusal, ServiceUnavailable)
    assert refusal.retry_seconds == 9
    assert refusal.message == f"The metadata file cannot be written: {error.strerror}"
