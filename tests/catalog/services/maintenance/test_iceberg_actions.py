"""Jobs of Iceberg tables, up to the requests to Spark."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catalog import maintenance_actions
from catalog.access import SYSTEM
from catalog.models import AuditEvent, Job, JobStatus, Table, TableFormat
from catalog.policies import effective
from catalog.services.engine.commit import commit
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.commits import register_table
from catalog.services.maintenance import iceberg_statistics, job_runner
from catalog.services.tables import job_operations
from tests.catalog.services.iceberg.writing import open_table
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


class FakeSpark:
    """Stores its requests, reports removed files, and returns configured answers."""

    def __init__(
        self, *, removed: Sequence[list[str]] = (), fails: bool = False, **answer: Any
    ) -> None:
        self.answer = answer
        self.removed = removed
        self.fails = fails
        self.requests: list[dict[str, Any]] = []

    def __call__(
        self,
        job: Job,
        script: str,
        request: Any,
        report: Any,
        *,
        needs_iceberg: bool = False,
        on_part: Any = None,
    ) -> dict[str, Any]:
        assert (script, needs_iceberg) == ("iceberg", True)
        self.requests.append(dict(request))
        for paths in self.removed:
            on_part({"removed": paths})
        if self.fails:
            raise RuntimeError("The Spark driver was killed")
        return self.answer


def start(kind: str, *, is_dry_run: bool = False, **options: Any) -> Job:
    operation = job_operations.StartMaintenance(
        table=("ws", "t"),
        format=TableFormat.ICEBERG,
        kind_of_job=kind,
        is_dry_run=is_dry_run,
        parameters={"policy": options},
    )
    job: Job = commit([operation], actor=SYSTEM).results[0]
    return job


def run(kind: str, spark: FakeSpark, **options: Any) -> Job:
    job = start(kind, **options)
    job_runner.run_job(job.pk, spark=spark)
    job.refresh_from_db()
    return job


def row(*identifier: str) -> Table:
    return Table.objects.named(identifier).get()


def test_a_table_without_snapshots_is_healthy() -> None:
    make_iceberg_table("ws", "t")

    measured = iceberg_statistics.measure(row("ws", "t"), effective([]))

    assert measured is not None
    assert (measured.format, measured.files, measured.rows, measured.versions) == (
        "iceberg",
        0,
        0,
        0,
    )
    assert measured.metadata_bytes > 100


@pytest.mark.parametrize(
    "kind",
    sorted(
        {action.key for action in maintenance_actions.of_format("iceberg")} - {"remove_orphans"}
    ),
)
def test_jobs_without_work_do_not_start_spark(kind: str) -> None:
    make_iceberg_table("ws", "t")
    spark = FakeSpark()

    job = run(kind, spark)

    assert job.status == JobStatus.SUCCEEDED
    assert job.error  # the message
    assert job.result["before"]["files"] == 0
    assert spark.requests == []


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_orphans_are_removed(is_dry_run: bool) -> None:
    make_iceberg_table("ws", "t")
    spark = FakeSpark(
        removed=[] if is_dry_run else [["a"], ["b"]],
        orphan_files_count=2,
        orphan_bytes=7,
        orphan_files=["a", "b"],
    )

    job = run("remove_orphans", spark, is_dry_run=is_dry_run, orphan_age=5)

    assert job.status == JobStatus.SUCCEEDED, job.error
    (request,) = spark.requests
    age = time.time() - request.pop("older_than_ms") / 1000
    assert 86_400 <= age < 86_500, "never below a day"
    assert request == {
        "action": "remove_orphans",
        "table": ["ws", "t"],
        "is_dry_run": is_dry_run,
        "kept_metadata": list(ledger().values()),
        "own_prefixes": [row("ws", "t").location],
        "foreign_prefixes": [],
        "scheme": "",
    }
    assert job.result["planned" if is_dry_run else "done"] == spark.answer
    events = AuditEvent.objects.filter(action="maintenance.remove_orphans")
    if is_dry_run:
        assert "files" not in job.result
        assert not events.exists()
        assert removed_files() == []
    else:
        assert (job.result["files"], job.result["bytes"]) == (2, 7)
        assert events.get().after == {"job": job.pk, "files": 2, "bytes": 7}
        assert removed_files() == [["a"], ["b"]]


def removed_files() -> list[list[str]]:
    """The paths in each event of the audit trail."""
    events = AuditEvent.objects.filter(action="table.remove_files").order_by("pk")
    assert all(event.after["files"] == len(event.after["paths"]) for event in events)
    return [event.after["paths"] for event in events]


def test_files_removed_before_a_failure_are_recorded() -> None:
    grow(3)
    spark = FakeSpark(removed=[["a", "b"]], fails=True)
    job = run("clean_up", spark, keep_for=0, keep_versions=1)
    assert (job.status, job.error) == (JobStatus.QUEUED, "The Spark driver was killed")
    assert removed_files() == [["a", "b"]]
    assert not AuditEvent.objects.filter(action="maintenance.clean_up").exists()


# --- files of the ledger ---------------------------------------------------------------------------


def grow(times: int, **properties: str) -> None:
    """A table with this number of snapshots, each with its own file."""
    make_namespace("ws")
    create = {"properties": properties} if properties else {}
    make_iceberg_table("ws", "t", **create)
    for number in range(times):
        table = open_table("ws", "t")
        rows = pa.Table.from_pylist([{"id": number}], table.schema().as_arrow())
        (table.overwrite if number else table.append)(rows)


def ledger(*, visible: bool = True) -> dict[int, str]:
    rows = row("ws", "t").versions.filter(deleted_at__isnull=visible)
    return {
        version: path.rpartition("/")[2]
        for version, path in rows.values_list("version", "manifest_path")
    }


def test_metadata_files_of_the_ledger_are_not_orphans() -> None:
    grow(4, **{"write.metadata.previous-versions-max": "1"})
    spark = FakeSpark(orphan_files_count=0, orphan_bytes=0, orphan_files=[])

    run("remove_orphans", spark)

    assert len(ledger()) > 4
    assert spark.requests[0]["kept_metadata"] == sorted(ledger().values())


def test_versions_that_left_the_log_are_removed_from_the_ledger_later() -> None:
    grow(4, **{"write.metadata.previous-versions-max": "1"})
    before, spark = ledger(), FakeSpark(deleted_data_files_count=0)
    newest = max(before)

    with unchanged():
        assert iceberg_statistics.measure(row("ws", "t"), effective([])) is not None
    result = run("clean_up", spark, is_dry_run=True, keep_for=0, keep_versions=1).result
    assert result["planned"]["forgotten_versions"] == newest - 1
    run("clean_up", spark, keep_for=3600, keep_versions=1)
    run("clean_up", spark, keep_for=0, keep_versions=100)
    assert ledger() == before, "too young, or among those that are kept"

    job = run("clean_up", spark, keep_for=0, keep_versions=1)

    assert job.status == JobStatus.SUCCEEDED, job.error
    assert sorted(ledger()) == [newest - 1, newest], (
        "what the metadata's log names, and the current"
    )
    assert sorted(ledger(visible=False)) == list(range(newest - 1))
    audited = AuditEvent.objects.get(action="maintenance.retire_versions")
    assert audited.after == {"ranges": [[0, newest - 1]], "retired": newest - 1, "job": job.pk}
    spark = FakeSpark(orphan_files_count=0, orphan_bytes=0, orphan_files=[])
    run("remove_orphans", spark)
    assert spark.requests[0]["kept_metadata"] == sorted(before[version] for version in ledger())
    assert iceberg_tables.load_table(actor=SYSTEM, table=("ws", "t")).document["snapshots"]


# --- bytes -----------------------------------------------------------------------------------------


class Expiring(FakeSpark):
    """Removes some of the files that only old snapshots have; Iceberg would remove all."""

    def __init__(self, *names: str, **answer: Any) -> None:
        super().__init__(**answer)
        self.names = names

    def __call__(self, *args: Any, **options: Any) -> dict[str, Any]:
        for pattern in self.names:
            for path in Path(row("ws", "t").location).rglob(pattern):
                path.unlink()
        return super().__call__(*args, **options)


def test_removed_bytes_are_reported() -> None:
    grow(3)
    location = Path(row("ws", "t").location)
    data = {path: path.stat().st_size for path in location.rglob("*.parquet")}
    snapshots = open_table("ws", "t").snapshots()
    last = {local(task.file.file_path) for task in open_table("ws", "t").scan().plan_files()}
    unreferenced = {path: size for path, size in data.items() if path not in last}
    assert len(unreferenced) == 2
    lists = {local(snapshot.manifest_list) for snapshot in snapshots[:-1]}

    dry = run("clean_up", FakeSpark(), is_dry_run=True, keep_for=0, keep_versions=1)
    planned = dry.result["planned"]
    assert planned["snapshots_count"] == len(snapshots) - 1
    assert planned["bytes"] >= sum(unreferenced.values()) + sum(
        path.stat().st_size for path in lists
    )
    assert planned["files"] > len(unreferenced) + len(lists)

    spark = Expiring(
        *(path.name for path in unreferenced), deleted_data_files_count=2, deleted_x=None
    )
    job = run("clean_up", spark, keep_for=0, keep_versions=1)

    assert job.status == JobStatus.SUCCEEDED, job.error
    assert job.result["files"] == 2
    assert job.result["bytes"] == sum(unreferenced.values()), "files that still exist do not count"
    assert job.result["planned"]["bytes"] == planned["bytes"]


def test_bytes_are_not_reported_for_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_statistics, "MAX_FILES", 1)
    grow(3)

    job = run("clean_up", FakeSpark(deleted_data_files_count=2), keep_for=0, keep_versions=1)

    assert job.status == JobStatus.SUCCEEDED, job.error
    assert job.result["files"] == 2
    assert "bytes" not in job.result
    assert "bytes" not in job.result["planned"]


def local(uri: str) -> Path:
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def refused(spark: FakeSpark) -> str:
    job = run("remove_orphans", spark)
    assert (job.status, job.attempts) == (JobStatus.FAILED, 1)
    assert spark.requests == []
    return job.error


def test_orphans_are_not_removed_in_the_directory_of_another_table() -> None:
    make_iceberg_table("ws", "t")
    other = make_table("ws", "lance")
    Table.objects.filter(pk=other.pk).update(location=row("ws", "t").location + "/inside")

    assert "may belong to another table" in refused(FakeSpark())


def test_orphans_are_not_removed_in_the_directory_of_a_dropped_table() -> None:
    make_iceberg_table("ws", "t")
    inside = Path(row("ws", "t").location, "inside")
    other = make_table("ws", "gone")
    Table.objects.filter(pk=other.pk).update(state="dropped", location=str(inside))

    spark = FakeSpark(orphan_files_count=0, orphan_bytes=0, orphan_files=[])
    assert run("remove_orphans", spark).status == JobStatus.SUCCEEDED
    inside.mkdir()
    assert "may belong to another table" in refused(FakeSpark())


@pytest.mark.parametrize("path", ["{location}", "{location}/data", "{above}"])
def test_orphans_are_not_removed_in_a_directory_with_files_of_another_table(path: str) -> None:
    make_iceberg_table("ws", "t")
    make_iceberg_table("ws", "other")
    location = row("ws", "t").location
    path = path.format(location=location, above=Path(location).parent)
    row("ws", "other").paths.create(path=path)

    assert "may belong to another table" in refused(FakeSpark())


@pytest.mark.parametrize("kind", ["clean_up", "remove_orphans"])
def test_nothing_is_removed_if_snapshots_name_their_manifests_themselves(kind: str) -> None:
    """Snapshots of old tables may have no manifest list. Iceberg's actions on Spark fail for them."""
    grow(2, **{"format-version": "1"})
    embed_manifests("ws", "t")
    files = sorted(Path(row("ws", "t").location).rglob("*"))
    document = iceberg_tables.load_table(actor=SYSTEM, table=("ws", "t")).document

    spark = FakeSpark()
    job = run(kind, spark, keep_for=0, keep_versions=1)

    assert (job.status, job.attempts) == (JobStatus.FAILED, 1)
    assert "has no manifest list" in job.error
    assert spark.requests == []
    assert iceberg_tables.load_table(actor=SYSTEM, table=("ws", "t")).document == document
    assert sorted(Path(row("ws", "t").location).rglob("*")) == files


def test_a_table_without_manifest_lists_is_cleaned_up_if_no_snapshot_has_to_expire() -> None:
    grow(1, **{"format-version": "1"})
    embed_manifests("ws", "t")

    spark = FakeSpark()
    job = run("clean_up", spark, keep_for=0)

    assert job.status == JobStatus.SUCCEEDED
    assert job.error == "no snapshots to expire"
    assert spark.requests == []


def embed_manifests(*identifier: str) -> None:
    """Register the table by metadata whose snapshots name their manifests."""
    table = open_table(*identifier)
    document = json.loads(Path(table.metadata_location.removeprefix("file:")).read_bytes())
    for snapshot in document["snapshots"]:
        listed = table.snapshot_by_id(snapshot["snapshot-id"])
        assert listed is not None
        snapshot["manifests"] = [manifest.manifest_path for manifest in listed.manifests(table.io)]
        del snapshot["manifest-list"]
    metadata = Path(row(*identifier).location, "metadata", "00009-embedded.metadata.json")
    metadata.write_text(json.dumps(document))
    iceberg_tables.unregister_table(actor=SYSTEM, table=identifier)
    register_table(actor=SYSTEM, table=identifier, metadata_location=f"file:{metadata}")


def test_shared_files_of_a_table_are_not_removed() -> None:
    make_iceberg_table("ws", "t", properties={"gc.enabled": "false"})

    assert "gc.enabled=false" in refused(FakeSpark())
    job = run("clean_up", FakeSpark())
    assert "gc.enabled=false" in job.error
    assert job.status == JobStatus.FAILED
