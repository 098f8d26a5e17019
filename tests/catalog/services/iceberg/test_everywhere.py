"""Iceberg tables and views, in local files and in an object store."""

import uuid
from datetime import timedelta
from typing import Any

import orjson
import pyarrow as pa
import pytest
from django.db.models.functions import Now

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    CommitConflict,
    ForeignFile,
    InvalidLocation,
    InvalidMetadata,
    OutcomeUnknown,
    RequirementFailed,
    Unsupported,
)
from catalog.formats.iceberg.scans import planning as scan_planning
from catalog.models import Job, JobStatus, StagedFile, Table, TableVersion
from catalog.policies import EffectivePolicy
from catalog.privileges import READ_ONLY
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files, scans, views
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.metadata_files import MetadataFile
from catalog.services.iceberg.metadata_operations import CommitMetadata
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.maintenance import iceberg_cleanup, iceberg_statistics, job_runner, policies
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations
from tests.cases import shared_cases
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files, make_iceberg_table, make_namespace, unchanged
from tests.stores.fixtures import Storage

pytestmark = [pytest.mark.django_db]

T = ("ns", "t")
U = ("ns", "u")
ADA = Principal("ada", READ_ONLY)


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch, settings) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 0


def set_properties(table: tuple[str, ...], **properties: str) -> LoadedTable:
    updates = [{"action": "set-properties", "updates": properties}]
    change = TableChange(table=table, requirements=[], updates=updates)
    return iceberg_commits.commit_table(actor=SYSTEM, change=change)


def path_of(location: str) -> str:
    return locations.iceberg_path(location)


def write_table(*identifier: str, **create: Any) -> Table:
    """A table with 4 data files, 5 snapshots and a short metadata log."""
    make_iceberg_table(
        *identifier, **{"properties": {"write.metadata.previous-versions-max": "2"}, **create}
    )
    table = open_table(*identifier)
    table.append(rows(1, 2))
    table.append(rows(3))
    table.delete("id = 1")
    table.overwrite(rows(5))
    return Table.objects.named(identifier).get()


def leave(file: MetadataFile) -> None:
    """The file and its note, as a server leaves them that was killed before the commit."""
    with pytest.raises(OutcomeUnknown), metadata_files.staged([file]):
        raise OutcomeUnknown("killed")


def commit_staged(file: MetadataFile, operation: Operation) -> None:
    with metadata_files.staged([file]):
        commit([operation], actor=SYSTEM)


def sweep_all() -> int:
    StagedFile.objects.update(created_at=Now() - timedelta(minutes=16))
    return metadata_files.sweep()


def run_jobs() -> list[tuple[str, str]]:
    jobs = list(Job.objects.filter(status=JobStatus.QUEUED))
    for job in jobs:
        job_runner.run_job(job.pk)
        job.refresh_from_db()
    return [(job.status, job.error) for job in jobs]


# --- commits -----------------------------------------------------------------------------------


def test_a_new_table_has_one_metadata_file_in_its_storage(everywhere: Storage):
    created = make_iceberg_table(*T)
    path = path_of(created.metadata_location)
    assert path.startswith(f"{everywhere.root}/")
    assert path.startswith(f"{created.location}/metadata/00000-")
    assert list(files(everywhere.root)) == [path.removeprefix(f"{everywhere.root}/")]
    assert orjson.loads(everywhere.read(path)) == created.document
    assert not StagedFile.objects.exists()
    loaded = iceberg_tables.load_table(actor=SYSTEM, table=T)
    assert (loaded.location, loaded.document) == (created.location, created.document)


def test_each_commit_adds_one_file(everywhere: Storage):
    created = make_iceberg_table(*T)
    for number in range(1, 4):
        committed = set_properties(T, number=str(number))
        content = everywhere.read(path_of(committed.metadata_location))
        assert orjson.loads(content)["properties"] == {"number": str(number)}
    assert len(files(created.location)) == 4
    ledger = TableVersion.objects.values_list("manifest_path", flat=True)
    assert {path_of(location) for location in ledger} == {
        f"{created.location}/{name}" for name in files(created.location)
    }
    assert not StagedFile.objects.exists()


def test_gzip_metadata_can_be_read_by_pyiceberg(everywhere: Storage):
    make_iceberg_table(*T, properties={"write.metadata.compression-codec": "gzip"})
    table = open_table(*T)
    with table.io.new_input(table.metadata_location).open() as stream:
        assert stream.read(2) == b"\x1f\x8b"


def test_a_refused_commit_leaves_nothing_after_the_sweep(everywhere: Storage):
    created = make_iceberg_table(*T)
    current = set_properties(T, a="1")
    before = files(everywhere.root)
    stale = metadata_files.draft(TableFiles(created), created.document, created.sequence + 1)
    operation = CommitMetadata(table=T, base=created.metadata_location, file=stale)
    with pytest.raises(CommitConflict):
        commit_staged(stale, operation)
    remaining = list(StagedFile.objects.values_list("path", "is_condemned"))
    assert remaining == ([(stale.path, True)] if everywhere.kind == "s3" else [])
    assert metadata_files.sweep() == 0
    assert sweep_all() == len(remaining)
    assert files(everywhere.root) == before
    assert not StagedFile.objects.exists()
    assert iceberg_tables.load_table(actor=SYSTEM, table=T).document == current.document


def test_a_failed_requirement_writes_nothing(everywhere: Storage):
    make_iceberg_table(*T)
    before = files(everywhere.root)
    change = TableChange(
        table=T,
        requirements=[{"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}],
        updates=[{"action": "set-properties", "updates": {"a": "1"}}],
    )
    with unchanged(), pytest.raises(RequirementFailed):
        iceberg_commits.commit_table(actor=SYSTEM, change=change)
    assert files(everywhere.root) == before


def test_the_sweep_removes_the_files_of_killed_commits(everywhere: Storage):
    created = make_iceberg_table(*T)
    before = files(everywhere.root)
    drafts = [
        metadata_files.draft(TableFiles(created), created.document, number)
        for number in range(1, 4)
    ]
    for file in drafts:
        leave(file)
    StagedFile.objects.create(path=f"{created.location}/metadata/never-written.json")
    assert len(files(everywhere.root)) == len(before) + 3
    assert metadata_files.sweep() == 0
    assert len(files(everywhere.root)) == len(before) + 3
    assert sweep_all() == 4
    assert files(everywhere.root) == before
    assert not StagedFile.objects.exists()


def test_the_sweep_keeps_files_that_were_registered_since(everywhere: Storage):
    created = make_iceberg_table(*T)
    file = metadata_files.draft(TableFiles(created), created.document, 1)
    leave(file)
    TableVersion.objects.create(table_id=created.pk, version=7, manifest_path=file.location)
    assert sweep_all() == 0
    assert orjson.loads(everywhere.read(file.path)) == file.document
    assert not StagedFile.objects.exists()


def test_metadata_files_that_leave_the_log_are_removed(everywhere: Storage):
    created = make_iceberg_table(
        *T,
        properties={
            "write.metadata.previous-versions-max": "1",
            "write.metadata.delete-after-commit.enabled": "true",
        },
    )
    for number in range(1, 5):
        current = set_properties(T, number=str(number))
    remaining = {f"{created.location}/{name}" for name in files(created.location)}
    (logged,) = current.document["metadata-log"]
    assert remaining == {path_of(current.metadata_location), path_of(logged["metadata-file"])}
    assert not StagedFile.objects.exists()


# --- reading -----------------------------------------------------------------------------------


def planned_files(table: tuple[str, ...] = T) -> set[str]:
    planned = scans.plan_scan(actor=ADA, table=table, request={})
    tasks = list(planned.tasks["file-scan-tasks"])
    for name in planned.plan_tasks:
        tasks += scans.fetch_tasks(actor=ADA, table=table, plan_task=name)["file-scan-tasks"]
    return {task["data-file"]["file-path"] for task in tasks}


def test_rows_are_written_planned_and_read(everywhere: Storage, monkeypatch):
    monkeypatch.setattr(scan_planning, "FILES_AT_ONCE", 8)
    make_iceberg_table(*T)
    table = open_table(*T)
    for number in range(20):  # more manifests than are read at a time
        table.append(rows(number))
    assert planned_files() == {task.file.file_path for task in table.scan().plan_files()}
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(20))


def test_keys_with_percent_signs_are_compared_literally(everywhere: Storage):
    make_iceberg_table(
        *T,
        partition_spec={
            "fields": [{"source-id": 2, "field-id": 1000, "name": "name", "transform": "identity"}]
        },
    )
    data = pa.Table.from_pylist(
        [{"id": 1, "name": "a/b"}, {"id": 2, "name": "50% off"}], schema=rows(1).schema
    )
    table = open_table(*T)
    table.append(data)
    planned = planned_files()
    assert len([path for path in planned if "name=a%2Fb/" in path]) == 1
    owners = TableFiles(Table.objects.named(T).get()).classify(planned)
    assert {owner.belonging for owner in owners.values()} == {Belonging.OWN}
    iceberg_tables.drop_table(actor=SYSTEM, table=T, purge=True)
    assert run_jobs() == [("succeeded", "")]
    assert files(everywhere.root) == {}


def test_statistics_are_measured(everywhere: Storage):
    row = write_table(*T)
    policy: EffectivePolicy = policies.effective_policy(row)
    statistics = iceberg_statistics.measure(row, policy)
    assert statistics is not None
    assert (statistics.rows, statistics.files) == (1, 1)
    assert statistics.manifests >= 1


# --- registration ------------------------------------------------------------------------------


def test_a_table_is_registered_from_its_file(everywhere: Storage):
    row = write_table(*T)
    last = iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    before = files(everywhere.root)
    registered = iceberg_commits.register_table(
        actor=SYSTEM, table=U, metadata_location=last.metadata_location
    )
    assert registered.document == last.document
    assert registered.location == row.location
    assert files(everywhere.root) == before
    open_table(*U).append(rows(9))
    assert sorted(open_table(*U).scan().to_arrow()["id"].to_pylist()) == [5, 9]


def test_a_file_of_no_table_is_read_only_to_register_it(everywhere: Storage):
    document = dict(make_iceberg_table(*T).document)
    directory = everywhere.location("elsewhere")
    document |= {
        "location": locations.iceberg_uri(directory),
        "table-uuid": str(uuid.uuid4()),
    }
    path = f"{directory}/metadata/00003-x.metadata.json"
    everywhere.write(path, orjson.dumps(document))
    with unchanged(), pytest.raises(ForeignFile):
        TableFiles(Table.objects.named(T).get()).require_readable(SYSTEM, [path])
    registered = iceberg_commits.register_table(
        actor=SYSTEM, table=U, metadata_location=locations.iceberg_uri(path)
    )
    assert (registered.location, registered.document) == (directory, document)


@shared_cases("content", [b"{", b"", b"[]"])
def test_a_file_that_is_no_metadata_is_refused(everywhere: Storage, content):
    make_namespace("ns")
    path = everywhere.location("elsewhere/metadata/1.metadata.json")
    everywhere.write(path, content)
    with unchanged(), pytest.raises(InvalidMetadata):
        iceberg_commits.register_table(
            actor=SYSTEM, table=U, metadata_location=locations.iceberg_uri(path)
        )


def test_a_missing_file_is_refused(everywhere: Storage):
    make_namespace("ns")
    missing = locations.iceberg_uri(everywhere.location("elsewhere/metadata/1.metadata.json"))
    with unchanged(), pytest.raises(InvalidLocation, match="cannot be read: No such"):
        iceberg_commits.register_table(actor=SYSTEM, table=U, metadata_location=missing)


# --- removal -----------------------------------------------------------------------------------


def test_a_purge_removes_exactly_the_files_of_the_table(everywhere: Storage):
    row = write_table(*T)
    other = write_table(*U)
    stranger = f"{row.location}/data/stranger.parquet"
    everywhere.write(stranger, b"bytes")
    twin = f"{row.location}2/data/x.parquet"
    everywhere.write(twin, b"bytes")
    own = set(files(row.location)) - {"data/stranger.parquet"}
    assert len(own) == 20  # 4 data files, 5 metadata files, 5 snapshots with 6 manifests
    before = files(other.location)
    iceberg_tables.drop_table(actor=SYSTEM, table=T, purge=True)
    assert run_jobs() == [("succeeded", "files remain in its directories")]
    assert Job.objects.get().progress == len(own)
    assert set(files(row.location)) == {"data/stranger.parquet"}
    assert everywhere.read(twin) == b"bytes"
    assert files(other.location) == before
    assert open_table(*U).scan().to_arrow().num_rows == 1


def test_a_purge_leaves_files_of_other_tables(everywhere: Storage):
    source = write_table(*U)
    loaded = make_iceberg_table(*T)
    snapshot = open_table(*U).metadata.model_dump(mode="json", by_alias=True)["snapshots"][-1]
    change = TableChange(
        table=T,
        requirements=[],
        updates=[{"action": "add-snapshot", "snapshot": {**snapshot, "sequence-number": 1}}],
    )
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    before = files(source.location)
    iceberg_tables.drop_table(actor=SYSTEM, table=T, purge=True)
    ((status, note),) = run_jobs()
    assert status == "succeeded"
    assert "files of other tables" in note
    assert files(source.location) == before
    assert files(loaded.location) == {}


def test_dropped_files_elsewhere_count_as_files_of_another_table(everywhere: Storage):
    row = write_table(*T)
    inner = make_iceberg_table(*U, location=locations.iceberg_uri(everywhere.location("inner")))
    Table.objects.filter(pk=inner.pk).update(location=f"{row.location}/inner", state="dropped")
    document = iceberg_tables.load_table(actor=SYSTEM, table=T).document
    iceberg_cleanup.require_exclusive_location(row, document)
    everywhere.write(f"{row.location}/inner/data/x.parquet", b"bytes")
    with pytest.raises(Unsupported, match="may belong to another table"):
        iceberg_cleanup.require_exclusive_location(row, document)


# --- views -------------------------------------------------------------------------------------


def test_views_are_created_replaced_and_registered(everywhere: Storage):
    make_namespace("ns")
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {"engine-name": "test"},
        "default-namespace": ["ns"],
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
    }
    created = views.create_view(actor=SYSTEM, view=T, schema=schema, view_version=version)
    replaced = views.replace_view(
        actor=SYSTEM,
        view=T,
        requirements=[],
        updates=[{"action": "set-properties", "updates": {"a": "1"}}],
    )
    assert set(files(everywhere.root)) == {
        path_of(each.metadata_location).removeprefix(f"{everywhere.root}/")
        for each in (created, replaced)
    }
    assert orjson.loads(everywhere.read(path_of(replaced.metadata_location))) == replaced.document
    views.drop_view(actor=SYSTEM, view=T)
    registered = views.register_view(
        actor=SYSTEM, view=U, metadata_location=replaced.metadata_location
    )
    assert registered.document == replaced.document
