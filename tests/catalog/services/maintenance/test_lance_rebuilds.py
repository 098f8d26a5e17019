"""Rebuilds of indexes of Lance tables, with concurrent writers."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from django.db import connections
from django.utils import timezone
from lance.indices import IndexConfig
from lance.query import DocumentGranularity

from catalog import access
from catalog.access import SYSTEM, On, Principal
from catalog.errors import CommitConflict, IndexNotFound, InvalidInput, PermissionDenied
from catalog.models import (
    ApiKey,
    AuditEvent,
    Job,
    JobEvent,
    JobStatus,
    PrincipalKind,
    Table,
    TableVersion,
    Transaction,
    TransactionStatus,
)
from catalog.models import Principal as PrincipalRow
from catalog.planning import BuiltIndex
from catalog.privileges import Privilege
from catalog.services.access import api_keys, grants
from catalog.services.engine import jobs
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.indexes import index_plans as lance_index_plans
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.indexes import IndexSummary, index_summaries
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.maintenance import job_runner, lance_rebuilds, measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.requests import arguments
from tests.factories import files, make_administrator, make_lance_table, make_root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)
ROWS, DIMENSION = 600, 16
WORDS = ("hello", "running", "world", "water", "stone")


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


def rows(first: int, count: int) -> pa.Table:
    """Rows in which every value is derived from the number."""
    vectors = np.random.default_rng(first).random((count, DIMENSION), dtype=np.float32)
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": [f"k{i % 5}" for i in ids],
            "tags": pa.array([[f"t{i % 7}", f"u{i % 3}"] for i in ids], pa.list_(pa.string())),
            "text": [f"{WORDS[i % 5]} number {i}" for i in ids],
            "docs": pa.array(
                [[{"body": f"{WORDS[i % 5]} deep {i}"}] for i in ids],
                pa.list_(pa.struct([("body", pa.string())])),
            ),
            "deep": pa.array([{"a.b": i} for i in ids], pa.struct([("a.b", pa.int64())])),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSION),
        }
    )


def change(work: Callable[[Any], object], operation: Any = data_operations.InsertIntoTable) -> None:
    """Change the newest version directly with Lance, as a client does."""
    lance_commits.write(actor=SYSTEM, table=TABLE, operation=operation, work=work)


def append(first: int, count: int) -> None:
    change(lambda dataset: lance.write_dataset(rows(first, count), dataset, mode="append"))


def index(work: Callable[[Any], object]) -> None:
    change(work, data_operations.CreateTableIndex)


def rebuild_reason(times: int = 2, first: int = ROWS, count: int = 100) -> None:
    """Append rows and optimize the indexes repeatedly, which adds a segment each time."""
    for number in range(times):
        append(first + number * count, count)
        index(lambda dataset: dataset.optimize.optimize_indices(num_indices_to_merge=0))


def newest() -> Any:
    return lance_datasets.read(actor=SYSTEM, table=TABLE)


def summaries() -> dict[str, IndexSummary]:
    return {index.name: index for index in index_summaries(newest())}


def start(*names: str, dry: bool = False, actor: Principal = ADA) -> Job:
    return maintenance_scheduler.start(
        actor=actor,
        table=TABLE,
        kind="rebuild_indexes",
        is_dry_run=dry,
        indexes=names or None,
    )


def work_on(job: Job) -> Job:
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def run(*names: str, dry: bool = False) -> Job:
    return work_on(start(*names, dry=dry))


def state() -> tuple[object, ...]:
    """The state that a job without effect does not change: the files, the ledger and the indexes."""
    row = Table.objects.get(name="t")
    return (
        files(row.location),
        list(
            TableVersion.objects.visible().order_by("version").values_list("version", "created_at")
        ),
        {name: index.uuid for name, index in summaries().items()},
    )


# --- every type ------------------------------------------------------------------------------------


def scalar(column: str, kind: Any, **options: Any) -> Callable[[Any], object]:
    return lambda dataset: dataset.create_scalar_index(column, kind, name="i", **options)


def vector(kind: str, **options: Any) -> Callable[[Any], object]:
    return lambda dataset: dataset.create_index("vector", kind, name="i", **options)


def where(text: str) -> Callable[[Any], object]:
    return lambda dataset: sorted(dataset.to_table(columns=["id"], filter=text)["id"].to_pylist())


def matching(column: str, text: str) -> Callable[[Any], object]:
    def ask(dataset: Any) -> object:
        query = {"columns": [column], "query": text}
        return sorted(dataset.to_table(columns=["id"], full_text_query=query)["id"].to_pylist())

    return ask


def nothing(_dataset: Any) -> None:
    """No query, for types with special queries: only their parameters are compared."""


BUILT: Mapping[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "btree": (scalar("id", "BTREE"), where("id between 590 and 720")),
    "btree of a name with a dot": (scalar("deep.`a.b`", "BTREE"), where("deep.`a.b` = 599")),
    "bitmap": (scalar("kind", "BITMAP"), where("kind = 'k3'")),
    "label list": (scalar("tags", "LABEL_LIST"), where("array_has_any(tags, ['t3'])")),
    "ngram": (scalar("text", "NGRAM"), where("contains(text, 'umber 61')")),
    "zone map": (
        scalar("id", IndexConfig("zonemap", {"rows_per_zone": 1000})),
        where("id > 590 and id < 720"),
    ),
    "bloom filter": (
        scalar("id", IndexConfig("bloomfilter", {"number_of_items": 1000, "probability": 0.01})),
        where("id = 650"),
    ),
    "minhash": (
        scalar("text", IndexConfig("minhashlsh", {"num_hashes": 64, "num_bands": 8})),
        nothing,
    ),
    "full text": (
        scalar(
            "text",
            "INVERTED",
            with_position=True,
            stem=False,
            max_token_length=20,
            custom_stop_words=["number"],
        ),
        matching("text", "running"),
    ),
    "full text of code": (scalar("text", "INVERTED", analyzer="code"), matching("text", "stone")),
    "full text in lists": (
        scalar("docs.body", "INVERTED", document_granularity=DocumentGranularity.LIST_ELEMENT),
        matching("docs.body", "water"),
    ),
    "ivf flat": (vector("IVF_FLAT", num_partitions=4), nothing),
    "ivf flat by size": (vector("IVF_FLAT", target_partition_size=200), nothing),
    "ivf sq": (vector("IVF_SQ", num_partitions=3, metric="cosine"), nothing),
    "ivf pq": (
        vector(
            "IVF_PQ",
            num_partitions=3,
            num_sub_vectors=8,
            num_bits=4,
            metric="dot",
            sample_rate=100,
            max_iters=20,
        ),
        nothing,
    ),
    "ivf rq": (vector("IVF_RQ", num_partitions=2, num_bits=3), nothing),
    "ivf hnsw flat": (vector("IVF_HNSW_FLAT", num_partitions=2, m=8, ef_construction=60), nothing),
    "ivf hnsw sq": (vector("IVF_HNSW_SQ", num_partitions=2, m=9, max_level=5), nothing),
    "ivf hnsw pq": (vector("IVF_HNSW_PQ", num_partitions=2, num_sub_vectors=4, m=10), nothing),
}


def parameters(dataset: Any, name: str = "i") -> tuple[object, ...]:
    """The build parameters of an index, as far as Lance reports them."""
    (index,) = (candidate for candidate in dataset.describe_indices() if candidate.name == name)
    first = dataset.stats.index_stats(name)["indices"][0]
    parameters = {
        key: first[key] for key in ("params", "rows_per_zone", "probability") if key in first
    }
    return index.index_type, index.field_names, index.details, parameters


@pytest.mark.parametrize("name", BUILT)
def test_an_index_of_every_type_is_rebuilt_with_its_parameters(name):
    build, ask = BUILT[name]
    make_lance_table(TABLE, rows(0, ROWS))
    index(build)
    before, old = newest(), parameters(newest())
    change(lambda dataset: dataset.delete("id < 50"), data_operations.DeleteFromTable)
    append(ROWS, 150)
    expected = ask(newest())
    partitions = [index.get("num_partitions") for index in before.stats.index_stats("i")["indices"]]
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result["version"] == newest().version == before.version + 3
    assert parameters(newest()) == old
    (built,) = summaries().values()
    assert (built.segments, built.unindexed_rows, built.indexed_rows) == (1, 0, 700)
    assert built.uuid not in [index.uuid for index in index_summaries(before)]
    assert ask(newest()) == expected
    now = [index.get("num_partitions") for index in newest().stats.index_stats("i")["indices"]]
    assert now == ([3] if "by size" in name else partitions)
    # Older versions keep the old index.
    assert [
        index.uuid
        for index in index_summaries(
            lance_datasets.read(actor=SYSTEM, table=TABLE, version=before.version)
        )
    ] == [index.uuid for index in index_summaries(before)]


def column(values: pa.Array, metadata: Mapping[str, str] | None = None) -> pa.Table:
    field = pa.field("c", values.type, metadata=metadata)
    return pa.table([values], schema=pa.schema([field]))


NUMBERS = np.random.default_rng(3).random((300, 8), dtype=np.float32)
SPECIAL: Mapping[str, tuple[pa.Table, Callable[[Any], object]]] = {
    "geometries": (
        column(
            pa.StructArray.from_arrays(
                [pa.array(NUMBERS[:, 0], pa.float64()), pa.array(NUMBERS[:, 1], pa.float64())],
                names=["x", "y"],
            ),
            {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"},
        ),
        lambda dataset: dataset.create_scalar_index("c", "RTREE", name="i"),
    ),
    "json": (
        column(pa.array([f'{{"a": "word {n}"}}' for n in range(300)], pa.json_())),
        lambda dataset: dataset.create_scalar_index("c", "INVERTED", name="i", stem=False),
    ),
    "vectors of bytes": (
        column(
            pa.FixedSizeListArray.from_arrays(pa.array((NUMBERS * 255).astype(np.uint8).ravel()), 8)
        ),
        lambda dataset: dataset.create_index(
            "c", "IVF_FLAT", name="i", metric="hamming", num_partitions=2
        ),
    ),
    "lists of vectors": (
        column(pa.array([[row] for row in NUMBERS.tolist()], pa.list_(pa.list_(pa.float32(), 8)))),
        lambda dataset: dataset.create_index(
            "c", "IVF_FLAT", name="i", metric="cosine", num_partitions=2
        ),
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_an_index_of_a_special_column_is_rebuilt_with_its_parameters(name):
    data, build = SPECIAL[name]
    make_lance_table(TABLE, data)
    index(build)
    old, before = parameters(newest()), summaries()["i"].uuid
    change(lambda dataset: lance.write_dataset(data, dataset, mode="append"))
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert parameters(newest()) == old
    built = summaries()["i"]
    assert (built.segments, built.unindexed_rows, built.indexed_rows) == (1, 0, 600)
    assert built.uuid != before


def recall(dataset: Any, queries: Any, vectors: Any) -> float:
    """The share of the ten nearest rows that a search with the index finds."""
    hits = 0
    for query in queries:
        distances = ((vectors - query) ** 2).sum(axis=1)
        nearest = set(np.argsort(distances)[:10].tolist())
        search = {"column": "vector", "q": query, "k": 10, "nprobes": 2}
        answer = dataset.to_table(columns=["id"], nearest=search)["id"].to_pylist()
        hits += len(nearest & set(answer))
    return hits / (10 * len(queries))


def test_a_rebuilt_vector_index_has_a_better_recall_for_newer_rows():
    """Newer rows are in another region, in which the old centroids do not distinguish them."""
    random = np.random.default_rng(7)
    centers = random.random((40, DIMENSION), dtype=np.float32) * 10
    centers[:4] -= 100  # the old rows
    which = np.concatenate([np.arange(500) % 4, 4 + np.arange(3500) % 36])
    vectors = (centers[which] + random.normal(0, 0.05, (4000, DIMENSION))).astype(np.float32)

    def table(first: int, end: int) -> pa.Table:
        values = pa.array(vectors[first:end].ravel())
        column = pa.FixedSizeListArray.from_arrays(values, DIMENSION)
        return pa.table({"id": pa.array(range(first, end), pa.int64()), "vector": column})

    make_lance_table(TABLE, table(0, 500))
    index(vector("IVF_PQ", num_partitions=8, num_sub_vectors=4))
    change(lambda dataset: lance.write_dataset(table(500, 4000), dataset, mode="append"))
    index(lambda dataset: dataset.optimize.optimize_indices(num_indices_to_merge=0))
    queries = vectors[600:4000:170]
    before = recall(newest(), queries, vectors)
    job = run("i")
    assert job.status == JobStatus.SUCCEEDED, job.error
    after = recall(newest(), queries, vectors)
    assert after > before
    assert after > 0.3


# --- the job ---------------------------------------------------------------------------------------


@pytest.fixture
def worn(warehouse: Any) -> None:
    """A table with two indexes of three segments each, and 30 unindexed rows."""
    make_lance_table(TABLE, rows(0, ROWS))
    index(lambda dataset: dataset.create_scalar_index("id", "BTREE", name="by_id"))
    index(lambda dataset: dataset.create_scalar_index("text", "INVERTED", name="words"))
    rebuild_reason()
    append(ROWS + 200, 30)


@pytest.mark.usefixtures("worn")
def test_the_result_and_the_audit_events_of_a_rebuild():
    job = run("by_id")
    size = {name: index.size_bytes for name, index in summaries().items()}
    result = job.result
    assert (job.status, job.error, job.unit) == (JobStatus.SUCCEEDED, "", "rows")
    assert (job.progress, job.total) == (830, 830)
    (planned,) = result["plan"]["indexes"]
    before = result["before"].pop("index_bytes")
    assert planned == {
        "name": "by_id",
        "column": "id",
        "index_type": "BTREE",
        "segments": 3,
        "unindexed_rows": 30,
        "size_bytes": planned["size_bytes"],
    }
    assert 0 < planned["size_bytes"] < before
    assert result["plan"]["rows"] == 830
    assert result["before"] == {
        "indexes": 2,
        "segments": 6,
        "stale_indexes": 2,
        "unindexed_rows": 60,
    }
    assert result["after"] == {
        "indexes": 2,
        "segments": 4,
        "stale_indexes": 1,
        "unindexed_rows": 30,
        "index_bytes": sum(filter(None, size.values())),
    }
    event = AuditEvent.objects.get(action="maintenance.rebuild_index")
    expected = {"name": "by_id", "column": "id", "index_type": "BTREE", "job": job.pk}
    assert event.actor == "ada"
    assert {key: event.after[key] for key in expected} == expected
    assert str(event.transaction_id) == result["transaction_id"]
    assert Transaction.objects.get(pk=event.transaction_id).status == TransactionStatus.SUCCEEDED


@pytest.mark.usefixtures("worn")
def test_each_index_is_rebuilt_in_its_own_version():
    version = newest().version
    job = run()
    assert (job.status, job.result["version"]) == (JobStatus.SUCCEEDED, version + 2)
    assert newest().version == version + 2
    assert {n: (i.segments, i.unindexed_rows) for n, i in summaries().items()} == {
        "by_id": (1, 0),
        "words": (1, 0),
    }
    assert AuditEvent.objects.filter(action="maintenance.rebuild_index").count() == 2


@pytest.mark.usefixtures("worn")
def test_a_dry_run_has_the_same_plan_and_changes_nothing():
    before = state()
    dry = run("words", dry=True)
    assert dry.status == JobStatus.SUCCEEDED, dry.error
    assert state() == before
    assert not AuditEvent.objects.filter(action="maintenance.rebuild_index").exists()
    executed = run("words")
    assert dry.result["plan"] == executed.result["plan"]
    assert dry.result["before"] == executed.result["before"]
    after = dict(executed.result["after"])
    del after["index_bytes"]
    assert dry.result["after"] == after


def test_invalid_requests_change_nothing():
    make_lance_table(TABLE, rows(0, 10))
    before = state()
    with pytest.raises(InvalidInput, match=r"Table 'ws.t' has no index"):
        start()
    with pytest.raises(IndexNotFound, match=r"Table 'ws.t' has no index 'gone'"):
        start("gone")
    with pytest.raises(InvalidInput, match="'indexes' is empty"):
        maintenance_scheduler.start(actor=ADA, table=TABLE, kind="rebuild_indexes", indexes=[])
    with pytest.raises(InvalidInput, match="'compact' does not take 'indexes'"):
        maintenance_scheduler.start(actor=ADA, table=TABLE, kind="compact", indexes=["i"])
    with pytest.raises(IndexNotFound, match="has no index 'gone'"):
        maintenance_scheduler.start(
            actor=ADA, table=TABLE, kind="optimize_indexes", indexes=["gone"]
        )
    assert state() == before
    assert not Job.objects.exists()


def test_an_index_dropped_before_the_job_fails_it():
    make_lance_table(TABLE, rows(0, 100))
    for name in ("a", "b"):
        index(lambda dataset, name=name: dataset.create_scalar_index("id", "BTREE", name=name))
    alone, both = start("b"), start("a", "b")
    lance_indexes.drop_index(actor=SYSTEM, table=TABLE, index="b")
    before = state()
    work_on(alone)
    assert (alone.status, alone.error) == (JobStatus.FAILED, "Table 'ws.t' has no index 'b'")
    assert state() == before
    work_on(both)
    assert (both.status, both.error) == (JobStatus.SUCCEEDED, "not rebuilt: b")
    assert both.result["left"] == {"b": "Table 'ws.t' has no index 'b'"}
    assert [index["name"] for index in both.result["plan"]["indexes"]] == ["a"]


def test_an_index_with_too_few_vectors_is_not_rebuilt():
    make_lance_table(TABLE, rows(0, 300))
    index(vector("IVF_PQ", num_partitions=2, num_sub_vectors=4))
    change(lambda dataset: dataset.delete("id >= 200"), data_operations.DeleteFromTable)
    before = state()
    job = run()
    assert (job.status, job.error) == (
        JobStatus.FAILED,
        "Column 'vector' has 200 vectors, and this IVF_PQ needs 256 to train with",
    )
    assert state() == before


def test_an_index_that_lance_would_build_differently_is_not_rebuilt(monkeypatch):
    make_lance_table(TABLE, rows(0, 100))
    index(scalar("text", "INVERTED", stem=False))
    before = state()
    options = lance_rebuilds._scalar_options

    def forget(*args: Any) -> Any:
        parameters, config = options(*args)
        return parameters, {**config, "stem": True}

    monkeypatch.setattr(lance_rebuilds, "_scalar_options", forget)
    job = run()
    assert (job.status, job.error) == (
        JobStatus.FAILED,
        "Index 'i' cannot be rebuilt: Lance would not build it with the same stem",
    )
    assert state() == before


# --- concurrent writers ----------------------------------------------------------------------------


def aside(act: Callable[[], object]) -> None:
    """Run an action in another thread with its own connection, as another client does."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - it is raised by who waits
            failed.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


Meanwhile = Callable[..., list[int]]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Run an action before each of the first builds of an index.

    Returns a list to which the versions that were built from are added.
    """
    build = lance_index_plans.build

    def arrange(act: Callable[[], object], times: int = 1) -> list[int]:
        calls: list[int] = []

        def interrupted(dataset: Any, plan: Any, *args: Any, replace: bool = False) -> None:
            if replace:
                calls.append(dataset.version)
                if len(calls) <= times:
                    aside(act)
            build(dataset, plan, *args, replace=replace)

        monkeypatch.setattr(lance_index_plans, "build", interrupted)
        return calls

    return arrange


committed = pytest.mark.django_db(transaction=True)


@pytest.fixture
def settled(transactional_db: None, warehouse: Any) -> None:
    """A table whose index has three segments, committed so that other threads see it."""
    make_root()
    make_lance_table(TABLE, rows(0, 300))
    append(300, 300)
    index(lambda dataset: dataset.create_scalar_index("id", "BTREE", name="i"))
    rebuild_reason()


def ids() -> list[int]:
    return sorted(newest().to_table(columns=["id"])["id"].to_pylist())


@committed
@pytest.mark.usefixtures("settled")
def test_rows_appended_during_a_rebuild_are_kept_and_unindexed(meanwhile):
    version = newest().version
    calls = meanwhile(lambda: append(5000, 40))
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert calls == [version]  # the index was not built twice
    assert ids() == [*range(800), *range(5000, 5040)]
    built = summaries()["i"]
    assert (built.segments, built.unindexed_rows) == (1, 40)
    assert job.result["after"]["unindexed_rows"] == 40
    assert where("id in (3, 799, 5039)")(newest()) == [3, 799, 5039]
    later = maintenance_scheduler.start(actor=ADA, table=TABLE, kind="optimize_indexes")
    assert work_on(later).result["after"]["unindexed_rows"] == 0


@committed
@pytest.mark.usefixtures("settled")
def test_rows_deleted_or_updated_during_a_rebuild(meanwhile):
    def act() -> None:
        lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id < 10")
        change(lambda dataset: dataset.update({"id": "id + 9000"}, where="id = 700"))

    version = newest().version
    calls = meanwhile(act)
    job = run()
    assert (job.status, job.error, calls) == (JobStatus.SUCCEEDED, "", [version])
    assert ids() == [*range(10, 700), *range(701, 800), 9700]
    assert where("id in (5, 10, 700, 9700)")(newest()) == [10, 9700]


@committed
@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "act",
    [
        lambda dataset: dataset.optimize.compact_files(),
        lambda dataset: dataset.create_scalar_index("id", "BTREE", name="i", replace=True),
    ],
    ids=["compaction", "the same index"],
)
def test_a_conflicting_change_repeats_the_rebuild_on_the_newest_version(meanwhile, act):
    version = newest().version
    calls = meanwhile(lambda: index(act))
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert calls[0] == version
    assert calls[1:] == [job.result["version"] - 1]
    built = summaries()["i"]
    assert (built.segments, built.unindexed_rows, built.indexed_rows) == (1, 0, 800)
    assert ids() == list(range(800))
    assert where("id in (3, 799)")(newest()) == [3, 799]
    assert AuditEvent.objects.filter(action="maintenance.rebuild_index").count() == 1


@committed
@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("of", ["index", "column"])
def test_an_index_dropped_during_its_rebuild_is_not_restored(meanwhile, of):
    def drop(dataset: Any) -> None:
        if of == "index":
            dataset.drop_index("i")
        else:
            dataset.drop_columns(["id"])

    meanwhile(lambda: index(drop))
    version = newest().version
    job = run()
    assert (job.status, job.error) == (JobStatus.FAILED, "Table 'ws.t' has no index 'i'")
    assert newest().version == version + 1
    assert not newest().describe_indices()
    assert not AuditEvent.objects.filter(action="maintenance.rebuild_index").exists()


@committed
@pytest.mark.usefixtures("settled")
def test_an_index_replaced_during_its_rebuild_is_rebuilt_in_the_retry(meanwhile):
    def other(dataset: Any) -> None:
        dataset.drop_index("i")
        dataset.create_scalar_index("kind", "BITMAP", name="i")

    meanwhile(lambda: index(other))
    job = run()
    assert job.status == JobStatus.QUEUED
    assert job.error == "Index 'i' of table 'ws.t' was changed concurrently"
    assert summaries()["i"].type == "BITMAP"
    version = newest().version
    Job.objects.update(lease_until=None)
    work_on(job)
    # It is as new as a rebuild by the job.
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "rebuilt since the job began: i")
    assert newest().version == version


@committed
@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("how", ["canceled", "lost"])
def test_a_job_that_is_canceled_or_lost_commits_nothing(meanwhile, monkeypatch, how):
    monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 0.02)
    job = start()
    uuids = {segment.uuid for segment in newest().describe_indices()[0].segments}
    version, heartbeats = newest().version, []
    begin = jobs.LeaseHeartbeat.__enter__
    monkeypatch.setattr(
        jobs.LeaseHeartbeat, "__enter__", lambda self: heartbeats.append(self) or begin(self)
    )

    def stop() -> None:
        if how == "canceled":
            jobs.cancel_jobs_of(Transaction.objects.get(jobs=job))
        else:
            Job.objects.filter(pk=job.pk).update(attempts=2)  # as when another worker takes the job
        assert heartbeats[0]._reason is not None or wait(lambda: heartbeats[0]._reason is not None)

    calls = meanwhile(stop)
    work_on(job)
    assert len(calls) == 1
    expected = {"canceled": ("canceled", "canceled on request"), "lost": ("running", "")}
    assert (job.status, job.error) == expected[how]
    assert newest().version == version
    assert {segment.uuid for segment in newest().describe_indices()[0].segments} == uuids
    assert where("id in (3, 799)")(newest()) == [3, 799]


def write_much() -> None:
    for number in range(15):
        first = 10_000 + 10 * number
        append(first, 10)
        lance_data.delete(actor=SYSTEM, table=TABLE, predicate=f"id = {number} or id = {first}")


def tidy_much() -> None:
    for _ in range(15):
        for work in (
            lambda dataset: dataset.optimize.compact_files(target_rows_per_fragment=200),
            lambda dataset: dataset.optimize.optimize_indices(),
        ):
            with suppress(CommitConflict):  # it lost five races
                index(work)


def run_to_its_end() -> None:
    job = run()
    while job.status == JobStatus.QUEUED:  # it lost a race
        Job.objects.filter(pk=job.pk).update(lease_until=None)
        work_on(job)
    assert (job.status, job.result["after"]["indexes"]) == (JobStatus.SUCCEEDED, 1)


@committed
@pytest.mark.usefixtures("settled")
def test_with_concurrent_writers_no_row_is_lost_and_no_index_is_ever_missing():
    """One thread appends and deletes, one compacts and optimizes, one reads."""
    ended = threading.Event()
    missing: list[int] = []

    def read() -> None:
        while not ended.is_set():
            dataset = newest()
            if [index.name for index in dataset.describe_indices()] != ["i"]:
                missing.append(dataset.version)

    with ThreadPoolExecutor(3) as pool:
        reading = pool.submit(aside, read)
        others = [pool.submit(aside, work) for work in (write_much, tidy_much)]
        try:
            run_to_its_end()
            while not all(other.done() for other in others):
                run_to_its_end()
        finally:
            ended.set()
        for other in (reading, *others):
            other.result()
    assert missing == []
    expected = [*range(15, 800), *(i for i in range(10_000, 10_150) if i % 10)]
    assert ids() == expected
    assert run().result["after"]["unindexed_rows"] == 0
    for first in range(0, 10_200, 100):
        rows = [i for i in expected if first <= i < first + 100]
        assert where(f"id >= {first} and id < {first + 100}")(newest()) == rows


@committed
@pytest.mark.usefixtures("settled")
def test_a_worker_that_dies_before_the_commit_leaves_the_old_index(meanwhile):
    job = start()
    before = (
        newest().version,
        [segment.uuid for segment in newest().describe_indices()[0].segments],
    )

    def die() -> None:
        raise SystemExit

    calls = meanwhile(die)
    with pytest.raises(SystemExit):
        job_runner.run_job(job.pk)
    now = newest()
    assert (now.version, [segment.uuid for segment in now.describe_indices()[0].segments]) == before
    assert where("id in (3, 799)")(now) == [3, 799]
    job_runner.run_job(job.pk)  # the dead worker still has the lease
    assert len(calls) == 1
    Job.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    work_on(job)
    assert (job.status, job.attempts, job.error) == (JobStatus.SUCCEEDED, 2, "")
    assert (summaries()["i"].segments, newest().version) == (1, before[0] + 1)
    assert job.result["before"]["segments"] == 3


def wait(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
    return True


@committed
@pytest.mark.usefixtures("settled")
def test_indexes_built_before_a_worker_died_are_not_rebuilt_again(monkeypatch):
    index(lambda dataset: dataset.create_scalar_index("kind", "BITMAP", name="j"))
    job = start()
    write = lance_commits.write

    def die(**arguments: Any) -> Any:
        write(**arguments)
        raise SystemExit  # after the commit, before it is recorded

    monkeypatch.setattr(lance_commits, "write", die)
    with pytest.raises(SystemExit):
        job_runner.run_job(job.pk)
    monkeypatch.setattr(lance_commits, "write", write)
    version = newest().version
    assert {n: i.segments for n, i in summaries().items()} == {"i": 1, "j": 1}
    first = summaries()["i"].uuid
    append(9000, 5)
    index(lambda dataset: dataset.optimize.optimize_indices())  # keeps its trained centroids
    Job.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    work_on(job)
    assert (job.status, job.attempts) == (JobStatus.SUCCEEDED, 2)
    assert job.error == "rebuilt since the job began: i"
    assert job.result["version"] == version + 3  # only of 'j'
    assert AuditEvent.objects.filter(action="maintenance.rebuild_index").count() == 2
    assert job.result["before"]["segments"] == 4
    assert job.result["after"]["unindexed_rows"] == 0
    assert summaries()["i"].uuid != first  # increased by the optimization, not by the job


@pytest.mark.parametrize("privilege", [Privilege.READ, Privilege.WRITE, Privilege.MAINTAIN])
def test_a_rebuild_requires_only_maintain(privilege):
    make_lance_table(TABLE, rows(0, 100))
    index(scalar("id", "BTREE"))
    row = PrincipalRow.objects.create(name="etl", kind=PrincipalKind.SERVICE)
    ApiKey.objects.create(name="etl", principal=row, digest="etl")
    grants.set_grant(actor=SYSTEM, on=On.table(TABLE), principal="etl", privileges=privilege)
    etl = access.named("etl")
    assert etl is not None
    before = state()
    if privilege == Privilege.MAINTAIN:
        job = work_on(start("i", actor=etl))
        assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
        assert AuditEvent.objects.get(action="maintenance.rebuild_index").actor == "etl"
        return
    with pytest.raises(PermissionDenied):
        start("i", actor=etl)
    with pytest.raises(PermissionDenied):
        arguments.index_names(actor=etl, table=TABLE)
    assert state() == before
    assert not Job.objects.exists()


def test_a_rebuild_requires_that_the_requester_still_may_maintain():
    make_lance_table(TABLE, rows(0, 100))
    index(scalar("id", "BTREE"))
    api_keys.create_api_key(actor=SYSTEM, name="eve")
    job = start()
    Transaction.objects.filter(jobs=job).update(actor="eve")
    ApiKey.objects.update(revoked_at=timezone.now())
    before = state()
    work_on(job)
    assert job.status == JobStatus.FAILED
    assert state() == before


def test_indexes_of_branches_are_not_rebuilt():
    make_lance_table(TABLE, rows(0, 100))
    index(scalar("id", "BTREE"))
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="b")
    job = run()
    assert job.status == JobStatus.SUCCEEDED, job.error
    (on_branch,) = index_summaries(lance_datasets.read(actor=SYSTEM, table=TABLE, branch="b"))
    assert on_branch.uuid != summaries()["i"].uuid


def test_indexes_of_materialized_views_are_rebuilt():
    make_lance_table(TABLE, rows(0, 100))
    index(scalar("id", "BTREE"))
    before = summaries()["i"].uuid
    Table.objects.named(TABLE).update(is_materialized=True)
    assert run().status == JobStatus.SUCCEEDED
    assert summaries()["i"].uuid != before


def test_the_log_reports_the_remaining_indexes(monkeypatch):
    make_lance_table(TABLE, rows(0, 300))
    index(vector("IVF_PQ", num_partitions=2, num_sub_vectors=4))
    index(lambda dataset: dataset.create_scalar_index("id", "BTREE", name="ids"))
    change(lambda dataset: dataset.delete("id >= 200"), data_operations.DeleteFromTable)
    old = summaries()["i"].uuid
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "not rebuilt: i")
    reason = "Column 'vector' has 200 vectors, and this IVF_PQ needs 256 to train with"
    assert job.result["left"] == {"i": reason}
    assert [index["name"] for index in job.result["plan"]["indexes"]] == ["ids"]
    assert summaries()["i"].uuid == old
    lines = JobEvent.objects.filter(job=job).order_by("pk").values_list("level", "message")
    assert list(lines) == [
        ("warning", reason),
        ("info", "rebuilding index 'ids'"),
        ("info", f"committed version {newest().version}"),
    ]


# --- scheduled rebuilds ----------------------------------------------------------------------------


def built() -> dict[str, BuiltIndex]:
    measured = measurements.measure(actor=SYSTEM, table=TABLE).statistics["built_indexes"]
    return {index["name"]: BuiltIndex(**index) for index in measured}


def due() -> list[tuple[str, object]]:
    previous = set(Job.objects.values_list("pk", flat=True))
    maintenance_scheduler.start_due()
    new = Job.objects.exclude(pk__in=previous).order_by("pk")
    return [(job.kind, job.parameters.get("indexes")) for job in new]


def test_degraded_indexes_are_rebuilt_by_policy():
    make_lance_table(TABLE, rows(0, ROWS))
    index(lambda dataset: dataset.create_scalar_index("id", "BTREE", name="ids"))
    index(lambda dataset: dataset.create_scalar_index("kind", "BITMAP", name="kinds"))
    values = {"index_rebuilds": "on", "index_segments": 2}
    policies.set_table_policy(actor=SYSTEM, table=TABLE, values=values)
    rebuild_reason(1)
    assert [(i.segments, i.trained_version) for i in built().values()] == [(2, None)] * 2
    assert due() == []
    append(5000, 10)
    index(
        lambda dataset: dataset.optimize.optimize_indices(
            num_indices_to_merge=0, index_names=["ids"]
        )
    )
    assert built()["ids"].segments == 3
    assert due() == [("rebuild_indexes", ["ids"])]
    assert due() == []
    work_on(Job.objects.get())
    assert due() == []  # the figures are not updated yet
    assert built()["ids"].segments == 1
    assert due() == []


def test_a_vector_index_is_rebuilt_after_the_table_has_grown():
    make_lance_table(TABLE, rows(0, 300))
    index(vector("IVF_FLAT", num_partitions=2))
    trained = newest().version - 1
    policies.set_table_policy(actor=SYSTEM, table=TABLE, values={"index_rebuilds": "on"})
    for number in range(3):
        append(1000 + 100 * number, 100)
        index(lambda dataset: dataset.optimize.optimize_indices(num_indices_to_merge=1))
        built_index = built()["i"]
        assert (
            built_index.segments,
            built_index.trained_version,
            built_index.trained_rows,
        ) == (1, trained, 300)
        assert due() == []
        # The version is removed before the next measurement.
        TableVersion.objects.filter(version=trained).update(deleted_at=timezone.now())
    append(2000, 1)
    assert built()["i"].untrained_rows(601) == 301
    assert due() == [("rebuild_indexes", ["i"])]
    assert work_on(Job.objects.get()).status == JobStatus.SUCCEEDED
    assert built()["i"].trained_rows == 601
    assert due() == []


def test_without_its_training_version_the_count_begins_at_the_measurement():
    make_lance_table(TABLE, rows(0, 300))
    index(vector("IVF_FLAT", num_partitions=2))
    append(1000, 400)
    TableVersion.objects.filter(version=1).update(deleted_at=timezone.now())
    assert built()["i"].trained_rows == 700
    append(2000, 50)
    assert built()["i"].trained_rows == 700


def test_rebuilds_that_cannot_succeed_are_not_planned():
    """Otherwise the job would fail repeatedly."""
    make_lance_table(TABLE, rows(0, 300))
    index(vector("IVF_PQ", num_partitions=1, num_sub_vectors=2))
    index(lambda dataset: dataset.create_scalar_index("id", "BTREE", name="ids"))
    values = {"index_rebuilds": "on", "index_segments": 2}
    policies.set_table_policy(actor=SYSTEM, table=TABLE, values=values)
    for number in (1, 2):
        append(1000 * number, 10)
        index(lambda dataset: dataset.optimize.optimize_indices(num_indices_to_merge=0))
    change(lambda dataset: dataset.delete("id < 120"), data_operations.DeleteFromTable)
    indexes = built()
    assert {name: index.segments for name, index in indexes.items()} == {"i": 3, "ids": 3}
    why = "Column 'vector' has 200 vectors, and this IVF_PQ needs 256 to train with"
    assert {name: index.obstacle for name, index in indexes.items()} == {"i": why, "ids": ""}
    assert due() == [("rebuild_indexes", ["ids"])]
    assert work_on(Job.objects.get()).status == JobStatus.SUCCEEDED
    assert built()["i"].obstacle == why
    assert due() == []
    append(3000, 100)
    assert built()["i"].obstacle == ""
    assert due() == [("rebuild_indexes", ["i"])]
