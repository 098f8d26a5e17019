"""Measured recall of vector indexes, and the rebuilds that follow from it."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.models import Job, JobStatus, Table
from catalog.planning import Statistics
from catalog.privileges import Privilege
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.maintenance import job_runner, measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from tests.factories import make_administrator, make_lance_table
from tests.security import lance_attacks as attacks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)
DIMENSION = 16


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


def table_of(vectors: Any, first: int = 0) -> pa.Table:
    values = pa.array(np.asarray(vectors, dtype=np.float32).ravel())
    column = pa.FixedSizeListArray.from_arrays(values, DIMENSION)
    return pa.table({"id": range(first, first + len(vectors)), "vector": column})


def change(work: Callable[[Any], object], operation: Any = data_operations.InsertIntoTable) -> None:
    lance_commits.write(actor=SYSTEM, table=TABLE, operation=operation, work=work)


def index(kind: str = "IVF_PQ", **options: Any) -> None:
    change(
        lambda dataset: dataset.create_index("vector", kind, name="v", replace=True, **options),
        data_operations.CreateTableIndex,
    )


def run(kind: str, *, dry: bool = False) -> Job:
    job = maintenance_scheduler.start(actor=ADA, table=TABLE, kind=kind, is_dry_run=dry)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def measured() -> Statistics:
    return measurements.plan(actor=ADA, table=TABLE).statistics


def kinds() -> list[str]:
    return [job.kind for job in measurements.plan(actor=ADA, table=TABLE).planned]


def drifted() -> None:
    """A table whose newer rows are where the old centroids and codes do not distinguish them."""
    random = np.random.default_rng(7)
    old = random.normal(0, 0.05, (600, DIMENSION)) - 100
    new = random.random((1400, DIMENSION)) * 10
    make_lance_table(TABLE, table_of(old))
    index(num_partitions=4, num_sub_vectors=2)
    change(lambda dataset: lance.write_dataset(table_of(new, 600), dataset, mode="append"))
    change(
        lambda dataset: dataset.optimize.optimize_indices(num_indices_to_merge=0),
        data_operations.OptimizeIndexes,
    )


def test_the_recall_of_an_exact_index_is_one():
    make_lance_table(TABLE, table_of(np.random.default_rng(1).random((300, DIMENSION))))
    index("IVF_FLAT", num_partitions=1)
    job = run("measure_recall")
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    (search,) = job.result["after"]["searches"]
    assert (search["name"], search["recall"], search["rows"]) == ("v", 1.0, 300)
    assert search["search_ms"] > 0
    assert search["exact_ms"] > 0
    assert job.summary.startswith("recall of 'v' 100% in ")
    assert (job.progress, job.total) == (30, 30)
    (kept,) = measured().index_searches
    assert kept.recall == 1.0


def test_equal_vectors_are_equally_right():
    vectors = np.repeat(np.random.default_rng(1).random((20, DIMENSION)), 15, axis=0)
    make_lance_table(TABLE, table_of(vectors))
    index("IVF_FLAT", num_partitions=1)
    assert run("measure_recall").result["after"]["searches"][0]["recall"] == 1.0


def test_a_low_recall_leads_to_a_rebuild_which_improves_it():
    drifted()
    policies.set_table_policy(
        actor=ADA, table=TABLE, values={"untrained_ratio": 1.0, "min_recall": 0.9, "recall": "on"}
    )
    assert kinds() == ["measure_recall"], "nothing is known before it is measured"
    before = run("measure_recall").result["after"]["searches"][0]["recall"]
    assert before < 0.9
    measurement = measurements.plan(actor=ADA, table=TABLE)
    (planned,) = measurement.planned
    assert planned.kind == "rebuild_indexes"
    assert f"the recall of 'v' is {before:.0%}" in planned.reason
    assert any("recall" in cost.reason for cost in measurement.costs)
    assert run("rebuild_indexes").status == JobStatus.SUCCEEDED
    assert kinds() == ["measure_recall"], "the measurement was of the old training"
    after = run("measure_recall").result["after"]["searches"][0]["recall"]
    assert after > before
    assert kinds() == [], "a rebuild would not change an index that was trained with all rows"


def test_a_good_recall_prevents_a_rebuild():
    random = np.random.default_rng(3)
    make_lance_table(TABLE, table_of(random.random((300, DIMENSION))))
    index("IVF_FLAT", num_partitions=2)
    more = table_of(random.random((900, DIMENSION)), 300)
    change(lambda dataset: lance.write_dataset(more, dataset, mode="append"))
    assert kinds() == ["rebuild_indexes"]
    run("measure_recall")
    assert measured().index_searches[0].recall >= 0.9
    assert kinds() == []
    many = table_of(random.random((300, DIMENSION)), 1200)
    change(lambda dataset: lance.write_dataset(many, dataset, mode="append"))
    assert kinds() == ["rebuild_indexes"], "the table has grown since the measurement"


def test_a_dry_run_searches_nothing():
    make_lance_table(TABLE, table_of(np.random.default_rng(1).random((300, DIMENSION))))
    index("IVF_FLAT", num_partitions=1)
    job = run("measure_recall", dry=True)
    assert job.result["plan"] == {"indexes": ["v"], "queries": 30}
    assert "after" not in job.result
    assert measured().index_searches == ()


def test_a_table_without_vector_index_is_refused():
    make_lance_table(TABLE, pa.table({"id": range(10)}))
    change(
        lambda dataset: dataset.create_scalar_index("id", "BTREE"), data_operations.CreateTableIndex
    )
    job = run("measure_recall")
    assert (job.status, job.error) == (JobStatus.FAILED, "Table 'ws.t' has no vector index")


@pytest.mark.parametrize("kind", ["float16", "list of vectors", "hamming"])
def test_other_vectors_are_searched(kind):
    random = np.random.default_rng(2)
    options: dict[str, Any] = {"num_partitions": 1}
    if kind == "float16":
        values = pa.array(random.random(300 * DIMENSION).astype(np.float16))
        column: pa.Array = pa.FixedSizeListArray.from_arrays(values, DIMENSION)
    elif kind == "hamming":
        values = pa.array(random.integers(0, 256, 300 * DIMENSION).astype(np.uint8))
        column = pa.FixedSizeListArray.from_arrays(values, DIMENSION)
        options["metric"] = "hamming"
    else:
        vectors = random.random((300, 2, DIMENSION), dtype=np.float32).tolist()
        column = pa.array(vectors, pa.list_(pa.list_(pa.float32(), DIMENSION)))
        options["metric"] = "cosine"
    make_lance_table(TABLE, pa.table({"vector": column}))
    index("IVF_FLAT", **options)
    job = run("measure_recall")
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["after"]["searches"][0]["recall"] == 1.0


def test_a_forged_deletion_file_fails_the_job():
    """With one that deletes all 2^32 numbers of rows, the sampling of vectors would not end."""
    make_lance_table(TABLE, table_of(np.random.default_rng(1).random((300, DIMENSION))))
    index("IVF_FLAT", num_partitions=1)
    change(lambda dataset: dataset.delete("id = 3"), data_operations.DeleteFromTable)
    lance_versions.settle_pending()
    table = Table.objects.get()
    manifest = min(Path(table.location, "_versions").glob("*.manifest"))
    (deletions,) = Path(table.location, "_deletions").iterdir()
    is_bitmap = attacks.number_field(1, 1)
    forged = attacks.edited(manifest.read_bytes(), [2, 3], lambda file: is_bitmap + file)
    manifest.write_bytes(forged)
    deletions.with_suffix(".bin").write_bytes(_bitmap(chunks=16))
    job = run("measure_recall")
    assert (job.status, "physical rows but" in job.error) == (JobStatus.FAILED, True), job.error


def _bitmap(*, chunks: int) -> bytes:
    """A Roaring bitmap of the first numbers, 65,536 in each chunk: a run in each."""
    offset = 4 + chunks // 8 + 8 * chunks
    return b"".join(
        [
            struct.pack("<I", 12347 | (chunks - 1) << 16) + b"\xff" * (chunks // 8),
            *(struct.pack("<HH", chunk, 65535) for chunk in range(chunks)),
            *(struct.pack("<I", offset + 6 * chunk) for chunk in range(chunks)),
            *[struct.pack("<HHH", 1, 0, 65535)] * chunks,
        ]
    )
