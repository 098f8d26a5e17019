"""Delete files of format version 3, and the data files to which they apply, that belong to other tables."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.manifest import DataFile, FileFormat

from catalog import maintenance_actions
from catalog.access import SYSTEM, Principal, tokens
from catalog.errors import ForeignFile
from catalog.formats.iceberg.job_properties import LEFT_OUT_FILES
from catalog.maintenance_actions import IcebergFiles
from catalog.models import AuditEvent, FileReference, Job, JobStatus, Table
from catalog.services.access import authentication
from catalog.services.engine.commit import commit
from catalog.services.iceberg import contents as iceberg_contents
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import iceberg_statistics, job_runner, policies
from catalog.services.tables import job_operations
from tests.access.protocols import KEY
from tests.api.iceberg.client import Iceberg
from tests.catalog.formats.iceberg.written import EQUALITY, POSITION, Written
from tests.factories import unchanged
from tests.security.foreign import World, message_of
from tests.security.watching import untouched

T = ("mine", "deletes")
SCHEMA = {"fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
ROW = {"id": 1}
pytestmark = pytest.mark.django_db


def equality(made: Written, data: DataFile, path: str) -> DataFile:
    return made.file([ROW], content=EQUALITY, metrics=False, file_path=path, equality_ids=[1])


def position(made: Written, data: DataFile, path: str) -> DataFile:
    return made.file([ROW], content=POSITION, metrics=False, file_path=path)


def vector(made: Written, data: DataFile, path: str) -> DataFile:
    return made.file(
        [ROW],
        content=POSITION,
        metrics=False,
        file_path=path,
        file_format=FileFormat.PUFFIN,
        referenced_data_file=data.file_path,
        content_offset=4,
        content_size_in_bytes=40,
    )


def of_foreign_data(made: Written, data: DataFile, path: str) -> DataFile:
    """A deletion vector of the table that applies to a file of another one."""
    return made.file(
        [ROW],
        content=POSITION,
        metrics=False,
        file_path=f"file://{made.directory}/data/own.puffin",
        file_format=FileFormat.PUFFIN,
        referenced_data_file=path,
        content_offset=4,
        content_size_in_bytes=40,
    )


SLOTS: dict[str, Callable[[Written, DataFile, str], DataFile]] = {
    "equality": equality,
    "position": position,
    "vector": vector,
    "referenced": of_foreign_data,
}


def register(world: World, attacker: Iceberg, slot: str, kind: str) -> str:
    """Register the attacker's table, whose delete file names a file of another one; returns this path."""
    made = Written(world.mine.parent / "deletes", SCHEMA, version=3)
    path = world.path(kind, "data")
    data = made.file([ROW])
    own = made.directory / "data"
    own.mkdir()
    (own / "00001.parquet").write_bytes(b"PAR1")
    (own / "own.puffin").write_bytes(b"PFA1" * 20)
    made.commit([data])
    made.commit([SLOTS[slot](made, data, path)], operation="delete")
    file = made.directory / "metadata" / "v1.metadata.json"
    file.write_text(json.dumps(made.document))
    body = {"name": T[-1], "metadata-location": f"file://{file}"}
    answer = attacker.call("POST", "namespaces/mine/register", body)
    assert answer.status_code == 200, answer.content
    return path


def show(actor: Principal, table: Table) -> None:
    """Read the files of the current snapshot, as the table's page does."""
    document = iceberg_tables.load_table(actor=SYSTEM, table=T).document
    reader = iceberg_contents.reader(actor, table)
    for manifest in iceberg_contents.manifests_of(reader, document["snapshots"][-1]):
        iceberg_contents.files_of(reader, manifest)


class Loading:
    """Loads the table as the driver of a job does."""

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def __call__(self, job: Job, *arguments: Any, **options: Any) -> dict[str, Any]:
        client = Iceberg(tokens.issue_job_token(job.pk, job.attempts))
        metadata = client.get("namespaces/mine/tables/deletes")["metadata"]
        self.left_out += json.loads(metadata["properties"][LEFT_OUT_FILES])
        return {}


def run(kind: str, spark: Loading) -> Job:
    start = job_operations.StartMaintenance(
        table=T, format="iceberg", kind_of_job=kind, parameters={"policy": {"min_small_files": 2}}
    )
    job: Job = commit([start], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk, spark=spark)
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("kind", ["hidden", "link", "encoded"])
@pytest.mark.parametrize("slot", SLOTS)
def test_foreign_delete_files_are_not_used(world: World, attacker: Iceberg, slot: str, kind: str):
    path = register(world, attacker, slot, kind)
    refusal = f"File '{path}' does not belong to table 'mine.deletes', and may not be read for it"
    table = Table.objects.select_related("namespace").named(T).get()
    assert not FileReference.objects.filter(table=table).exists()
    me = authentication.authenticate(KEY)
    with untouched(world.canaries()):
        with unchanged():
            answer = attacker.call("POST", "namespaces/mine/tables/deletes/plan", {})
            assert message_of(answer) == refusal
            with pytest.raises(ForeignFile) as refused:
                show(me, table)
            assert refused.value.message == refusal
        assert iceberg_statistics.measure(table, policies.effective_policy(table)) is not None
        results: dict[str, Any] = {}
        for action in maintenance_actions.of_format("iceberg"):
            if action.iceberg_files in {IcebergFiles.DATA, IcebergFiles.DELETES}:
                spark = Loading()
                job = run(action.key, spark)
                assert job.status == JobStatus.SUCCEEDED, (action.key, job.error)
                assert job.result["skipped"] == {"foreign_files": 1, "examples": [path]}
                assert "1 file may not be read" in job.error or "files that may not" in job.error
                results[action.key] = spark.left_out
        assert results["compute_statistics"] == []
        assert all(paths in ([], [path]) for paths in results.values())  # some had nothing to do
        iceberg_tables.drop_table(actor=me, table=T, purge=True)
        job = Job.objects.latest("pk")
        Job.objects.filter(pk=job.pk).update(lease_until=None)
        job_runner.run_job(job.pk)
        job.refresh_from_db()
        assert job.status == JobStatus.SUCCEEDED, job.error
    removed = AuditEvent.objects.get(action="table.remove_files").after["paths"]
    assert removed
    assert all(removed_path.startswith(f"{table.location}/") for removed_path in removed)
