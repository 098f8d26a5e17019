import lance as pylance
import pytest

from catalog.models import AuditEvent, Table, TableVersion
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("DeleteFromTable")]
PATH = "/v1/table/ws$t/delete"


@pytest.fixture(autouse=True)
def _table(db):
    make_lance_table(("ws", "t"))


def ids() -> list[int]:
    return pylance.dataset(Table.objects.get(name="t").location).to_table()["id"].to_pylist()


def test_rows_are_deleted(lance):
    deleted = lance.post(PATH, {"predicate": "id > 1 AND name <> 'c'"})
    assert deleted["version"] == 2
    assert ids() == [1, 3]
    event = AuditEvent.objects.get(action="table.delete")
    assert str(event.transaction_id) == deleted["transaction_id"]
    assert event.after["predicate"] == "id > 1 AND name <> 'c'"


def test_all_rows(lance):
    lance.post(PATH, {"predicate": "true"})
    assert ids() == []
    assert lance.post("/v1/table/ws$t/count_rows", {}) == 0


def test_no_row(lance):
    before = TableVersion.objects.count()
    deleted = lance.post(PATH, {"predicate": "id > 100"})
    assert deleted["version"] == before + (deleted.get("transaction_id") is not None)
    assert ids() == [1, 2, 3]


def test_a_branch(lance):
    lance.post("/v1/table/ws$t/branches/create", {"name": "dev"})
    lance.post(PATH, {"predicate": "true", "branch": "dev"})
    assert ids() == [1, 2, 3]
    assert lance.post("/v1/table/ws$t/count_rows", {"branch": "dev"}) == 0


@shared_cases(
    ("body", "status", "code", "text"),
    [
        ({}, 400, 13, "predicate"),
        ({"predicate": ""}, 400, 13, "what to delete"),
        ({"predicate": "  "}, 400, 13, "what to delete"),
        ({"predicate": 1}, 400, 13, "predicate"),
        ({"predicate": "zz = 1"}, 404, 12, "zz"),
        ({"predicate": "id = ="}, 400, 13, "sql parser error"),
        ({"predicate": "id"}, 400, 13, "boolean"),
        ({"predicate": "id = 'x'"}, 400, 13, "convert"),
        ({"predicate": "1 / (id - 1) > 0"}, 400, 13, "zero"),
        ({"predicate": "id IN (SELECT 1)"}, 400, 13, ""),
        ({"predicate": "true", "branch": "nope"}, 404, 22, "nope"),
    ],
)
def test_refusals(lance, body, status, code, text):
    lance.refused(status, code, text, PATH, body)


def test_a_declared_table(lance):
    make_table("ws", "d")
    lance.refused(409, 19, "no data yet", "/v1/table/ws$d/delete", {"predicate": "true"})
