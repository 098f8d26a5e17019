"""LanceDB's remote connections (``db://…``) against a live server: every method of the client."""

import asyncio
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from lance_namespace import ListTablesRequest
from lancedb import AsyncConnection
from lancedb.db import DBConnection
from lancedb.index import FTS, Bitmap, BTree, IvfFlat, IvfHnswSq, IvfPq, IvfSq, LabelList
from lancedb.pydantic import LanceModel, Vector
from lancedb.query import (
    BooleanQuery,
    BoostQuery,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)
from lancedb.remote.errors import HttpError
from lancedb.rerankers import RRFReranker
from lancedb.table import Table

from server.options import PROJECT
from tests.live import LiveServer

pytestmark = [
    # LanceDB calls its own deprecated functions, and warns that some methods do nothing.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*no-op on LanceDB Cloud:UserWarning"),
    # From its event loop and readers, which the garbage collector closes.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
WORDS = ["narwhal", "walrus", "seal", "orca"]
SOON = timedelta(seconds=60)


class Animal(LanceModel):
    id: int
    name: str
    vector: Vector(2)


def options(live: LiveServer) -> dict[str, Any]:
    return {
        "api_key": live.key,
        "host_override": live.url,
        "client_config": {"retry_config": {"retries": 0}},
    }


@pytest.fixture
def name(live: LiveServer, request: pytest.FixtureRequest) -> str:
    """The name of the test's database, created as users do."""
    database = request.node.name.replace("[", "-").strip("]")
    lancedb.connect_catalog(live.url, api_key=live.key).create_database(database)
    return database


@pytest.fixture
def db(live: LiveServer, name: str) -> DBConnection:
    return lancedb.connect(f"db://{name}", **options(live))


@pytest.fixture
def table(db: DBConnection) -> Table:
    return db.create_table("animals", animals(*WORDS))


def animals(*names: str, first: int = 1) -> list[dict[str, Any]]:
    return [
        {"id": number, "name": name, "vector": [float(number), 0.0]}
        for number, name in enumerate(names, first)
    ]


def names(table: Table) -> dict[int, str]:
    return {row["id"]: row["name"] for row in table.search().select(["id", "name"]).to_list()}


def ids(result: Any) -> list[int]:
    return [row["id"] for row in result.to_list()]


def refused(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=message)


# --- databases, namespaces and tables ----------------------------------------------------------


def test_databases(live: LiveServer, name: str, db: DBConnection) -> None:
    catalog = lancedb.connect_catalog(live.url, api_key=live.key)
    assert name in catalog.list_databases(limit=1000).databases
    db.create_table("t", animals("seal"))
    assert catalog.connect_database(name).open_table("t").count_rows() == 1
    with refused(HttpError, "not empty"):
        catalog.drop_database(name)
    db.drop_table("t")
    catalog.drop_database(name)
    with refused(HttpError, "does not exist"):
        db.list_tables()
    with refused(HttpError, "does not exist"):
        db.create_table("t", animals("seal"))


def test_a_database_with_a_prefix_or_with_unusual_characters(live: LiveServer, name: str) -> None:
    catalog = lancedb.connect_catalog(live.url, api_key=live.key)
    catalog.create_database("a b%/c").create_table("t", animals("seal"))
    namespaces = live.client()
    listed = namespaces.list_tables(ListTablesRequest(id=["a b%/c"]))
    assert listed.tables == ["t"]
    db = lancedb.connect(f"db://{name}", **options(live))
    db.create_namespace(["eu"])
    db.create_namespace(["eu", "hr"])
    lancedb.connect(f"db://{name}/eu/hr", **options(live)).create_table("t", animals("seal"))
    assert db.open_table("t", namespace_path=["eu", "hr"]).count_rows() == 1


def test_namespaces(db: DBConnection) -> None:
    db.create_namespace(["inner"], properties={"owner": "me"})
    db.create_namespace(["inner", "deep"])
    assert db.list_namespaces().namespaces == ["inner"]
    assert db.list_namespaces(["inner"]).namespaces == ["deep"]
    assert db.describe_namespace(["inner"]).properties == {"owner": "me"}
    with refused(HttpError, "exists already"):
        db.create_namespace(["inner"])
    db.create_table("x", animals("seal"), namespace_path=["inner"])
    assert db.list_tables(["inner"]).tables == ["x"]
    assert list(db.table_names(namespace_path=["inner"])) == ["x"]
    assert db.list_tables().tables == []
    db.rename_table("x", "y", cur_namespace_path=["inner"], new_namespace_path=["inner", "deep"])
    assert names(db.open_table("y", namespace_path=["inner", "deep"])) == {1: "seal"}
    db.drop_table("y", namespace_path=["inner", "deep"])
    db.drop_namespace(["inner", "deep"])
    db.drop_namespace(["inner"])
    assert db.list_namespaces().namespaces == []


def test_tables(live: LiveServer, name: str, db: DBConnection) -> None:
    rows = pa.table({"id": [1], "name": ["seal"]})
    frame = pd.DataFrame({"id": [1, 2], "name": ["seal", "orca"]})
    assert names(db.create_table("arrow", rows)) == {1: "seal"}
    assert names(db.create_table("pandas", frame)) == {1: "seal", 2: "orca"}
    batches = iter(rows.to_batches())
    assert names(db.create_table("generator", batches, schema=rows.schema)) == {1: "seal"}
    db.create_table("model", schema=Animal).add([Animal(id=1, name="seal", vector=[1.0, 0.0])])
    with refused(ValueError, "Table 'arrow' already exists"):
        db.create_table("arrow", frame)
    assert names(db.create_table("arrow", frame, mode="exist_ok")) == {1: "seal"}
    assert names(db.create_table("arrow", frame, mode="overwrite")) == {1: "seal", 2: "orca"}
    assert db.list_tables().tables == ["arrow", "generator", "model", "pandas"]
    page = db.list_tables(limit=3)
    assert db.list_tables(page_token=page.page_token).tables == ["pandas"]
    assert list(db.table_names(page_token="generator", limit=1)) == ["model"]
    db.rename_table("pandas", "renamed")
    copy = db.clone_table("copy", db.open_table("renamed").uri)
    copy.add(pa.table({"id": [3], "name": ["orca"]}))
    assert (copy.count_rows(), db.open_table("renamed").count_rows()) == (3, 2)
    db.drop_table("renamed")
    db.drop_table_async("copy").wait()
    with refused(ValueError, "Table 'renamed' was not found"):
        db.open_table("renamed")
    with refused(HttpError, "does not exist"):
        db.drop_table("renamed")
    listed = db.namespace_client().list_tables(ListTablesRequest(id=[]))
    assert listed.tables == ["arrow", "generator", "model"]
    assert live.client().list_tables(ListTablesRequest(id=[name])).tables == listed.tables


def test_types(db: DBConnection) -> None:
    """The schema that the server describes is that of the rows."""
    schema = pa.schema(
        [
            *(
                (f"c{number}", kind)
                for number, kind in enumerate(
                    [
                        *(pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32()),
                        *(pa.float64(), pa.string(), pa.large_string(), pa.binary()),
                        *(pa.date32(), pa.time64("us"), pa.timestamp("us", "UTC")),
                        *(pa.timestamp("ns"), pa.duration("s"), pa.decimal128(10, 2)),
                        *(pa.binary(16), pa.list_(pa.list_(pa.float64(), 64))),
                        *(pa.dictionary(pa.int32(), pa.string()), pa.decimal256(50, 2)),
                        pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]),
                    ]
                )
            ),
            pa.field("required", pa.int64(), nullable=False, metadata={"unit": "m"}),
        ]
    )
    assert db.create_table("t", schema=schema).schema == schema
    maps = pa.schema([("c", pa.map_(pa.string(), pa.int32()))])
    with pytest.raises(RuntimeError, match="Unsupported type"):  # the client has no form for maps
        _ = db.create_table("maps", schema=maps).schema


# --- rows --------------------------------------------------------------------------------------


def test_rows(table: Table) -> None:
    assert (table.version, table.count_rows(), table.count_rows("id > 1")) == (1, 4, 3)
    assert table.add(animals("beluga", first=5)).version == 2
    assert table.update(where="id = 1", values={"name": "unicorn"}).rows_updated == 1
    updated = table.update(where="id = 2", values_sql={"name": "upper(name)"})
    assert (updated.rows_updated, updated.version) == (1, 4)
    deleted = table.delete("id = 3")
    assert (deleted.num_deleted_rows, deleted.version) == (1, 5)
    merged = (
        table.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(animals("bowhead", "dolphin", first=5))
    )
    assert (merged.version, merged.num_updated_rows, merged.num_inserted_rows) == (6, 1, 1)
    assert names(table) == {1: "unicorn", 2: "WALRUS", 4: "orca", 5: "bowhead", 6: "dolphin"}
    cleared = table.merge_insert("id").when_not_matched_by_source_delete("id > 1")
    assert cleared.execute(animals("unicorn")).num_deleted_rows == 4
    table.add(animals("seal", "orca"), mode="overwrite")
    assert names(table) == {1: "seal", 2: "orca"}
    assert table.head(1)["id"].to_pylist() == [1]
    assert ids(table.take_offsets([1])) == [2]
    rowid = table.search().with_row_id(True).limit(1).to_list()[0]["_rowid"]
    assert ids(table.take_row_ids([rowid])) == [1]
    with refused(HttpError, "not a valid|No field named|does not exist"):
        table.delete("nothing = 3")
    assert table.count_rows() == 2


def test_columns(table: Table) -> None:
    assert table.add_columns({"twice": "id * 2"}).version == 2
    table.add_columns(pa.field("note", pa.string()))
    table.add_columns(
        pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.list_(pa.float32(), 3))])
    )
    table.alter_columns({"path": "twice", "rename": "double"})
    table.alter_columns({"path": "double", "data_type": pa.int32()})
    table.update_field_metadata({"path": "id", "metadata": {"unit": "m"}})
    assert table.schema.names == ["id", "name", "vector", "double", "note", "at", "v"]
    assert table.schema.field("double").type == pa.int32()
    assert table.schema.field("v").type == pa.list_(pa.float32(), 3)
    assert table.schema.field("id").metadata == {b"unit": b"m"}
    assert [row["double"] for row in table.search().to_list()] == [2, 4, 6, 8]
    assert {row["note"] for row in table.search().to_list()} == {None}
    table.drop_columns(["note", "at", "v"])
    with refused(HttpError, "Column 'note' does not exist"):
        table.drop_columns(["note"])
    with refused(HttpError, "already exists"):
        table.add_columns(pa.field("double", pa.string()))
    assert table.schema.names == ["id", "name", "vector", "double"]


# --- searching ---------------------------------------------------------------------------------


def test_searching(table: Table) -> None:
    nearest = table.search([3.2, 0.0]).limit(2).to_arrow()
    assert nearest["id"].to_pylist() == [3, 4]
    assert nearest["_distance"].to_pylist() == pytest.approx([0.04, 0.64])
    assert ids(table.search([3.2, 0.0]).where("id <> 3").select(["id"]).limit(2)) == [4, 2]
    assert ids(table.search([3.2, 0.0]).where("id > 4", prefilter=False).limit(2)) == []
    assert ids(table.search([3.2, 0.0]).distance_range(upper_bound=0.5)) == [3]
    assert ids(table.search([3.2, 0.0]).limit(2).offset(1)) == [4, 2]
    aliased = table.search([3.2, 0.0]).select({"twice": "id * 2"}).limit(1).to_list()
    assert aliased[0]["twice"] == 6
    cosine = table.search([3.2, 0.0]).distance_type("cosine").limit(1).to_list()
    assert cosine[0]["_distance"] == pytest.approx(0.0, abs=1e-6)
    several = table.search([[3.2, 0.0], [1.1, 0.0]]).limit(1).to_arrow()
    assert several.select(["query_index", "id"]).to_pylist() == [
        {"query_index": 0, "id": 3},
        {"query_index": 1, "id": 1},
    ]
    assert ids(table.search().where("id BETWEEN 2 AND 3").limit(5)) == [2, 3]
    assert ids(table.search().limit(2).offset(1)) == [2, 3]
    assert len(table.search().to_list()) == 4
    assert table.search().to_pydantic(Animal)[0].name == "narwhal"
    assert "LanceRead" in table.search([3.2, 0.0]).explain_plan(verbose=True)
    assert "elapsed" in table.search([3.2, 0.0]).analyze_plan()
    assert table.search([3.2, 0.0]).output_schema().names[-1] == "_distance"
    descending = [{"column_name": "id", "ascending": False}]
    assert ids(table.search().order_by(descending).limit(2)) == [4, 3]
    with refused(HttpError, "order_by is not supported in a query with several vectors"):
        table.search([[3.2, 0.0], [1.1, 0.0]]).order_by(descending).to_list()
    with refused(HttpError, "3 dimensions, and column 'vector' has 2"):
        table.search([1.0, 2.0, 3.0]).to_list()


def test_full_text_and_hybrid_search(table: Table) -> None:
    table.add(animals("leopard seal", "elephant seal", first=5))
    table.create_index("name", config=FTS(with_position=True), wait_timeout=SOON)

    def search(query: Any, **options: Any) -> list[int]:
        return sorted(ids(table.search(query, query_type="fts", **options)))

    assert search("seal") == [3, 5, 6]
    assert search("seal", fts_columns="name") == [3, 5, 6]
    assert ids(table.search("seal", query_type="fts").where("id > 5")) == [6]
    assert len(table.search("seal", query_type="fts").limit(None).to_list()) == 3
    assert search(MatchQuery("sela", "name", fuzziness=2)) == [3, 5, 6]
    assert search(PhraseQuery("leopard seal", "name")) == [5]
    assert search(MultiMatchQuery("leopard orca", ["name"])) == [4, 5]
    boosted = BoostQuery(MatchQuery("seal", "name"), MatchQuery("leopard", "name"))
    assert ids(table.search(boosted))[-1] == 5
    without = [(Occur.MUST, MatchQuery("seal", "name"))]
    without += [(Occur.MUST_NOT, MultiMatchQuery("elephant", ["name"]))]
    assert search(BooleanQuery(without)) == [3, 5]
    hybrid = table.search(query_type="hybrid").vector([1.0, 0.0]).text("leopard")
    assert set(ids(hybrid.rerank(RRFReranker()).limit(2))) == {1, 5}


def test_many_vectors_in_a_row(db: DBConnection) -> None:
    """Late interaction: each row has a list of vectors."""
    kind = pa.list_(pa.list_(pa.float32(), 2))
    rows = pa.table({"id": [1, 2], "v": pa.array([[[1.0, 0.0], [0.9, 0.1]], [[0.0, 1.0]]], kind)})
    table = db.create_table("t", rows)
    query = table.search(np.array([[1.0, 0.0], [0.9, 0.1]], dtype=np.float32))
    assert ids(query.distance_type("cosine").limit(1)) == [1]


# --- indexes -----------------------------------------------------------------------------------


def test_concurrent_searches_find_their_own_rows(db: DBConnection) -> None:
    """While rows are added: a search that has begun after an insert finds its rows."""
    vectors = np.random.default_rng(3).random((1_200, 8), dtype=np.float32)

    def rows(start: int, end: int) -> pa.Table:
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors[start:end].ravel()), 8)
        return pa.table({"id": range(start, end), "vector": values})

    table = db.create_table("many", rows(0, 1_000))
    table.create_index("vector", config=IvfFlat(num_partitions=4), wait_timeout=SOON)
    added = [1_000]

    def search(number: int) -> None:
        end = added[0]
        row_ids = [number % end, end - 1]
        for row_id, k in zip(row_ids, (1, 3), strict=True):
            hits = table.search(vectors[row_id]).nprobes(4).limit(k).to_arrow()
            assert hits.schema.names == ["id", "vector", "_distance"]
            assert hits["id"].to_pylist()[0] == row_id
            assert len(hits) == k

    with ThreadPoolExecutor(8) as threads:
        searches = [threads.submit(search, number * 7) for number in range(160)]
        for start in range(1_000, 1_200, 20):
            table.add(rows(start, start + 20))
            added[0] = start + 20
        for done in searches:
            done.result(60)


def test_indexes(db: DBConnection) -> None:
    vectors = np.random.default_rng(7).random((512, 8), dtype=np.float32)
    rows = {
        "id": pa.array(range(512), pa.int64()),
        "kind": [WORDS[number % 4] for number in range(512)],
        "labels": [[WORDS[number % 4]] for number in range(512)],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8),
    }
    table = db.create_table("t", pa.table(rows))
    pq = IvfPq(distance_type="l2", num_partitions=2, num_sub_vectors=4)
    table.create_index("vector", config=pq, wait_timeout=SOON)
    table.create_index("id", config=BTree())
    table.create_index("kind", config=Bitmap(), name="kinds")
    table.create_index("labels", config=LabelList())
    table.create_index_async("kind", config=FTS()).wait()
    table.wait_for_index(["id_idx", "kinds", "labels_idx", "kind_idx"], SOON)

    listed = {index.name: (index.index_type, index.columns) for index in table.list_indices()}
    assert listed == {
        "vector_idx": ("IvfPq", ["vector"]),
        "id_idx": ("BTree", ["id"]),
        "kinds": ("Bitmap", ["kind"]),
        "labels_idx": ("LabelList", ["labels"]),
        "kind_idx": ("FTS", ["kind"]),
    }
    stats = table.index_stats("vector_idx")
    assert (stats.num_indexed_rows, stats.num_unindexed_rows) == (512, 0)
    assert (stats.index_type, stats.distance_type) == ("IVF_PQ", "l2")
    assert table.index_stats("missing") is None
    assert [token.text for token in table.tokenize("Seal, orca", column="kind")] == ["seal", "orca"]
    table.prewarm_index("vector_idx")
    hits = table.search(vectors[17]).nprobes(2).refine_factor(20).limit(5)
    exact = table.search(vectors[17]).bypass_vector_index().limit(5)
    assert ids(hits)[0] == ids(exact)[0] == 17
    assert ids(table.search(vectors[17], fast_search=True).nprobes(2).refine_factor(20))[0] == 17

    with refused(HttpError, "has index 'id_idx' already"):
        table.create_index("id", config=BTree(), replace=False)
    for config in (IvfFlat(num_partitions=2), IvfSq(num_partitions=2), IvfHnswSq(num_partitions=1)):
        table.create_index("vector", config=config)
    types = {index.name: index.index_type for index in table.list_indices()}
    assert types["vector_idx"] == "IvfHnswSq"
    table.drop_index("kinds")
    with refused(RuntimeError, "'kinds' was not found"):
        table.drop_index("kinds")
    assert table.stats()["num_indices"] == 4


# --- versions, tags and branches ---------------------------------------------------------------


def test_versions_tags_and_restore(table: Table) -> None:
    table.tags.create("all", 1)
    table.delete("id > 1")
    assert [entry["version"] for entry in table.list_versions()] == [1, 2]
    assert table.tags.list()["all"]["version"] == 1
    assert table.tags.get_version("all") == 1
    with refused(HttpError, "has tag 'all' already"):
        table.tags.create("all", 2)
    with refused(HttpError, "has no tag 'none'"):
        table.tags.get_version("none")
    with refused(HttpError, "has no version 9"):
        table.tags.create("future", 9)
    with refused(HttpError, "has no version 9"):
        table.tags.update("all", 9)
    table.checkout("all")
    assert (table.count_rows(), len(names(table)), table.version) == (4, 4, 1)
    with refused(Exception, "fixed at version 1"):
        table.delete("id = 1")
    with refused(ValueError, r"version: 9\) was not found|'animals .version: 9.' was not found"):
        table.checkout(9)
    table.checkout_latest()
    assert table.count_rows() == 1
    table.restore("all")
    assert (table.count_rows(), table.version) == (4, 3)
    table.checkout(2)
    table.restore()
    assert (table.count_rows(), table.version) == (1, 4)
    table.tags.update("all", 2)
    assert table.tags.get_version("all") == 2
    table.tags.delete("all")
    assert table.tags.list() == {}


def test_branches(table: Table) -> None:
    branch = table.branches.create("dev")
    branch.add(animals("beluga", first=5))
    assert (branch.count_rows(), table.count_rows()) == (5, 4)
    assert table.branches.checkout("dev").count_rows("id = 5") == 1
    assert list(table.branches.list()) == ["dev"]
    with refused(Exception, "already exists"):
        table.branches.create("dev")
    table.branches.delete("dev")
    assert table.branches.list() == {}


# --- what the client or the server does not support --------------------------------------------


def test_what_is_not_supported(db: DBConnection, table: Table) -> None:
    for call in (
        db.list_views,
        db.list_materialized_views,
        db.list_functions,
        db.list_secrets,
        table.prewarm_data,
        lambda: db.create_view("view", "SELECT 1"),
        lambda: db.describe_view("view"),
        lambda: db.drop_view("view"),
        lambda: db.drop_view_async("view"),
        lambda: db.drop_materialized_view("view"),
        lambda: db.drop_materialized_view_async("view"),
        lambda: db.create_secret("secret", "x"),
        lambda: db.alter_secret("secret", "x"),
        lambda: db.describe_secret("secret"),
        lambda: db.drop_secret("secret"),
        lambda: db.get_function("f", version="1"),
        lambda: db.drop_function("f", version="1"),
        lambda: db.pause_job("1"),
        lambda: db.resume_job("1"),
        lambda: table.branches.diff("dev"),
        table.checkpoint_lsm,
        table.compact_lsm,
        table.flush_lsm,
        table.function_errors,
        table.get_lsm_stats,
        table.get_lsm_write_spec,
        table.unset_lsm_write_spec,
    ):
        with pytest.raises(
            (HttpError, RuntimeError, AttributeError), match=r"not supported|no attr"
        ):
            call()
    with pytest.raises(
        RuntimeError, match="SQL error"
    ):  # another port, which the server does not have
        db.execute_query("SELECT 1")
    for call in (
        *(table.to_arrow, table.to_pandas, table.to_polars, table.to_lance, db.drop_all_tables),
        *(table.uses_v2_manifest_paths, table.migrate_v2_manifest_paths),
        lambda: db.table_exists("animals"),
        lambda: db.namespace_exists(["other"]),
        lambda: table.set_unenforced_primary_key("id"),
        lambda: table.refresh_column("id"),
        lambda: table.fetch_blobs("name", [0]),
        lambda: table.fetch_blob_files("name", [0]),
    ):
        with pytest.raises(NotImplementedError):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table.optimize()
        table.compact_files()
        table.cleanup_old_versions()
    assert (table.version, table.count_rows()) == (1, 4)


def test_methods_that_send_no_request(db: DBConnection, table: Table) -> None:
    assert (table.blob_columns(), table.current_branch(), table.embedding_functions) == (
        [],
        None,
        {},
    )
    table.close_lsm_writers()
    assert db.cancel_job("999999") is False
    with pytest.raises(ValueError, match="Table 'view' was not found"):
        db.open_materialized_view("view")
    assert '"db_url": "db://' in db.serialize()


def test_the_older_names_of_index_methods(table: Table) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table.create_scalar_index("id")
        table.create_fts_index("name")
    assert {index.index_type for index in table.list_indices()} == {"BTree", "FTS"}


def test_every_method_of_the_client_is_called_here(db: DBConnection, table: Table) -> None:
    """A method of a new release of the client belongs to one of the tests."""
    source = Path(__file__).read_text(encoding="utf-8")
    # Variants of methods that are called here, and methods whose requests are refused like theirs.
    others = (
        "close create_function create_function_async create_materialized_view"
        " create_materialized_view_async describe_query drop_function_async execute_query_async"
        " fetch_blob_ranges set_lsm_write_spec"
    )
    methods = {name for of in (db, table) for name in dir(type(of)) if not name.startswith("_")}
    missing = {
        name for name in methods - {*others.split()} if not re.search(rf"\.{name}\b", source)
    }
    assert missing == set()


def test_jobs(live: LiveServer, name: str, db: DBConnection, table: Table) -> None:
    started = live.post(
        f"/v1/table/{name}$animals/add_columns",
        {"new_columns": [{"name": "twice", "computed": "id * 2"}]},
    )
    assert started[0] == 200
    started_job = table.refresh_column_async("twice")
    result = started_job.wait()
    assert (result.rows_assigned, result.rows_failed, result.rows_remaining) == (4, 0, 0)
    assert (result.source_version, result.published_version) == (2, table.version)
    (job,) = [row for row in db.list_jobs() if row.table == "animals"]
    assert job.job_id == started_job.id
    assert db.open_job(job.job_id).status() == "finished"
    assert [row["twice"] for row in table.search().to_list()] == [2, 4, 6, 8]
    with pytest.raises(Exception, match=r"not found|404"):
        db.open_job("999999")
    other = lancedb.connect_catalog(live.url, api_key=live.key).create_database(f"{name}-other")
    assert other.list_jobs() == []
    with pytest.raises(Exception, match=r"not found|404"):
        other.open_job(job.job_id)


# --- the asynchronous client -------------------------------------------------------------------


def test_the_asynchronous_client(live: LiveServer, name: str) -> None:
    # In a thread, because Playwright, which other tests use, leaves a loop in the main thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(use_the_asynchronous_client(live, name))).result()


async def use_the_asynchronous_client(live: LiveServer, name: str) -> None:
    db: AsyncConnection = await lancedb.connect_async(f"db://{name}", **options(live))
    table = await db.create_table("t", animals(*WORDS))
    assert (await table.add(animals("beluga", first=5))).version == 2
    assert (await table.update({"name": "unicorn"}, where="id = 1")).rows_updated == 1
    assert (await table.delete("id = 2")).num_deleted_rows == 1
    merge = table.merge_insert("id").when_not_matched_insert_all()
    assert (await merge.execute(animals("bowhead", first=6))).num_inserted_rows == 1
    assert await table.count_rows() == 5
    assert (await table.schema()).names == ["id", "name", "vector"]
    await table.create_index("name", config=FTS())
    await table.wait_for_index(["name_idx"], timeout=SOON)
    assert [index.name for index in await table.list_indices()] == ["name_idx"]
    nearest = await (await table.search([3.2, 0.0])).limit(2).to_list()
    assert [row["id"] for row in nearest] == [3, 4]
    text = await (await table.search("seal", query_type="fts")).to_list()
    assert [row["id"] for row in text] == [3]
    everything = await table.query().where("id > 4").select(["id"]).to_arrow()
    assert sorted(everything["id"].to_pylist()) == [5, 6]
    await table.tags.create("now", await table.version())
    await table.checkout(1)
    assert await table.count_rows() == 4
    await table.checkout_latest()
    await table.add_columns({"twice": "id * 2"})
    await table.drop_columns(["twice"])
    assert (await table.tags.list())["now"]["version"] == 6
    assert len(await table.list_versions()) == 8
    assert (await db.list_tables()).tables == ["t"]
    await db.rename_table("t", "u")
    reopened = await db.open_table("u")
    assert await reopened.count_rows() == 5
    await db.drop_table("u")
    assert (await db.list_tables()).tables == []


# --- together with other clients ---------------------------------------------------------------


def test_remote_and_direct_clients_share_a_table(live: LiveServer, name: str, table: Table) -> None:
    direct = lancedb.connect_namespace(
        "rest",
        {"uri": live.url, "header.x-api-key": live.key},
        read_consistency_interval=timedelta(0),
    ).open_table("animals", namespace_path=[name])
    direct.add(animals("beluga", first=5))
    table.delete("id = 1")
    assert table.count_rows() == direct.count_rows() == 4


def test_the_guide(live: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python of docs/lancedb.md: the first steps, and copying the tables of a directory."""
    guide = (PROJECT / "docs" / "lancedb.md").read_text(encoding="utf-8")
    first, opened, _, copied = re.findall(
        r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL
    )
    old = lancedb.connect(tmp_path)
    old.create_table("seals", animals("leopard seal", "elephant seal"))
    source = re.compile(r'lancedb.connect\("db://old".*')
    assert source.search(copied)
    variables: dict[str, Any] = {"old_directory": old}
    for block in (first, opened, source.sub("old_directory", copied)):
        exec(
            block.replace("http://127.0.0.1:2333", live.url).replace("mnd_...", live.key), variables
        )
    output = capsys.readouterr().out.splitlines()
    assert "'name': 'seal'" in output[0]
    assert output[1:] == ["seals: 2 of 2"]
    assert names(variables["target"].open_table("seals")) == {1: "leopard seal", 2: "elephant seal"}
