import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from lance.dataset import LanceDataset

from tests.access.rules import READ
from tests.api.client import stream
from tests.api.lance.example import Example, data
from tests.cases import shared_cases
from tests.factories import make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("CountTableRows")]

EXAMPLES = {
    "CountTableRows": Example("/v1/table/ws$data/count_rows", {}, prepare=data, rule=READ),
}
PATH = "/v1/table/w$t/count_rows"


@pytest.fixture(autouse=True)
def table(db) -> None:
    make_lance_table(("w", "t"), pa.table({"id": range(8), "s": pa.array([{"a b": 1}] * 8)}))


@pytest.mark.parametrize(
    ("predicate", "count"),
    [(None, 8), ("", 8), ("id > 5", 2), ("id > 100", 0), ("s.`a b` = 1", 8), ("_rowid = 3", 1)],
)
def test_the_answer_is_a_bare_number(lance, predicate, count):
    response = lance.call("POST", PATH, {"predicate": predicate})
    assert response["content-type"] == "application/json"
    assert response.content == str(count).encode()


def test_a_body_is_not_needed(lance):
    assert lance.post(PATH) == 8


def test_versions_and_branches(lance):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    more = stream(pa.table({"id": [8, 9], "s": pa.array([{"a b": 1}] * 2)}))
    lance.post("/v1/table/w$t/insert", raw=more)
    lance.post("/v1/table/w$t/delete", {"predicate": "id < 3"})
    assert [lance.post(PATH, {"version": version}) for version in (1, 2, 3)] == [8, 10, 7]
    assert [lance.post(PATH, {"branch": name}) for name in ("dev", "main", "")] == [8, 7, 7]


def test_without_a_predicate_nothing_is_scanned(lance, monkeypatch):
    lance.post("/v1/table/w$t/delete", {"predicate": "id < 3"})
    monkeypatch.setattr(LanceDataset, "scanner", None)
    assert lance.post(PATH, {}) == 5


def test_a_count_is_one_statement(lance, django_assert_num_queries):
    lance.post(PATH, {})
    with django_assert_num_queries(1):
        lance.post(PATH, {"predicate": "id > 1"})


def test_a_read_only_key_may_count(reader):
    assert reader.post(PATH, {}) == 8


@shared_cases(
    ("body", "answer", "text"),
    [
        ({"predicate": "nope > 1"}, (404, 12), "No field named nope"),
        ({"predicate": "id >"}, (400, 13), "sql parser error"),
        ({"predicate": "id"}, (400, 13), "boolean"),
        ({"predicate": "id / 0 = 1"}, (400, 13), "Divide by zero"),
        ({"predicate": "id = ?"}, (400, 13), "placeholder"),
        ({"predicate": "id" + "+id" * 3000 + " > 1"}, (400, 13), "more than 300 operators"),
        ({"predicate": " or ".join(["id = 1"] * 20_000)}, (400, 13), "10000 times AND and OR"),
        ({"predicate": 5}, (400, 13), "predicate"),
        ({"version": 2}, (404, 11), "has no version 2"),
        ({"version": -1}, (400, 13), "version"),
        ({"branch": "nope"}, (404, 22), "has no branch 'nope'"),
        ({"id": ["w", "u"]}, (400, 13), "is not the path's id"),
    ],
)
def test_refusals(lance, body, answer, text):
    lance.refused(*answer, text, PATH, body)


def test_declared_and_missing_tables_are_refused(lance):
    lance.post("/v1/table/w$declared/declare", {})
    lance.refused(409, 19, "has no data yet", "/v1/table/w$declared/count_rows", {})
    lance.refused(404, 4, "does not exist", "/v1/table/w$nope/count_rows", {})


def test_a_missing_data_file_is_an_invalid_state_of_the_table(lance):
    row = make_lance_table(("ws", "torn"))
    shutil.rmtree(Path(row.location) / "data")
    response = lance.call("POST", "/v1/table/ws$torn/count_rows", {"predicate": "id > 1"})
    assert (response.status_code, response.json()["code"]) == (409, 19)
    assert "torn or missing" in response.json()["error"]
