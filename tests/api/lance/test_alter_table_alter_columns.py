import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, TableVersion, Transaction
from catalog.services.lance import datasets as lance_datasets
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, register_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("AlterTableAlterColumns")]

PATH = "/v1/table/w$t/alter_columns"


@pytest.fixture
def table(db):
    nested = pa.array([{"a b": 1, "c.e": 2, "l": [1]}] * 2)
    data = {"x": [1, 2], "s": ["a", "b"], "n": nested, 'größe "x"': [1, 2], "nulls": [1, None]}
    made = pa.table(data)
    noted = made.schema.field("x").with_metadata({"note": "kept"})
    make_lance_table(("w", "t"), made.cast(made.schema.set(0, noted)))


def schema(**options) -> pa.Schema:
    return lance_datasets.read(actor=SYSTEM, table=("w", "t"), **options).schema


def rows() -> dict:
    return lance_datasets.read(actor=SYSTEM, table=("w", "t")).to_table().to_pydict()


def alter(lance, *alterations, **more):
    return lance.post(PATH, {"alterations": list(alterations), **more})


def test_several_fields_in_one_version(lance, table):
    answer = alter(
        lance,
        {"path": "s", "rename": "text"},
        {"path": '`größe "x"`', "rename": "größe 'x'"},
        {"path": "n.`c.e`", "rename": "a.b"},
        {"path": "n.a b", "data_type": {"type": "int32"}},
    )
    assert answer == {"version": 2}
    assert schema().names == ["x", "text", "n", "größe 'x'", "nulls"]
    assert [(f.name, f.type) for f in schema().field("n").type.fields][1] == ("a.b", pa.int64())
    assert rows()["n"] == [{"a b": 1, "a.b": 2, "l": [1]}] * 2


def test_is_audited(lance, table):
    alter(lance, {"path": "s", "rename": "t"}, {"path": "n.a b", "data_type": {"type": "int8"}})
    event = AuditEvent.objects.get(action="table.alter_columns")
    assert event.after["version"] == 2
    assert event.after["alterations"] == [
        {"path": "s", "name": "t"},
        {"path": "n.`a b`", "data_type": "int8"},
    ]
    operations = Transaction.objects.get(pk=event.transaction_id).operations
    assert [operation["operation"] for operation in operations] == ["AlterTableAlterColumns"]


def test_nullability_is_changed(lance, table):
    alter(lance, {"path": "x", "nullable": False}, {"path": "s", "nullable": False})
    assert [field.nullable for field in schema()] == [False, False, True, True, True]
    alter(lance, {"path": "x", "nullable": True, "rename": "y"})
    assert [field.nullable for field in schema()] == [True, False, True, True, True]


def test_a_name_with_a_backtick_can_be_changed(lance, db):
    register_lance_table(("w", "t"), pa.table({"we`ird": [1, 2]}))
    alter(lance, {"path": "`we``ird`", "rename": "plain"})
    assert rows() == {"plain": [1, 2]}


def test_two_fields_swap_their_names(lance, table):
    alter(lance, {"path": "x", "rename": "nulls"}, {"path": "nulls", "rename": "x"})
    assert (rows()["x"], rows()["nulls"]) == ([1, None], [1, 2])


@pytest.mark.parametrize(
    ("path", "data_type", "expected"),
    [
        ("nulls", {"type": "float64"}, None),
        ("x", {"type": "int32"}, pa.int32()),
        ("x", "int16", pa.int16()),
        ("s", {"type": "large_utf8"}, pa.large_string()),
        ("s", {"type": "large_string"}, pa.large_string()),
        ("n.l.item", {"type": "int32"}, None),
        (
            "n.l",
            {
                "type": "large_list",
                "fields": [{"name": "item", "nullable": True, "type": {"type": "int64"}}],
            },
            None,
        ),
    ],
)
def test_types(lance, table, path, data_type, expected):
    response = lance.call("POST", PATH, {"alterations": [{"path": path, "data_type": data_type}]})
    if response.status_code == 400:  # what Lance does not cast
        assert "Cannot cast" in response.json()["error"]
        assert expected is None
    else:
        assert response.status_code == 200, response.content
        assert expected is None or schema().field(path).type == expected


def test_a_field_of_another_type_keeps_its_metadata(lance, table):
    answer = alter(lance, {"path": "x", "rename": "y", "data_type": {"type": "int32"}})
    assert answer == {"version": 3}
    field = schema().field("y")
    assert (field.type, field.metadata) == (pa.int32(), {b"note": b"kept"})
    assert rows()["y"] == [1, 2]
    assert list(TableVersion.objects.order_by("version").values_list("version", flat=True)) == [
        1,
        2,
        3,
    ]


def test_on_a_branch(lance, table):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    alter(lance, {"path": "s", "rename": "t"}, branch="dev")
    assert schema(branch="dev").names[1] == "t"
    assert schema().names[1] == "s"
    alter(lance, {"path": "s", "rename": "u"}, branch="main")
    assert schema().names[1] == "u"


@shared_cases("path", ["nope", "X", "item", "n.nope", "a b", "n.c.e", "x.y"])
def test_unknown_columns(lance, table, path):
    body = {"alterations": [{"path": path, "rename": "y"}]}
    lance.refused(404, 12, "does not exist", PATH, body)


@shared_cases(
    ("alterations", "error"),
    [
        ([], "nothing to alter"),
        ([{"rename": "y"}], "path"),
        ([{"path": "", "rename": "y"}], "path"),
        ([{"path": "n.", "rename": "y"}], "malformed"),
        ([{"path": "x"}], "needs one of"),
        ([{"path": "x", "rename": None, "nullable": None}], "needs one of"),
        ([{"path": "x", "rename": ""}], "name"),
        ([{"path": "x", "rename": "_rowid"}], "_rowid"),
        ([{"path": "x", "rename": "a`b"}], "backtick"),
        ([{"path": "x", "rename": "s"}], "Duplicate field name"),
        ([{"path": "x", "rename": "a.b"}], "cannot contain"),
        ([{"path": "x", "rename": 1}], "rename"),
        ([{"path": "x", "rename": "y"}, {"path": "`x`", "nullable": True}], "altered twice"),
        ([{"path": "nulls", "nullable": False}], "contains NULL"),
        ([{"path": "x", "nullable": "no"}], "nullable"),
        ([{"path": "x", "data_type": {"type": "utf8"}}], "Cannot cast"),
        ([{"path": "n", "data_type": {"type": "int8"}}], "Cannot cast"),
        ([{"path": "x", "data_type": {"type": "int99"}}], "'int99' is not known"),
        ([{"path": "x", "data_type": {"type": "dict:int8:utf8"}}], "is not known"),
        ([{"path": "x", "data_type": {}}], "not an Arrow type"),
        ([{"path": "x", "data_type": {"type": 1}}], "not an Arrow type"),
        ([{"path": "x", "data_type": 1}], "data_type"),
        ([{"path": "x", "data_type": {"type": "decimal128"}}], "length"),
        ([{"path": "x", "data_type": {"type": "time32"}}], "unit"),
        ([{"path": "x", "data_type": {"type": "list"}}], "fields"),
        ([{"path": "x", "data_type": {"type": "int8"}, "nullable": False}], "same call"),
    ],
)
def test_malformed_alterations(lance, table, alterations, error):
    lance.refused(400, 13, error, PATH, {"alterations": alterations})


def test_a_value_that_does_not_fit(lance, table):
    lance.post("/v1/table/w$t/update", {"updates": [["x", "1000"]]})
    body = {"alterations": [{"path": "x", "data_type": {"type": "int8"}}]}
    lance.refused(400, 13, "1000", PATH, body)


def test_inputs_of_computed_columns_are_protected(lance, table):
    columns = [{"name": "c", "computed": "n.`c.e` + 1"}, {"name": "d", "computed": "x"}]
    lance.post("/v1/table/w$t/add_columns", {"new_columns": columns})
    for alteration in (
        {"path": "n", "rename": "m"},
        {"path": "n.`c.e`", "rename": "m"},
        {"path": "n.`c.e`", "data_type": {"type": "int8"}},
    ):
        lance.refused(400, 13, "read by computed column 'c'", PATH, {"alterations": [alteration]})
    body = {"alterations": [{"path": "c", "data_type": {"type": "int8"}}]}
    lance.refused(400, 13, "is computed", PATH, body)
    alter(lance, {"path": "n.a b", "rename": "z"}, {"path": "c", "rename": "k"})
    alter(lance, {"path": "x", "nullable": False})
    assert schema().field("k").metadata[b"computed_column.expression"] == b"n.`c.e` + 1"


def test_a_virtual_column_is_refused(lance, table):
    body = {"alterations": [{"path": "x", "virtual_column": {"udf": "gASV"}}]}
    lance.refused(406, 0, "does not run pickled code", PATH, body)


def test_refusals(lance, table):
    make_table("w", "declared")
    body = {"alterations": [{"path": "x", "rename": "y"}]}
    lance.refused(404, 22, "no branch 'x'", PATH, {**body, "branch": "x"})
    lance.refused(404, 4, "w.u", "/v1/table/w$u/alter_columns", body)
    lance.refused(409, 19, "declared", "/v1/table/w$declared/alter_columns", body)
