"""Table metadata documents: create, parse and filter them."""

import re
from uuid import UUID, uuid4

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.files import check_depth, dump, file_name, is_gzip, load, sequence_of
from catalog.formats.iceberg.metadata.checking import check
from catalog.formats.iceberg.metadata.draft import (
    DEFAULT_VERSION,
    MAX_VERSION,
    empty,
    set_current_snapshot,
)
from catalog.formats.iceberg.metadata.snapshots import MAIN
from catalog.formats.iceberg.reading import (
    Document,
    as_object,
    as_text,
    object_at,
    objects_at,
    optional_integer_at,
    shown,
    strings_by_name,
)
from catalog.formats.iceberg.schema import partitioning, schemas, sorting, transforms

__all__ = [
    "check",
    "dump",
    "file_name",
    "is_gzip",
    "new_table",
    "parse",
    "refs_only",
    "sequence_of",
]

_FORMAT_VERSION = "format-version"
# Some engines display these facts among a table's properties; they are never stored as properties.
_RESERVED = frozenset(
    {
        _FORMAT_VERSION, "uuid", "snapshot-count", "current-snapshot-summary",
        "current-snapshot-id", "current-snapshot-timestamp-ms", "current-schema",
        "default-partition-spec", "default-sort-order",
    }
)  # fmt: skip


def new_table(
    *,
    schema: object,
    partition_spec: object = None,
    write_order: object = None,
    location: object,
    properties: object = None,
    now_ms: int,
    table_uuid: UUID | str | None = None,
) -> Document:
    """The metadata of a created table, with fresh ids for columns and partition fields.

    The property ``format-version`` selects the version, by default 2, and is not stored. Raises
    InvalidMetadata.
    """
    requested_properties = {} if properties is None else strings_by_name(properties, "properties")
    version = _format_version(requested_properties)
    requested_schema = schemas.plain(as_object(schema, "schema"))
    requested_columns = schemas.index(requested_schema, "schema")
    schemas.check_version(requested_columns, version, "schema")
    fresh, moved = schemas.fresh(schemas.completed(requested_schema))
    columns = schemas.renumbered(requested_columns, moved) or schemas.index(fresh, "schema")

    requested_spec = (
        None
        if partition_spec is None
        else transforms.plain(as_object(partition_spec, "partition-spec"))
    )
    spec = partitioning.fresh(requested_spec, moved, "partition-spec")
    transforms.check_version(spec["fields"], version, "partition-spec.fields")
    partitioning.check_fit(spec, columns, "partition-spec")
    partitioning.check_names(spec, columns, "partition-spec")
    requested_order = (
        None if write_order is None else transforms.plain(as_object(write_order, "write-order"))
    )
    order = sorting.fresh(requested_order, moved, "write-order")
    transforms.check_version(order["fields"], version, "write-order.fields")
    sorting.check_fit(order, columns, "write-order")

    table_location = as_text(location, "location").rstrip("/")
    if not table_location:
        raise InvalidMetadata("location must not be empty")
    document = empty(version) | {
        "table-uuid": str(table_uuid or uuid4()),
        "location": table_location,
        "last-updated-ms": now_ms,
        "last-column-id": schemas.highest_id(columns),
        "schemas": [fresh],
        "partition-specs": [spec],
        "last-partition-id": partitioning.last_field_id(spec),
        "default-sort-order-id": order["order-id"],
        "sort-orders": [order],
        "properties": {
            name: text for name, text in requested_properties.items() if name not in _RESERVED
        },
    }
    if version == 1:
        document |= {"schema": fresh, "partition-spec": spec["fields"]}
    check_depth(document, "The metadata")
    return document


def _format_version(properties: dict[str, str]) -> int:
    text = properties.get(_FORMAT_VERSION, str(DEFAULT_VERSION))
    if re.fullmatch(rf"[1-{MAX_VERSION}]", text) is None:
        raise InvalidMetadata(
            f"properties.{_FORMAT_VERSION}: {shown(text)} is no supported format version "
            f"(supported: 1 to {MAX_VERSION})"
        )
    return int(text)


def parse(content: bytes) -> Document:
    """Parse and validate a metadata file, plain or gzip. Raises InvalidMetadata.

    Fields that v1 allows to omit are filled in as the specification says, so that every document in
    the catalog has its schemas, specs, orders and references in lists and maps.
    """
    document = load(content)
    if document.get(_FORMAT_VERSION) == 1:
        _fill_v1(document)
    for key in ("snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics"):
        if document.get(key) is None:
            document[key] = []
    for key in ("properties", "refs"):
        if document.get(key) is None:
            document[key] = {}
    current = document.get("current-snapshot-id")
    if MAIN not in as_object(document["refs"], "refs") and current not in (None, -1):
        document["refs"][MAIN] = {"snapshot-id": current, "type": "branch"}
    check(document)
    if current in (None, -1):
        set_current_snapshot(document, None)
    return document


def _fill_v1(document: Document) -> None:
    if document.get("table-uuid") is None:
        document["table-uuid"] = str(uuid4())
    if document.get("schemas") is None:
        schema = object_at(document, "schema", "")
        schema_id = optional_integer_at(schema, "schema-id", "schema") or 0
        document["schemas"] = [{**schema, "schema-id": schema_id}]
        document["current-schema-id"] = schema_id
    if document.get("partition-specs") is None:
        fields = objects_at(document, "partition-spec", "")
        document["partition-specs"] = [{"spec-id": 0, "fields": fields}]
        document["default-spec-id"] = 0
    specs = objects_at(document, "partition-specs", "")
    for i, spec in enumerate(specs):
        for position, field in enumerate(objects_at(spec, "fields", f"partition-specs[{i}]")):
            field.setdefault("field-id", partitioning.FIRST_FIELD_ID + position)
    if document.get("last-partition-id") is None:
        for i, spec in enumerate(specs):
            partitioning.check_structure(spec, f"partition-specs[{i}]")
        document["last-partition-id"] = max(
            (partitioning.last_field_id(spec) for spec in specs),
            default=partitioning.FIRST_FIELD_ID - 1,
        )
    if document.get("sort-orders") is None:
        document["sort-orders"] = [sorting.unsorted()]
        document["default-sort-order-id"] = sorting.UNSORTED_ID


def refs_only(document: Document) -> Document:
    """The document with only the snapshots that a branch or tag refers to.

    loadTable returns it for ``snapshots=refs``.
    """
    ids = {reference["snapshot-id"] for reference in (document.get("refs") or {}).values()}
    return {**document, "snapshots": [s for s in document["snapshots"] if s["snapshot-id"] in ids]}
