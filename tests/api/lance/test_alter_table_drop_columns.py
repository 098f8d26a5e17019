import pyarrow as pa
import pytest
from lance.dataset import LanceDataset

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Transaction
from catalog.services.lance import datasets as lance_datasets
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, register_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("AlterTableDropColumns")]

PATH = "/v1/table/w$t/drop_columns"


@pytest.fixture
def table(db):
    nested = pa.array([{"a b": 1, "c.e": 2, "l": [{"q": 1, "r": 2}]}] * 2)
    data = {"x": [1, 2], "s": ["a", "b"], "n": nested, 'größe "x"': [1, 2]}
    make_lance_table(("w", "t"), pa.table(data))


def rows(**options) -> dict:
    return lance_datasets.read(actor=SYSTEM, table=("w", "t"), **options).to_table().to_pydict()


def drop(lance, *columns, **more):
    return lance.post(PATH, {"columns": list(columns), **more})


def test_columns_are_dropped_in_one_audited_version(lance, table):
    answer = drop(lance, "s", '`größe "x"`', "n.`c.e`", "n.l.item.q")
    event = AuditEvent.objects.get(action="table.drop_columns")
    assert answer == {"version": 2, "transaction_id": str(event.transaction_id)}
    assert rows() == {"x": [1, 2], "n": [{"a b": 1, "l": [{"r": 2}]}] * 2}
    assert event.after["columns"] == ["s", '`größe "x"`', "n.`c.e`", "n.l.item.q"]
    operations = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert [operation["operation"] for operation in operations] == ["AlterTableDropColumns"]
    assert "s" in rows(version=1)


def test_a_column_named_twice_is_dropped_once(lance, table):
    assert drop(lance, "x", "`x`", "n", "n.l")["version"] == 2
    assert list(rows()) == ["s", 'größe "x"']


def test_dropping_the_last_field_drops_the_struct(lance, table):
    drop(lance, "n.a b", "n.`c.e`", "n.l")
    assert list(rows()) == ["x", "s", 'größe "x"']


def test_on_a_branch(lance, table):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    drop(lance, "x", branch="dev")
    assert "x" not in rows(branch="dev")
    drop(lance, "s", branch="main")
    assert list(rows()) == ["x", "n", 'größe "x"']


@shared_cases("path", ["nope", "X", "q", "n.nope", "n.c.e", "x.y", "n.l.q"])
def test_unknown_columns(lance, table, path):
    lance.refused(404, 12, "does not exist", PATH, {"columns": ["s", path]})


@shared_cases(
    ("body", "error"),
    [
        ({"columns": []}, "nothing to drop"),
        ({}, "columns"),
        ({"columns": "x"}, "columns"),
        ({"columns": [1]}, "columns"),
        ({"columns": [""]}, "columns"),
        ({"columns": ["`x"]}, "malformed"),
        ({"columns": ["x..y"]}, "malformed"),
        ({"columns": ["x", "s", "n", '`größe "x"`']}, "Cannot drop all"),
    ],
)
def test_malformed_requests(lance, table, body, error):
    lance.refused(400, 13, error, PATH, body)


def test_inputs_of_computed_columns_are_protected(lance, table):
    columns = [{"name": "c", "computed": "n.`c.e` + x"}]
    lance.post("/v1/table/w$t/add_columns", {"new_columns": columns})
    for column in ("n", "n.`c.e`", "x"):
        lance.refused(400, 13, "read by computed column 'c'", PATH, {"columns": ["s", column]})
    drop(lance, "n.l")
    drop(lance, "x", "c")
    assert list(rows()) == ["s", "n", 'größe "x"']


def test_a_name_with_a_backtick_is_refused(lance):
    register_lance_table(("w", "t"), pa.table({"we`ird": [1], "x": [1]}))
    response = lance.refused(406, 0, "backtick", PATH, {"columns": ["`we``ird`"]})
    assert response.json()["detail"] == "Rename it first."


def test_refusals(lance, table):
    make_table("w", "declared")
    lance.refused(404, 22, "no branch 'x'", PATH, {"columns": ["x"], "branch": "x"})
    lance.refused(404, 4, "w.u", "/v1/table/w$u/drop_columns", {"columns": ["x"]})
    lance.refused(409, 19, "declared", "/v1/table/w$declared/drop_columns", {"columns": ["x"]})


def test_the_schema_is_read_once_for_many_columns(lance, monkeypatch):
    """To convert a schema of thousands of fields for each of them takes minutes."""
    make_lance_table(("w", "wide"), pa.table({f"c{number}": [1] for number in range(20)}))
    reads: list[int] = []
    schema = LanceDataset.lance_schema
    monkeypatch.setattr(
        LanceDataset, "lance_schema", property(lambda self: reads.append(1) or schema.fget(self))
    )
    path = "/v1/table/w$wide/drop_columns"
    lance.post(path, {"columns": ["c0"]})
    of_one = len(reads)
    reads.clear()
    lance.post(path, {"columns": [f"c{number}" for number in range(1, 15)]})
    assert len(reads) == of_one
