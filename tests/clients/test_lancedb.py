"""LanceDB against a live server, as its users call it."""

from datetime import timedelta
from typing import Any

import lance
import lancedb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from lance_namespace.errors import TableNotFoundError
from lance_namespace_urllib3_client import models as m
from lancedb.index import FTS, BTree, IvfPq
from lancedb.namespace import LanceNamespaceDBConnection
from lancedb.pydantic import LanceModel, Vector
from lancedb.table import Table

from tests.clients import lancedb_client
from tests.clients.conftest import Place
from tests.live import LiveServer

pytestmark = [
    # LanceDB calls its own deprecated functions.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # From its event loop and readers, which the garbage collector closes.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
WORDS = ["narwhal", "walrus", "seal", "orca"]


class Animal(LanceModel):
    id: int
    name: str
    vector: Vector(2)


@pytest.fixture
def db(live: LiveServer) -> LanceNamespaceDBConnection:
    return lancedb_client.connect(live)


@pytest.fixture
def space(
    live: LiveServer, db: LanceNamespaceDBConnection, request: pytest.FixtureRequest, place: Place
) -> list[str]:
    name = f"lancedb_{request.node.name}"
    db.create_namespace([name])
    place(live, [name])
    return [name]


@pytest.fixture
def table(db: LanceNamespaceDBConnection, space: list[str]) -> Table:
    return db.create_table("animals", animals(*WORDS), namespace_path=space)


def animals(*names: str, first: int = 1) -> list[dict[str, Any]]:
    return [
        {"id": number, "name": name, "vector": [float(number), 0.0]}
        for number, name in enumerate(names, first)
    ]


def names(table: Table) -> dict[int, str]:
    rows = table.to_arrow()
    return dict(sorted(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)))


def ids(result: Any) -> list[int]:
    return [row["id"] for row in result.to_list()]


def history(live: LiveServer, table: Table) -> list[int]:
    """The versions of the catalog's ledger."""
    status, listed = live.post(f"/v1/table/{'$'.join([*table.namespace, table.name])}/version/list")
    assert status == 200, listed
    return [entry["version"] for entry in listed["versions"]]


# --- namespaces and tables ---------------------------------------------------------------------


def test_namespaces_and_tables(db: LanceNamespaceDBConnection, space: list[str]) -> None:
    inner = [*space, "inner"]
    db.create_namespace(inner, properties={"owner": "me"})
    assert db.list_namespaces(space).namespaces == ["inner"]
    assert db.describe_namespace(inner).properties == {"owner": "me"}
    for name in ("a", "b"):
        db.create_table(name, animals("seal"), namespace_path=inner)
    assert list(db.table_names(namespace_path=inner)) == ["a", "b"]
    assert db.list_tables(namespace_path=inner).tables == ["a", "b"]
    db.rename_table("b", "c", cur_namespace_path=inner, new_namespace_path=inner)
    assert names(db.open_table("c", namespace_path=inner)) == {1: "seal"}
    db.drop_table("a", namespace_path=inner)
    assert list(db.table_names(namespace_path=inner)) == ["c"]
    with pytest.raises(TableNotFoundError):
        db.open_table("a", namespace_path=inner)
    db.drop_all_tables(namespace_path=inner)
    db.drop_namespace(inner)
    assert db.list_namespaces(space).namespaces == []


def test_creating_tables(
    live: LiveServer, db: LanceNamespaceDBConnection, space: list[str]
) -> None:
    frame = pd.DataFrame({"id": [1, 2], "name": ["seal", "orca"]})
    assert names(db.create_table("pandas", frame, namespace_path=space)) == {1: "seal", 2: "orca"}
    rows = pa.table({"id": [1], "name": ["seal"]})
    assert names(db.create_table("arrow", rows, namespace_path=space)) == {1: "seal"}
    made = db.create_table("model", schema=Animal, namespace_path=space)
    made.add([Animal(id=1, name="seal", vector=[1.0, 0.0])])
    assert made.search().to_pydantic(Animal)[0].name == "seal"
    with pytest.raises(ValueError, match="already exists"):
        db.create_table("arrow", rows, namespace_path=space)
    existing = db.create_table("arrow", frame, namespace_path=space, exist_ok=True)
    assert names(existing) == {1: "seal"}
    replaced = db.create_table("arrow", frame, namespace_path=space, mode="overwrite")
    assert names(replaced) == {1: "seal", 2: "orca"}
    assert history(live, made) == [1, 2]


def test_rows(live: LiveServer, db: LanceNamespaceDBConnection, table: Table) -> None:
    assert table.add(animals("beluga", first=5)).version == 2
    updated = table.update(where="id = 1", values={"name": "unicorn"})
    assert (updated.rows_updated, updated.version) == (1, 3)
    assert table.update(where="id = 2", values_sql={"name": "upper(name)"}).rows_updated == 1
    assert table.delete("id = 3").num_deleted_rows == 1
    merged = (
        table.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(animals("bowhead", "dolphin", first=5))
    )
    assert (merged.num_updated_rows, merged.num_inserted_rows) == (1, 1)
    expected = {1: "unicorn", 2: "WALRUS", 4: "orca", 5: "bowhead", 6: "dolphin"}
    assert names(table) == expected
    assert (table.count_rows(), table.count_rows("id > 4")) == (5, 2)
    assert table.to_pandas().shape == (5, 3)
    again = db.open_table(table.name, namespace_path=table.namespace)
    assert names(again) == expected
    assert history(live, table) == [1, 2, 3, 4, 5, 6]


# --- searching ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pushdown", [None, ["QueryTable"]], ids=["local", "server"])
def test_searching(live: LiveServer, request: pytest.FixtureRequest, pushdown: Any) -> None:
    """Searches also run on the server, except that LanceDB executes vector searches itself."""
    with lancedb_client.recorder(live) as (url, request_body):
        db = lancedb_client.connect(live, url=url, pushdown=pushdown)
        db.create_namespace([request.node.name])
        table = db.create_table("t", animals(*WORDS), namespace_path=[request.node.name])
        table.create_index("name", config=FTS())

        nearest = table.search([3.2, 0.0]).limit(2).to_arrow()
        assert nearest["id"].to_pylist() == [3, 4]
        assert nearest["_distance"].to_pylist() == pytest.approx([0.04, 0.64])
        filtered = table.search([3.2, 0.0]).where("id <> 3").select(["id", "_distance"]).limit(2)
        assert ids(filtered) == [4, 2]
        assert ids(table.search([3.2, 0.0]).distance_range(upper_bound=0.5)) == [3]
        assert (
            table.search([3.2, 0.0]).select({"twice": "id * 2"}).limit(1).to_list()[0]["twice"] == 6
        )
        assert "query" not in request_body

        hits = table.search().where("id BETWEEN 2 AND 3").select(["id"])
        assert hits.to_list() == [{"id": 2}, {"id": 3}]
        assert ids(table.search().limit(2).offset(1)) == [2, 3]
        assert ids(table.search("seal", query_type="fts")) == [3]
        assert ids(table.search("seal", query_type="fts").where("id > 3")) == []
        hybrid = table.search(query_type="hybrid").vector([1.0, 0.0]).text("seal").limit(2)
        assert sorted(ids(hybrid)) == [1, 3]
        assert request_body.count("query") == (5 if pushdown else 0)


def test_known_errors_of_lancedb_with_server_side_search(
    live: LiveServer, db: LanceNamespaceDBConnection, space: list[str]
) -> None:
    """Behavior of LanceDB 0.40.0, described in docs/lance-clients.md."""
    table = db.create_table("t", animals(*["seal"] * 11, "Fuzziness"), namespace_path=space)
    table.create_index("name", config=FTS())
    pushed = lancedb_client.connect(live, pushdown=["QueryTable"])
    table = pushed.open_table("t", namespace_path=space)
    # It requests ten rows where all are expected, …
    assert (table.to_arrow().num_rows, table.count_rows()) == (10, 12)
    # … and sends the names of its own data structures among the words to search for.
    assert 12 in ids(table.search("orca", query_type="fts"))


# --- indexes -----------------------------------------------------------------------------------


def test_indexes(live: LiveServer, db: LanceNamespaceDBConnection, space: list[str]) -> None:
    vectors = np.random.default_rng(7).random((512, 8), dtype=np.float32)
    rows = {
        "id": pa.array(range(512), pa.int64()),
        "name": [f"{WORDS[number % 4]} {number}" for number in range(512)],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8),
    }
    table = db.create_table("t", pa.table(rows), namespace_path=space)
    table.create_index(
        "vector", config=IvfPq(distance_type="l2", num_partitions=2, num_sub_vectors=4)
    )
    table.create_index("id", config=BTree())
    table.create_index("name", config=FTS())

    listed = {index.name: (index.index_type, index.columns) for index in table.list_indices()}
    assert listed == {
        "vector_idx": ("IvfPq", ["vector"]),
        "id_idx": ("BTree", ["id"]),
        "name_idx": ("FTS", ["name"]),
    }
    stats = table.index_stats("vector_idx")
    assert (stats.num_indexed_rows, stats.num_unindexed_rows, stats.distance_type) == (512, 0, "l2")
    hits = table.search(vectors[17]).nprobes(2).refine_factor(20).limit(5)
    exact = table.search(vectors[17]).bypass_vector_index().limit(5)
    assert ids(hits)[0] == ids(exact)[0] == 17
    assert ids(table.search("17", query_type="fts")) == [17]
    # The catalog lists them, and LanceDB uses an index that the catalog builds.
    ns = live.client()
    path = [*space, "t"]
    indexes = ns.list_table_indices(m.ListTableIndicesRequest(id=path)).indexes
    assert [index.index_name for index in indexes] == ["id_idx", "name_idx", "vector_idx"]
    table.drop_index("id_idx")
    ns.create_table_scalar_index(
        m.CreateTableIndexRequest(id=path, column="id", index_type="BITMAP", name="bits")
    )
    table.checkout_latest()
    assert {index.name for index in table.list_indices()} == {"vector_idx", "name_idx", "bits"}
    assert history(live, table) == [1, 2, 3, 4, 5, 6]


# --- versions ----------------------------------------------------------------------------------


def test_versions_tags_and_restore(live: LiveServer, table: Table) -> None:
    table.tags.create("all", 1)
    table.delete("id > 1")
    assert [entry["version"] for entry in table.list_versions()] == [1, 2]
    assert table.tags.list()["all"]["version"] == 1
    status, tags = live.post(f"/v1/table/{table.namespace[0]}$animals/tags/list")
    assert (status, list(tags["tags"])) == (200, ["all"])
    table.checkout("all")
    assert table.count_rows() == 4
    table.checkout_latest()
    assert table.count_rows() == 1
    table.restore("all")
    assert (table.count_rows(), table.version) == (4, 3)
    table.tags.update("all", 2)
    assert table.tags.get_version("all") == 2
    table.tags.delete("all")
    assert table.tags.list() == {}
    assert history(live, table) == [1, 2, 3]


def test_branches(live: LiveServer, table: Table) -> None:
    branch = table.branches.create("dev")
    branch.add(animals("beluga", first=5))
    assert (branch.count_rows(), table.count_rows()) == (5, 4)
    path = [*table.namespace, table.name]
    counted = live.client().count_table_rows(m.CountTableRowsRequest(id=path, branch="dev"))
    assert counted.count == 5
    assert list(table.branches.list()) == ["dev"]
    table.branches.delete("dev")
    assert table.branches.list() == {}


def test_columns(live: LiveServer, table: Table) -> None:
    table.add_columns({"twice": "id * 2"})
    table.add_columns(pa.field("note", pa.string()))
    table.alter_columns({"path": "twice", "rename": "double"})
    assert table.schema.names == ["id", "name", "vector", "double", "note"]
    assert table.to_arrow()["double"].to_pylist() == [2, 4, 6, 8]
    table.drop_columns(["double", "note"])
    assert table.schema.names == ["id", "name", "vector"]
    assert history(live, table) == [1, 2, 3, 4, 5]


def test_optimize(live: LiveServer, table: Table) -> None:
    for number in range(5, 9):
        table.add(animals("beluga", first=number))
    table.create_index("id", config=BTree())
    table.add(animals("beluga", first=9))
    table.optimize(cleanup_older_than=timedelta(days=1))
    # Unindexed rows remain separate from indexed rows.
    assert table.stats()["fragment_stats"]["num_fragments"] == 2
    assert table.index_stats("id_idx").num_unindexed_rows == 0
    assert table.count_rows() == 9
    versions = history(live, table)
    assert versions == list(range(1, table.version + 1))


def test_a_materialized_view_of_lancedb(db: LanceNamespaceDBConnection) -> None:
    """LanceDB stores and refreshes such a view itself, in the root namespace. For the catalog it is
    an ordinary table."""
    source = db.create_table(
        "lancedb_source",
        animals(*WORDS),
        storage_options={"new_table_enable_stable_row_ids": "true"},
    )
    view = db.create_materialized_view(
        "lancedb_view", "lancedb_source", select=["id", "name"], where="id > 2"
    )
    assert names(view.table) == {3: "seal", 4: "orca"}
    source.add(animals("beluga", first=5))
    view.refresh()
    assert names(view.table) == {3: "seal", 4: "orca", 5: "beluga"}
    assert "lancedb_view" in db.list_materialized_views()
    for name in ("lancedb_view", "lancedb_source"):
        db.drop_table(name)


# --- with other clients ------------------------------------------------------------------------


def test_one_table_with_lancedb_pylance_and_http(live: LiveServer, table: Table) -> None:
    path = [*table.namespace, table.name]
    ns = live.client()
    reader = lancedb.connect_namespace(
        "rest",
        {"uri": live.url, "header.x-api-key": live.key},
        read_consistency_interval=timedelta(0),
    ).open_table(table.name, namespace_path=table.namespace)
    assert reader.count_rows() == 4

    ns.update_table(m.UpdateTableRequest(id=path, predicate="id = 1", updates=[["name", "'one'"]]))
    lance.dataset(namespace_client=ns, table_id=path).delete("id = 2")
    table.add(animals("beluga", first=5))

    expected = {1: "one", 3: "seal", 4: "orca", 5: "beluga"}
    assert names(reader) == names(table) == expected
    assert history(live, table) == [1, 2, 3, 4]
