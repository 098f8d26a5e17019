"""A purge of an Iceberg table removes the files to which its metadata refers, and no others."""

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone
from pyiceberg.io import load_file_io
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.typedef import Record

from catalog.access import SYSTEM
from catalog.formats.iceberg.metadata import references
from catalog.models import (
    Job,
    Table,
    TableState,
    Transaction,
    TransactionStatus,
)
from catalog.services.engine.commit import commit
from catalog.services.engine.transactions import SetStatus, alter_transaction
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import shared_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.files import TableFileIO
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.maintenance import job_runner
from catalog.services.recovery import purge
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import namespace_operations
from catalog.storage import local_files
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files, make_iceberg_table, make_table, stage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

T = ("ns", "t")


@pytest.fixture(autouse=True)
def sent(monkeypatch) -> list[int]:
    """Ids of the jobs sent to the broker."""
    ids: list[int] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda name, args, **options: ids.append(args[0])
    )
    return ids


def write_table(*identifier: str, **create: object) -> Table:
    """A table written by PyIceberg, with appends, a delete, an overwrite and a short metadata log."""
    make_iceberg_table(
        *identifier, **{"properties": {"write.metadata.previous-versions-max": "2"}, **create}
    )
    table = open_table(*identifier)
    table.append(rows(1, 2))
    table.append(rows(3))
    table.delete("id = 1")
    table.overwrite(rows(5))
    return Table.objects.get(name=identifier[-1], state=TableState.LIVE)


def change(*identifier: str, updates: list[dict[str, object]]) -> LoadedTable:
    change_ = TableChange(table=identifier, requirements=[], updates=updates)
    return iceberg_commits.commit_table(actor=SYSTEM, change=change_)


def add_snapshot(*identifier: str, paths: dict[str, ManifestContent]) -> LoadedTable:
    """A snapshot with data or delete files, which the caller creates."""
    table = open_table(*identifier)
    io, number = load_file_io(), 1 + len(table.metadata.snapshots)
    folder = f"{table.location()}/metadata"
    manifests = []
    for index, (path, content) in enumerate(paths.items()):
        manifest = f"{folder}/named-{number}-{index}.avro"
        writer = _Writer(content, manifest, table, number)
        with writer:
            writer.add_entry(_entry(path, content, number))
        manifests.append(writer.to_manifest_file())
    listed = f"{folder}/named-{number}.avro"
    with write_manifest_list(
        format_version=2,
        output_file=io.new_output(listed),
        snapshot_id=number,
        parent_snapshot_id=None,
        sequence_number=table.metadata.last_sequence_number + 1,
        avro_compression="deflate",
    ) as writer:
        writer.add_manifests(manifests)
    snapshot = {
        "snapshot-id": number,
        "sequence-number": table.metadata.last_sequence_number + 1,
        "timestamp-ms": table.metadata.last_updated_ms + 1,
        "manifest-list": listed,
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    return change(*identifier, updates=[{"action": "add-snapshot", "snapshot": snapshot}])


class _Writer(ManifestWriterV2):
    def __init__(self, content: ManifestContent, path: str, table, number: int) -> None:
        super().__init__(
            UNPARTITIONED_PARTITION_SPEC,
            table.schema(),
            load_file_io().new_output(path),
            number,
            "deflate",
        )
        self._kind = content

    def content(self) -> ManifestContent:
        return self._kind


def _entry(path: str, content: ManifestContent, number: int) -> ManifestEntry:
    deletes = content == ManifestContent.DELETES
    data_file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES if deletes else DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PUFFIN if path.endswith(".puffin") else FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
    )
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=data_file
    )


def drop(*identifier: str) -> Job:
    iceberg_tables.drop_table(actor=SYSTEM, table=identifier, purge=True)
    return Job.objects.latest("pk")


def put(path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"bytes")
    return path


def status(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.status, job.error


def run_again(job: Job) -> None:
    """Run a job that waits for a retry, or whose worker died."""
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    job_runner.run_job(job.pk)


def reader() -> references.Read:
    files = TableFiles(Table.objects.named(T).get())
    return partial(purge._read, TableFileIO(files, SYSTEM))


class Killed(BaseException):
    """Simulates the death of the worker: no code of the worker catches this."""


@pytest.fixture
def kill_after(monkeypatch) -> list[int]:
    """A list whose only element is the number of removed files after which the worker dies."""
    real, remaining = local_files.remove_file_in_place, [10**9]

    def remove(path: str) -> bool:
        if remaining[0] == 0:
            raise Killed
        removed = real(path)
        remaining[0] -= removed
        return removed

    monkeypatch.setattr(local_files, "remove_file_in_place", remove)
    return remaining


def test_purge_removes_all_referenced_files_and_the_directory(warehouse):
    table = write_table(*T)
    write_table("ns", "other")
    before = files(warehouse)
    own = {name for name in before if name.startswith(Path(table.location).name)}
    assert len(own) == 20  # 4 data files, 5 metadata files, 5 snapshots with 6 manifests
    job = drop(*T)
    assert files(warehouse) == before
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "")
    assert job.progress == len(own)
    assert files(warehouse) == {name: before[name] for name in before.keys() - own}
    assert not Path(table.location).exists()
    assert Transaction.objects.get(pk=job.transaction_id).status == "Succeeded"
    table.refresh_from_db()
    assert table.state == TableState.DROPPED


def test_purge_leaves_other_tables_readable():
    write_table(*T)
    write_table("ns", "other")
    job_runner.run_job(drop(*T).pk)
    assert open_table("ns", "other").scan().to_arrow().to_pylist() == rows(5).to_pylist()


def test_delete_files_puffins_and_statistics_are_removed(warehouse):
    loaded = make_iceberg_table(*T)
    data = Path(loaded.location) / "data"
    named = [
        put(data / "1.parquet"),
        put(data / "p=1/deletes.parquet"),
        put(data / "vectors.puffin"),
        put(Path(loaded.location) / "metadata/statistics.puffin"),
        put(Path(loaded.location) / "metadata/partitions.parquet"),
    ]
    paths = dict.fromkeys([f"file://{named[0]}"], ManifestContent.DATA)
    paths |= {f"file://{named[1]}": ManifestContent.DELETES, str(named[2]): ManifestContent.DELETES}
    add_snapshot(*T, paths=paths)
    statistics = {
        "snapshot-id": 1,
        "statistics-path": f"file:{named[3]}",
        "file-size-in-bytes": 5,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    of_partitions = {
        "snapshot-id": 1,
        "statistics-path": f"file://{named[4]}",
        "file-size-in-bytes": 5,
    }
    change(
        *T,
        updates=[
            {"action": "set-statistics", "snapshot-id": 1, "statistics": statistics},
            {"action": "set-partition-statistics", "partition-statistics": of_partitions},
        ],
    )
    assert len(files(warehouse)) == 5 + 4 + 3
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "")
    assert files(warehouse) == {}
    assert not Path(loaded.location).exists()


def test_purge_leaves_unreferenced_files(warehouse):
    table = write_table(*T)
    strangers = [
        put(f"{table.location}/data/stranger.parquet"),
        put(f"{table.location}/notes/read.me"),
        put(f"{warehouse}/beside"),
    ]
    (Path(table.location) / "link").symlink_to(warehouse)
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "files remain in its directories")
    assert set(files(warehouse)) == {
        *(str(path.relative_to(warehouse)) for path in strangers),
        f"{Path(table.location).name}/link",
    }
    assert not Path(f"{table.location}/metadata").exists()


def test_the_files_of_a_rolled_back_snapshot_are_removed_too(warehouse):
    write_table(*T)
    table = open_table(*T)
    oldest = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=oldest).commit()
    job_runner.run_job(drop(*T).pk)
    assert files(warehouse) == {}


@pytest.mark.parametrize("format_version", ["1", "2"])
def test_purge_reads_every_format_version_of_pyiceberg(warehouse, format_version: str):
    write_table(*T, properties={"format-version": format_version})
    job_runner.run_job(drop(*T).pk)
    assert files(warehouse) == {}


def test_purge_reads_manifests_listed_in_v1_snapshots(warehouse):
    loaded = make_iceberg_table(*T)
    data = put(f"{loaded.location}/data/1.parquet")
    document = add_snapshot(*T, paths={str(data): ManifestContent.DATA}).document
    snapshot = document["snapshots"][0]
    snapshot["manifests"] = [f"{loaded.location}/metadata/named-1-0.avro"]
    Path(snapshot.pop("manifest-list").removeprefix("file://")).unlink()
    paths = list(references.referenced(document, reader()))
    assert [(f.kind.value, f.location) for f in paths][:2] == [
        ("data file", str(data)),
        ("manifest", snapshot["manifests"][0]),
    ]


@pytest.mark.parametrize("deaths", [[0], [1], [3, 4], [7], [18], [1] * 12])
def test_a_killed_purge_finishes_on_retry(warehouse, kill_after, deaths):
    write_table(*T)
    other = write_table("ns", "other")
    before = files(other.location)
    job = drop(*T)
    total = len(files(warehouse)) - len(before)
    for number in deaths:
        kill_after[0] = number
        with pytest.raises(Killed):
            run_again(job)
        assert status(job)[0] == "running"  # as a dead worker leaves it
    assert len(files(warehouse)) == len(before) + total - sum(deaths)
    kill_after[0] = 10**9
    run_again(job)
    assert status(job) == ("succeeded", "")
    assert job.progress == total
    assert files(other.location) == before
    assert len(files(warehouse)) == len(before)


def test_a_storage_failure_is_retried(warehouse, monkeypatch):
    write_table(*T)
    job = drop(*T)
    before = len(files(warehouse))
    real, calls = local_files.remove_file_in_place, []

    def fail_third(path: str) -> bool:
        calls.append(path)
        if len(calls) == 3:
            raise PermissionError("not allowed")
        return real(path)

    monkeypatch.setattr(local_files, "remove_file_in_place", fail_third)
    job_runner.run_job(job.pk)
    assert status(job) == ("queued", "not allowed")
    assert job.progress == 2
    assert len(files(warehouse)) == before - 2
    run_again(job)
    assert status(job) == ("succeeded", "")
    assert (job.attempts, job.progress) == (2, before)
    assert files(warehouse) == {}


def test_an_unmounted_storage_is_not_treated_as_empty(warehouse, settings):
    write_table(*T)
    job = drop(*T)
    warehouse.rename(warehouse.with_name("away"))
    job_runner.run_job(job.pk)
    assert status(job)[0] == "queued"
    assert "is not there" in job.error
    warehouse.with_name("away").rename(warehouse)
    run_again(job)
    assert status(job) == ("succeeded", "")
    assert files(warehouse) == {}


def test_a_worker_that_lost_its_lease_stops(warehouse, monkeypatch):
    monkeypatch.setattr(purge, "_AT_ONCE", 1)
    write_table(*T)
    job = drop(*T)
    real, removed = local_files.remove_file_in_place, []

    def lose(path: str) -> bool:
        removed.append(path)
        if len(removed) == 2:  # another worker has the job now
            Job.objects.filter(pk=job.pk).update(attempts=2)
        return real(path)

    monkeypatch.setattr(local_files, "remove_file_in_place", lose)
    job_runner.run_job(job.pk)
    assert status(job)[0] == "running"  # the other worker ends the job
    assert len(removed) == 2


def test_a_purge_renews_its_lease_and_reports_progress(monkeypatch):
    monkeypatch.setattr(purge, "_AT_ONCE", 4)
    write_table(*T)
    job = drop(*T)
    real, progress = local_files.remove_file_in_place, []

    def look(path: str) -> bool:
        progress.append(Job.objects.values_list("progress", "lease_until").get(pk=job.pk))
        return real(path)

    monkeypatch.setattr(local_files, "remove_file_in_place", look)
    job_runner.run_job(job.pk)
    assert [progress for progress, _ in progress] == sorted(progress for progress, _ in progress)
    assert progress[-1][0] >= len(progress) - 4
    leases = [lease for _, lease in progress]
    assert leases == sorted(leases)
    assert len(set(leases)) > 2


def cancel(job: Job) -> None:
    alter_transaction(
        actor=SYSTEM,
        transaction=(str(job.transaction_id),),
        actions=[SetStatus(TransactionStatus.CANCELED)],
    )


def test_a_queued_purge_can_be_canceled(warehouse):
    write_table(*T)
    before = files(warehouse)
    job = drop(*T)
    cancel(job)
    job_runner.run_job(job.pk)
    assert status(job)[0] == "canceled"
    assert files(warehouse) == before


def test_a_purge_can_be_canceled_before_the_first_removal(warehouse, monkeypatch):
    write_table(*T)
    before = files(warehouse)
    job = drop(*T)
    real = purge.holder

    def cancel_now(table: Table) -> Table | None:
        cancel(job)
        return real(table)

    monkeypatch.setattr(purge, "holder", cancel_now)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "canceled on request")
    assert files(warehouse) == before


def test_a_purge_cannot_be_canceled_after_the_first_removal(warehouse, monkeypatch):
    """A partial table is of no use, so a purge continues once it has removed files."""
    monkeypatch.setattr(purge, "_AT_ONCE", 1)
    write_table(*T)
    job = drop(*T)
    real, removed = local_files.remove_file_in_place, []

    def cancel_after_two(path: str) -> bool:
        removed.append(path)
        if len(removed) == 2:
            cancel(job)
        return real(path)

    monkeypatch.setattr(local_files, "remove_file_in_place", cancel_after_two)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "")
    assert files(warehouse) == {}


def test_a_restored_table_keeps_its_data(warehouse):
    table = write_table(*T)
    before = files(warehouse)
    job = drop(*T)
    Table.objects.filter(pk=table.pk).update(state=TableState.LIVE)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "the table was undropped")
    assert files(warehouse) == before
    assert open_table(*T).scan().to_arrow().num_rows == 1


def test_purge_honors_gc_enabled_false(warehouse):
    """As in Java's purge with ``gc.enabled=false``."""
    table = write_table(*T, properties={"gc.enabled": "False"})
    before = files(warehouse)
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "files remain in its directories")
    data = {name: content for name, content in before.items() if "/data/" in name}
    assert len(data) == 4
    assert files(warehouse) == data
    assert Path(table.location).exists()


def test_without_purge_nothing_is_removed(warehouse):
    write_table(*T)
    before = files(warehouse)
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    assert not Job.objects.exists()
    assert files(warehouse) == before


def test_a_cascade_purges_tables_of_both_formats(warehouse, sent):
    write_table(*T)
    stage(make_table("ns", "lance"), 1)
    commit([namespace_operations.DropNamespace(namespace=("ns",), cascade=True)], actor=SYSTEM)
    jobs = list(Job.objects.order_by("pk"))
    assert sent == [job.pk for job in jobs]
    for job in jobs:
        job_runner.run_job(job.pk)
        assert status(job) == ("succeeded", "")
    assert len(jobs) == 2
    assert files(warehouse) == {}


# --- files of others ---------------------------------------------------------------------------


def test_paths_outside_the_roots_are_left_and_counted(warehouse, tmp_path):
    make_iceberg_table(*T)
    outside = put(tmp_path / "outside/1.parquet")
    inside = put(warehouse / "elsewhere/2.parquet")
    linked = put(tmp_path / "outside/3.parquet")
    (warehouse / "way").symlink_to(tmp_path / "outside")
    named = [
        str(outside),
        f"file://{warehouse}/../outside/1.parquet",
        f"{warehouse}/way/{linked.name}",
        "s3://bucket/key.parquet",
        "relative.parquet",
        str(warehouse),
        f"file://{inside}",
    ]
    add_snapshot(*T, paths=dict.fromkeys(named, ManifestContent.DATA))
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == (
        "succeeded",
        "left in place: 7 files outside its directories",
    )
    assert outside.exists()
    assert linked.exists()
    assert set(files(warehouse)) == {"way", "elsewhere/2.parquet"}


def test_a_manifest_outside_the_roots_is_not_read(warehouse, tmp_path):
    loaded = make_iceberg_table(*T)
    data = put(warehouse / "elsewhere/1.parquet")
    add_snapshot(*T, paths={str(data): ManifestContent.DATA})
    written = Path(loaded.location) / "metadata/named-1-0.avro"
    away = tmp_path / "away.avro"
    written.rename(away)
    written.symlink_to(away)
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "left in place: 1 files outside its directories")
    assert data.exists()
    assert away.exists()


def test_an_invalid_manifest_is_left_and_counted(warehouse):
    loaded = make_iceberg_table(*T)
    data = put(f"{loaded.location}/data/1.parquet")
    add_snapshot(*T, paths={str(data): ManifestContent.DATA})
    manifest = Path(loaded.location) / "metadata/named-1-0.avro"
    content = manifest.read_bytes()
    for broken in (b"", b"no Avro", content[: len(content) // 2], content[:-20] + b"x" * 20):
        manifest.write_bytes(broken)
        paths = list(references.referenced(_document(*T), reader()))
        assert paths[0].is_malformed, broken
    job = drop(*T)
    job_runner.run_job(job.pk)
    note = "left in place: 1 files malformed; files remain in its directories"
    assert status(job) == ("succeeded", note)
    assert set(Path(loaded.location).rglob("*.*")) == {data, manifest}


def _document(*identifier: str):
    return iceberg_tables.load_table(actor=SYSTEM, table=identifier).document


def test_a_missing_manifest_does_not_fail_the_purge(warehouse):
    loaded = make_iceberg_table(*T)
    add_snapshot(*T, paths={f"{loaded.location}/data/none.parquet": ManifestContent.DATA})
    (Path(loaded.location) / "metadata/named-1-0.avro").unlink()
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "")
    assert files(warehouse) == {}


def test_an_impossible_manifest_list_path_does_not_fail_the_purge(warehouse):
    loaded = make_iceberg_table(*T)
    Path(loaded.location, "round").symlink_to("round")
    for number, name in enumerate(("x" * 300, "round/a"), 1):
        snapshot = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": loaded.document["last-updated-ms"],
            "manifest-list": f"{loaded.location}/{name}",
            "summary": {"operation": "append"},
        }
        change(*T, updates=[{"action": "add-snapshot", "snapshot": snapshot}])
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "")
    assert files(loaded.location) == {"round": b"-> link"}


def test_files_inside_other_tables_are_left_and_counted(warehouse):
    lance, iceberg = make_table("ns", "lance"), write_table("ns", "other")
    stage(lance, 1)
    before = files(lance.location) | files(iceberg.location)
    make_iceberg_table(*T)
    named = [
        *(f"file://{path}" for path in Path(lance.location).rglob("*.*")),
        *(f"file://{path}" for path in Path(iceberg.location).rglob("*.*")),
    ]
    add_snapshot(*T, paths=dict.fromkeys(named, ManifestContent.DATA))
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", f"left in place: {len(named)} files of other tables")
    assert files(lance.location) | files(iceberg.location) == before


def test_metadata_of_another_table_outside_its_location_is_left(warehouse):
    own = f"file://{warehouse}/metadata of other"
    other = make_iceberg_table("ns", "other", properties={"write.metadata.path": own})
    make_iceberg_table(*T)
    spelled = other.metadata_location.replace("file://", "file:")
    add_snapshot(*T, paths={spelled: ManifestContent.DATA})
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "left in place: 1 files of other tables")
    assert len(files(warehouse)) == 1


def test_own_files_outside_the_location_are_removed(warehouse):
    write_table(
        *T,
        properties={
            "write.metadata.path": f"file://{warehouse}/metadata of t",
            "write.data.path": f"file://{warehouse}/data of t",
        },
    )
    assert {name.split("/")[0] for name in files(warehouse)} == {"metadata of t", "data of t"}
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "")
    assert files(warehouse) == {}


def test_a_location_shared_with_another_table_is_not_purged(warehouse):
    table = write_table(*T)
    job = drop(*T)
    location = table.location
    Table.objects.filter(pk=table.pk).update(location=f"{location}-old")
    make_table("ns", "stays", location=location)
    Table.objects.filter(pk=table.pk).update(location=location)
    before = files(warehouse)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "its files also belong to another table")
    assert files(warehouse) == before


def test_files_registered_again_under_another_name_are_not_purged(warehouse):
    """A table moves, then its old metadata is registered under another name. Both tables use the
    data."""
    write_table(*T)
    old = iceberg_tables.load_table(actor=SYSTEM, table=T).metadata_location
    change(*T, updates=[{"action": "set-location", "location": f"file://{warehouse}/moved"}])
    iceberg_commits.register_table(
        actor=SYSTEM, table=("ns", "again"), metadata_location=old.removeprefix("file://")
    )
    before = files(warehouse)
    job = drop("ns", "again")
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "its files also belong to another table")
    assert files(warehouse) == before
    assert open_table(*T).scan().to_arrow().num_rows == 1


def test_purge_of_a_moved_table_keeps_the_others_files(warehouse):
    write_table(*T)
    old = iceberg_tables.load_table(actor=SYSTEM, table=T).metadata_location
    change(*T, updates=[{"action": "set-location", "location": f"file://{warehouse}/moved"}])
    iceberg_commits.register_table(actor=SYSTEM, table=("ns", "again"), metadata_location=old)
    before = files(warehouse)
    job = drop(*T)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "its files also belong to another table")
    assert files(warehouse) == before
    assert open_table("ns", "again").scan().to_arrow().num_rows == 1


def test_a_table_registered_again_can_be_purged(warehouse):
    write_table(*T)
    last = iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    iceberg_commits.register_table(
        actor=SYSTEM, table=("ns", "again"), metadata_location=last.metadata_location
    )
    open_table("ns", "again").append(rows(7))
    job = drop("ns", "again")
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "files remain in its directories")
    # Only the first table's ledger has metadata files that had left the log by then.
    assert {name.split("/")[1] for name in files(warehouse)} <= {"metadata"}


def test_other_spellings_of_a_shared_file_are_recognized(warehouse):
    """Through a link, another form of URI, or a redundant path segment."""
    (warehouse / "link").symlink_to(warehouse)
    for number, spelling in enumerate(("file:{link}/{file}", "{link}/./{file}", "{link}//{file}")):
        name = f"t{number}"
        write_table("ns", name)
        old = iceberg_tables.load_table(actor=SYSTEM, table=("ns", name)).metadata_location
        moved = {"action": "set-location", "location": f"file://{warehouse}/moved {number}"}
        change("ns", name, updates=[moved])
        relative = str(Path(old.removeprefix("file://")).relative_to(warehouse))
        spelled = spelling.format(link=warehouse / "link", file=relative)
        iceberg_commits.register_table(
            actor=SYSTEM, table=("ns", f"again{number}"), metadata_location=spelled
        )
        before = files(warehouse)
        for dropped, holder in ((name, f"again{number}"), (f"again{number}", name)):
            table = Table.objects.get(name=dropped)
            assert str(purge.holder(table)) == f"ns.{holder}", spelled
        job = drop("ns", name)
        job_runner.run_job(job.pk)
        assert status(job) == ("canceled", "its files also belong to another table")
        assert files(warehouse) == before


def test_shared_files_are_looked_up_by_name():
    """A file's name leads to the versions that contain it, however many others exist."""
    made = [make_iceberg_table("ns", name) for name in ("t", "u")]
    versions = shared_files._foreign_versions(
        Table.objects.get(pk=made[0].pk), [table.metadata_location for table in made]
    )
    assert list(versions) == [(made[1].pk, made[1].metadata_location)]
    with connection.cursor() as cursor:
        # The tables of a test are small enough to be read whole.
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = versions.explain()
    assert "table_version_metadata_file" in plan, plan
