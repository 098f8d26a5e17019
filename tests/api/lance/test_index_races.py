"""Builds of indexes during concurrent writes."""

import pyarrow as pa
import pytest

from catalog.models import TableVersion
from tests.api.client import Lance, stream
from tests.api.lance.test_concurrency import WON, key, post, race
from tests.factories import make_lance_table

__all__ = ["key"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.operation("CreateTableIndex"),
    pytest.mark.operation("CreateTableScalarIndex"),
]

CREATE = "/v1/table/ws$t/create_index"


def names(key: str) -> list[str]:
    listed = Lance(key).post("/v1/table/ws$t/index/list", {})["indexes"]
    return [index["index_name"] for index in listed]


@pytest.mark.parametrize("round_", range(3))
def test_creators_of_one_index(key, round_):
    make_lance_table(("ws", "t"), pa.table({"id": range(1000)}))
    body = {"column": "id", "index_type": "BTREE", "name": "n"}
    outcome = race(key, *[post(CREATE, body) for _ in range(4)])
    assert sorted(outcome) == [WON, *[(409, 7)] * 3]
    assert names(key) == ["n"]
    assert TableVersion.objects.count() == 2


def test_creators_of_different_indexes(key):
    make_lance_table(("ws", "t"), pa.table({"id": range(1000)}))
    calls = [post(CREATE, {"column": "id", "index_type": "BTREE", "name": name}) for name in "abcd"]
    assert race(key, *calls) == [WON] * 4
    assert names(key) == ["a", "b", "c", "d"]


def test_concurrently_added_rows_are_unindexed(key):
    make_lance_table(("ws", "t"), pa.table({"id": range(1000)}))
    more = stream(pa.table({"id": [1, 2, 3]}))
    outcome = race(
        key,
        post(CREATE, {"column": "id", "index_type": "BTREE"}),
        *[lambda client: client.call("POST", "/v1/table/ws$t/insert", raw=more)] * 2,
    )
    assert outcome == [WON] * 3
    (index,) = Lance(key).post("/v1/table/ws$t/index/list", {})["indexes"]
    assert index["num_indexed_rows"] + index["num_unindexed_rows"] == 1006


def test_droppers_of_one_index(key):
    make_lance_table(("ws", "t"), pa.table({"id": range(1000)}))
    Lance(key).post(CREATE, {"column": "id", "index_type": "BTREE"})
    outcome = race(key, *[post("/v1/table/ws$t/index/id_idx/drop")] * 3)
    assert sorted(outcome) == [WON, (404, 6), (404, 6)]
    assert names(key) == []
