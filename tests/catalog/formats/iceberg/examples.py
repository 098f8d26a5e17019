"""Tables and updates for the tests of Iceberg metadata."""

import copy
from typing import Any

from catalog.formats.iceberg.metadata import documents as metadata_documents

UUID = "8a4a0b1e-58e5-4f4c-9d0c-6f1f9f3f7a11"
LOCATION = "s3://bucket/warehouse/events"

FIELDS = [
    {"id": 1, "name": "id", "required": True, "type": "long"},
    {"id": 2, "name": "ts", "required": False, "type": "timestamptz", "doc": "when"},
    {"id": 3, "name": "name", "required": False, "type": "string"},
    {
        "id": 4,
        "name": "place",
        "required": False,
        "type": {
            "type": "struct",
            "fields": [{"id": 6, "name": "city", "required": False, "type": "string"}],
        },
    },
    {
        "id": 5,
        "name": "tags",
        "required": False,
        "type": {"type": "list", "element-id": 7, "element": "string", "element-required": True},
    },
]


def schema(*more: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": copy.deepcopy(FIELDS) + list(more), **keys}


def column(id: int, name: str, type: Any = "string", required: bool = False) -> dict[str, Any]:
    return {"id": id, "name": name, "required": required, "type": type}


def spec(*fields: tuple[int, str, str], **keys: Any) -> dict[str, Any]:
    """A spec of fields, each with source, transform and name."""
    made = [{"source-id": s, "transform": t, "name": n} for s, t, n in fields]
    return {"fields": made, **keys}


def order(*sources: int) -> dict[str, Any]:
    made = [
        {"source-id": s, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
        for s in sources
    ]
    return {"order-id": 1 if made else 0, "fields": made}


def table(version: int = 2, **keys: Any) -> dict[str, Any]:
    """A table by day of ``ts``, sorted by ``id``, at 1,000 ms."""
    keys.setdefault("partition_spec", spec((2, "day", "ts_day")))
    properties = {"format-version": str(version), "owner": "ann", **keys.pop("properties", {})}
    return metadata_documents.new_table(
        schema=schema(),
        write_order=order(1),
        location=LOCATION,
        properties=properties,
        now_ms=1_000,
        table_uuid=UUID,
        **keys,
    )


def snapshot(
    number: int, parent: int | None = None, version: int = 2, **keys: Any
) -> dict[str, Any]:
    """Snapshot ``number``, taken at 2,000 ms + its number, with ten rows."""
    made = {
        "snapshot-id": number,
        "timestamp-ms": 2_000 + number,
        "manifest-list": f"{LOCATION}/metadata/snap-{number}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    if parent is not None:
        made["parent-snapshot-id"] = parent
    if version > 1:
        made["sequence-number"] = number
    if version > 2:
        made |= {"first-row-id": (number - 1) * 10, "added-rows": 10}
    return made | keys


def add(number: int, parent: int | None = None, version: int = 2, **keys: Any) -> dict[str, Any]:
    return {"action": "add-snapshot", "snapshot": snapshot(number, parent, version, **keys)}


def ref(number: int, name: str = "main", type: str = "branch", **keys: Any) -> dict[str, Any]:
    return {
        "action": "set-snapshot-ref",
        "ref-name": name,
        "type": type,
        "snapshot-id": number,
        **keys,
    }


def written(count: int, version: int = 2) -> dict[str, Any]:
    """The table after ``count`` appends to main, one commit each."""
    from catalog.formats.iceberg.metadata import updates

    document = table(version)
    for number in range(1, count + 1):
        document = updates.apply(
            document,
            [add(number, number - 1 or None, version), ref(number)],
            now_ms=9_000,
            previous_location=f"{LOCATION}/metadata/{number - 1:05d}-x.metadata.json",
        )
    return document


def statistics(number: int, **keys: Any) -> dict[str, Any]:
    blob = {"type": "apache-datasketches-theta-v1", "snapshot-id": number, "sequence-number": 1}
    return {
        "snapshot-id": number,
        "statistics-path": f"{LOCATION}/metadata/{number}.stats",
        "file-size-in-bytes": 413,
        "file-footer-size-in-bytes": 42,
        "blob-metadata": [{**blob, "fields": [1], "properties": {"ndv": "3"}}],
        **keys,
    }


def partition_statistics(number: int, **keys: Any) -> dict[str, Any]:
    return {
        "snapshot-id": number,
        "statistics-path": f"{LOCATION}/metadata/{number}.parquet",
        "file-size-in-bytes": 43,
        **keys,
    }


def encryption_key(id: str = "k1") -> dict[str, Any]:
    return {"key-id": id, "encrypted-key-metadata": "c2VjcmV0", "encrypted-by-id": "kms"}
