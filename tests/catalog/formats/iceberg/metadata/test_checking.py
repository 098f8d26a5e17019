import copy

import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata import documents as metadata_documents
from tests.catalog.formats.iceberg.examples import encryption_key, schema, written


def put(*path_and_value):
    *path, value = path_and_value

    def change(document):
        owner = document
        for key in path[:-1]:
            owner = owner[key]
        if value is ...:
            del owner[path[-1]]
        else:
            owner[path[-1]] = value

    return change


def append(key, value):
    return lambda document: document[key].append(value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format-version", 4), "format-version must be between 1 and 3"),
        (put("format-version", True), "format-version must be an integer, not a boolean"),
        (put("table-uuid", ...), "table-uuid is missing"),
        (put("location", ""), "location must not be empty"),
        (put("properties", {"a": 1}), "properties['a'] must be a string, not an integer"),
        (put("current-schema-id", 5), "current-schema-id 5 is not in schemas"),
        (put("default-spec-id", 5), "default-spec-id 5 is not in partition-specs"),
        (put("default-sort-order-id", 5), "default-sort-order-id 5 is not in sort-orders"),
        (put("schemas", []), "current-schema-id 0 is not in schemas"),
        (append("schemas", schema()), "schemas[1]: there are two with schema-id 0"),
        (
            put("partition-specs", 0, "fields", 0, "field-id", ...),
            "partition-specs[0].fields[0].field-id is missing",
        ),
        (put("last-sequence-number", ...), "last-sequence-number is missing"),
        (
            put("last-sequence-number", 1),
            "snapshots[1].sequence-number is above last-sequence-number 1",
        ),
        (put("next-row-id", ...), "next-row-id is missing"),
        (
            put("snapshots", 1, "snapshot-id", 1.0),
            ("snapshots[1].snapshot-id must be an integer, not a fractional or too large number"),
        ),
        (put("snapshots", 1, "snapshot-id", 1), "snapshots[1]: there are two snapshots with id 1"),
        (put("snapshots", 1, "manifest-list", ...), "snapshots[1].manifest-list is missing"),
        (put("current-snapshot-id", 7), "current-snapshot-id 7 is not in snapshots"),
        (put("current-snapshot-id", 1), "current-snapshot-id 1 is not that of main: 2"),
        (put("current-snapshot-id", ...), "current-snapshot-id None is not that of main: 2"),
        (
            put("refs", "tag", {"type": "tag", "snapshot-id": 9}),
            "refs.tag: there is no snapshot 9",
        ),
        (put("refs", "main", "type", "tag"), "refs.main.type: main must be a branch"),
        (
            append("snapshot-log", {"timestamp-ms": 1, "snapshot-id": 2}),
            None,
        ),
        (
            put("snapshot-log", 0, "timestamp-ms", 90_000),
            "snapshot-log[1].timestamp-ms is before that of the entry before",
        ),
        (
            append("metadata-log", {"timestamp-ms": 90_000, "metadata-file": "x"}),
            "last-updated-ms is before the last entry of metadata-log",
        ),
        (
            put("encryption-keys", [{**encryption_key(), "encrypted-key-metadata": "*"}]),
            "encryption-keys[0].encrypted-key-metadata must be Base64, not '*'",
        ),
        (put("statistics", [None]), "statistics[0] must be an object, not null"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_document_is_checked(change, message):
    document = copy.deepcopy(written(2, version=3))
    change(document)
    if message is None:  # clocks of writers may differ by a minute
        metadata_documents.check(document)
        return
    with pytest.raises(InvalidMetadata) as caught:
        metadata_documents.check(document)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "name",
    [
        "last-column-id",
        "current-schema-id",
        "last-partition-id",
        "default-spec-id",
        "default-sort-order-id",
    ],
)
def test_ids_of_a_document_are_whole_numbers_of_31_bits(name):
    for number in (-1, 2**31):
        with pytest.raises(InvalidMetadata) as caught:
            metadata_documents.check({**written(1), name: number})
        assert caught.value.message == f"{name} must be between 0 and 2147483647"


@pytest.mark.parametrize(
    ("key", "change", "path"),
    [
        ("partition-specs", lambda spec, id_: spec | {"spec-id": id_}, "spec-id"),
        (
            "partition-specs",
            lambda spec, id_: {**spec, "fields": [{**spec["fields"][0], "field-id": id_}]},
            "fields[0].field-id",
        ),
        ("sort-orders", lambda order, id_: order | {"order-id": id_}, "order-id"),
    ],
)
def test_ids_of_specs_and_orders_are_whole_numbers_of_31_bits(key, change, path):
    document = written(1)
    for number in (-1, 2**31):
        with pytest.raises(InvalidMetadata) as caught:
            metadata_documents.check({**document, key: [change(document[key][0], number)]})
        assert caught.value.message == f"{key}[0].{path} must be between 0 and 2147483647"


def test_a_document_is_an_object():
    with pytest.raises(InvalidMetadata, match="The document must be an object, not an array"):
        metadata_documents.check([])
