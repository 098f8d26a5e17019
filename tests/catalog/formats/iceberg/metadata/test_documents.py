import orjson
import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.metadata import updates
from tests.catalog.formats.iceberg.examples import (
    LOCATION,
    UUID,
    column,
    order,
    ref,
    schema,
    spec,
    table,
    written,
)

COMMON = {
    "format-version", "table-uuid", "location", "last-updated-ms", "last-column-id", "schemas",
    "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id", "sort-orders",
    "default-sort-order-id", "properties", "refs", "snapshots", "statistics",
    "partition-statistics", "snapshot-log", "metadata-log",
}  # fmt: skip


def made(**keys):
    return metadata_documents.new_table(schema=schema(), location=LOCATION, now_ms=1_000, **keys)


def refused(**keys):
    with pytest.raises(InvalidMetadata) as caught:
        metadata_documents.new_table(
            **{"schema": schema(), "location": LOCATION, "now_ms": 1_000, **keys}
        )
    return caught.value.message


@pytest.mark.parametrize(
    ("version", "more"),
    [
        (1, {"schema", "partition-spec", "current-snapshot-id"}),
        (2, {"last-sequence-number", "current-snapshot-id"}),
        (3, {"last-sequence-number", "next-row-id"}),
    ],
)
def test_a_new_table_has_the_fields_of_its_version(version, more):
    document = table(version)
    metadata_documents.check(document)
    assert set(document) == COMMON | more
    assert document["properties"] == {"owner": "ann"}
    assert (document["format-version"], document["table-uuid"]) == (version, UUID)
    assert (document["last-column-id"], document["last-partition-id"]) == (7, 1000)
    assert (document["current-schema-id"], document["default-sort-order-id"]) == (0, 1)
    assert metadata_documents.parse(metadata_documents.dump(document)) == document


def test_a_table_is_v2_unpartitioned_and_unsorted_by_default():
    document = made()
    assert document["format-version"] == 2
    assert document["partition-specs"] == [{"spec-id": 0, "fields": []}]
    assert document["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert document["last-partition-id"] == 999
    assert document["table-uuid"] != made()["table-uuid"]
    assert document["current-snapshot-id"] == -1


def test_sources_follow_their_columns_to_fresh_ids():
    source_schema = {"type": "struct", "fields": [column(9, "b"), column(0, "a", "timestamp")]}
    document = metadata_documents.new_table(
        schema=source_schema,
        partition_spec=spec((0, "day", "d"), (9, "identity", "b"), **{"spec-id": 4}),
        write_order=order(9),
        location=LOCATION + "/",
        now_ms=1,
    )
    assert [f["id"] for f in document["schemas"][0]["fields"]] == [1, 2]
    assert document["partition-specs"][0] == {
        "spec-id": 0,
        "fields": [
            {"source-id": 2, "field-id": 1000, "transform": "day", "name": "d"},
            {"source-id": 1, "field-id": 1001, "transform": "identity", "name": "b"},
        ],
    }
    assert document["sort-orders"] == [order(1)]
    assert document["location"] == LOCATION
    assert source_schema["fields"][0]["id"] == 9


@pytest.mark.parametrize("version", ["0", "4", "", "x", "2.0", " 2"])
def test_other_format_versions_are_refused(version):
    assert refused(properties={"format-version": version}) == (
        f"properties.format-version: {version!r} is no supported format version (supported: 1 to 3)"
    )


def test_refusals():
    assert refused(location="/") == "location must not be empty"
    assert refused(location=None) == "location must be a string, not null"
    assert refused(schema=None) == "schema must be an object, not null"
    assert refused(properties={"a": None}) == "properties['a'] must be a string, not null"
    assert refused(partition_spec=spec((99, "identity", "x"))) == (
        "partition-spec.fields[0].source-id: the schema has no column with id 99"
    )
    assert refused(partition_spec=spec((1, "day", "x"))) == (
        "partition-spec.fields[0]: column 'id' of type long does not fit transform day"
    )
    assert refused(write_order=order(5)) == (
        "write-order.fields[0]: cannot sort by non-primitive column 'tags'"
    )
    assert refused(schema=schema(column(8, "v", "variant"))) == (
        "schema: column 'v': variant is not supported until v3"
    )


def test_reserved_properties_are_dropped():
    properties = {"format-version": "3", "uuid": "x", "current-snapshot-id": "5", "a": "b"}
    document = made(properties=properties)
    assert document["properties"] == {"a": "b"}
    assert document["next-row-id"] == 0
    assert properties["format-version"] == "3"


def test_refs_only_keeps_referenced_snapshots():
    document = updates.apply(written(5), [ref(2, "old", "tag")], now_ms=3_000)
    few = metadata_documents.refs_only(document)
    assert [s["snapshot-id"] for s in few["snapshots"]] == [2, 5]
    assert len(document["snapshots"]) == 5
    assert few["snapshot-log"] == document["snapshot-log"]
    assert metadata_documents.refs_only(table())["snapshots"] == []


# -- files of others


def test_a_v1_file_may_omit_most_fields():
    old = {
        "format-version": 1,
        "location": LOCATION,
        "last-updated-ms": 5_000,
        "last-column-id": 7,
        "schema": schema(),
        "partition-spec": spec((2, "day", "d"), (1, "bucket[4]", "b"))["fields"],
        "current-snapshot-id": 1,
        "snapshots": [{"snapshot-id": 1, "timestamp-ms": 4_000, "manifests": ["s3://b/m.avro"]}],
        "x": 1,
    }
    document = metadata_documents.parse(orjson.dumps(old))
    assert document["schemas"] == [schema(**{"schema-id": 0})]
    assert [f["field-id"] for f in document["partition-specs"][0]["fields"]] == [1000, 1001]
    assert document["last-partition-id"] == 1001
    assert document["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert document["refs"] == {"main": {"snapshot-id": 1, "type": "branch"}}
    assert len(document["table-uuid"]) == 36
    assert document["x"] == 1
    result = updates.apply(
        document, [{"action": "upgrade-format-version", "format-version": 3}], now_ms=6_000
    )
    metadata_documents.check(result)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_notation_for_no_snapshot_is_read(version):
    document = table(version)
    for none in (None, -1):
        content = orjson.dumps({**document, "current-snapshot-id": none})
        assert metadata_documents.parse(content) == document
    document.pop("current-snapshot-id", None)
    assert metadata_documents.parse(orjson.dumps(document)) == table(version)


def test_a_file_keeps_its_uuid_and_unknown_fields():
    document = {**written(2), "x": {"y": [1]}}
    assert metadata_documents.parse(metadata_documents.dump(document)) == document
