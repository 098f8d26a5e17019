"""Jobs of Iceberg tables, up to what Spark is asked to do."""

import time
from pathlib import Path
from typing import Any

import pytest

from catalog.models import Job, JobKind, JobStatus, Table, TableFormat
from catalog.policies import effective
from catalog.services import iceberg_upkeep, maintenance
from catalog.services import operations as ops
from catalog.services.access import SYSTEM
from catalog.services.commit import commit
from tests.factories import make_iceberg_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


class FakeSpark:
    """Keeps what it is asked, and answers as it is told."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def __call__(
        self, job: Job, script: str, request: Any, report: Any, *, needs_iceberg: bool = False
    ) -> dict[str, Any]:
        assert (script, needs_iceberg) == ("iceberg", True)
        self.asked.append(dict(request))
        return self.answer


def start(kind: JobKind, *, is_dry_run: bool = False, **asked: Any) -> Job:
    operation = ops.StartMaintenance(
        table=("ws", "t"),
        format=TableFormat.ICEBERG,
        kind_of_job=kind,
        is_dry_run=is_dry_run,
        parameters={"policy": asked},
    )
    job: Job = commit([operation], actor=SYSTEM).results[0]
    return job


def run(kind: JobKind, spark: FakeSpark, **asked: Any) -> Job:
    job = start(kind, **asked)
    maintenance.run_job(job.pk, spark=spark)
    job.refresh_from_db()
    return job


def row(*identifier: str) -> Table:
    return Table.objects.named(identifier).get()


def test_a_table_without_snapshots_is_well() -> None:
    make_iceberg_table("ws", "t")

    found = iceberg_upkeep.measure(row("ws", "t"), effective([]))

    assert found is not None
    assert (found.format, found.files, found.rows, found.versions) == ("iceberg", 0, 0, 0)
    assert found.metadata_bytes > 100


@pytest.mark.parametrize("kind", sorted(set(iceberg_upkeep.WORK) - {JobKind.REMOVE_ORPHANS}))
def test_what_has_nothing_to_do_starts_no_spark(kind: JobKind) -> None:
    make_iceberg_table("ws", "t")
    spark = FakeSpark()

    job = run(kind, spark)

    assert job.status == JobStatus.SUCCEEDED
    assert job.error  # the remark
    assert job.result["before"]["files"] == 0
    assert spark.asked == []


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_orphans(is_dry_run: bool) -> None:
    make_iceberg_table("ws", "t")
    spark = FakeSpark(orphan_files_count=2, orphan_bytes=7, orphan_files=["a", "b"])

    job = run(JobKind.REMOVE_ORPHANS, spark, is_dry_run=is_dry_run, orphan_age=5)

    assert job.status == JobStatus.SUCCEEDED, job.error
    (asked,) = spark.asked
    age = time.time() - asked.pop("older_than_ms") / 1000
    assert 86_400 <= age < 86_500, "never below a day"
    assert asked == {"action": "remove_orphans", "table": ["ws", "t"], "is_dry_run": is_dry_run}
    assert job.result["planned" if is_dry_run else "done"] == spark.answer


def refused(spark: FakeSpark) -> str:
    job = run(JobKind.REMOVE_ORPHANS, spark)
    assert (job.status, job.attempts) == (JobStatus.FAILED, 1)
    assert spark.asked == []
    return job.error


def test_no_orphans_where_another_table_lies() -> None:
    make_iceberg_table("ws", "t")
    other = make_table("ws", "lance")
    Table.objects.filter(pk=other.pk).update(location=row("ws", "t").location + "/inside")

    assert "may belong to the table 'ws.lance'" in refused(FakeSpark())


def test_no_orphans_where_a_dropped_table_left_files() -> None:
    make_iceberg_table("ws", "t")
    inside = Path(row("ws", "t").location, "inside")
    other = make_table("ws", "gone")
    Table.objects.filter(pk=other.pk).update(state="dropped", location=str(inside))

    spark = FakeSpark(orphan_files_count=0, orphan_bytes=0, orphan_files=[])
    assert run(JobKind.REMOVE_ORPHANS, spark).status == JobStatus.SUCCEEDED
    inside.mkdir()
    assert "may belong to the table" in refused(FakeSpark())


@pytest.mark.parametrize("path", ["{location}", "{location}/data", "{above}"])
def test_no_orphans_where_another_table_has_files(path: str) -> None:
    make_iceberg_table("ws", "t")
    make_iceberg_table("ws", "other")
    location = row("ws", "t").location
    path = path.format(location=location, above=Path(location).parent)
    row("ws", "other").paths.create(path=path)

    assert "may belong to the table 'ws.other'" in refused(FakeSpark())


def test_no_files_are_removed_of_a_table_that_shares_them() -> None:
    make_iceberg_table("ws", "t", properties={"gc.enabled": "false"})

    assert "gc.enabled=false" in refused(FakeSpark())
    job = run(JobKind.CLEAN_UP, FakeSpark())
    assert "gc.enabled=false" in job.error
    assert job.status == JobStatus.FAILED
