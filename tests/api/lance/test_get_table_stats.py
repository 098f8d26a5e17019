import pyarrow as pa
import pytest

from tests.access.rules import READ
from tests.api.client import Lance, stream
from tests.api.lance.example import Example, data
from tests.factories import make_lance_table, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.operation("GetTableStats")]

EXAMPLES = {
    "GetTableStats": Example("/v1/table/ws$data/stats", {}, prepare=data, rule=READ),
}
PATH = "/v1/table/w$t/stats"


def insert(lance: Lance, *counts: int, query: str = "") -> None:
    for count in counts:
        rows = pa.table({"x": pa.array(range(count), pa.int64())})
        lance.post(f"/v1/table/w$t/insert{query}", raw=stream(rows))


def test_rows_bytes_and_fragments(lance):
    make_lance_table(("w", "t"), pa.table({"x": pa.array(range(10), pa.int64())}))
    insert(lance, 40, 20, 50, 30)
    with unchanged():
        answer = lance.post(PATH, {})
    assert answer.pop("total_bytes") > 0
    assert answer == {
        "num_rows": 150,
        "num_indices": 0,
        "fragment_stats": {
            "num_fragments": 5,
            "num_small_fragments": 5,
            "lengths": {
                "min": 10,
                "max": 50,
                "mean": 30,
                "p25": 20,
                "p50": 30,
                "p75": 40,
                "p99": 40,
            },
        },
    }


def test_deleted_rows_are_not_counted(lance):
    make_lance_table(("w", "t"), pa.table({"x": pa.array(range(10), pa.int64())}))
    lance.post("/v1/table/w$t/delete", {"predicate": "x < 4"})
    answer = lance.post(PATH)
    assert answer["num_rows"] == 6
    assert answer["fragment_stats"]["lengths"]["max"] == 10


def test_indexes_are_counted_and_their_segments_are_not(lance):
    make_lance_table(("w", "t"), pa.table({"x": pa.array(range(10), pa.int64()), "s": ["a"] * 10}))
    for column in ("x", "s"):
        body = {"column": column, "index_type": "BTREE"}
        response = lance.call("POST", "/v1/table/w$t/create_scalar_index", body)
        assert response.status_code in {200, 202}, response.content
    assert lance.post(PATH)["num_indices"] == 2


def test_an_empty_table(lance):
    make_lance_table(("w", "t"), pa.schema([("x", pa.int64())]).empty_table())
    nothing = dict.fromkeys(("min", "max", "mean", "p25", "p50", "p75", "p99"), 0)
    assert lance.post(PATH) == {
        "total_bytes": 0,
        "num_rows": 0,
        "num_indices": 0,
        "fragment_stats": {"num_fragments": 0, "num_small_fragments": 0, "lengths": nothing},
    }


def test_on_a_branch(lance):
    make_lance_table(("w", "t"), pa.table({"x": pa.array(range(10), pa.int64())}))
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    insert(lance, 5, query="?branch=dev")
    assert lance.post(PATH, {"branch": "dev"})["num_rows"] == 15
    assert lance.post(PATH, {"branch": "main"})["num_rows"] == 10


def test_refusals(lance):
    make_lance_table(("w", "t"))
    make_table("w", "declared")
    lance.refused(404, 22, "no branch 'x'", PATH, {"branch": "x"})
    lance.refused(404, 4, "w.u", "/v1/table/w$u/stats", {})
    lance.refused(409, 19, "declared", "/v1/table/w$declared/stats", {})
    lance.refused(400, 13, "branch", PATH, {"branch": 1})


def test_read_only_key(reader):
    make_lance_table(("w", "t"))
    assert reader.post(PATH)["num_rows"] == 3
