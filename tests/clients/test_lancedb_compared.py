"""The same calls of LanceDB's client on a local directory and on a server return the same."""

# ruff: noqa: B023 -- the calls run before the next turn of their loop

import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from lancedb.index import FTS, Bitmap, BTree, HnswFlat, HnswSq, IvfFlat, IvfPq, IvfRq, IvfSq
from lancedb.pydantic import LanceModel, Vector
from lancedb.query import (
    BooleanQuery,
    BoostQuery,
    ColumnOrdering,
    FullTextOperator,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)
from lancedb.rerankers import LinearCombinationReranker, MRRReranker, RRFReranker
from lancedb.table import Table

from tests.live import LiveServer

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
WORDS = [
    "whale",
    "seal",
    "orca",
    "narwhal",
    "beluga",
    "walrus",
    "dolphin",
    "penguin",
    "otter",
    "krill",
]
RANDOM = np.random.default_rng(7)
VECTORS = RANDOM.random((600, 8), dtype=np.float32)
TEXTS = [" ".join(RANDOM.choice(WORDS, 6)) for _ in VECTORS]
TEXTS[:8] = ["unicorn" + " whale" * number for number in range(8)]  # each with another score
ROWS = pa.table(
    {
        "id": pa.array(range(600), pa.int64()),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), 8),
        "text": TEXTS,
        "price": [float(number * 31 % 601) for number in range(600)],
    }
)
FEW = [{"id": number, "name": f"n{number}", "vector": [float(number), 0.0]} for number in range(4)]
SOON = timedelta(seconds=60)
Call = Callable[[Any], Any]


class Animal(LanceModel):
    id: int
    name: str
    vector: Vector(2)


class Pair:
    """A local directory and a database of the server, or a table in each of them."""

    def __init__(self, local: Any, remote: Any) -> None:
        self.local, self.remote = local, remote

    def each(self, call: Call) -> "Pair":
        return Pair(call(self.local), call(self.remote))

    def same(self, call: Call) -> Any:
        """Call both, and return the result, which must be equal."""
        expected = comparable(call(self.local))
        assert comparable(call(self.remote)) == expected
        return expected

    def refused(self, call: Call) -> None:
        for side in (self.local, self.remote):
            with pytest.raises((ValueError, RuntimeError)):
                call(side)


def comparable(value: Any) -> Any:
    if isinstance(value, pa.Table):
        return value.schema.to_string(), comparable(value.to_pylist())
    if isinstance(value, pd.DataFrame):
        return [str(kind) for kind in value.dtypes], comparable(value.to_dict("records"))
    if isinstance(value, np.ndarray):
        return str(value.dtype), comparable(value.tolist())
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: comparable(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(content) for content in value]
    is_plain = isinstance(value, pa.Schema | LanceModel | str | int | None)
    return value if is_plain else repr(value)  # AddResult(version=2) and others


@pytest.fixture
def dbs(live: LiveServer, tmp_path: Path, request: pytest.FixtureRequest) -> Pair:
    name = f"compared-{request.node.name}".replace("[", "-").strip("]")
    catalog = lancedb.connect_catalog(live.url, api_key=live.key)
    return Pair(
        lancedb.connect(tmp_path, read_consistency_interval=timedelta(0)),
        catalog.create_database(name),
    )


def rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.search().to_list(), key=str)


def ids(query: Any) -> list[int]:
    return [row["id"] for row in query.to_list()]


def test_creating(dbs: Pair) -> None:
    schema = pa.schema({"id": pa.int32(), "v": pa.list_(pa.float16(), 2)})
    data: dict[str, Call] = {
        "dicts": lambda: {"data": FEW},
        "pandas": lambda: {"data": pd.DataFrame(FEW)},
        "arrow": lambda: {"data": pa.Table.from_pylist(FEW)},
        "batch": lambda: {"data": pa.RecordBatch.from_pylist(FEW)},
        "reader": lambda: {"data": pa.Table.from_pylist(FEW).to_reader(1)},
        "model": lambda: {"schema": Animal},
        "models": lambda: {"data": [Animal(**FEW[0])], "schema": Animal},
        "cast": lambda: {"data": [{"id": 1, "v": [1, 2]}], "schema": schema},
        "batches": lambda: {
            "data": (pa.RecordBatch.from_pylist([row]) for row in FEW),
            "schema": pa.RecordBatch.from_pylist(FEW).schema,
        },
        "bad": lambda: {
            "data": [{"vector": [1.0, float("nan")]}, {"vector": [1.0, 2.0]}],
            "on_bad_vectors": "drop",
        },
    }
    for name, arguments in data.items():
        tables = dbs.each(lambda db: db.create_table(name, **arguments()))
        tables.same(lambda table: (table.schema, table.version, table.search().to_arrow()))
    dbs.refused(lambda db: db.create_table("dicts", FEW))
    dbs.refused(lambda db: db.create_table("no vector", [{"vector": [1.0]}, {"vector": [1.0, 2]}]))
    dbs.refused(lambda db: db.create_table("a/b", FEW))
    dbs.same(lambda db: db.create_table("dicts", FEW[:1], exist_ok=True).count_rows())
    dbs.same(lambda db: rows(db.create_table("dicts", [{"other": 1}], mode="overwrite")))
    dbs.same(lambda db: sorted(db.table_names(limit=100)))
    dbs.same(lambda db: list(db.table_names("arrow", 3)))
    dbs.refused(lambda db: db.open_table("missing"))


def test_changing_rows(dbs: Pair) -> None:
    tables = dbs.each(lambda db: db.create_table("t", FEW))
    new = [{"id": 3, "name": "new", "vector": [1.0, 1.0]}, {"id": 9, "name": "9", "vector": [9, 9]}]
    changes: list[Call] = [
        lambda table: table.add(pd.DataFrame(FEW)),
        lambda table: table.add([{"vector": np.array([1, 1]), "id": 20}]),
        lambda table: table.update(where="id = 1", values={"name": "it's", "vector": [9.0, 9.0]}),
        lambda table: table.update(where="id = 2", values_sql={"name": "upper(name)"}),
        lambda table: table.update(where="id = 999", values={"name": "x"}),
        lambda table: table.update(where="id = 0", values={"name": None}),
        lambda table: table.delete("id IN (0, 1)"),
        lambda table: table.delete("id = 999"),
        lambda table: upsert(table).execute(new),
        lambda table: table.merge_insert("id").when_not_matched_insert_all().execute(new),
        lambda table: table.merge_insert("id").when_matched_update_all().execute(pd.DataFrame(new)),
        lambda table: upsert(table, where="target.name = 'new'").execute(new),
        lambda table: table.merge_insert(["id", "name"]).when_matched_update_all().execute(new),
        lambda table: upsert(table).when_not_matched_by_source_delete("id > 19").execute(new),
        lambda table: table.add(FEW[:2], mode="overwrite"),
    ]
    for change in changes:
        tables.same(change)
        tables.same(rows)
    for call in (
        lambda table: table.add([{"id": 5, "name": "x", "vector": [1.0, 2.0, 3.0]}]),
        lambda table: table.add([{"id": "x", "name": "x", "vector": [1.0, 2.0]}]),
        lambda table: table.update(values={"nothing": 1}),
        lambda table: table.delete("nothing = 1"),
        lambda table: table.delete(""),
        lambda table: table.merge_insert("nothing").when_matched_update_all().execute(new),
        lambda table: table.merge_insert("id").execute(new),
    ):
        tables.refused(call)
    tables.same(lambda table: (table.version, rows(table)))


def upsert(table: Table, where: str | None = None) -> Any:
    builder = table.merge_insert("id").when_matched_update_all(where=where)
    return builder.when_not_matched_insert_all()


def test_columns_and_versions(dbs: Pair) -> None:
    tables = dbs.each(lambda db: db.create_table("t", FEW))
    changes: list[Call] = [
        lambda table: table.add_columns({"twice": "id * 2", "up": "upper(name)"}),
        lambda table: table.add_columns([pa.field("v", pa.list_(pa.float32(), 3))]),
        lambda table: table.alter_columns({"path": "twice", "rename": "double"}),
        lambda table: table.alter_columns({"path": "double", "data_type": pa.int32()}),
        lambda table: table.alter_columns(
            {"path": "vector", "data_type": pa.list_(pa.float16(), 2)}
        ),
        lambda table: table.update_field_metadata({"path": "id", "metadata": {"unit": "m"}}),
        lambda table: table.drop_columns(["up", "v"]),
    ]
    for change in changes:
        tables.same(change)
        tables.same(lambda table: (table.schema, rows(table)))
    for call in (
        lambda table: table.add_columns(pa.field("required", pa.int32(), nullable=False)),
        lambda table: table.add_columns({"id": "1"}),
        lambda table: table.alter_columns({"path": "nothing", "rename": "x"}),
        lambda table: table.alter_columns({"path": "double", "data_type": pa.string()}),
        lambda table: table.drop_columns(["nothing"]),
        lambda table: table.checkout(99),
        lambda table: table.tags.create("x", 99),
    ):
        tables.refused(call)
    tables.same(lambda table: [entry["version"] for entry in table.list_versions()])
    tables.same(lambda table: table.tags.create("first", 1))
    tables.same(lambda table: (table.checkout("first"), table.version, table.schema, rows(table)))
    tables.refused(lambda table: table.tags.get_version("nothing"))
    tables.same(lambda table: (table.restore(), table.version, table.schema, rows(table)))


@pytest.fixture
def searched(dbs: Pair) -> Pair:
    tables = dbs.each(lambda db: db.create_table("t", ROWS))
    tables.each(
        lambda table: table.create_index("text", config=FTS(with_position=True), wait_timeout=SOON)
    )
    return tables


def test_scans(searched: Pair) -> None:
    by_text = [ColumnOrdering(column_name="text"), ColumnOrdering(column_name="id")]
    by_price = [ColumnOrdering(column_name="price", ascending=False)]
    for call in (
        lambda query: query,
        lambda query: query.limit(0),
        lambda query: query.limit(3).offset(2),
        lambda query: query.limit(3).offset(10_000),
        lambda query: query.where("price > 50 AND text LIKE 'seal%'"),
        lambda query: query.where(lancedb.expr.col("id") > 595),
        lambda query: query.select(["text", "_rowid"]).limit(3),
        lambda query: query.select({"twice": "id * 2"}).limit(3),
        lambda query: query.with_row_id(True).limit(3),
        lambda query: query.order_by(by_text),
        lambda query: query.order_by(by_price).limit(5).offset(3),
        lambda query: query.order_by(by_text).select(["id"]).where("price < 50"),
        lambda query: query.order_by(by_price).with_row_id(True).limit(2),
    ):
        searched.same(lambda table: call(table.search()).to_arrow())
    for read in (
        lambda table: table.head(2),
        lambda table: table.head(0),
        lambda table: table.count_rows("price < 9"),
        lambda table: table.take_offsets([5, 1]).select(["id"]).to_arrow(),
        lambda table: table.take_row_ids([5, 1]).to_pandas(),
        lambda table: table.search().limit(2).to_pandas(),
        lambda table: table.search().to_batches().read_all(),
        lambda table: table.search().output_schema(),
        lambda table: table.stats()["fragment_stats"],
    ):
        searched.same(read)
    searched.refused(lambda table: table.search().select(["nothing"]).to_list())
    assert pickle.loads(pickle.dumps(searched.remote)).count_rows() == 600


def test_vector_searches(searched: Pair) -> None:
    by_text = [ColumnOrdering(column_name="text", ascending=False)]
    for call in (
        lambda query: query,
        lambda query: query.limit(3).offset(2),
        lambda query: query.where("price > 50").limit(5),
        lambda query: query.where("price > 50", prefilter=False).limit(5),
        lambda query: query.distance_range(0.1, 0.5).limit(100),
        lambda query: query.distance_type("cosine").select(["id"]).limit(2),
        lambda query: query.distance_type("dot").select({"twice": "id * 2"}).limit(2),
        lambda query: query.nprobes(0).refine_factor(2).ef(50).bypass_vector_index().limit(2),
        lambda query: query.minimum_nprobes(1).maximum_nprobes(3).limit(2),
        lambda query: query.with_row_id(True).limit(2),
        lambda query: query.order_by(by_text).limit(4),
        lambda query: query.order_by(by_text).limit(4).offset(2),
        lambda query: query.order_by(by_text).select(["id"]).limit(3),
    ):
        searched.same(lambda table: call(table.search(VECTORS[3])).to_arrow())
    searched.same(lambda table: table.search(VECTORS[:2]).select(["id"]).limit(2).to_arrow())
    searched.same(lambda table: table.search([1] * 8).limit(2).to_pandas())
    searched.refused(lambda table: table.search([1.0, 2.0]).to_list())
    searched.refused(lambda table: table.search(VECTORS[3]).distance_type("hamming").to_list())
    searched.refused(lambda table: table.search(VECTORS[3], vector_column_name="text").to_list())


def scores(query: Any) -> list[tuple[int, float]]:
    """All results; the order of equal ones is undefined."""
    results = query.select(["id"]).limit(600).to_list()
    return sorted((row["id"], row["_score"]) for row in results)


def test_text_and_hybrid_searches(searched: Pair) -> None:
    def match(words: str, **options: Any) -> MatchQuery:
        return MatchQuery(words, "text", **options)

    clauses = [(Occur.MUST, match("seal")), (Occur.MUST_NOT, match("orca"))]
    for query in (
        *("seal", "seal orca", "griffin", match("saol", fuzziness=2), match("seal", boost=2.0)),
        match("sael", fuzziness=2, prefix_length=1, max_expansions=3),
        match("seal orca", operator=FullTextOperator.AND),
        PhraseQuery("seal orca", "text"),
        PhraseQuery("seal orca", "text", slop=2),
        BoostQuery(match("seal"), match("orca"), negative_boost=0.2),
        MultiMatchQuery("seal", ["text"], boosts=[2.0]),
        match("seal") & match("krill"),
        match("seal") | match("krill"),
        BooleanQuery([*clauses, (Occur.SHOULD, match("krill"))]),
    ):
        searched.same(lambda table: scores(table.search(query, query_type="fts")))

    def text(table: Table, words: str) -> Any:
        return table.search(words, query_type="fts")

    def hybrid(table: Table) -> Any:
        return table.search(query_type="hybrid").vector(VECTORS[3])

    by_id = [ColumnOrdering(column_name="id")]
    searched.same(
        lambda table: text(table, "unicorn").where("id < 5").limit(9).offset(1).to_arrow()
    )
    searched.same(lambda table: ids(text(table, "seal").order_by(by_id).limit(600)))
    searched.same(lambda table: text(table, "unicorn").order_by(by_id).limit(4).to_arrow())
    searched.same(lambda table: [token.text for token in table.tokenize("Seals", column="text")])
    for reranker in (RRFReranker(return_score="all"), LinearCombinationReranker(), MRRReranker()):
        searched.same(lambda table: ids(hybrid(table).text("unicorn").rerank(reranker).limit(5)))
        searched.same(lambda table: ids(hybrid(table).text(match("unicorn")).where("id < 99")))


def test_indexes(dbs: Pair) -> None:
    tables = dbs.each(lambda db: db.create_table("t", ROWS))
    configurations: list[tuple[str, Any]] = [
        ("vector", IvfFlat(num_partitions=2)),
        ("vector", IvfSq(num_partitions=2)),
        ("vector", IvfPq(num_partitions=2, num_sub_vectors=4)),
        ("vector", IvfRq(num_partitions=2)),
        ("vector", HnswSq(num_partitions=1)),
        ("vector", HnswFlat(num_partitions=1)),
        ("id", BTree()),
        ("text", Bitmap()),
        ("text", FTS()),
        ("text", FTS(stem=False)),
        ("id", Bitmap()),
        ("id", BTree()),
    ]
    for column, configuration in configurations:
        tables.each(lambda table: table.create_index(column, config=configuration))
        tables.each(lambda table: table.wait_for_index([f"{column}_idx"], SOON))
        tables.same(
            lambda table: sorted((i.name, i.index_type, i.columns) for i in table.list_indices())
        )
        tables.same(lambda table: table.index_stats(f"{column}_idx").index_type)
        assert 17 in ids(tables.remote.search(VECTORS[17]).nprobes(2).refine_factor(20).limit(1))
    tables.same(lambda table: table.add(ROWS.slice(0, 5)))
    tables.same(lambda table: table.index_stats("id_idx").num_unindexed_rows)
    tables.same(lambda table: table.index_stats("nothing"))
    tables.refused(lambda table: table.create_index("nothing", config=BTree()))
    tables.refused(lambda table: table.create_index("text", config=IvfPq()))
    tables.refused(lambda table: table.drop_index("nothing"))


def test_embeddings_of_the_client(dbs: Pair) -> None:
    """The columns that an embedding function fills are in the metadata of the schema."""
    from lancedb.embeddings import TextEmbeddingFunction, register

    @register("lengths of the tests")
    class Lengths(TextEmbeddingFunction):
        def ndims(self) -> int:
            return 2

        def generate_embeddings(self, texts: Any) -> list[list[float]]:
            return [[float(len(text)), float(text.count("a"))] for text in texts]

    function = Lengths.create()

    class Document(LanceModel):
        text: str = function.SourceField()
        vector: Vector(2) = function.VectorField()

    def search(table: Table) -> list[str]:
        query = table.search("banano", vector_column_name="vector").limit(1)
        return [document.text for document in query.to_pydantic(Document)]

    tables = dbs.each(lambda db: db.create_table("t", schema=Document))
    tables.same(lambda table: table.add([{"text": "hello"}, {"text": "banana"}]))
    tables.same(rows)
    reopened: Pair = dbs.each(lambda db: db.open_table("t"))
    reopened.same(lambda table: table.add([{"text": "apple"}]))
    assert reopened.same(search) == ["banana"]
