"""Measuring Lance tables, and bringing their indexes up to date."""

import time
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from catalog import planning, policies
from catalog.models import AuditEvent, Job, JobKind, JobStatus, Table, TableVersion
from catalog.planning import StaleIndex
from catalog.policies import EffectivePolicy
from catalog.privileges import Privilege
from catalog.services import (
    lance_commits,
    lance_data,
    lance_datasets,
    lance_indexes,
    lance_upkeep,
    maintenance,
)
from catalog.services import operations as ops
from catalog.services.access import SYSTEM, Principal
from catalog.services.commit import commit
from catalog.services.lance_index_plans import NewIndex
from tests.factories import files, make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)


def policy(**values: Any) -> EffectivePolicy:
    return policies.effective([("ws", values)])


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def append(first: int, count: int, per_file: int = 1024 * 1024) -> None:
    def work(dataset: Any) -> None:
        lance.write_dataset(
            numbers(first, count), dataset, mode="append", max_rows_per_file=per_file
        )

    lance_commits.write(actor=SYSTEM, table=TABLE, operation=ops.InsertIntoTable, work=work)


def make_index(name: str = "id_idx", kind: str = "BTREE") -> None:
    index = NewIndex(column="id", index_type=kind, name=name)
    lance_indexes.create_index(actor=SYSTEM, table=TABLE, index=index)


def newest() -> Any:
    return lance_datasets.read(actor=SYSTEM, table=TABLE)


def start(*, dry: bool = False, **parameters: Any) -> Job:
    operation = ops.StartMaintenance(
        table=TABLE,
        kind_of_job=JobKind.OPTIMIZE_INDEXES,
        is_dry_run=dry,
        parameters=parameters,
    )
    job: Job = commit([operation], actor=ADA).results[0]
    return job


def run(*, dry: bool = False, **parameters: Any) -> Job:
    job = start(dry=dry, **parameters)
    maintenance.run_job(job.pk)
    job.refresh_from_db()
    return job


def test_a_table_without_data_is_not_measured():
    assert lance_upkeep.measure(make_table("ws", "t"), policy()) is None


def test_the_figures_of_a_table():
    row = make_lance_table(TABLE, numbers(0, 3000))
    make_index()
    append(3000, 500, per_file=100)
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id < 600 or id = 3001")
    found = lance_upkeep.measure(row, policy(target_rows=2048))
    data = sum(len(c) for name, c in files(row.location).items() if name.startswith("data/"))
    assert found is not None
    assert (found.format, found.version) == ("lance", newest().version)
    assert (found.rows, found.deleted_rows) == (2899, 601)
    assert (found.files, found.small_files, found.bytes) == (6, 5, data)
    # The five small ones become one; the large one loses its deleted rows, and is written as two.
    assert (found.rewrite_files, found.rewritten_files, found.rewrite_bytes) == (6, 3, data)
    assert (found.versions, found.old_versions) == (4, 0)
    assert found.metadata_bytes == sum(
        len(c) for name, c in files(row.location).items() if name.endswith(".manifest")
    )
    assert found.stale_indexes == (StaleIndex("id_idx", 499),)
    assert found.indexes == 1


def test_what_is_planned_of_the_figures():
    row = make_lance_table(TABLE, numbers(0, 10))
    make_index()
    append(10, 100, per_file=10)
    rules = policy(unindexed_rows=50, keep_versions=1, compaction="on")
    TableVersion.objects.update(created_at="2026-01-01T00:00Z")
    statistics = lance_upkeep.measure(row, rules)
    assert statistics is not None
    planned = planning.plan(statistics, rules)
    assert [(each.kind, each.mode) for each in planned] == [
        ("optimize_indexes", "dry_run"),
        ("compact", "on"),
        ("clean_up", "dry_run"),
    ]
    # Lance does not mix what an index knows with what it does not: the first file stays.
    assert (planned[1].files_gone, planned[1].is_for_spark) == (9, False)
    assert planned[0].parameters == {"indexes": ["id_idx"]}


def test_measuring_a_table_of_many_fragments_takes_no_time():
    row = make_lance_table(TABLE, numbers(0, 1))
    append(1, 10_000, per_file=1)
    lance_datasets.forget_opened()
    began = time.monotonic()
    found = lance_upkeep.measure(row, policy())
    took = time.monotonic() - began
    assert found is not None
    assert (found.files, found.rewrite_files, found.rewritten_files) == (10_001, 10_001, 1)
    assert took < 20  # 0.5 s here, when nothing else goes on


def test_measuring_changes_and_lists_nothing(monkeypatch):
    row = make_lance_table(TABLE, numbers(0, 10))

    def refuse(*_: Any) -> None:
        raise AssertionError("listed")

    monkeypatch.setattr("catalog.storage.list_files", refuse)
    before = files(row.location)
    lance_upkeep.measure(row, policy())
    assert files(row.location) == before


def test_indexes_that_are_behind_are_brought_up():
    make_lance_table(TABLE, numbers(0, 100))
    make_index("one")
    append(100, 50)
    make_index("two", "BITMAP")
    append(150, 10)
    job = run(indexes=["one", "two"])
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["before"] == {"indexes": 2, "stale_indexes": 2, "unindexed_rows": 70}
    assert job.result["after"] == {"indexes": 2, "stale_indexes": 0, "unindexed_rows": 0}
    assert {each.name: each.unindexed_rows for each in lance_indexes.index_summaries(newest())} == {
        "one": 0,
        "two": 0,
    }
    assert newest().to_table(filter="id in (0, 120, 155)")["id"].to_pylist() == [0, 120, 155]
    assert job.result["version"] == newest().version
    event = AuditEvent.objects.get(action="maintenance.optimize_indexes")
    assert (event.actor, event.after["job"], event.after["indexes"]) == (
        "ada",
        job.pk,
        ["one", "two"],
    )
    assert str(event.transaction_id) == job.result["transaction_id"]


def test_only_those_named_are_brought_up():
    make_lance_table(TABLE, numbers(0, 100))
    make_index("one")
    make_index("two", "BITMAP")
    append(100, 50)
    run(indexes=["two"])
    found = {each.name: each.unindexed_rows for each in lance_indexes.index_summaries(newest())}
    assert found == {"one": 50, "two": 0}


def test_a_dry_run_changes_nothing():
    row = make_lance_table(TABLE, numbers(0, 100))
    make_index()
    append(100, 50)
    before, versions = files(row.location), TableVersion.objects.count()
    job = run(dry=True)
    assert (files(row.location), TableVersion.objects.count()) == (before, versions)
    assert job.result["plan"] == {"indexes": ["id_idx"], "rows": 50}
    assert job.result["after"] == {"indexes": 1, "stale_indexes": 0, "unindexed_rows": 0}
    assert run().result["after"] == job.result["after"]


def test_indexes_that_know_all_are_left():
    make_lance_table(TABLE, numbers(0, 100))
    make_index()
    version = newest().version
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "every index was up to date")
    assert newest().version == version


def test_an_index_that_is_gone_fails_the_job():
    make_lance_table(TABLE, numbers(0, 100))
    job = run(indexes=["gone"])
    assert (job.status, job.error) == (
        JobStatus.FAILED,
        "Table 'ws.t' has no index 'gone'",
    )


def test_a_vector_index_is_brought_up():
    data = np.random.default_rng(1).random((600, 8), dtype=np.float32)

    def table(part: Any) -> pa.Table:
        return pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), 8)})

    make_lance_table(TABLE, table(data[:500]))
    index = NewIndex(column="v", index_type="IVF_FLAT", num_partitions=4)
    lance_indexes.create_index(actor=SYSTEM, table=TABLE, index=index)
    lance_data.insert(actor=SYSTEM, table=TABLE, data=table(data[500:]).to_reader())
    job = run()
    assert job.result["after"]["unindexed_rows"] == 0, job.error
    found = newest().to_table(
        nearest={"column": "v", "q": data[550], "k": 1, "nprobes": 4}, with_row_id=True
    )
    assert found["_distance"].to_pylist() == [0.0]
    assert Table.objects.get().state == "live"
