"""Sorted results (``order_by``) of scans and searches, in bounded memory."""

import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.services.access import api_keys
from catalog.services.lance.scans import sorted_rows
from tests.api.lance.example import make_lance_table
from tests.api.lance.examples import make_catalog
from tests.api.lancedb.client import Database

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
NAMES = ["orca", "seal", None, "narwhal", "walrus", "seal"]
BY_NAME = {"column_name": "name"}
BY_ID = {"column_name": "id", "ascending": False}
ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "name": NAMES,
        "place": [{"x": 5 - number} for number in range(6)],
        "a b": [1, 1, 2, 2, 3, 3],
        "text": ["whale", "fish"] * 3,
        "vector": pa.array([[float(n), 0.0] for n in range(6)], pa.list_(pa.float32(), 2)),
    }
)


@pytest.fixture
def database() -> Database:
    make_catalog()
    make_lance_table(("ws", "data"), ROWS)
    return Database(api_keys.create_api_key(actor=SYSTEM, name="tests")[1])


def rows(database: Database, **query: object) -> pa.Table:
    response = database.call("POST", "/v1/table/ws$data/query", query)
    assert response.status_code == 200, response.content
    content = b"".join(response) if response.streaming else response.content
    return pa.ipc.open_file(content).read_all()


def ids(database: Database, **query: object) -> list[int]:
    return rows(database, **query)["id"].to_pylist()


def test_scans(database):
    assert ids(database, order_by=[BY_NAME]) == [3, 0, 1, 5, 4, 2]
    assert ids(database, order_by=[BY_NAME, BY_ID]) == [3, 0, 5, 1, 4, 2]
    first = {**BY_NAME, "ascending": False, "nulls_first": True}
    assert ids(database, order_by=[first]) == [2, 4, 1, 5, 0, 3]
    assert ids(database, order_by=[BY_NAME], k=2) == [3, 0]
    assert ids(database, order_by=[BY_NAME], k=2, offset=3) == [5, 4]
    assert ids(database, order_by=[BY_NAME], k=2, offset=30) == []
    assert ids(database, order_by=[BY_NAME], k=0) == []
    assert ids(database, order_by=[BY_NAME], filter="id > 2") == [3, 5, 4]
    assert ids(database, order_by=[{"column_name": "place.x"}]) == [5, 4, 3, 2, 1, 0]
    assert ids(database, order_by=[{"column_name": "a b"}, BY_ID]) == [1, 0, 3, 2, 5, 4]
    assert ids(database, order_by=[]) == list(range(6))


def test_the_answer_has_the_form_of_an_unsorted_one(database):
    for query in (
        {},
        {"columns": ["name"]},
        {"columns": ["place.x", "name", "_rowid"]},
        {"columns": {"twice": "id * 2", "row": "_rowid"}},
        {"columns": ["name"], "with_row_id": True},
        {"vector": [0.0, 0.0]},
        {"vector": [0.0, 0.0], "columns": ["name"]},
        {"vector": [0.0, 0.0], "columns": {"near": "_distance", "n": "name"}},
    ):
        result, plain = rows(database, **query, order_by=[BY_ID]), rows(database, **query)
        assert result.schema == plain.schema, query
        assert result.to_pylist() == plain.to_pylist()[::-1], query
    assert rows(database, order_by=[BY_NAME], filter="id > 99").schema == ROWS.schema


def test_the_results_of_a_search_are_its_nearest_rows(database):
    search = {"vector": [4.1, 0.0], "order_by": [BY_NAME]}
    assert ids(database, **search, k=3) == [3, 5, 4]
    assert ids(database, **search, k=2, offset=1) == [5, 4]
    by_distance = [{"column_name": "_distance", "ascending": False}]
    assert ids(database, vector=[4.1, 0.0], k=3, order_by=by_distance) == [3, 5, 4]
    database.post("/v1/table/ws$data/create_index", {"column": "text", "index_type": "FTS"})
    words = {"query": "fish", "columns": ["text"]}
    assert ids(database, full_text_query=words, order_by=[BY_ID], k=2) == [3, 1]
    result = rows(database, full_text_query=words, order_by=[BY_ID])
    assert result["id"].to_pylist() == [5, 3, 1]
    assert result.schema == rows(database, full_text_query=words).schema


def test_many_rows_are_read_in_the_order(database):
    count = 20_000
    numbers = [(number * 7919) % count for number in range(count)]
    many = pa.table({"id": pa.array(numbers, pa.int64()), "text": [str(n) for n in numbers]})
    make_lance_table(("ws", "many"), many)
    response = database.call("POST", "/v1/table/ws$many/query", {"order_by": [BY_ID]})
    result = pa.ipc.open_file(b"".join(response) if response.streaming else response.content)
    assert result.read_all()["text"].to_pylist() == [str(n) for n in reversed(range(count))]


def test_plans(database):
    query = {"order_by": [BY_NAME, {**BY_ID, "nulls_first": True}], "k": 2}
    explained = database.call("POST", "/v1/table/ws$data/explain_plan", {"query": query}).json()
    assert explained.startswith("Sort: name ASC NULLS LAST, id DESC NULLS FIRST\n")
    assert "LanceRead" in explained
    analyzed = database.call("POST", "/v1/table/ws$data/analyze_plan", query).json()
    assert analyzed.startswith("Sort: name")
    assert "metrics" in analyzed


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ({"order_by": [{"column_name": "vector"}]}, 400, "has no order"),
        ({"order_by": [{"column_name": "place"}]}, 400, "has no order"),
        ({"order_by": [{"column_name": "nothing"}]}, 400, "nothing"),
        ({"order_by": [{"column_name": "_distance"}]}, 400, "_distance"),
        ({"order_by": [BY_ID], "vector": [[1.0, 2.0], [3.0, 4.0]]}, 406, "several vectors"),
    ],
)
def test_refusals(database, query, status, message):
    response = database.call("POST", "/v1/table/ws$data/query", query)
    assert response.status_code == status, response.content
    assert message in response.json()["error"]


def test_the_memory_of_a_sort_is_bounded(database, monkeypatch):
    monkeypatch.setattr(sorted_rows, "MAX_SORTED_BYTES", 50)
    response = database.call("POST", "/v1/table/ws$data/query", {"order_by": [BY_NAME]})
    assert response.status_code == 400
    assert response.json()["detail"] == "Use a filter or a smaller limit."
    assert ids(database, order_by=[BY_NAME], k=1) == [3]
