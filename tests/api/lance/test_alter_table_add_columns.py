import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Transaction
from catalog.services.lance import datasets as lance_datasets
from tests.api.client import stream
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("AlterTableAddColumns")]

PATH = "/v1/table/w$t/add_columns"


@pytest.fixture
def table(db):
    nested = pa.array([{"a b": 1, "c.e": 2, "d": {"x": 0.5, "y": 1.0}}] * 3)
    data = {"x": pa.array([1, 2, 3]), "s": ["a", "b", "c"], "n": nested, "my col": [1, 2, 3]}
    make_lance_table(("w", "t"), pa.table(data))


def rows(**options) -> dict:
    return lance_datasets.read(actor=SYSTEM, table=("w", "t"), **options).to_table().to_pydict()


def field(lance, name: str, **body) -> dict:
    body |= {"load_detailed_metadata": True}
    schema = lance.post("/v1/table/w$t/describe", body)["schema"]
    return next(field for field in schema["fields"] if field["name"] == name)


def add(lance, *columns, **more):
    return lance.post(PATH, {"new_columns": list(columns), **more})


def test_expressions_are_evaluated_for_existing_rows(lance, table):
    answer = add(
        lance,
        {"name": "double", "expression": "x * 2"},
        {"name": 'größe "2"', "expression": "n.`c.e` + `my col`"},
        {"name": "const", "expression": "'k'"},
    )
    assert answer == {"version": 2}
    assert rows()["double"] == [2, 4, 6]
    assert rows()['größe "2"'] == [3, 4, 5]
    assert rows()["const"] == ["k", "k", "k"]
    event = AuditEvent.objects.get(action="table.add_columns")
    assert event.after["columns"] == ["double", 'größe "2"', "const"]
    operations = Transaction.objects.get(pk=event.transaction_id).operations
    assert [operation["operation"] for operation in operations] == ["AlterTableAddColumns"]


def test_later_rows_have_null(lance, table):
    add(lance, {"name": "double", "expression": "x * 2"})
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"x": [4]})))
    assert rows()["double"] == [2, 4, 6, None]


def test_a_computed_column_has_no_values_and_keeps_its_expression(lance, table):
    assert add(lance, {"name": "c", "computed": "x + n.`c.e` + n.d.y"}) == {"version": 2}
    assert rows()["c"] == [None, None, None]
    assert field(lance, "c") == {
        "name": "c",
        "nullable": True,
        "type": {"type": "float64"},
        "metadata": {
            "computed_column": "true",
            "computed_column.kind": "sql",
            "computed_column.expression": "x + n.`c.e` + n.d.y",
            "computed_column.inputs": '["x","n.`c.e`","n.d.y"]',
        },
    }
    event = AuditEvent.objects.get(action="table.add_columns")
    assert event.after["computed"] == {"c": "x + n.`c.e` + n.d.y"}


@pytest.mark.parametrize(
    ("expression", "type_", "inputs"),
    [
        ("x > 1", {"type": "bool"}, '["x"]'),
        ("X", {"type": "int64"}, '["x"]'),
        ("concat(s, 'x')", {"type": "utf8"}, '["s"]'),
        ("cast(x as timestamp)", {"type": "timestamp", "unit": "us"}, '["x"]'),
        ("`my col` + 1", {"type": "int64"}, '["`my col`"]'),
        ("n.`a b`", {"type": "int64"}, '["n.`a b`"]'),
        ("'x' = 'now()'", {"type": "bool"}, "[]"),
        ("1", {"type": "int64"}, "[]"),
    ],
)
def test_type_and_inputs_come_from_the_expression(lance, table, expression, type_, inputs):
    add(lance, {"name": "c", "computed": expression})
    column = field(lance, "c")
    assert (column["type"], column["metadata"]["computed_column.inputs"]) == (type_, inputs)


def test_a_whole_struct(lance, table):
    add(lance, {"name": "c", "computed": "n"})
    column = field(lance, "c")
    assert column["type"] == field(lance, "n")["type"]
    assert column["metadata"]["computed_column.inputs"] == '["n"]'


def test_several_computed_columns(lance, table):
    assert add(lance, {"name": "c", "computed": "x"}, {"name": "d", "computed": "s"}) == {
        "version": 2
    }
    assert [field(lance, name)["type"]["type"] for name in "cd"] == ["int64", "utf8"]


def test_on_a_branch(lance, table):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    add(lance, {"name": "c", "expression": "x"}, branch="dev")
    assert "c" in rows(branch="dev")
    assert "c" not in rows()
    add(lance, {"name": "c", "computed": "x"}, branch="main")
    assert rows()["c"] == [None] * 3


@shared_cases("kind", ["expression", "computed"])
@shared_cases(
    ("code", "expression", "error"),
    [
        (12, "nope + 1", "nope"),
        (12, "`not there`", "not there"),
        (12, "n.nope", "n"),
        (12, "_rowid", "_rowid"),
        (13, "x +", "Expression is not valid"),
        (13, "", ""),
        (13, "sum(x)", "AggregateFunction"),
        (13, "row_number() over ()", "WindowFunction"),
        (13, "(select 1)", "not supported SQL"),
        (13, "nofunction(x)", "nofunction"),
        (13, "x + 'a'", "could not convert"),
        (13, "cast('a' as int)", "Cannot cast"),
    ],
)
@pytest.mark.usefixtures("table")
def test_bad_expressions(lance, kind, code, expression, error):
    body = {"new_columns": [{"name": "c", kind: expression}]}
    response = lance.refused(404 if code == 12 else 400, code, error, PATH, body)
    assert len(response.json()["error"]) < 300


def test_rows_for_which_an_expression_fails(lance, table):
    body = {"new_columns": [{"name": "c", "expression": "x / 0"}]}
    lance.refused(400, 13, "Divide by zero", PATH, body)
    body = {"new_columns": [{"name": "c", "expression": "cast(s as int)"}]}
    lance.refused(400, 13, "Cannot cast", PATH, body)


@pytest.mark.parametrize("call", ["random()", "now()", "uuid ()", "current_date", "1 + RANDOM()"])
def test_a_computed_column_always_has_the_same_value(lance, table, call):
    body = {"new_columns": [{"name": "c", "computed": f"concat(s, {call})"}]}
    lance.refused(400, 13, "the same value every time", PATH, body)


@shared_cases("kind", ["expression", "computed"])
@shared_cases(
    ("name", "error"),
    [
        ("", "name"),
        ("x", "already exists"),
        ("a.b", "cannot contain"),
        ("n.b", "cannot contain"),
        ("a`b", "backtick"),
        ("_rowid", "_rowid"),
    ],
)
def test_bad_names(lance, table, kind, name, error):
    lance.refused(400, 13, error, PATH, {"new_columns": [{"name": name, kind: "x"}]})


@shared_cases(
    ("columns", "error"),
    [
        ([], "nothing to add"),
        ([{"name": "c"}], "needs an 'expression' or 'computed'"),
        ([{"expression": "x"}], "name"),
        ([{"name": "c", "expression": "x", "computed": "x"}], "'expression' and 'computed'"),
        ([{"name": "c", "expression": "x"}] * 2, "added twice"),
        ([{"name": "c", "expression": "x"}, {"name": "d", "computed": "x"}], "at once"),
        ([{"name": 1, "expression": "x"}], "name"),
        ([{"name": "c", "expression": 1}], "expression"),
        ([{"name": "c", "expression": "x"}, {"name": "d", "expression": "c"}], "c"),
    ],
)
def test_malformed_columns(lance, table, columns, error):
    status, code = (404, 12) if error == "c" else (400, 13)
    lance.refused(status, code, error, PATH, {"new_columns": columns})


def test_fields_inside_a_map_are_refused(lance):
    data = {"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}
    make_lance_table(("w", "t"), pa.table(data))
    body = {"new_columns": [{"name": "c", "expression": "m.key"}]}
    lance.refused(406, 0, "could not evaluate", PATH, body)


def test_a_virtual_column_is_refused(lance, table):
    virtual = {
        "input_columns": ["x"],
        "outputs": [],
        "image": "python:3",
        "udf": "gASV",
        "udf_name": "f",
        "udf_version": "1",
    }
    body = {"new_columns": [{"name": "c", "virtual_column": virtual}]}
    lance.refused(406, 0, "does not run pickled code", PATH, body)


def test_refusals(lance, table):
    make_table("w", "declared")
    body = {"new_columns": [{"name": "c", "expression": "x"}]}
    lance.refused(404, 22, "no branch 'x'", PATH, {**body, "branch": "x"})
    lance.refused(404, 4, "w.u", "/v1/table/w$u/add_columns", body)
    lance.refused(409, 19, "declared", "/v1/table/w$declared/add_columns", body)
