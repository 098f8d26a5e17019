"""DescribeTableIndexStats."""

import pyarrow as pa
import pytest

from tests.api.client import spell, stream
from tests.api.lance.test_create_table_index import ROWS, make_lance_branch, table
from tests.factories import make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("DescribeTableIndexStats")]

CREATE = "/v1/table/w$t/create_index"


def path(name: str, table: str = "t") -> str:
    return f"/v1/table/w${table}/index/{spell(name)}/stats"


def test_a_vector_index(lance):
    make_lance_table(("w", "t"), table())
    lance.post(CREATE, {"column": "v", "index_type": "IVF_PQ", "distance_type": "cosine"})
    assert lance.post(path("v_idx"), {}) == {
        "distance_type": "cosine",
        "index_type": "IVF_PQ",
        "num_indexed_rows": ROWS,
        "num_unindexed_rows": 0,
        "num_indices": 1,
    }


def test_a_scalar_index_with_later_rows(lance):
    make_lance_table(("w", "t"), pa.table({"id": [1, 2]}))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"id": [3]})))
    answer = {"index_type": "BTREE", "num_indices": 1}
    newest = {**answer, "num_indexed_rows": 2, "num_unindexed_rows": 1}
    assert lance.post(path("id_idx"), {}) == newest
    assert lance.post(path("id_idx")) == newest
    older = lance.post(path("id_idx"), {"version": 2})
    assert older == {**answer, "num_indexed_rows": 2, "num_unindexed_rows": 0}


@pytest.mark.parametrize("name", ["a b", "a+b", "a/b", "ü", "st.`a.b`_idx"])
def test_any_name(lance, name):
    make_lance_table(("w", "t"), table(5))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE", "name": name})
    for body in ({}, {"index_name": name}):
        assert lance.post(path(name), body)["num_indexed_rows"] == 5
    lance.refused(400, 13, "is not the path's", path(name), {"index_name": "other"})


def test_branches_and_unknown_indexes(lance):
    make_lance_branch(make_lance_table(("w", "t"), table()), ("w", "t"))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE", "branch": "dev"})
    assert lance.post(path("id_idx"), {"branch": "dev"})["num_indexed_rows"] == ROWS
    lance.refused(404, 6, "Table 'w.t' has no index 'id_idx'", path("id_idx"), {})
    lance.refused(404, 6, "no index", path("id_idx"), {"branch": "main"})
    lance.refused(404, 22, "no branch", path("id_idx"), {"branch": "nope"})
    lance.refused(404, 11, "no version 9", path("id_idx"), {"version": 9})
    make_table("w", "declared")
    lance.refused(409, 19, "has no data", path("id_idx", "declared"), {})
    lance.refused(404, 4, "'w.nope'", path("id_idx", "nope"), {})


def test_a_reader_may_describe(lance, reader):
    make_lance_table(("w", "t"), table(5))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    assert reader.post(path("id_idx"), {})["num_indexed_rows"] == 5
