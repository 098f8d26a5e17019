"""ListTableIndices: the fields of an index, versions and branches, paging."""

import json
from datetime import datetime, timedelta

import lance as pylance
import pyarrow as pa
import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.indexes import indexes as lance_indexes
from tests.api.client import stream
from tests.api.lance.test_create_table_index import ROWS, make_lance_branch, table
from tests.factories import make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("ListTableIndices")]

PATH = "/v1/table/w$t/index/list"
CREATE = "/v1/table/w$t/create_index"


def names(lance, **body) -> list[str]:
    return [index["index_name"] for index in lance.post(PATH, body)["indexes"]]


def test_all_fields_of_an_index(lance):
    make_lance_table(("w", "t"), table())
    lance.post(CREATE, {"column": "v", "index_type": "IVF_FLAT", "distance_type": "dot"})
    lance.post(CREATE, {"column": "st.xy", "index_type": "BTREE"})
    answer = lance.post(PATH, {})
    assert set(answer) == {"indexes"}
    scalar, vector = answer["indexes"]
    created = datetime.fromisoformat(scalar.pop("created_at"))
    assert abs(created - timezone.now()) < timedelta(minutes=5)
    assert len(scalar.pop("index_uuid")) == 36
    assert scalar.pop("size_bytes") > 0
    assert scalar == {
        "index_name": "st.Xy_idx",
        "columns": ["st.Xy"],
        "status": "SUCCEEDED",
        "index_type": "BTREE",
        "type_url": "/lance.table.BTreeIndexDetails",
        "num_indexed_rows": ROWS,
        "num_unindexed_rows": 0,
        "num_segments": 1,
        "index_version": 0,
        "index_details": "{}",
    }
    assert (vector["index_name"], vector["index_type"]) == ("v_idx", "IVF_FLAT")
    assert vector["type_url"] == "/lance.index.pb.VectorIndexDetails"
    assert json.loads(vector["index_details"])["metric_type"] == "DOT"


def test_later_rows_are_unindexed_and_deleted_rows_are_not_counted(lance):
    make_lance_table(("w", "t"), pa.table({"id": [1, 2, 3, 4]}))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"id": [5, 6, 7]})))
    lance.post("/v1/table/w$t/delete", {"predicate": "id in (1, 7)"})
    (index,) = lance.post(PATH, {})["indexes"]
    assert (index["num_indexed_rows"], index["num_unindexed_rows"]) == (3, 2)


def test_a_table_without_indexes(lance):
    make_lance_table(("w", "t"))
    assert lance.post(PATH, {}) == {"indexes": []}
    assert lance.post(PATH) == {"indexes": []}


def test_versions_and_branches(lance):
    make_lance_branch(make_lance_table(("w", "t"), table()), ("w", "t"))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    lance.post(CREATE, {"column": "text", "index_type": "FTS", "branch": "dev"})
    assert names(lance) == names(lance, branch="main") == ["id_idx"]
    assert names(lance, version=1) == []
    assert names(lance, version=2) == ["id_idx"]
    assert names(lance, branch="dev") == ["text_idx"]
    lance.refused(404, 11, "no version 9", PATH, {"version": 9})
    lance.refused(404, 22, "no branch 'nope'", PATH, {"branch": "nope"})


def test_pages(lance):
    make_lance_table(("w", "t"), table(5))
    for name in ("c", "a", "d", "b"):
        lance.post(CREATE, {"column": "id", "index_type": "BTREE", "name": name})
    first = lance.post(PATH, {"limit": 3})
    assert [index["index_name"] for index in first["indexes"]] == ["a", "b", "c"]
    last = lance.post(PATH, {"limit": 3, "page_token": first["page_token"]})
    assert [index["index_name"] for index in last["indexes"]] == ["d"]
    assert "page_token" not in last
    assert "page_token" not in lance.post(PATH, {"limit": 4})
    for limit in (0, -1):
        lance.refused(400, 13, f"limit is {limit}", PATH, {"limit": limit})
    lance.refused(400, 13, "valid integer", PATH, {"limit": "3"})


def test_lances_own_indexes_are_not_listed(lance):
    row = make_lance_table(("w", "t"), pa.table({"id": [1, 2]}))
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"id": [3]})))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    dataset = pylance.dataset(row.location)
    dataset.optimize.compact_files(defer_index_remap=True)
    assert "__lance_frag_reuse" in {index.name for index in dataset.describe_indices()}
    assert [index.name for index in lance_indexes.index_summaries(dataset)] == ["id_idx"]


def test_the_service_returns_the_same_for_a_dataset(lance):
    make_lance_table(("w", "t"), pa.table({"id": [1, 2]}))
    lance.post(CREATE, {"column": "id", "index_type": "BTREE"})
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"id": [3]})))
    dataset = lance_datasets.read(actor=SYSTEM, table=("w", "t"))
    (index,) = lance_indexes.index_summaries(dataset)
    answer = (index.name, index.type, index.columns, index.indexed_rows, index.unindexed_rows)
    assert answer == ("id_idx", "BTREE", ("id",), 2, 1)
    assert index.size_bytes > 0
    assert index.created_at is not None


def test_missing_and_empty_tables_are_refused(lance):
    make_table("w", "declared")
    lance.refused(404, 4, "'w.nope'", "/v1/table/w$nope/index/list", {})
    lance.refused(409, 19, "has no data", "/v1/table/w$declared/index/list", {})


def test_a_reader_may_list(lance, reader):
    make_lance_table(("w", "t"), table(5))
    assert reader.post(PATH, {}) == {"indexes": []}
