import lance as pylance
import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Table
from catalog.services.lance import ledger_namespace
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.operation("UpdateTable")]
PATH = "/v1/table/ws$t/update"


@pytest.fixture(autouse=True)
def _table(db):
    make_lance_table(("ws", "t"))


def rows() -> dict[int, str]:
    table = pylance.dataset(Table.objects.get(name="t").location).to_table().to_pylist()
    return dict(sorted((row["id"], row["name"]) for row in table))


def test_updates_rows_matching_a_predicate(lance):
    body = {"updates": [["name", "upper(name)"], ["id", "id + 10"]], "predicate": "id > 1"}
    updated = lance.post(PATH, body)
    assert (updated["version"], updated["updated_rows"]) == (2, 2)
    assert rows() == {1: "a", 12: "B", 13: "C"}
    event = AuditEvent.objects.get(action="table.update")
    assert str(event.transaction_id) == updated["transaction_id"]
    assert event.after["columns"] == ["name", "id"]
    assert event.after["predicate"] == "id > 1"


def test_all_rows(lance):
    assert lance.post(PATH, {"updates": [["name", "'x'"]]})["updated_rows"] == 3
    assert set(rows().values()) == {"x"}


def test_no_row(lance):
    updated = lance.post(PATH, {"updates": [["name", "'x'"]], "predicate": "id > 9"})
    assert updated["updated_rows"] == 0
    assert rows() == {1: "a", 2: "b", 3: "c"}


def test_a_nested_field_and_names_with_dots(lance):
    data = pa.table({"st": [{"x": 1}], "weird name": ["v"]})
    make_lance_table(("ws", "n"), data)
    path = "/v1/table/ws$n/update"
    assert lance.post(path, {"updates": [["weird name", "'w'"]]})["updated_rows"] == 1
    lance.refused(404, 12, "no such", path, {"updates": [["no such", "1"]]})


def test_updates_may_set_properties(lance):
    lance.post(PATH, {"updates": [["id", "id"]], "properties": {"a": "b"}})
    updated = lance.post(PATH, {"updates": [["id", "id"]], "properties": {"c": "d"}})
    assert updated["version"] == 3
    assert Table.objects.get(name="t").properties == {"a": "b", "c": "d"}


def test_a_branch(lance):
    lance.post("/v1/table/ws$t/branches/create", {"name": "dev"})
    updated = lance.post(PATH, {"updates": [["name", "'x'"]], "branch": "dev"})
    assert updated["updated_rows"] == 3
    assert rows() == {1: "a", 2: "b", 3: "c"}


@shared_cases(
    ("body", "status", "code", "text"),
    [
        ({}, 400, 13, "updates"),
        ({"updates": []}, 400, 13, "nothing to update"),
        ({"updates": [["id"]]}, 400, 13, "updates"),
        ({"updates": [["id", "1", "2"]]}, 400, 13, "updates"),
        ({"updates": [["id", 1]]}, 400, 13, "updates"),
        ({"updates": [["id", "1"], ["id", "2"]]}, 400, 13, "updated twice"),
        ({"updates": [["zz", "1"]]}, 404, 12, "zz"),
        ({"updates": [["id", "zz + 1"]]}, 404, 12, "zz"),
        ({"updates": [["id", "id +"]]}, 400, 13, "not valid"),
        ({"updates": [["id", "nofn(id)"]]}, 400, 13, "nofn"),
        ({"updates": [["id", "'text'"]]}, 400, 13, "Cannot cast"),
        ({"updates": [["id", ""]]}, 400, 13, ""),
        ({"updates": [["", "1"]]}, 404, 12, ""),
        ({"updates": [["id", "1 / 0"]]}, 400, 13, "zero"),
        ({"updates": [["id", "1"]], "predicate": "zz = 1"}, 404, 12, "zz"),
        ({"updates": [["id", "1"]], "predicate": "id ="}, 400, 13, "sql parser error"),
        ({"updates": [["id", "1"]], "predicate": "id + 1"}, 400, 13, "BOOLEAN"),
        ({"updates": [["id", "1"]], "predicate": "id = 'x'"}, 400, 13, "convert"),
        ({"updates": [["id", "1"]], "predicate": "1 / (id - 1) > 0"}, 400, 13, "zero"),
        ({"updates": [["id", "1"]], "branch": "nope"}, 404, 22, "nope"),
        ({"updates": [["id", "1"]], "properties": {"a": 1}}, 400, 13, "properties"),
    ],
)
def test_refusals(lance, body, status, code, text):
    lance.refused(status, code, text, PATH, body)


def test_a_declared_table(lance):
    make_table("ws", "d")
    lance.refused(409, 19, "no data yet", "/v1/table/ws$d/update", {"updates": [["id", "1"]]})


def test_a_concurrent_update_of_the_same_rows_is_retried(lance, monkeypatch):
    real = ledger_namespace.commit

    def after_a_rival(operations, *, actor):
        monkeypatch.setattr(ledger_namespace, "commit", real)
        lance.post(PATH, {"updates": [["id", "id * 10"]]})
        return real(operations, actor=actor)

    monkeypatch.setattr(ledger_namespace, "commit", after_a_rival)
    updated = lance.post(PATH, {"updates": [["id", "id + 1"]]})
    assert (updated["version"], updated["updated_rows"]) == (3, 3)
    assert set(rows()) == {11, 21, 31}


def test_long_texts_may_be_set_in_few_rows(lance):
    """Lance builds the texts of 8192 rows at once."""
    text = f"'{'x' * 100_000}'"
    rows = pa.table({"id": range(8192), "s": ["a"] * 8192})
    make_lance_table(("ws", "long"), rows)
    path = "/v1/table/ws$long/update"
    with unchanged():
        lance.refused(400, 13, "take too much memory", path, {"updates": [["s", text]]})
    body = {"updates": [["s", text]], "predicate": "id < 100"}
    assert lance.post(path, body)["updated_rows"] == 100
