"""Jobs on a zoo of Lance tables do what their plans promise, within a tenth."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catalog import policies
from catalog.access import SYSTEM
from catalog.models import Job, JobStatus, TableVersion
from catalog.services.engine import database_clock
from catalog.services.engine.commit import commit
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations
from catalog.storage import stores
from tests.factories import make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
DIMENSION = 8


def rows(first: int, count: int) -> pa.Table:
    vectors = np.random.default_rng(first).random(count * DIMENSION, dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSION),
        }
    )


def change(work: Callable[[Any], object], operation: Any = data_operations.InsertIntoTable) -> None:
    lance_commits.write(actor=SYSTEM, table=TABLE, operation=operation, work=work)


def append(first: int, count: int, rows_per_file: int) -> None:
    change(lambda newest: newest.insert(rows(first, count), max_rows_per_file=rows_per_file))


def many_fragments() -> None:
    make_lance_table(TABLE, rows(0, 8))
    append(8, 8 * 499, 8)


def many_fragments_with_deleted_rows() -> None:
    many_fragments()
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id % 3 = 0")


def skewed_fragments() -> None:
    """One fragment that is large enough, and two runs of small ones."""
    make_lance_table(TABLE, rows(0, 20))
    append(20, 380, 20)
    append(400, 3000, 3000)
    append(3400, 600, 10)


def a_large_fragment_with_deleted_rows() -> None:
    make_lance_table(TABLE, rows(0, 4000))
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id % 2 = 0")


def index(column: str, kind: str, **options: Any) -> None:
    if kind == "BTREE":
        change(lambda newest: newest.create_scalar_index(column, kind), create_index())
    else:
        change(lambda newest: newest.create_index(column, kind, **options), create_index())


def create_index() -> Any:
    return data_operations.CreateTableIndex


def a_stale_index() -> None:
    make_lance_table(TABLE, rows(0, 500))
    index("id", "BTREE")
    append(500, 300, 100)


def a_badly_trained_index() -> None:
    """Trained on a hundredth of the rows, with a segment for each later part."""
    make_lance_table(TABLE, rows(0, 40))
    index("v", "IVF_FLAT", num_partitions=2)
    for part in range(4):
        append(40 + 990 * part, 990, 990)
        change(
            lambda newest: newest.optimize.optimize_indices(num_indices_to_merge=0),
            data_operations.OptimizeIndexes,
        )


def many_versions() -> None:
    table = make_lance_table(TABLE, rows(0, 2))
    for number in range(1, 300):
        data = rows(2 * number, 2).to_reader()
        lance_data.insert(actor=SYSTEM, table=TABLE, data=data, overwrite=number % 50 == 0)
    lance_versions.settle_pending()
    for version in TableVersion.objects.filter(table=table):
        version.created_at -= timedelta(days=30)
        version.save(update_fields=["created_at"])


def many_orphans() -> None:
    table = make_lance_table(TABLE, rows(0, 2))
    store = stores.store_of(table.location)
    for number in range(120):
        store.write_new(f"{table.location}/data/{number:03}.lance", b"orphan")


ZOO: dict[str, tuple[Callable[[], None], str, dict[str, Any]]] = {
    "500 fragments": (many_fragments, "compact", {"files_read": 500, "files_written": 3}),
    "500 fragments with deleted rows": (
        many_fragments_with_deleted_rows,
        "compact",
        {"files_read": 500, "files_written": 2},
    ),
    "skewed fragments": (skewed_fragments, "compact", {"files_read": 80, "files_written": 2}),
    "a large fragment with deleted rows": (
        a_large_fragment_with_deleted_rows,
        "compact",
        {"files_read": 1, "files_written": 1},
    ),
    "a stale index": (a_stale_index, "optimize_indexes", {"rows": 300}),
    "a badly trained index": (a_badly_trained_index, "rebuild_indexes", {"segments": 1}),
    "300 versions": (many_versions, "clean_up", {}),
    "orphans": (many_orphans, "remove_orphans", {"files": 120, "bytes": 720}),
}


@pytest.mark.parametrize("name", ZOO)
def test_the_promise_is_kept(name, monkeypatch):
    build, kind, planned = ZOO[name]
    build()
    lance_versions.settle_pending()
    cutoff = database_clock.cutoff
    monkeypatch.setattr(database_clock, "cutoff", lambda age: cutoff(age) + timedelta(days=10))
    values = {name: setting.value for name, setting in policies.effective([]).values.items()}
    values |= {"target_rows": 1024, "small_ratio": 0.9, "keep_versions": 2}
    start = job_operations.StartMaintenance(
        table=TABLE, kind_of_job=kind, parameters={"policy": values}
    )
    job: Job = commit([start], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    promise = job.result["promise"]
    assert promise["kept"], promise
    figures = {name: figure["planned"] for name, figure in promise["figures"].items()}
    assert planned.items() <= figures.items()
    assert all(figure > 0 for figure in figures.values())
    for figure in promise["figures"].values():
        assert figure["actual"] == pytest.approx(figure["planned"], rel=0.1)
