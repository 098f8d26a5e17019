"""Types that a column may change to, and transforms of several columns (spec, v3)."""

import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.metadata import requirements, updates

ALLOWED = [
    (1, "int", "long"),
    (1, "float", "double"),
    (1, "decimal(9,2)", "decimal(10, 2)"),
    (3, "date", "timestamp"),
    (3, "date", "timestamp_ns"),
    (3, "unknown", "string"),
]
REFUSED = [
    (2, "long", "string"),
    (2, "long", "int"),
    (2, "double", "float"),
    (2, "int", "double"),
    (2, "decimal(9,2)", "decimal(8,2)"),
    (2, "decimal(9,2)", "decimal(12,3)"),
    (2, "date", "timestamp"),
    (3, "date", "timestamptz"),
    (3, "timestamp", "timestamp_ns"),
    (2, "string", "binary"),
    (2, "string", {"type": "struct", "fields": []}),
    (2, {"type": "list", "element-id": 2, "element": "int", "element-required": True}, "string"),
]


def column(type_, id_=1, name="c"):
    return {"id": id_, "name": name, "type": type_, "required": False}


def table(type_, version=2, spec=None):
    return metadata_documents.new_table(
        schema={"type": "struct", "fields": [column(type_)]},
        partition_spec=spec,
        location="file:///t",
        properties={"format-version": str(version)},
        now_ms=1,
    )


def add(*columns):
    return {"action": "add-schema", "schema": {"type": "struct", "fields": list(columns)}}


CURRENT = {"action": "set-current-schema", "schema-id": -1}


def apply(base, *changes, **options):
    return updates.apply(base, list(changes), now_ms=2, **options)


@pytest.mark.parametrize(("version", "before", "after"), ALLOWED)
def test_promotions_of_the_specification(version, before, after):
    changed = apply(table(before, version), add(column(after)), CURRENT)
    assert changed["schemas"][-1]["fields"][0]["type"] == after


@pytest.mark.parametrize(("version", "before", "after"), REFUSED)
def test_other_changes_are_refused(version, before, after):
    with pytest.raises(InvalidMetadata, match=r"^updates\[0\]\.schema: column 'c' \(id 1\) cannot"):
        apply(table(before, version), add(column(after)), CURRENT)


def test_promotions_apply_to_nested_fields():
    nested = {"type": "list", "element-id": 2, "element": "int", "element-required": False}
    base = table(nested)
    wider = apply(base, add(column({**nested, "element": "long"})), CURRENT)
    assert wider["schemas"][-1]["fields"][0]["type"]["element"] == "long"
    with pytest.raises(InvalidMetadata, match=r"'c\.element' \(id 2\) cannot change from int"):
        apply(base, add(column({**nested, "element": "string"})))


def test_the_id_of_a_dropped_column_keeps_its_type():
    base = apply(table("long"), add(column("string", 2, "d")), CURRENT)
    with pytest.raises(InvalidMetadata, match=r"\(id 1\) cannot change from long to string"):
        apply(base, add(column("string", 1, "again"), column("string", 2, "d")))
    back = apply(base, add(column("long", 1, "again"), column("string", 2, "d")), CURRENT)
    assert back["current-schema-id"] == 2


def test_an_older_schema_may_become_current_again():
    base = apply(table("int"), add(column("long")), CURRENT)
    again = apply(base, add(column("int")), CURRENT)
    assert again["current-schema-id"] == 0


@pytest.mark.parametrize(
    ("transform", "fits"), [("day", True), ("identity", False), ("bucket[4]", False)]
)
def test_a_partition_source_keeps_its_transform_result(transform, fits):
    spec = {"fields": [{"source-id": 1, "name": "p", "transform": transform}]}
    base = table("date", 3, spec)
    if fits:
        assert apply(base, add(column("timestamp")), CURRENT)["current-schema-id"] == 1
    else:
        with pytest.raises(InvalidMetadata, match="cannot change from date to timestamp"):
            apply(base, add(column("timestamp")), CURRENT)


def test_a_replaced_table_may_have_any_type():
    """Java keeps the ids of columns by their names when it replaces a table."""
    base = table("long")
    snapshot = {
        "snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 2, "manifest-list": "file:///t/l",
        "summary": {"operation": "append"}, "schema-id": 0,
    }  # fmt: skip
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
    filled = apply(base, {"action": "add-snapshot", "snapshot": snapshot}, main)
    with pytest.raises(InvalidMetadata, match="cannot change"):
        apply(filled, add(column("string")), CURRENT, is_replacement=True)
    away = {"action": "remove-snapshot-ref", "ref-name": "main"}
    assert apply(filled, away, add(column("string")), CURRENT)["current-schema-id"] == 1
    assert apply(base, add(column("string")), CURRENT, is_replacement=True) is not base


@pytest.mark.parametrize(
    ("types", "is_replacement"),
    [
        ([], False),
        (["assert-table-uuid"], False),
        (["assert-table-uuid", "assert-last-assigned-field-id"], True),
        (["assert-last-assigned-field-id", "assert-current-schema-id"], False),
    ],
)
def test_replacements_are_recognized(types, is_replacement):
    result = requirements.is_replacement([{"type": action} for action in types])
    assert result is is_replacement


# --- several sources ---------------------------------------------------------------------------

TWO = [column("int", 1, "a"), column("string", 2, "b")]


def of_two(version, *fields, order=None):
    return metadata_documents.new_table(
        schema={"type": "struct", "fields": TWO},
        partition_spec={"fields": list(fields)},
        write_order=order,
        location="file:///t",
        properties={"format-version": str(version)},
        now_ms=1,
    )


def field(*ids, transform="bucketv2[16]", **other):
    return {"source-ids": list(ids), "name": "p", "transform": transform, **other}


def test_a_transform_of_several_columns():
    order = {"fields": [{**field(2, 1), "direction": "asc", "null-order": "nulls-last"}]}
    made = of_two(3, field(1, 2), order=order)
    assert made["partition-specs"][0]["fields"] == [{**field(1, 2), "field-id": 1000}]
    assert made["sort-orders"][0]["fields"][0]["source-ids"] == [2, 1]
    metadata_documents.check(made)
    spec = {"fields": [field(2, 1, name="q")]}
    changed = apply(made, {"action": "add-spec", "spec": spec})
    assert changed["partition-specs"][1]["fields"] == [{**field(2, 1, name="q"), "field-id": 1001}]
    again = apply(changed, {"action": "add-spec", "spec": {"fields": [field(1, 2)]}})
    assert again is changed


def test_one_source_in_a_list_is_one_source():
    made = of_two(2, field(1, transform="bucket[4]"))
    expected = {"source-id": 1, "name": "p", "transform": "bucket[4]", "field-id": 1000}
    assert made["partition-specs"][0]["fields"] == [expected]


def test_readers_of_one_source_do_not_take_the_first_of_several():
    made = of_two(3, field(1, 2, **{"source-id": 1}))
    assert "source-id" not in made["partition-specs"][0]["fields"][0]


@pytest.mark.parametrize(
    ("version", "fields", "error"),
    [
        (2, field(1, 2), "not supported until v3"),
        (1, field(1, 2), "not supported until v3"),
        (3, field(), "must not be empty"),
        (3, field(1, 9), "no column with id 9"),
        (3, field(1, 2, transform="identity"), "is not of several columns"),
        (3, field(1, 2, transform="b[x]"), "is not of several columns"),
        (3, field(1, 2, **{"source-id": 2}), "is not the first of source-ids"),
        (3, {**field(1), "source-ids": 1}, "must be an array"),
        (3, {**field(1), "source-ids": ["1"]}, "must be an integer"),
        (3, {"name": "p", "transform": "identity"}, "source-id is missing"),
    ],
)
def test_several_sources_that_are_refused(version, fields, error):
    with pytest.raises(InvalidMetadata, match=error):
        of_two(version, fields)
