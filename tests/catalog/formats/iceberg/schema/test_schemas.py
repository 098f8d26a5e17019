import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.schema import schemas
from tests.catalog.formats.iceberg.examples import column, schema


def refused(bad):
    with pytest.raises(InvalidMetadata) as caught:
        schemas.index(bad, "schema")
    return caught.value.message


def struct(*fields):
    return {"type": "struct", "fields": list(fields)}


def list_of(element, id_=50):
    return {"type": "list", "element-id": id_, "element": element, "element-required": True}


def test_columns_are_named_in_full():
    columns = schemas.index(schema(), "schema")
    assert {id_: c.name for id_, c in columns.items()} == {
        1: "id", 2: "ts", 3: "name", 4: "place", 6: "place.city", 5: "tags", 7: "tags.element",
    }  # fmt: skip
    assert schemas.highest_id(columns) == 7
    assert schemas.highest_id({}) == 0


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (column(1, "x"), "schema.fields[5]: field id 1 is that of 'id' too"),
        (column(7, "x"), "schema.fields[5]: field id 7 is that of 'tags.element' too"),
        (column(8, "id"), "schema.fields[5]: there are two columns named 'id'"),
        (column(8, "place.city"), "schema.fields[5]: there are two columns named 'place.city'"),
        (column(8, "x", "strin"), "schema.fields[5].type: unknown type 'strin'"),
        (column(8, "x", {"type": "set"}), "schema.fields[5].type.type: unknown type 'set'"),
        (
            column(8, "x", 5),
            "schema.fields[5].type must be a type's name or an object, not an integer",
        ),
        (column(8, "x", {"type": "list"}), "schema.fields[5].type.element-id is missing"),
        (
            column(8, "x", {"type": "map", "key-id": 9, "key": "string", "value-id": "y"}),
            "schema.fields[5].type.value-id must be an integer, not a string",
        ),
        (
            column(8, "x", {"type": "struct", "fields": [{"id": 9, "name": "y", "type": "int"}]}),
            "schema.fields[5].type.fields[0].required is missing",
        ),
        ({"id": 8, "type": "int", "required": True}, "schema.fields[5].name is missing"),
        (
            column(8, "x", "unknown", required=True),
            "schema.fields[5]: a column of type unknown must be optional",
        ),
        (
            {**column(8, "x", "int"), "write-default": 2**31},
            "schema.fields[5].write-default: an integer is no default of a column of type int",
        ),
        (
            {**column(8, "x", list_of("int")), "initial-default": []},
            "schema.fields[5].initial-default of a nested column must be null",
        ),
        ("x", "schema.fields[5] must be an object, not a string"),
    ],
    ids=lambda value: value if isinstance(value, str) else "field",
)
def test_a_malformed_schema_is_refused(field, message):
    assert refused(schema(field)) == message


def test_types_are_nested_to_a_limit():
    def nested(levels):
        type_ = "int"
        for level in range(levels):
            type_ = struct(column(1_000 + level, "x", type_))
        return struct(column(1, "top", type_))

    schemas.index(nested(schemas.MAX_DEPTH), "schema")
    assert refused(nested(schemas.MAX_DEPTH + 1)).endswith("nested deeper than 50 levels")


@pytest.mark.parametrize(
    ("id_", "cause"),
    [
        (99, "there is no column with id 99"),
        (2, "'ts' must be required, in required structs only"),
        (10, "'reading' is of a type that identifies no row"),
        (14, "'ratio' is of a type that identifies no row"),
        (15, "'payload' is of a type that identifies no row"),
        (11, "'box' is of a type that identifies no row"),
        (12, "'box.key' must be required, in required structs only"),
        (50, "'list.element' must be required, in required structs only"),
    ],
)
def test_identifier_fields_and_their_parents_must_be_required(id_, cause):
    bad = schema(
        column(10, "reading", "double", required=True),
        column(11, "box", struct(column(12, "key", "long", required=True))),
        column(13, "list", list_of("long"), required=True),
        column(14, "ratio", "float", required=True),
        column(15, "payload", "variant", required=True),
        **{"identifier-field-ids": [1, id_]},
    )
    assert refused(bad) == f"schema.identifier-field-ids[1]: {cause}"


def test_an_identifier_field_may_be_in_a_required_struct():
    inner = struct(column(12, "key", "long", required=True))
    good = schema(column(11, "box", inner, required=True), **{"identifier-field-ids": [12]})
    assert 12 in schemas.index(good, "schema")


@pytest.mark.parametrize(
    "type_",
    ["timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geometry(srid:1)",
     "geography", "geography(srid:1, karney)"],
)  # fmt: skip
def test_types_of_v3_are_refused_in_earlier_versions(type_):
    for column_ in (column(8, "n", type_), column(8, "n", list_of(type_))):
        if type_ == "unknown" and isinstance(column_["type"], dict):
            continue  # a required element cannot be unknown
        columns = schemas.index(schema(column_), "schema")
        schemas.check_version(columns, 3, "schema")
        with pytest.raises(InvalidMetadata, match="is not supported until v3"):
            schemas.check_version(columns, 2, "schema")


def test_initial_defaults_require_v3_and_write_defaults_do_not():
    initial = schemas.index(schema({**column(8, "n"), "initial-default": "-"}), "schema")
    schemas.check_version(initial, 3, "schema")
    with pytest.raises(InvalidMetadata, match="'n': an initial default is not supported until v3"):
        schemas.check_version(initial, 2, "schema")
    write = schemas.index(schema({**column(8, "n"), "write-default": "-"}), "schema")
    schemas.check_version(write, 1, "schema")


def test_fresh_ids_are_assigned_breadth_first():
    map_ = {
        "type": "map", "key-id": 90, "key": struct(column(91, "k", "int")), "value-id": 92,
        "value": "int", "value-required": False,
    }  # fmt: skip
    numbered = struct(
        column(70, "a", struct(column(60, "x"), column(50, "y", list_of("int", 40)))),
        column(30, "b", map_),
        column(20, "c", required=True),
    )
    numbered["identifier-field-ids"] = [20]
    fresh, moved = schemas.fresh(numbered)
    assert moved == {70: 1, 30: 2, 20: 3, 60: 4, 50: 5, 40: 6, 90: 7, 92: 8, 91: 9}
    assert fresh["identifier-field-ids"] == [3]
    assert (fresh["type"], fresh["schema-id"]) == ("struct", 0)
    assert {id_: c.name for id_, c in schemas.index(fresh, "").items()} == {
        moved[id_]: c.name for id_, c in schemas.index(numbered, "").items()
    }
    assert numbered["fields"][0]["id"] == 70


def test_equal_schemas_may_have_different_notations():
    original = schema(
        column(8, "n", "decimal(9,2)"), **{"schema-id": 4, "identifier-field-ids": [1]}
    )
    two = schema({**column(8, "n", "decimal(9, 2)"), "doc": None})
    two["identifier-field-ids"] = [1]
    del two["type"]
    assert schemas.same(original, two)
    for other in (
        schema(column(8, "n", "decimal(9,3)")),
        schema({**column(8, "n", "decimal(9,2)"), "doc": "d"}),
        schema({**column(8, "n", "decimal(9,2)"), "write-default": "1.00"}),
    ):
        other["identifier-field-ids"] = [1]
        assert not schemas.same(original, other)
    assert not schemas.same(original, schema(column(8, "n", "decimal(9,2)")))


def test_fields_are_optional_by_default():
    element = {"type": "list", "element-id": 3, "element": "int"}
    map_type = {
        "type": "map",
        "key-id": 1,
        "key": "string",
        "value-id": 2,
        "value": element,
        "value-required": None,
    }
    fields = [{"id": 0, "name": "a", "required": False, "type": map_type}]
    completed = schemas.completed({"type": "struct", "fields": fields})
    assert completed["fields"][0]["type"] == {
        **map_type,
        "value-required": False,
        "value": {**element, "element-required": False},
    }
    assert "element-required" not in element
