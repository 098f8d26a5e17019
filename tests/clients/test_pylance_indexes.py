"""Stock pylance with indexes, against the real server."""

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace import (
    CreateNamespaceRequest,
    CreateTableIndexRequest,
    DescribeTableIndexStatsRequest,
    DropTableIndexRequest,
    ListTableIndicesRequest,
)

from tests.live import LiveServer


@pytest.fixture
def ns(live: LiveServer) -> RestNamespace:
    return live.client()


@pytest.fixture
def table(ns: RestNamespace, request: pytest.FixtureRequest) -> list[str]:
    """A table of 300 rows."""
    ns.create_namespace(CreateNamespaceRequest(id=[request.node.name]))
    table = [request.node.name, "t"]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2400, dtype="f4")), 8)
    rows = {"id": range(300), "text": ["some words"] * 300, "v": vectors}
    lance.write_dataset(pa.table(rows), namespace_client=ns, table_id=table)
    return table


def names(ns: RestNamespace, table: list[str]) -> list[str]:
    listed = ns.list_table_indices(ListTableIndicesRequest(id=table)).indexes
    return [index.index_name for index in listed]


def test_a_client_builds_lists_and_drops(ns: RestNamespace, table: list[str]) -> None:
    for column, kind in (("id", "BTREE"), ("text", "FTS"), ("v", "IVF_FLAT")):
        request = CreateTableIndexRequest(id=table, column=column, index_type=kind)
        created = ns.create_table_index(request)
        assert created.transaction_id
    request = CreateTableIndexRequest(id=table, column="id", index_type="BITMAP", name="a b")
    ns.create_table_scalar_index(request)
    listed = ns.list_table_indices(ListTableIndicesRequest(id=table)).indexes
    assert [(index.index_name, index.index_type, index.num_indexed_rows) for index in listed] == [
        ("a b", "BITMAP", 300),
        ("id_idx", "BTREE", 300),
        ("text_idx", "INVERTED", 300),
        ("v_idx", "IVF_FLAT", 300),
    ]
    for name, distance in (("v_idx", "l2"), ("a b", None)):
        request = DescribeTableIndexStatsRequest(id=table, index_name=name)
        stats = ns.describe_table_index_stats(request)
        assert (stats.num_indexed_rows, stats.distance_type) == (300, distance)
    for name in ("a b", "id_idx"):
        ns.drop_table_index(DropTableIndexRequest(id=table, index_name=name))
    assert names(ns, table) == ["text_idx", "v_idx"]


def test_lance_uses_indexes_built_by_the_catalog(ns: RestNamespace, table: list[str]) -> None:
    ns.create_table_index(CreateTableIndexRequest(id=table, column="id", index_type="BTREE"))
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    assert "ScalarIndexQuery" in dataset.scanner(filter="id = 7").explain_plan()
    assert dataset.to_table(filter="id = 7").num_rows == 1


def test_the_catalog_lists_indexes_built_by_a_client(ns: RestNamespace, table: list[str]) -> None:
    dataset = lance.dataset(namespace_client=ns, table_id=table)
    dataset.create_scalar_index("id", "BTREE")
    lance.write_dataset(
        dataset.to_table(limit=5), namespace_client=ns, table_id=table, mode="append"
    )
    (index,) = ns.list_table_indices(ListTableIndicesRequest(id=table)).indexes
    assert (index.num_indexed_rows, index.num_unindexed_rows) == (300, 5)
    newest = lance.dataset(namespace_client=ns, table_id=table)
    newest.optimize.optimize_indices()
    (index,) = ns.list_table_indices(ListTableIndicesRequest(id=table)).indexes
    assert (index.num_indexed_rows, index.num_unindexed_rows) == (305, 0)
