"""Measurement of Lance tables, and optimization of their indexes."""

import time
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.dataset import DatasetOptimizer

from catalog import maintenance_actions, policies
from catalog.access import SYSTEM, Principal
from catalog.models import AuditEvent, Job, JobEvent, JobStatus, Table, TableVersion
from catalog.planning import StaleIndex
from catalog.policies import EffectivePolicy
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.maintenance import job_runner, lance_actions
from catalog.services.tables import job_operations
from tests.factories import files, make_administrator, make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


def policy(**values: Any) -> EffectivePolicy:
    return policies.effective([("ws", values)])


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def append(first: int, count: int, per_file: int = 1024 * 1024) -> None:
    def work(dataset: Any) -> None:
        lance.write_dataset(
            numbers(first, count), dataset, mode="append", max_rows_per_file=per_file
        )

    lance_commits.write(
        actor=SYSTEM, table=TABLE, operation=data_operations.InsertIntoTable, work=work
    )


def make_index(name: str = "id_idx", kind: str = "BTREE") -> None:
    index = NewIndex(column="id", index_type=kind, name=name)
    lance_indexes.create_index(actor=SYSTEM, table=TABLE, index=index)


def newest() -> Any:
    return lance_datasets.read(actor=SYSTEM, table=TABLE)


def start(*, dry: bool = False, **parameters: Any) -> Job:
    operation = job_operations.StartMaintenance(
        table=TABLE,
        kind_of_job="optimize_indexes",
        is_dry_run=dry,
        parameters=parameters,
    )
    job: Job = commit([operation], actor=ADA).results[0]
    return job


def run(*, dry: bool = False, **parameters: Any) -> Job:
    job = start(dry=dry, **parameters)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def test_a_table_without_data_is_not_measured():
    assert lance_actions.measure(make_table("ws", "t"), policy()) is None


def test_a_table_is_measured():
    row = make_lance_table(TABLE, numbers(0, 3000))
    make_index()
    append(3000, 500, per_file=100)
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id < 600 or id = 3001")
    measured = lance_actions.measure(row, policy(target_rows=2048))
    data = sum(len(c) for name, c in files(row.location).items() if name.startswith("data/"))
    assert measured is not None
    assert (measured.format, measured.version) == ("lance", newest().version)
    assert (measured.rows, measured.deleted_rows) == (2899, 601)
    assert (measured.files, measured.small_files, measured.bytes) == (6, 5, data)
    # The five small files become one. The large file is rewritten as one, without its deleted rows:
    # Lance divides only twice the target.
    assert (measured.rewrite_files, measured.rewritten_files, measured.rewrite_bytes) == (
        6,
        2,
        data,
    )
    assert measured.file_sizes == (measured.files, 0, 0, 0, 0, 0, 0)
    assert (measured.versions, measured.old_versions) == (4, 0)
    assert measured.metadata_bytes == sum(
        len(c) for name, c in files(row.location).items() if name.endswith(".manifest")
    )
    assert measured.stale_indexes == (StaleIndex("id_idx", 499),)
    assert measured.indexes == 1


def test_a_plan_follows_from_the_figures():
    row = make_lance_table(TABLE, numbers(0, 10))
    make_index()
    append(10, 100, per_file=10)
    rules = policy(unindexed_rows=50, keep_versions=1, compaction="on")
    TableVersion.objects.update(created_at="2026-01-01T00:00Z")
    statistics = lance_actions.measure(row, rules)
    assert statistics is not None
    planned = maintenance_actions.plan(statistics, rules)
    assert [(job.kind, job.mode) for job in planned] == [
        ("optimize_indexes", "dry_run"),
        ("compact", "on"),
        ("clean_up", "dry_run"),
    ]
    # Lance does not merge indexed with unindexed rows, so the first file is kept.
    assert (planned[1].files_gone, planned[1].is_for_spark) == (9, False)
    assert planned[0].parameters == {"indexes": ["id_idx"]}


def test_a_table_with_many_fragments_is_measured_quickly():
    row = make_lance_table(TABLE, numbers(0, 1))
    append(1, 10_000, per_file=1)
    lance_datasets.clear_caches()
    began = time.monotonic()
    measured = lance_actions.measure(row, policy())
    took = time.monotonic() - began
    assert measured is not None
    assert (measured.files, measured.rewrite_files, measured.rewritten_files) == (10_001, 10_001, 1)
    assert took < 20  # 0.5 s on an idle machine


def test_a_measurement_writes_nothing_and_lists_no_directory(monkeypatch):
    row = make_lance_table(TABLE, numbers(0, 10))

    def refuse(*_: Any) -> None:
        raise AssertionError("listed")

    monkeypatch.setattr("catalog.storage.listing.list_files", refuse)
    before = files(row.location)
    lance_actions.measure(row, policy())
    assert files(row.location) == before


def test_indexes_with_unindexed_rows_are_optimized():
    make_lance_table(TABLE, numbers(0, 100))
    make_index("one")
    append(100, 50)
    make_index("two", "BITMAP")
    append(150, 10)
    job = run(indexes=["one", "two"])
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["before"] == {"indexes": 2, "stale_indexes": 2, "unindexed_rows": 70}
    assert job.result["after"] == {"indexes": 2, "stale_indexes": 0, "unindexed_rows": 0}
    assert {
        index.name: index.unindexed_rows for index in lance_indexes.index_summaries(newest())
    } == {
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


def test_only_the_named_indexes_are_optimized():
    make_lance_table(TABLE, numbers(0, 100))
    make_index("one")
    make_index("two", "BITMAP")
    append(100, 50)
    run(indexes=["two"])
    unindexed = {
        index.name: index.unindexed_rows for index in lance_indexes.index_summaries(newest())
    }
    assert unindexed == {"one": 50, "two": 0}


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


def test_complete_indexes_are_not_optimized():
    make_lance_table(TABLE, numbers(0, 100))
    make_index()
    version = newest().version
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "all indexes are up to date")
    assert newest().version == version


def test_a_missing_index_fails_the_job():
    make_lance_table(TABLE, numbers(0, 100))
    job = run(indexes=["gone"])
    assert (job.status, job.error) == (
        JobStatus.FAILED,
        "Table 'ws.t' has no index 'gone'",
    )


def vectors(data: Any, name: str = "v") -> pa.Table:
    return pa.table({name: pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), 8)})


def partitions(name: str = "v_idx") -> list[int]:
    """The number of partitions of each segment."""
    return [index["num_partitions"] for index in newest().stats.index_stats(name)["indices"]]


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_SQ"])
def test_optimizing_a_vector_index_keeps_its_partitions(kind):
    """By default, Lance joins partitions that it considers too small; here it would join all into
    one."""
    data = np.random.default_rng(1).random((1000, 8), dtype=np.float32)
    make_lance_table(TABLE, vectors(data[:600]))
    index = NewIndex(column="v", index_type=kind, num_partitions=4)
    lance_indexes.create_index(actor=SYSTEM, table=TABLE, index=index)
    (built,) = partitions()
    assert built > 1
    for indexed_rows, segments in ((700, 2), (800, 2), (900, 3), (1000, 2)):
        rows = vectors(data[indexed_rows - 100 : indexed_rows]).to_reader()
        lance_data.insert(actor=SYSTEM, table=TABLE, data=rows)
        job = run()
        assert job.result["after"]["unindexed_rows"] == 0, job.error
        assert partitions() == [built] * segments
    nearest = {"column": "v", "q": data[950], "k": 1, "nprobes": 4, "refine_factor": 5}
    nearest_rows = newest().to_table(nearest=nearest, columns=["v"])
    assert nearest_rows["v"].to_pylist() == [data[950].tolist()]
    assert Table.objects.get().state == "live"


def test_large_partitions_are_split():
    data = np.random.default_rng(1).random((34_000, 8), dtype=np.float32)
    make_lance_table(TABLE, vectors(data[:9000]))
    index = NewIndex(column="v", index_type="IVF_FLAT", num_partitions=1)
    lance_indexes.create_index(actor=SYSTEM, table=TABLE, index=index)
    lance_data.insert(actor=SYSTEM, table=TABLE, data=vectors(data[9000:]).to_reader())
    assert run().result["after"]["unindexed_rows"] == 0
    (divided,) = partitions()
    assert divided > 1


def test_an_index_with_a_target_partition_size_keeps_it():
    data = np.random.default_rng(1).random((6000, 8), dtype=np.float32)
    make_lance_table(TABLE, vectors(data[:1000]))
    index = NewIndex(column="v", index_type="IVF_FLAT", target_partition_size=100)
    lance_indexes.create_index(actor=SYSTEM, table=TABLE, index=index)
    assert partitions() == [10]
    lance_data.insert(actor=SYSTEM, table=TABLE, data=vectors(data[1000:]).to_reader())
    assert run().result["after"]["unindexed_rows"] == 0
    (divided,) = partitions()
    assert divided > 20


def nested(count: int) -> pa.Table:
    """Nested fields, some of which have a dot in their names."""
    data = np.random.default_rng(count).random((count, 8), dtype=np.float32)
    numbers = pa.array(range(count), pa.int64())
    inside = pa.StructArray.from_arrays(
        [numbers, numbers, vectors(data)["v"].combine_chunks()], ["plain", "a.b", "v.e"]
    )
    return pa.table({"id": numbers, "s": inside})


def build_nested(**columns: str) -> None:
    for name, column in columns.items():
        kind, partitions = ("IVF_FLAT", 2) if name == "vectors" else ("BTREE", None)
        index = NewIndex(column=column, index_type=kind, name=name, num_partitions=partitions)
        lance_indexes.create_index(actor=SYSTEM, table=TABLE, index=index)


def test_indexes_of_nested_fields_are_optimized():
    """By default, Lance does not find vectors in a field whose name has a dot."""
    make_lance_table(TABLE, nested(200))
    build_nested(plain="s.plain", dotted="s.`a.b`", vectors="s.`v.e`")
    lance_data.insert(actor=SYSTEM, table=TABLE, data=nested(100).to_reader())
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["after"] == {"indexes": 3, "stale_indexes": 0, "unindexed_rows": 0}
    assert partitions("vectors") == [2, 2]
    assert newest().to_table(filter="s.`a.b` = 50").num_rows == 2


def test_indexes_that_were_built_without_rows_are_optimized():
    """By default, Lance does not find the field of such an index if it is nested."""
    make_lance_table(TABLE, nested(10).slice(0, 0))
    build_nested(plain="s.plain", dotted="s.`a.b`", top="id")
    lance_data.insert(actor=SYSTEM, table=TABLE, data=nested(100).to_reader())
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["after"] == {"indexes": 3, "stale_indexes": 0, "unindexed_rows": 0}
    assert newest().to_table(filter="s.plain = 50")["id"].to_pylist() == [50]


def refuse(monkeypatch: pytest.MonkeyPatch, *refused: str) -> None:
    """Let Lance refuse to optimize these indexes."""
    optimize_indices = DatasetOptimizer.optimize_indices

    def optimize(self: Any, index_names: list[str], **options: Any) -> None:
        if set(index_names) & set(refused):
            raise OSError("Invalid user input: No column with name a.b, rust/src/scalar.rs:417:20")
        optimize_indices(self, index_names=index_names, **options)

    monkeypatch.setattr(DatasetOptimizer, "optimize_indices", optimize)


def test_an_index_that_lance_refuses_does_not_stop_the_others(monkeypatch):
    make_lance_table(TABLE, numbers(0, 100))
    for name, kind in (("one", "BTREE"), ("three", "ZONEMAP"), ("two", "BITMAP")):
        make_index(name, kind)
    append(100, 50)
    refuse(monkeypatch, "two")
    job = run()
    why = "Index 'two' was not optimized: No column with name a.b"
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "not optimized: two")
    assert job.result["left"] == {"two": why}
    assert job.result["after"] == {"indexes": 3, "stale_indexes": 1, "unindexed_rows": 50}
    assert job.result["version"] == newest().version
    unindexed = {
        index.name: index.unindexed_rows for index in lance_indexes.index_summaries(newest())
    }
    assert unindexed == {"one": 0, "two": 50, "three": 0}
    warnings = JobEvent.objects.filter(level=JobEvent.Level.WARNING).order_by("pk")
    assert list(warnings.values_list("message", flat=True)) == [
        why,
        "the result differs from the plan: rows: 150 planned, 100 actual",
    ]


def test_a_job_whose_indexes_are_all_refused_fails(monkeypatch):
    row = make_lance_table(TABLE, numbers(0, 100))
    make_index("one")
    make_index("two", "BITMAP")
    append(100, 50)
    refuse(monkeypatch, "one", "two")
    before, versions = files(row.location), TableVersion.objects.count()
    job = run()
    why = "Index '{}' was not optimized: No column with name a.b".format
    assert (job.status, job.error) == (JobStatus.FAILED, f"{why('one')}; {why('two')}")
    assert (files(row.location), TableVersion.objects.count()) == (before, versions)
