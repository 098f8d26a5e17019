"""Every field of updates and requirements, absent, null and empty, compared with Java's parsers.

The reference is Iceberg 1.11's SchemaParser, PartitionSpecParser, SortOrderParser, SnapshotParser,
SnapshotRefParser, StatisticsFileParser, PartitionStatisticsFileParser, EncryptedKeyParser,
MetadataUpdateParser, UpdateRequirementParser and ViewVersionParser. In a row, ``.`` is accepted here
and ``x`` refused, for absent, null and empty in turn; then the same of Java's parser. Nothing that it
accepts is refused here, but for the rows of EXCEPTIONS.
"""

from typing import Any

import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata import requirements, updates
from catalog.formats.iceberg.views import documents as view_documents
from tests.catalog.formats.iceberg.examples import (
    UUID,
    column,
    order,
    schema,
    snapshot,
    spec,
    table,
)
from tests.leniency import changed, rows

NESTED = {"type": "list", "element-id": 10, "element": "string", "element-required": True}
MAP = {
    "type": "map", "key-id": 11, "key": "string", "value-id": 12, "value": "long",
    "value-required": False,
}  # fmt: skip
STATISTICS = {
    "snapshot-id": 1, "statistics-path": "s3://b/s", "file-size-in-bytes": 1,
    "file-footer-size-in-bytes": 1,
    "blob-metadata": [
        {"type": "t", "snapshot-id": 1, "sequence-number": 1, "fields": [1], "properties": {}}
    ],
}  # fmt: skip
PARTITION_STATISTICS = {"snapshot-id": 1, "statistics-path": "s3://b/p", "file-size-in-bytes": 1}
KEY = {
    "key-id": "k", "encrypted-key-metadata": "AAAA", "encrypted-by-id": "i", "properties": {},
}  # fmt: skip
FULL_SCHEMA = {
    **schema(
        {**column(8, "more", NESTED), "doc": "d", "initial-default": None, "write-default": None},
        column(9, "map", MAP),
    ),
    "schema-id": 1,
    "identifier-field-ids": [1],
}
FULL_SPEC = spec((1, "bucket[4]", "b"), **{"spec-id": 1})
FULL_SPEC["fields"][0]["field-id"] = 1001

UPDATES: dict[str, dict[str, Any]] = {
    "assign-uuid": {"uuid": UUID},
    "upgrade-format-version": {"format-version": 3},
    "add-schema": {"schema": FULL_SCHEMA, "last-column-id": 12},
    "set-current-schema": {"schema-id": 0},
    "add-spec": {"spec": FULL_SPEC},
    "set-default-spec": {"spec-id": 0},
    "add-sort-order": {"sort-order": order(1)},
    "set-default-sort-order": {"sort-order-id": 1},
    "add-snapshot": {"snapshot": snapshot(2, 1, 3, **{"key-id": "k"})},
    "set-snapshot-ref": {
        "ref-name": "b", "snapshot-id": 1, "type": "branch", "min-snapshots-to-keep": 1,
        "max-snapshot-age-ms": 1, "max-ref-age-ms": 1,
    },
    "remove-snapshots": {"snapshot-ids": [1]},
    "remove-snapshot-ref": {"ref-name": "main"},
    "set-location": {"location": "s3://bucket/warehouse/other"},
    "set-properties": {"updates": {"a": "b"}},
    "remove-properties": {"removals": ["a"]},
    "set-statistics": {"snapshot-id": 1, "statistics": STATISTICS},
    "remove-statistics": {"snapshot-id": 1},
    "set-partition-statistics": {"partition-statistics": PARTITION_STATISTICS},
    "remove-partition-statistics": {"snapshot-id": 1},
    "remove-partition-specs": {"spec-ids": [7]},
    "remove-schemas": {"schema-ids": [7]},
    "add-encryption-key": {"encryption-key": KEY},
    "remove-encryption-key": {"key-id": "k"},
}  # fmt: skip

# path within the update, here, Java. Without fields the schema has no column for its identifier.
ROWS = """
assign-uuid uuid xxx xx.
upgrade-format-version format-version xx- xx-
add-schema schema xxx xxx
add-schema last-column-id ..- ..-
add-schema schema.schema-id ..- ..-
add-schema schema.type .xx xxx
add-schema schema.identifier-field-ids ... ...
add-schema schema.fields xxx xxx
add-schema schema.fields.0.id xx- xx-
add-schema schema.fields.0.name xx. xx.
add-schema schema.fields.0.type xxx xxx
add-schema schema.fields.0.required xx- xx-
add-schema schema.fields.5.doc ... ...
add-schema schema.fields.5.initial-default ..x ..x
add-schema schema.fields.5.write-default ..x ..x
add-schema schema.fields.5.type.element-id xx- xx-
add-schema schema.fields.5.type.element xxx xxx
add-schema schema.fields.5.type.element-required ..- xx-
add-schema schema.fields.6.type.key-id xx- xx-
add-schema schema.fields.6.type.key xxx xxx
add-schema schema.fields.6.type.value-id xx- xx-
add-schema schema.fields.6.type.value xxx xxx
add-schema schema.fields.6.type.value-required ..- xx-
set-current-schema schema-id xx- xx-
add-spec spec xxx xxx
add-spec spec.spec-id ..- xx-
add-spec spec.fields xx. xx.
add-spec spec.fields.0.source-id xx- xx-
add-spec spec.fields.0.transform xxx xx.
add-spec spec.fields.0.name xxx xx.
add-spec spec.fields.0.field-id ..- .x-
set-default-spec spec-id xx- xx-
add-sort-order sort-order xxx xxx
add-sort-order sort-order.order-id ..- xx-
add-sort-order sort-order.fields xx. xx.
add-sort-order sort-order.fields.0.source-id xx- xx-
add-sort-order sort-order.fields.0.transform xxx xx.
add-sort-order sort-order.fields.0.direction xxx xxx
add-sort-order sort-order.fields.0.null-order xxx xxx
set-default-sort-order sort-order-id xx- xx-
add-snapshot snapshot xxx xxx
add-snapshot snapshot.snapshot-id xx- xx-
add-snapshot snapshot.parent-snapshot-id ..- .x-
add-snapshot snapshot.sequence-number xx- .x-
add-snapshot snapshot.timestamp-ms xx- xx-
add-snapshot snapshot.manifest-list xxx xx.
add-snapshot snapshot.summary ... .x.
add-snapshot snapshot.summary.operation .xx .x.
add-snapshot snapshot.schema-id ..- ..-
add-snapshot snapshot.first-row-id xx- ..-
add-snapshot snapshot.added-rows xx- ..-
add-snapshot snapshot.key-id ... ...
set-snapshot-ref ref-name xxx xx.
set-snapshot-ref snapshot-id xx- xx-
set-snapshot-ref type xxx xxx
set-snapshot-ref min-snapshots-to-keep ..- ..-
set-snapshot-ref max-snapshot-age-ms ..- ..-
set-snapshot-ref max-ref-age-ms ..- ..-
remove-snapshots snapshot-ids xx. xx.
remove-snapshot-ref ref-name xxx xx.
set-location location xxx xx.
set-properties updates xx. xx.
remove-properties removals xx. xx.
set-statistics snapshot-id ..- ..-
set-statistics statistics xxx xxx
set-statistics statistics.snapshot-id xx- xx-
set-statistics statistics.statistics-path xxx xx.
set-statistics statistics.file-size-in-bytes xx- xx-
set-statistics statistics.file-footer-size-in-bytes xx- xx-
set-statistics statistics.blob-metadata xx. xx.
set-statistics statistics.blob-metadata.0.type xx. xx.
set-statistics statistics.blob-metadata.0.snapshot-id xx- xx-
set-statistics statistics.blob-metadata.0.sequence-number xx- xx-
set-statistics statistics.blob-metadata.0.fields xx. xx.
set-statistics statistics.blob-metadata.0.properties ... .x.
remove-statistics snapshot-id xx- xx-
set-partition-statistics partition-statistics xxx xxx
set-partition-statistics partition-statistics.snapshot-id xx- xx-
set-partition-statistics partition-statistics.statistics-path xxx xx.
set-partition-statistics partition-statistics.file-size-in-bytes xx- xx-
remove-partition-statistics snapshot-id xx- xx-
remove-partition-specs spec-ids xx. xx.
remove-schemas schema-ids xx. xx.
add-encryption-key encryption-key xxx xxx
add-encryption-key encryption-key.key-id xxx xx.
add-encryption-key encryption-key.encrypted-key-metadata xx. xx.
add-encryption-key encryption-key.encrypted-by-id ... ...
add-encryption-key encryption-key.properties ... .x.
remove-encryption-key key-id xx. xx.
"""

REQUIREMENTS: dict[str, dict[str, Any]] = {
    "assert-table-uuid": {"uuid": UUID},
    "assert-ref-snapshot-id": {"ref": "main", "snapshot-id": 1},
    "assert-last-assigned-field-id": {"last-assigned-field-id": 7},
    "assert-current-schema-id": {"current-schema-id": 0},
    "assert-last-assigned-partition-id": {"last-assigned-partition-id": 1000},
    "assert-default-spec-id": {"default-spec-id": 0},
    "assert-default-sort-order-id": {"default-sort-order-id": 1},
}
# For an existing reference, an absent or null snapshot asserts that the reference is missing.
REQUIREMENT_ROWS = """
assert-table-uuid uuid xxx xx.
assert-ref-snapshot-id ref xxx xx.
assert-ref-snapshot-id snapshot-id ..- ..-
assert-last-assigned-field-id last-assigned-field-id xx- xx-
assert-current-schema-id current-schema-id xx- xx-
assert-last-assigned-partition-id last-assigned-partition-id xx- xx-
assert-default-spec-id default-spec-id xx- xx-
assert-default-sort-order-id default-sort-order-id xx- xx-
"""

VIEW = {
    "version-id": 1, "schema-id": 0, "timestamp-ms": 1, "summary": {"engine-name": "spark"},
    "default-catalog": "c", "default-namespace": ["ns"],
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
}  # fmt: skip
VIEW_ROWS = """
view version-id xx- xx-
view schema-id xx- xx-
view timestamp-ms xx- xx-
view summary xx. xx.
view default-catalog ... ...
view default-namespace xx. xx.
view representations xxx xx.
view representations.0.type xxx xx.
view representations.0.sql xxx xx.
view representations.0.dialect xxx xx.
"""

EXCEPTIONS = {
    # No name, path, uuid or key is empty; no transform either, nor a view without a query.
    *((2, path) for path in (
        "uuid", "ref", "ref-name", "location", "spec.fields.0.name", "spec.fields.0.transform",
        "sort-order.fields.0.transform", "snapshot.manifest-list", "snapshot.summary.operation",
        "statistics.statistics-path", "partition-statistics.statistics-path",
        "encryption-key.key-id", "representations", "representations.0.type",
        "representations.0.sql", "representations.0.dialect",
    )),
    # Sequence numbers and row ids cannot be made up: Java refuses them behind its parser.
    *((form, path) for form in (0, 1) for path in (
        "snapshot.sequence-number", "snapshot.first-row-id", "snapshot.added-rows",
    )),
}  # fmt: skip


def base() -> dict[str, Any]:
    first = {"action": "add-snapshot", "snapshot": snapshot(1, None, 3)}
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
    return updates.apply(table(3), [first, main], now_ms=3_000)


def outcome(call: Any, pattern: str, body: dict[str, Any], path: str) -> str:
    sign = ""
    for form in range(3):
        if pattern[form] == "-":  # a number or a boolean is never empty
            sign += "-"
            continue
        try:
            call(changed(body, path, form))
            sign += "."
        except InvalidMetadata:
            sign += "x"
    return sign


@pytest.mark.parametrize(("action", "path", "here", "java"), rows(ROWS))
def test_fields_of_table_updates(action, path, here, java):
    document = base()

    def apply(update: dict[str, Any]) -> None:
        updates.apply(document, [{"action": action, **update}], now_ms=4_000)

    apply(UPDATES[action])
    assert outcome(apply, here, UPDATES[action], path) == here


@pytest.mark.parametrize(("name", "path", "here", "java"), rows(REQUIREMENT_ROWS))
def test_fields_of_requirements(name, path, here, java):
    def read(requirement: dict[str, Any]) -> None:
        try:
            requirements.check([{"type": name, **requirement}], base())
        except requirements.RequirementFailed:
            assert path == "snapshot-id"

    read(REQUIREMENTS[name])
    assert outcome(read, here, REQUIREMENTS[name], path) == here


@pytest.mark.parametrize(("_", "path", "here", "java"), rows(VIEW_ROWS))
def test_fields_of_view_versions(_, path, here, java):
    def create(version: dict[str, Any]) -> None:
        view_documents.new_view(
            schema=schema(), view_version=version, location="s3://b/v", properties=None, now_ms=1
        )

    create(VIEW)
    assert outcome(create, here, VIEW, path) == here


@pytest.mark.parametrize("text", [ROWS, REQUIREMENT_ROWS, VIEW_ROWS])
def test_input_accepted_by_java_is_accepted(text):
    stricter = {
        (form, path)
        for _, path, here, java in rows(text)
        for form in range(3)
        if java[form] == "." and here[form] == "x"
    }
    assert stricter <= EXCEPTIONS


def test_every_update_and_requirement_is_in_the_table():
    assert {row[0] for row in rows(ROWS)} | {"add-partition-spec"} == updates.ACTIONS
    assert len({row[0] for row in rows(REQUIREMENT_ROWS)}) == 7  # assert-create has no field


@pytest.mark.parametrize(
    ("sent", "stored"),
    [("LONG", "long"), ("Decimal(9, 2)", "decimal(9, 2)"), ("FIXED[4]", "fixed[4]"),
     ("Geometry(srid:ABC)", "geometry(srid:ABC)")],
)  # fmt: skip
def test_names_of_types_in_any_case(sent, stored):
    update = {"action": "add-schema", "schema": schema(column(8, "c", sent))}
    made = updates.apply(table(3), [update], now_ms=2_000)
    assert made["schemas"][-1]["fields"][-1]["type"] == stored


def test_words_of_specs_and_orders_in_any_case():
    sort = {
        "source-id": 3,
        "transform": "IDENTITY",
        "direction": "DESC",
        "null-order": "Nulls-Last",
    }
    requested = [
        {"action": "add-spec", "spec": spec((1, "Bucket[4]", "B"))},
        {"action": "add-sort-order", "sort-order": {"order-id": 2, "fields": [sort]}},
    ]
    made = updates.apply(table(), requested, now_ms=2_000)
    assert made["partition-specs"][-1]["fields"][0] | {"field-id": 0} == {
        "source-id": 1, "transform": "bucket[4]", "name": "B", "field-id": 0,
    }  # fmt: skip
    assert made["sort-orders"][-1]["fields"] == [
        {
            "source-id": 3,
            "transform": "identity",
            "direction": "desc",
            "null-order": "nulls-last",
        }
    ]


@pytest.mark.parametrize(
    ("summary", "stored"),
    [
        ({"added-records": "1"}, {"operation": "overwrite", "added-records": "1"}),
        ({}, None),
        (None, None),
    ],
)
def test_a_summary_without_an_operation(summary, stored):
    update = {"action": "add-snapshot", "snapshot": {**snapshot(1), "summary": summary}}
    made = updates.apply(table(), [update], now_ms=3_000)
    assert made["snapshots"][0].get("summary") == stored
