"""Indexes that queries lack: counted, suggested, planned and created."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client import models as m

from catalog.access import SYSTEM, Principal
from catalog.models import AuditEvent, Job, JobStatus, TableColumnUse
from catalog.planning import Statistics
from catalog.privileges import Privilege
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations, queries
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.indexes.indexes import index_summaries
from catalog.services.maintenance import job_runner, measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.tables import usage
from tests.factories import make_administrator, make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)
ROWS, DIMENSION = 400, 8
LOW = {"index_queries": 2, "index_rows": ROWS}


@pytest.fixture(autouse=True)
def _start(db: None) -> Any:
    make_administrator("ada")
    usage._counts.clear()
    usage._columns.clear()
    yield
    usage._counts.clear()
    usage._columns.clear()


@pytest.fixture
def table() -> None:
    vectors = np.random.default_rng(1).random(ROWS * DIMENSION, dtype=np.float32)
    data = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "flag": [number % 2 == 0 for number in range(ROWS)],
            "body": [f"text {number}" for number in range(ROWS)],
            "tags": pa.array([[f"t{number % 7}"] for number in range(ROWS)], pa.list_(pa.string())),
            "deep": pa.array([{"Part": number} for number in range(ROWS)]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSION),
        }
    )
    make_lance_table(TABLE, data)
    policies.set_table_policy(actor=ADA, table=TABLE, values=LOW)


def ask(filter: str | None = None, *, times: int = 2, actor: Principal = ADA, **more: Any) -> None:
    fields: dict[str, Any] = {"vector": m.QueryTableRequestVector(), "k": 5, "filter": filter}
    query = m.QueryTableRequest(**(fields | more))
    for _ in range(times):
        snapshot = queries.find(actor=actor, table=TABLE, query=query)
        list(queries.query(actor=actor, snapshot=snapshot, query=query).batches)
    usage.flush()


def search(**more: Any) -> None:
    ask(vector=m.QueryTableRequestVector(single_vector=[0.5] * DIMENSION), **more)


def index(work: Callable[[Any], object]) -> None:
    operation = data_operations.CreateTableIndex
    lance_commits.write(actor=SYSTEM, table=TABLE, operation=operation, work=work)


def stored() -> dict[tuple[str, str], int]:
    rows = TableColumnUse.objects.values_list("column", "use", "queries")
    return {(column, use): number for column, use, number in rows}


def statistics() -> Statistics:
    return measurements.plan(actor=ADA, table=TABLE).statistics


def missing() -> dict[str, tuple[str, int]]:
    return {i.column: (i.index_type, i.queries) for i in statistics().missing_indexes}


def run(*, dry: bool = False) -> Job:
    job = maintenance_scheduler.start(actor=ADA, table=TABLE, kind="create_indexes", is_dry_run=dry)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def existing() -> dict[str, tuple[str, tuple[str, ...]]]:
    dataset = lance_datasets.read(actor=SYSTEM, table=TABLE)
    return {each.name: (each.type, each.columns) for each in index_summaries(dataset)}


@pytest.mark.usefixtures("table")
def test_queries_are_counted_by_the_columns_that_they_compare():
    ask("id = 5 AND flag = true")
    ask("id > 390", times=1)
    search(filter="array_has(tags, 't1')", distance_type="cosine")
    search(times=1, bypass_vector_index=True)
    ask("id = 5", actor=SYSTEM)
    queries.count_rows(actor=ADA, table=TABLE, predicate="contains(body, '1')")
    usage.flush()
    assert stored() == {
        ("id", "value"): 3,
        ("flag", "value"): 2,
        ("tags", "labels"): 2,
        ("vector", "vector cosine"): 2,
        ("body", "substring"): 1,
    }
    ask("id = 5", times=1)
    assert stored()["id", "value"] == 4


@pytest.mark.usefixtures("table")
def test_missing_indexes_are_suggested_planned_and_created():
    ask("id = 5", times=3)
    ask("ID = 5")
    ask("flag = true AND array_has(tags, 't1')", times=4)
    ask("deep.Part = 5 AND contains(body, '1')", times=3)
    search()
    search(times=1, distance_type="cosine")
    measurement = measurements.plan(actor=ADA, table=TABLE)
    suggested = measurement.statistics.missing_indexes
    assert {i.column: (i.index_type, i.queries, i.distance_type) for i in suggested} == {
        "id": ("BTREE", 5, ""),
        "flag": ("BITMAP", 4, ""),
        "tags": ("LABEL_LIST", 4, ""),
        "deep.Part": ("BTREE", 3, ""),
        "body": ("NGRAM", 3, ""),
        "vector": ("IVF_PQ", 3, "l2"),
    }
    assert {i.column: i.bytes for i in suggested}["vector"] == ROWS * DIMENSION * 4
    (planned,) = [job for job in measurement.planned if job.kind == "create_indexes"]
    assert planned.mode == "dry_run"
    assert "BTREE on 'id' (5 queries in a week)" in planned.reason
    assert any("no index on 'vector'" in cost.reason for cost in measurement.costs)
    dry = run(dry=True)
    assert (dry.status, dry.result["after"], existing()) == (
        JobStatus.SUCCEEDED,
        {"indexes": 6},
        {},
    )
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["promise"]["kept"]
    assert {kind for kind, _ in existing().values()} == {
        *("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "IVF_PQ")
    }
    assert sorted(job.result["created"]) == sorted(existing())
    event = AuditEvent.objects.filter(action="maintenance.create_index").first()
    assert (event.actor, event.after["job"]) == ("ada", job.pk)
    assert missing() == {}
    again = run()
    assert (again.status, again.error) == (JobStatus.SUCCEEDED, "no index is missing")


@pytest.mark.usefixtures("table")
def test_an_existing_index_serves():
    index(lambda dataset: dataset.create_scalar_index("id", "ZONEMAP"))
    index(lambda dataset: dataset.create_index("vector", "IVF_FLAT", num_partitions=1))
    ask("id = 5")
    search()
    assert missing() == {}
    ask("contains(body, '1')")
    assert missing() == {"body": ("NGRAM", 2)}


@pytest.mark.usefixtures("table")
def test_few_queries_or_few_rows_need_no_index():
    ask("id = 5", times=1)
    assert missing() == {}
    ask("id = 5", times=1)
    assert missing() == {"id": ("BTREE", 2)}
    values = LOW | {"index_rows": ROWS + 1}
    policies.set_table_policy(actor=ADA, table=TABLE, values=values)
    assert missing() == {}


@pytest.mark.usefixtures("table")
def test_queries_of_columns_that_no_index_suits_are_left_out():
    ask("id = 5")
    for column in ("gone", "deep", "a..b", "tags"):
        row = TableColumnUse.objects.first()
        row.pk, row.column = None, column
        row.save(force_insert=True)
    TableColumnUse.objects.filter(column="id").update(use="of another release")
    assert missing() == {}


def test_statistics_of_other_releases():
    read = Statistics.from_json({"format": "lance", "rows": 5})
    assert (read.missing_indexes, read.index_searches) == ((), ())


@pytest.mark.parametrize("column", ["a\0b", "a\ud800", "a" * 501])
def test_a_column_that_cannot_be_stored_is_not_counted(table: None, column: str) -> None:
    usage.count_columns(ADA, TABLE, [(column, "value"), ("id", "value")])

    usage.flush()

    assert list(TableColumnUse.objects.values_list("column", flat=True)) == ["id"]
