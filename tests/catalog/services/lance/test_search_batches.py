"""Searches that run in a batch have the results that they have alone."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance.dataset import LanceDataset
from lance_namespace_urllib3_client import models as m

from catalog.access import SYSTEM
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations, datasets, queries, time_limits
from catalog.services.lance.scans import search_batches
from catalog.services.lance.scans.plans import Plan
from catalog.services.lance.scans.scanners import SearchOptions
from tests.catalog.storage.outages.test_availability import eventually
from tests.factories import make_lance_table

TABLE = ("w", "t")
DIMENSIONS = 16
KEY = "version and options"
VECTORS = np.random.default_rng(7).random((9, DIMENSIONS), dtype=np.float32)


class SearchRequest(SearchOptions, m.QueryTableRequest):
    pass


def vector(number: float) -> pa.Array:
    return pa.array([number], pa.float32())


def rows_of(vectors: list[pa.Array]) -> pa.Table:
    """What Lance returns: here as many rows as the number in a vector, each with that number."""
    numbers = [int(vector[0].as_py()) for vector in vectors]
    rows = pa.table({"number": pa.array([n for n in numbers for _ in range(n)], pa.int64())})
    if len(vectors) == 1:
        return rows
    places = [place for place, n in enumerate(numbers) for _ in range(n)]
    return rows.add_column(0, "query_index", pa.array(places, pa.int32()))


class Engine:
    """A Lance whose first call ends when the test allows it."""

    def __init__(self, work: Callable[[list[pa.Array]], pa.Table] = rows_of) -> None:
        self.calls: list[list[float]] = []
        self.may_end = threading.Event()
        self._work = work

    def __call__(self, vectors: list[pa.Array]) -> pa.Table:
        self.calls.append([vector[0].as_py() for vector in vectors])
        if len(self.calls) == 1:
            assert self.may_end.wait(10)
        return self._work(vectors)


@pytest.fixture(autouse=True)
def _one_processor(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(search_batches, "MAX_RUNNING", 1)
    yield
    assert not search_batches._groups


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as threads:
        yield threads


def gather(pool: ThreadPoolExecutor, engine: Engine, numbers: list[int]) -> list[Future[pa.Table]]:
    """Start the first search, and then the others, which wait for it; let it end."""
    futures = [pool.submit(search_batches.search, KEY, vector(numbers[0]), engine)]
    eventually(lambda: len(engine.calls) == 1)
    for count, number in enumerate(numbers[1:], start=1):
        futures.append(pool.submit(search_batches.search, KEY, vector(number), engine))
        eventually(lambda count=count: len(search_batches._groups[KEY].waiting) == count)
    engine.may_end.set()
    return futures


def test_searches_that_wait_run_together_and_each_gets_its_own_rows(pool):
    engine = Engine()
    futures = gather(pool, engine, [5, 3, 0, 2])
    assert [future.result(10)["number"].to_pylist() for future in futures] == [
        [5] * 5,
        [3] * 3,
        [],
        [2] * 2,
    ]
    assert engine.calls == [[5], [3, 0, 2]]
    assert futures[3].result().schema.names == ["number"]


def test_a_batch_is_bounded(pool):
    engine = Engine()
    numbers = [1] * (search_batches.MAX_VECTORS + 3)
    for future in gather(pool, engine, numbers):
        assert len(future.result(10)) == 1
    assert list(map(len, engine.calls)) == [1, search_batches.MAX_VECTORS, 2]


def test_searches_run_at_once_while_processors_are_free(pool, monkeypatch):
    monkeypatch.setattr(search_batches, "MAX_RUNNING", 2)
    engine = Engine()
    first = pool.submit(search_batches.search, KEY, vector(1), engine)
    eventually(lambda: len(engine.calls) == 1)
    assert len(search_batches.search(KEY, vector(2), engine)) == 2
    assert engine.calls == [[1], [2]]
    engine.may_end.set()
    first.result(10)


def test_other_versions_and_other_options_do_not_wait(pool):
    engine = Engine()
    first = pool.submit(search_batches.search, KEY, vector(1), engine)
    eventually(lambda: len(engine.calls) == 1)
    assert len(search_batches.search("another key", vector(2), rows_of)) == 2
    engine.may_end.set()
    first.result(10)


@pytest.mark.parametrize("error", [ValueError("of one vector"), SystemExit("a panic of Lance")])
def test_a_failed_batch_is_repeated_one_by_one(pool, error):
    """The searches of others succeed, and the failing one raises its own error."""

    def fail(vectors: list[pa.Array]) -> pa.Table:
        if any(vector[0].as_py() == 9 for vector in vectors):
            raise error
        return rows_of(vectors)

    engine = Engine(fail)
    first, bad, *good = gather(pool, engine, [1, 9, 2, 3])
    assert [len(future.result(10)) for future in (first, *good)] == [1, 2, 3]
    with pytest.raises(type(error), match=str(error)):
        bad.result(10)


def test_a_failed_search_lets_others_start(pool):
    def fail(vectors: list[pa.Array]) -> pa.Table:
        if vectors[0][0].as_py() == 9:
            raise ValueError("of one vector")
        return rows_of(vectors)

    bad, good = gather(pool, Engine(fail), [9, 2])
    with pytest.raises(ValueError, match="of one vector"):
        bad.result(10)
    assert len(good.result(10)) == 2


def test_rows_that_are_not_in_the_order_of_the_vectors_are_never_mixed_up(pool):
    def reverse(vectors: list[pa.Array]) -> pa.Table:
        return rows_of(vectors).take(list(range(len(rows_of(vectors))))[::-1])

    futures = gather(pool, Engine(reverse), [1, 2, 3])
    assert [future.result(10)["number"].to_pylist() for future in futures] == [
        [1],
        [2] * 2,
        [3] * 3,
    ]


# --- with Lance ----------------------------------------------------------------------------------


def table_of(count: int, seed: int = 1) -> pa.Table:
    numbers = np.random.default_rng(seed).random((count, DIMENSIONS), dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(range(seed * 10_000, seed * 10_000 + count), pa.int64()),
            "tag": [("a", "b", "c")[number % 3] for number in range(count)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), DIMENSIONS),
        }
    )


def change(work: Callable[[LanceDataset], Any]) -> None:
    lance_commits.write(
        actor=SYSTEM, table=TABLE, operation=data_operations.CreateTableIndex, work=work
    )


def plan_of(query: np.ndarray = VECTORS[0], **options: Any) -> Plan:
    body = {"vector": {"single_vector": query.tolist()}, "k": 10, **options}
    request = SearchRequest.model_validate(body)
    return queries._plan(SYSTEM, snapshot(), request)


def snapshot() -> Any:
    return datasets.find_snapshot(actor=SYSTEM, table=TABLE)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 1, "nprobes": 2},
    {"k": 1000},
    {"minimum_nprobes": 2, "maximum_nprobes": 3},
    {"maximum_nprobes": 2},
    {"search_effort": 0.2},
    {"ef": 20},
    {"distance_type": "cosine", "bypass_vector_index": True},
    {"filter": "tag = 'a'", "prefilter": True, "nprobes": 2},
    {"filter": "tag = 'a'", "prefilter": False, "nprobes": 2},
    {"refine_factor": 5, "nprobes": 2},
    {"lower_bound": 0.5, "upper_bound": 1.6},
    {"with_row_id": True, "columns": {"column_names": ["id"]}},
    {"columns": {"column_aliases": {"double": "id * 2"}}},
    {"bypass_vector_index": True},
    {"fast_search": True},
]
"""Of searches that may run in a batch."""


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("IVF_PQ", {"num_partitions": 8, "num_sub_vectors": 4}),
        ("IVF_FLAT", {"num_partitions": 8}),
        ("IVF_SQ", {"num_partitions": 8}),
        ("IVF_HNSW_SQ", {"num_partitions": 2}),
        (None, {}),
    ],
)
def test_a_batch_has_the_rows_of_single_searches(kind, parameters):
    """Also with rows that the index does not have, and with deleted rows."""
    make_lance_table(TABLE, table_of(2_000))
    if kind:
        change(lambda dataset: dataset.create_index("v", kind, **parameters))
    for work in (
        None,
        lambda dataset: dataset.insert(table_of(300, seed=2)),
        lambda dataset: dataset.delete("id % 7 = 0"),
    ):
        if work:
            change(work)
        for options in OPTIONS:
            plan = plan_of(**options)
            assert queries._may_share(snapshot(), plan), options
            vectors = [pa.array(vector) for vector in VECTORS]
            batch = search_batches._divided(plan._search_for(vectors), len(vectors))
            for vector, rows in zip(vectors, batch, strict=True):
                alone = plan._search_for([vector])
                assert rows.equals(alone), options
                assert rows.schema.equals(alone.schema, check_metadata=True)


@pytest.mark.django_db
def test_the_key_has_the_version_and_all_options_but_not_the_vector(monkeypatch):
    make_lance_table(TABLE, table_of(300))
    keys: list[Any] = []

    def noted(key: Any, vector: pa.Array, execute: Any) -> pa.Table:
        keys.append(key)
        return execute([vector])

    monkeypatch.setattr(search_batches, "search", noted)
    for options in (*OPTIONS, {"k": 11}, {"columns": {"column_names": ["tag"]}}):
        plan_of(**options).search()
    assert len(set(keys)) == len(keys)
    opened = datasets.open_dataset(snapshot())  # its id stays its own
    plan_of(VECTORS[0]).search()
    plan_of(VECTORS[1]).search()
    assert keys[-1] == keys[-2]
    change(lambda dataset: dataset.insert(table_of(10, seed=3)))
    plan_of(VECTORS[1]).search()
    assert keys[-1] != keys[-2]
    assert keys[-1][1] == keys[-2][1]
    assert opened.version == 1


@pytest.mark.django_db
def test_searches_that_are_long_or_differ_in_a_batch_run_alone(monkeypatch):
    make_lance_table(TABLE, table_of(2_000))
    several = {"multi_vector": [VECTORS[0].tolist()]}
    alone: list[dict[str, Any]] = [{"offset": 1}, {"k": 1001}, {"vector": several}]
    for options in alone:
        assert not queries._may_share(snapshot(), plan_of(**options)), options
    plan = plan_of()
    assert queries._may_share(snapshot(), plan)
    in_store = replace(snapshot(), location="s3://bucket/t")
    assert not queries._may_share(in_store, plan)
    with monkeypatch.context() as patch:
        patch.setattr(time_limits, "SMALL_ROWS", 2_000)
        patch.setattr(time_limits, "serves_requests", lambda: True)
        assert not queries._may_share(snapshot(), plan)
    change(lambda dataset: dataset.create_index("v", "IVF_RQ", num_partitions=4))
    assert not queries._may_share(snapshot(), plan_of())


@pytest.mark.django_db
@pytest.mark.parametrize("column", ["query_index", "vectors"])
def test_tables_that_a_batch_cannot_search_are_searched_one_by_one(column):
    if column == "query_index":
        data = table_of(50).append_column(column, pa.array(range(50)))
        query: Any = VECTORS[0]
    else:
        inner = pa.list_(pa.float32(), 2)
        data = pa.table(
            {column: pa.array([[[n, 2.0], [3.0, n]] for n in range(8)], pa.list_(inner))}
        )
        query = np.array([1.0, 2.0], np.float32)
    make_lance_table(TABLE, data)
    plan = plan_of(query)
    assert not plan.may_share
    assert len(plan.scanner().to_table())
