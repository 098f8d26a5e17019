"""Validation of a whole metadata document (spec: Table Metadata Fields).

Used only when a file from another catalog is registered: commits validate their own changes.
"""

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata import snapshots
from catalog.formats.iceberg.metadata.draft import MAX_VERSION
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    as_object,
    at,
    filled_text_at,
    integer_at,
    object_at,
    objects_at,
    optional_integer_at,
    strings_by_name_at,
    text_at,
    uuid_at,
)
from catalog.formats.iceberg.schema import partitioning, schemas, sorting

# Writers' clocks differ a little. Java refuses logs that run backwards by more than this.
_CLOCK_TOLERANCE_MS = 60_000


def check(document: Document) -> None:
    """Raise InvalidMetadata with the path to the first fault."""
    as_object(document, "")
    version = integer_at(document, "format-version", "", 1, MAX_VERSION)
    uuid_at(document, "table-uuid", "")
    filled_text_at(document, "location", "")
    integer_at(document, "last-updated-ms", "")
    strings_by_name_at(document, "properties", "")
    _check_schemas(document)
    _check_specs(document)
    _check_orders(document)
    if version > 1:
        integer_at(document, "last-sequence-number", "")
    if version >= 3:
        integer_at(document, "next-row-id", "")
    ids = _check_snapshots(document, version)
    _check_order(document, version)
    _check_references(document, ids)
    _check_logs(document)
    _check_files(document)


def _check_schemas(document: Document) -> None:
    integer_at(document, "last-column-id", "", high=INT_MAX)
    current = integer_at(document, "current-schema-id", "", high=INT_MAX)
    documents = objects_at(document, "schemas", "")
    for i, schema in enumerate(documents):
        schemas.index(schema, f"schemas[{i}]")
    _check_ids(documents, "schemas", "schema-id", current, "current-schema-id")


def _check_specs(document: Document) -> None:
    integer_at(document, "last-partition-id", "", high=INT_MAX)
    default = integer_at(document, "default-spec-id", "", high=INT_MAX)
    specs = objects_at(document, "partition-specs", "")
    for i, spec in enumerate(specs):
        path = f"partition-specs[{i}]"
        integer_at(spec, "spec-id", path, high=INT_MAX)
        for j, field in enumerate(partitioning.check_structure(spec, path)):
            integer_at(field, "field-id", f"{path}.fields[{j}]", high=INT_MAX)
    _check_ids(specs, "partition-specs", "spec-id", default, "default-spec-id")


def _check_orders(document: Document) -> None:
    default = integer_at(document, "default-sort-order-id", "", high=INT_MAX)
    orders = objects_at(document, "sort-orders", "")
    for i, order in enumerate(orders):
        integer_at(order, "order-id", f"sort-orders[{i}]", high=INT_MAX)
        sorting.check_structure(order, f"sort-orders[{i}]")
    _check_ids(orders, "sort-orders", "order-id", default, "default-sort-order-id")


def _check_ids(items: list[Document], name: str, key: str, chosen: int, chosen_key: str) -> None:
    ids: set[int] = set()
    for i, item in enumerate(items):
        id_: int = item.get(key, 0)
        if id_ in ids:
            raise InvalidMetadata(f"{name}[{i}]: there are two with {key} {id_}")
        ids.add(id_)
    if chosen not in ids:
        raise InvalidMetadata(f"{chosen_key} {chosen} is not in {name}")


def _check_snapshots(document: Document, version: int) -> set[int]:
    ids: set[int] = set()
    last = document["last-sequence-number"] if version > 1 else 0
    for i, snapshot in enumerate(objects_at(document, "snapshots", "")):
        path = f"snapshots[{i}]"
        snapshots.check_structure(snapshot, path)
        id_: int = snapshot["snapshot-id"]
        if id_ in ids:
            raise InvalidMetadata(f"{path}: there are two snapshots with id {id_}")
        ids.add(id_)
        if version > 1 and (snapshot.get("sequence-number") or 0) > last:
            raise InvalidMetadata(f"{path}.sequence-number is above last-sequence-number {last}")
    return ids


def _check_order(document: Document, version: int) -> None:
    """Check that snapshots follow their parents and none is later than the last update."""
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in document["snapshots"]}
    latest = document["last-updated-ms"] + _CLOCK_TOLERANCE_MS
    for i, snapshot in enumerate(document["snapshots"]):
        path = f"snapshots[{i}]"
        if snapshot["timestamp-ms"] > latest:
            raise InvalidMetadata(f"{path}.timestamp-ms is after last-updated-ms")
        parent = by_id.get(snapshot.get("parent-snapshot-id"))
        if parent is None or version == 1:
            continue
        number, before = (item.get("sequence-number") or 0 for item in (snapshot, parent))
        if number <= before and number:
            raise InvalidMetadata(
                f"{path}.sequence-number {number} is not above that of its parent, {before}"
            )


def _check_references(document: Document, ids: set[int]) -> None:
    current = optional_integer_at(document, "current-snapshot-id", "", low=-1)
    current = None if current == -1 else current
    if current is not None and current not in ids:
        raise InvalidMetadata(f"current-snapshot-id {current} is not in snapshots")
    main = None
    for name, value in object_at(document, "refs", "").items():
        path = at("refs", name)
        reference = snapshots.reference(as_object(value, path), name, path)
        if reference["snapshot-id"] not in ids:
            raise InvalidMetadata(f"{path}: there is no snapshot {reference['snapshot-id']}")
        if name == snapshots.MAIN:
            main = reference["snapshot-id"]
    if main != current:
        raise InvalidMetadata(f"current-snapshot-id {current} is not that of main: {main}")


def _check_logs(document: Document) -> None:
    for name in ("snapshot-log", "metadata-log"):
        before = 0
        for i, entry in enumerate(objects_at(document, name, "")):
            path = f"{name}[{i}]"
            if name == "snapshot-log":
                integer_at(entry, "snapshot-id", path)
            else:
                text_at(entry, "metadata-file", path)
            timestamp = integer_at(entry, "timestamp-ms", path)
            if timestamp < before - _CLOCK_TOLERANCE_MS:
                raise InvalidMetadata(f"{path}.timestamp-ms is before that of the entry before")
            before = timestamp
        if document["last-updated-ms"] < before - _CLOCK_TOLERANCE_MS:
            raise InvalidMetadata(f"last-updated-ms is before the last entry of {name}")


def _check_files(document: Document) -> None:
    checks = {
        "statistics": snapshots.check_statistics,
        "partition-statistics": snapshots.check_partition_statistics,
        "encryption-keys": snapshots.check_encryption_key,
    }
    for name, check_one in checks.items():
        if document.get(name) is None:
            continue
        for i, item in enumerate(objects_at(document, name, "")):
            check_one(item, f"{name}[{i}]")
