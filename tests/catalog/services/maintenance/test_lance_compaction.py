"""Compaction of Lance tables preserves rows and indexes, and does not disturb other writers."""

import hashlib
import shutil
import threading
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from django.db import connections
from django.utils import timezone
from lance.optimize import CompactionTask

from catalog import policies
from catalog.access import SYSTEM, Principal
from catalog.models import (
    ApiKey,
    AuditEvent,
    Job,
    JobEvent,
    JobStatus,
    Table,
    TableVersion,
    Transaction,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import JobCanceled
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.maintenance import job_runner, lance_compaction
from catalog.services.tables import job_operations
from tasks import spark
from tests.factories import files, make_administrator, make_lance_table, make_root
from tests.shares import nightly

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)
DIMENSIONS = 8


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


def start(kind: str = "compact", *, dry: bool = False, **values: Any) -> Job:
    """Start a job with the effective policy."""
    policy = {name: setting.value for name, setting in policies.effective([]).values.items()}
    more = values.pop("more", {})
    operation = job_operations.StartMaintenance(
        table=TABLE,
        kind_of_job=kind,
        is_dry_run=dry,
        parameters={"policy": policy | values, **more},
    )
    job: Job = commit([operation], actor=ADA).results[0]
    return job


def run(kind: str = "compact", *, dry: bool = False, spark: Any = None, **values: Any) -> Job:
    job = start(kind, dry=dry, **values)
    job_runner.run_job(job.pk, spark)
    job.refresh_from_db()
    return job


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def make_small(fragments: int = 10, rows: int = 10) -> Table:
    """A table with many small fragments, in one version."""
    data = numbers(*range(fragments * rows))
    make_lance_table(TABLE, data.slice(0, rows))

    def work(dataset: Any) -> None:
        lance.write_dataset(data.slice(rows), dataset, mode="append", max_rows_per_file=rows)

    lance_commits.write(
        actor=SYSTEM, table=TABLE, operation=data_operations.InsertIntoTable, work=work
    )
    return Table.objects.named(TABLE).get()


def newest() -> Any:
    return lance_datasets.read(actor=SYSTEM, table=TABLE)


def ids() -> list[int]:
    return sorted(newest().to_table(columns=["id"])["id"].to_pylist())


def delete(predicate: str) -> None:
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate=predicate)


@pytest.mark.usefixtures("everywhere")
def test_small_fragments_are_merged(settings):
    make_small()
    before = newest().version
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["before"] | {"bytes": 0} == {
        "version": before, "rows": 100, "deleted_rows": 0, "files": 10, "small_files": 10, "bytes": 0,
    }  # fmt: skip
    assert job.result["after"] | {"bytes": 0} == {
        "version": before + 2, "rows": 100, "deleted_rows": 0, "files": 1, "small_files": 1, "bytes": 0,
    }  # fmt: skip
    assert job.result["groups"] == 1
    assert (job.progress, job.total) == (10, 10)
    assert ids() == list(range(100))


def test_the_audit_trail_names_the_job():
    make_small()
    job = run()
    events = AuditEvent.objects.filter(action="maintenance.compact").order_by("pk")
    assert [(event.actor, event.after["job"]) for event in events] == [("ada", job.pk)] * 2
    assert str(events.last().transaction_id) == job.result["transaction_id"]
    log = list(JobEvent.objects.filter(job=job).order_by("pk").values_list("message", flat=True))
    assert log == [
        "planning",
        "planned",
        "rewriting",
        f"committed version {newest().version}",
    ]


@pytest.mark.usefixtures("everywhere")
def test_a_dry_run_reports_the_plan_of_the_job():
    row = make_small()
    delete("id < 15")
    lying = files(row.location)
    job = start(dry=True)
    versions = list(TableVersion.objects.values())
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (files(row.location), list(TableVersion.objects.values())) == (lying, versions)
    planned = job.result
    assert planned["plan"]["files"], planned
    executed = run().result
    assert executed["plan"] == planned["plan"]
    assert planned["after"] == {key: executed["after"][key] for key in planned["after"]}


def test_large_fragments_are_not_rewritten():
    make_small(fragments=4, rows=1500)
    job = run(target_rows=2048)  # a fragment is small below 1,024 rows
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "nothing to compact")
    assert len(newest().get_fragments()) == 4


@pytest.mark.usefixtures("everywhere")
def test_deleted_rows_are_dropped_from_large_fragments():
    make_small(fragments=2, rows=1500)
    delete("id < 300")  # a fifth of one of them
    job = run(target_rows=2048, small_ratio=0.5)
    assert job.result["before"]["deleted_rows"] == 300
    assert job.result["after"]["deleted_rows"] == 0
    assert ids() == list(range(300, 3000))


def test_a_materialized_view_may_be_compacted():
    make_small()
    Table.objects.named(TABLE).update(is_materialized=True)
    assert run().result["after"]["files"] == 1


@pytest.mark.usefixtures("everywhere")
def test_a_conflict_in_one_group_does_not_lose_the_others(monkeypatch):
    make_small(fragments=8, rows=1024)
    calls = []

    def disturb(self, rewrites, options):
        calls.append(len(rewrites))
        if len(calls) == 2:
            delete("id = 5000")
        return original(self, rewrites, options)

    original = lance_compaction._Compactor._commit
    monkeypatch.setattr(lance_compaction._Compactor, "_commit", disturb)
    job = run(target_rows=4096, small_ratio=0.9)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert ids() == [i for i in range(8192) if i != 5000]
    assert job.result["after"]["files"] == 2
    assert job.result["after"]["deleted_rows"] == 0
    assert "1 groups were changed concurrently" in job.error


def test_a_canceled_job_keeps_what_it_has_committed(monkeypatch):
    make_small(fragments=8, rows=1024)
    job = start(target_rows=2048, small_ratio=0.9)
    reports = []

    def report(completed: int, total: int | None = None) -> None:
        reports.append(completed)
        if completed >= 4:
            raise JobCanceled("canceled on request")

    with pytest.raises(JobCanceled):
        lance_compaction.compact(job, report)
    assert ids() == list(range(8192))
    assert len(newest().get_fragments()) == 7  # one group of two


@pytest.mark.usefixtures("everywhere")
def test_compaction_requires_that_the_requester_still_may_write():
    row = make_small()
    api_keys.create_api_key(actor=SYSTEM, name="eve")
    job = start()
    Transaction.objects.filter(jobs=job).update(actor="eve")
    ApiKey.objects.update(revoked_at=timezone.now())
    lying = files(row.location)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.FAILED
    assert files(row.location) == lying
    assert len(newest().get_fragments()) == 10


def rewrite(request: Any, number: int) -> str:
    """Rewrite a group as a Spark executor does."""
    options = request["storage_options"]
    dataset = lance.dataset(request["uri"], request["version"], storage_options=options)
    return CompactionTask.from_json(request["tasks"][number]).execute(dataset).json()


@pytest.mark.usefixtures("everywhere")
def test_large_tables_are_written_by_spark():
    make_small()
    received = {}

    def spark(
        job: Job, script: str, request: Any, report: Any, *, on_part: Any, **_: Any
    ) -> dict[str, Any]:
        received.update(request, script=script)
        for number in range(len(request["tasks"])):
            on_part({"number": number, "rewrite": rewrite(request, number)})
        report(10, 10)
        return {"failed": []}

    job = run(spark=spark, spark_above=0)
    assert (received["script"], received["sizes"], len(received["tasks"])) == (
        "lance_compact",
        [10],
        1,
    )
    assert (job.status, job.result["after"]["files"]) == (JobStatus.SUCCEEDED, 1)
    assert ids() == list(range(100))


FOUR = {"spark_above": 0, "target_rows": 1024, "small_ratio": 0.9}


def make_groups() -> None:
    """Eight fragments of 600 rows, which become four groups."""
    make_lance_table(TABLE, numbers(*range(600)))
    for first in range(600, 4800, 600):
        lance_data.insert(
            actor=SYSTEM, table=TABLE, data=numbers(*range(first, first + 600)).to_reader()
        )


def test_groups_written_by_spark_are_committed_one_by_one(monkeypatch):
    """A driver that is killed loses only the groups that it has not finished."""
    make_groups()
    monkeypatch.setattr(lance_compaction, "_COMMIT_SHARE", 10**9)

    def spark(
        job: Job, script: str, request: Any, report: Any, *, on_part: Any, **_: Any
    ) -> dict[str, Any]:
        assert len(request["tasks"]) == 4
        on_part({"number": 2, "rewrite": rewrite(request, 2)})
        on_part({"number": 0, "rewrite": rewrite(request, 0)})
        assert len(newest().get_fragments()) == 6
        raise RuntimeError("The Spark driver was killed by SIGKILL")

    job = run(spark=spark, **FOUR)
    assert (job.status, job.error) == (JobStatus.QUEUED, "The Spark driver was killed by SIGKILL")
    assert len(newest().get_fragments()) == 6
    Job.objects.update(lease_until=None)
    job_runner.run_job(job.pk)  # the next attempt compacts the others in the worker
    job.refresh_from_db()
    assert (job.status, job.result["groups"]) == (JobStatus.SUCCEEDED, 2)
    assert job.result["promise"]["kept"]
    assert len(newest().get_fragments()) == 4
    assert ids() == list(range(4800))


def test_a_job_with_groups_that_failed_has_failed_in_part():
    make_groups()

    def spark(
        job: Job, script: str, request: Any, report: Any, *, on_part: Any, **_: Any
    ) -> dict[str, Any]:
        for number in (0, 1, 3):
            on_part({"number": number, "rewrite": rewrite(request, number)})
        return {"failed": [{"number": 2, "error": "OSError: disk full"}]}

    job = run(spark=spark, **FOUR)
    assert job.status == JobStatus.FAILED
    assert job.error == (
        "Failed in part: 3 of 4 groups were compacted, 1 failed: OSError: disk full"
    )
    assert job.result["groups"] == 3
    assert job.result["failed_groups"] == [{"fragments": [4, 5], "error": "OSError: disk full"}]
    assert job.result["done"]["files_removed"] == 6
    assert not job.result["promise"]["kept"]
    assert job.result["promise"]["figures"]["files_read"] == {"planned": 8, "actual": 6}
    assert "files read: 8 planned, 6 actual" in job.events.filter(level="warning").get().message
    assert len(newest().get_fragments()) == 5
    assert ids() == list(range(4800))


def test_a_result_lists_some_failed_groups_and_counts_the_others(monkeypatch):
    make_groups()
    monkeypatch.setattr(lance_compaction, "_LISTED_FAILURES", 1)
    monkeypatch.setattr(lance_compaction, "_LISTED_FRAGMENTS", 1)
    monkeypatch.setattr(lance_compaction, "_ERROR_LENGTH", 7)

    def spark(
        job: Job, script: str, request: Any, report: Any, *, on_part: Any, **_: Any
    ) -> dict[str, Any]:
        on_part({"number": 0, "rewrite": rewrite(request, 0)})
        return {"failed": [{"number": number, "error": "OSError: disk"} for number in (1, 2, 3)]}

    job = run(spark=spark, **FOUR)
    assert job.error == "Failed in part: 1 of 4 groups were compacted, 3 failed: OSError"
    assert job.result["failed_groups"] == [{"fragments": [2], "error": "OSError"}]
    assert job.result["failed_groups_not_listed"] == 2
    errors = job.events.filter(level="error").order_by("pk").values_list("message", "data")
    assert list(errors) == [
        ("a group failed on Spark: OSError", {"fragments": [2]}),
        ("2 more groups failed on Spark", None),
    ]


def test_a_job_whose_groups_all_failed_is_retried():
    make_groups()

    def spark(job: Job, *_: Any, **__: Any) -> dict[str, Any]:
        return {"failed": [{"number": number, "error": "x"} for number in range(4)]}

    job = run(spark=spark, **FOUR)
    assert (job.status, job.result) == (JobStatus.QUEUED, None)
    assert job.error == "All groups failed on Spark; see the job's log for the errors"
    assert len(newest().get_fragments()) == 8


# --- plans -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "deleted", "files"),
    [
        ([600] * 10, 0, 5),  # groups of two fragments, below twice the target
        ([150] * 20, 0, 2),
        ([999] * 8, 0, 4),
        ([300] * 8, 0, 2),
        ([400, 900, 400, 900, 400], 0, 2),
        ([2500], 600, 1),  # 1,900 rows remain
        ([2600], 500, 2),
        ([4900], 1000, 3),
        ([10_999], 2000, 8),
        ([700, 2700], 300, 3),
        ([5000], 3300, 1),
        ([100, 100], 0, 1),
    ],
)
def test_the_plan_counts_the_files_that_lance_writes(tmp_path, sizes, deleted, files):
    """Groups have at least the target number of rows, and Lance divides only twice as many."""
    first = 0
    for size in sizes:
        rows = pa.table({"id": pa.array(range(first, first + size), pa.int64())})
        lance.write_dataset(rows, tmp_path / "t", mode="append", max_rows_per_file=10**6)
        first += size
    dataset = lance.dataset(tmp_path / "t")
    start = sum(sizes[:-1])
    dataset.delete(f"id >= {start} AND id < {start + deleted}")
    policy = {"target_rows": 1000, "small_ratio": 0.99999, "deleted_ratio": 0.1}
    layout = lance_compaction.lay_out(dataset, policy)
    plan = lance_compaction.plan(dataset, layout, policy)
    rewrites = [task.execute(dataset) for task in plan.tasks]
    assert sum(len(rewrite.new_fragments) for rewrite in rewrites) == plan.new_files == files


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
@pytest.mark.usefixtures("everywhere")
# test_the_worker_compacts_with_spark does the same with local files.
@pytest.mark.parametrize("storage", [nightly("local"), "s3"], indirect=True)
@pytest.mark.xdist_group("lance compaction on spark")  # both runs use one driver
def test_the_script_runs_on_spark(settings):
    make_root()
    settings.SPARK_MASTER = "local[2,4]"
    settings.MONODON_SPARK_CONF = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    }
    make_small()
    job = run(spark=spark.run, spark_above=0)
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["after"]["files"] == 1
    assert ids() == list(range(100))


def vectors(first: int, count: int) -> pa.Table:
    data = np.random.default_rng(first).random((count, DIMENSIONS), dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), DIMENSIONS),
        }
    )


def checksum(table: pa.Table) -> str:
    rows = table.sort_by("id").combine_chunks()
    digest = hashlib.sha256(rows["id"].to_numpy().tobytes())
    digest.update(pa.compute.list_flatten(rows["v"]).to_numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("rows", [200_000, nightly(2_000_000)])
def test_writers_and_indexes_are_not_disturbed(settings, rows):
    """200 fragments with both kinds of index, 5 % of the rows deleted, and concurrent writers."""
    settings.MONODON_INDEX_IN_REQUEST_ROWS = 10**9
    make_root()
    step, target = rows // 200, rows // 5
    data = vectors(0, rows)
    make_lance_table(TABLE, data.slice(0, step))

    def append(dataset: Any) -> None:
        lance.write_dataset(data.slice(step), dataset, mode="append", max_rows_per_file=step)

    lance_commits.write(
        actor=SYSTEM, table=TABLE, operation=data_operations.InsertIntoTable, work=append
    )
    for column, kind, more in (("id", "BTREE", {}), ("v", "IVF_FLAT", {"num_partitions": 8})):
        lance_indexes.create_index(
            actor=SYSTEM, table=TABLE, index=NewIndex(column=column, index_type=kind, **more)
        )
    delete("id % 20 = 3")
    of_before = newest().to_table(filter=f"id < {rows}")
    before = checksum(of_before)
    assert len(newest().get_fragments()) == 200
    stop, errors, deleted = threading.Event(), [], []

    def others() -> None:
        number = 0
        try:
            while not stop.is_set() or number < 5:
                first = rows + 10 * number
                more = vectors(first, 10)
                lance_data.insert(actor=ADA, table=TABLE, data=more.to_reader())
                lance_data.delete(actor=ADA, table=TABLE, predicate=f"id = {first}")
                deleted.append(first)
                number += 1
                stop.wait(0.05)
        except Exception as error:  # noqa: BLE001
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        job = run(target_rows=target)
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert job.status == JobStatus.SUCCEEDED, job.error
    after = newest()
    assert checksum(after.to_table(filter=f"id < {rows}")) == before
    appended = after.to_table(filter=f"id >= {rows}")["id"].to_pylist()
    assert sorted(appended) == [i for first in deleted for i in range(first + 1, first + 10)]
    assert job.result["after"]["files"] <= 10 + len(deleted)
    final = run(target_rows=target, deleted_ratio=0.0)
    assert final.status == JobStatus.SUCCEEDED
    after = newest()
    assert len(after.get_fragments()) <= 10
    assert sum(fragment.metadata.num_deletions for fragment in after.get_fragments()) == 0
    assert {index.name for index in lance_indexes.index_summaries(after)} == {"id_idx", "v_idx"}
    live = after.to_table()
    matrix = pa.compute.list_flatten(live["v"].combine_chunks()).to_numpy().reshape(-1, DIMENSIONS)
    for seed in range(3):
        query = np.random.default_rng(1000 + seed).random(DIMENSIONS, dtype=np.float32)
        result = after.to_table(nearest={"column": "v", "q": query, "k": 10, "nprobes": 8})
        nearest = np.argsort(((matrix - query) ** 2).sum(axis=1), kind="stable")[:10]
        assert result["id"].to_pylist() == live["id"].to_numpy()[nearest].tolist()
    assert after.to_table(filter=f"id in (3, 4, {rows - 1})")["id"].to_pylist() == [4, rows - 1]
    assert "ScalarIndexQuery" in after.scanner(filter="id = 4").explain_plan()
