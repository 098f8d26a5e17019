"""The 23 updates of a table's metadata (REST catalog spec: TableUpdate), applied in order.

Each handler below is one update: it reads the update, refuses what is malformed with the path to
the fault, and changes the draft. Behaviour follows Java's ``TableMetadata.Builder``, which is what
the REST specification was written from.
"""

from collections.abc import Callable

from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg import partitioning, schemas, snapshots, sorting
from catalog.formats.iceberg.draft import DEFAULT_VERSION, MAX_VERSION, Draft
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    as_array,
    as_object,
    at,
    filled_text_at,
    integer_at,
    integers_at,
    object_at,
    optional_integer_at,
    shown,
    strings_by_name_at,
    text_at,
    texts_at,
    uuid_at,
)

LAST_ADDED = -1
_UPGRADE = "upgrade-format-version"


def apply(
    base: Document | None,
    updates: object,
    *,
    now_ms: int,
    previous_location: str | None = None,
) -> Document:
    """The metadata after a commit. ``base`` None makes a new table of the updates alone.

    Returns ``base`` itself when nothing changes, so that no commit is needed. ``base`` is never
    changed, but the result shares what they have in common. ``previous_location`` is the file of
    ``base``, for the metadata log. Raises InvalidMetadata; RequirementFailed for a snapshot made
    on an older state of the table, which its writer can make anew.
    """
    read = [
        as_object(update, f"updates[{i}]") for i, update in enumerate(as_array(updates, "updates"))
    ]
    draft = Draft(base, version=_first_version(read), now_ms=now_ms)
    for i, update in enumerate(read):
        path = f"updates[{i}]"
        action = text_at(update, "action", path)
        handler = _HANDLERS.get(action)
        if handler is None:
            raise InvalidMetadata(f"{at(path, 'action')}: unknown table update {shown(action)}")
        handler(draft, update, path)
    return draft.finish(previous_location)


def _first_version(updates: list[Document]) -> int:
    """A creation starts in the version that it upgrades to: v1 and v3 have rules of their own."""
    for i, update in enumerate(updates):
        if update.get("action") == _UPGRADE:
            return integer_at(update, "format-version", f"updates[{i}]", 1, MAX_VERSION)
    return DEFAULT_VERSION


# -- the table


def _assign_uuid(draft: Draft, update: Document, path: str) -> None:
    uuid = uuid_at(update, "uuid", path)
    if draft.base is not None and uuid != str(draft.document["table-uuid"]).lower():
        raise InvalidMetadata(
            f"{at(path, 'uuid')}: the table has UUID {draft.document['table-uuid']}, "
            "which cannot be reassigned"
        )
    if draft.base is None:
        draft.put("table-uuid", uuid)


def _upgrade_format_version(draft: Draft, update: Document, path: str) -> None:
    version = integer_at(update, "format-version", path, 1, INT_MAX)
    here = at(path, "format-version")
    if version > MAX_VERSION:
        raise InvalidMetadata(
            f"{here}: cannot upgrade table to unsupported format version: "
            f"v{version} (supported: v{MAX_VERSION})"
        )
    old = draft.version
    if version < old:
        raise InvalidMetadata(f"{here}: cannot downgrade v{old} table to v{version}")
    if version == old:
        return
    draft.put("format-version", version)
    if old == 1:
        draft.document.pop("schema", None)
        draft.document.pop("partition-spec", None)
        draft.document.setdefault("last-sequence-number", 0)
        numbered = [{"sequence-number": 0, **s} for s in draft.items("snapshots")]
        draft.replace("snapshots", numbered)
    if version >= 3:
        draft.document.setdefault("next-row-id", 0)


def _set_location(draft: Draft, update: Document, path: str) -> None:
    draft.put("location", filled_text_at(update, "location", path).rstrip("/") or "/")


def _set_properties(draft: Draft, update: Document, path: str) -> None:
    wanted = strings_by_name_at(update, "updates", path)
    properties = draft.entries("properties")
    if any(properties.get(name) != text for name, text in wanted.items()):
        draft.change("properties").update(wanted)


def _remove_properties(draft: Draft, update: Document, path: str) -> None:
    for name in texts_at(update, "removals", path):
        if name in draft.entries("properties"):
            del draft.change("properties")[name]


# -- schemas, partition specs, sort orders


def _add_schema(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "schema")
    schema = object_at(update, "schema", path)
    # Deprecated: the ids of the schema say it better.
    optional_integer_at(update, "last-column-id", path, high=INT_MAX)
    columns = schemas.index(schema, here)
    schemas.check_version(columns, draft.version, here)
    id_ = _id_of_same(draft.items("schemas"), schema, "schema-id", schemas.same)
    if id_ is None:
        id_ = _next_id(draft.items("schemas"), "schema-id", first=0)
        draft.append("schemas", {"type": "struct", **schema, "schema-id": id_})
    highest = max(draft.document["last-column-id"], schemas.highest_id(columns))
    draft.put("last-column-id", highest)
    draft.last_schema = id_


def _set_current_schema(draft: Draft, update: Document, path: str) -> None:
    id_ = _chosen(update, "schema-id", path, draft.last_schema)
    _require(draft.items("schemas"), "schema-id", id_, at(path, "schema-id"))
    if id_ != draft.document["current-schema-id"]:
        draft.put("current-schema-id", id_)
        draft.layout_changed = True


def _add_spec(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "spec")
    spec = object_at(update, "spec", path)
    partitioning.check_structure(spec, here)
    specs = draft.items("partition-specs")
    id_ = _id_of_same(specs, spec, "spec-id", partitioning.same)
    if id_ is None:
        columns = draft.columns()
        partitioning.check_fit(spec, columns, here)
        partitioning.check_names(spec, columns, here)
        last = draft.document["last-partition-id"]
        numbered = partitioning.with_field_ids(spec, specs, last, draft.version, here)
        id_ = _next_id(specs, "spec-id", first=0)
        draft.append("partition-specs", {**numbered, "spec-id": id_})
        draft.put("last-partition-id", max(last, partitioning.last_field_id(numbered)))
    draft.last_spec = id_


def _set_default_spec(draft: Draft, update: Document, path: str) -> None:
    id_ = _chosen(update, "spec-id", path, draft.last_spec)
    _require(draft.items("partition-specs"), "spec-id", id_, at(path, "spec-id"))
    if id_ != draft.document["default-spec-id"]:
        draft.put("default-spec-id", id_)
        draft.layout_changed = True


def _add_sort_order(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "sort-order")
    order = object_at(update, "sort-order", path)
    fields = sorting.check_structure(order, here)
    orders = draft.items("sort-orders")
    id_ = _id_of_same(orders, order, "order-id", sorting.same)
    if id_ is None and not fields:
        id_ = sorting.UNSORTED_ID
        draft.append("sort-orders", sorting.unsorted())
    if id_ is None:
        sorting.check_fit(order, draft.columns(), here)
        id_ = _next_id(orders, "order-id", first=1)
        draft.append("sort-orders", {**order, "order-id": id_})
    draft.last_order = id_


def _set_default_sort_order(draft: Draft, update: Document, path: str) -> None:
    id_ = _chosen(update, "sort-order-id", path, draft.last_order)
    _require(draft.items("sort-orders"), "order-id", id_, at(path, "sort-order-id"))
    if id_ != draft.document["default-sort-order-id"]:
        draft.put("default-sort-order-id", id_)
        draft.layout_changed = True


def _remove_schemas(draft: Draft, update: Document, path: str) -> None:
    ids = set(integers_at(update, "schema-ids", path, high=INT_MAX))
    if draft.document["current-schema-id"] in ids:
        raise InvalidMetadata(f"{at(path, 'schema-ids')}: cannot remove the current schema")
    _remove(draft, "schemas", "schema-id", ids)


def _remove_partition_specs(draft: Draft, update: Document, path: str) -> None:
    ids = set(integers_at(update, "spec-ids", path, high=INT_MAX))
    if draft.document["default-spec-id"] in ids:
        raise InvalidMetadata(f"{at(path, 'spec-ids')}: cannot remove the default partition spec")
    _remove(draft, "partition-specs", "spec-id", ids)


# -- snapshots and references


def _add_snapshot(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "snapshot")
    snapshot = object_at(update, "snapshot", path)
    if not draft.items("schemas"):
        raise InvalidMetadata(f"{here}: add a schema before the first snapshot")
    snapshots.check_new(snapshot, draft.version, here)
    id_: int = snapshot["snapshot-id"]
    if draft.snapshot(id_) is not None:
        raise InvalidMetadata(f"{at(here, 'snapshot-id')}: snapshot already exists for id: {id_}")
    if draft.version > 1:
        _check_sequence(draft, snapshot)
        draft.put("last-sequence-number", snapshot["sequence-number"])
    if draft.version >= 3:
        _check_rows(draft, snapshot)
        draft.add_rows(snapshot["first-row-id"], snapshot["added-rows"])
    draft.append("snapshots", snapshot)
    draft.snapshot_timestamp_ms = snapshot["timestamp-ms"]
    draft.added_snapshots.add(id_)


def _check_sequence(draft: Draft, snapshot: Document) -> None:
    """Sequence numbers order all snapshots: one that is behind was made on an older state."""
    number, last = snapshot["sequence-number"], draft.document["last-sequence-number"]
    parentless = snapshot.get("parent-snapshot-id") is None
    if number > last or (parentless and number == last):
        return
    raise RequirementFailed(
        f"Cannot add snapshot with sequence number {number} older than last sequence number {last}"
    )


def _check_rows(draft: Draft, snapshot: Document) -> None:
    first, next_ = snapshot["first-row-id"], draft.document["next-row-id"]
    if first < next_:
        raise RequirementFailed(
            f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {next_}"
        )


def _set_snapshot_ref(draft: Draft, update: Document, path: str) -> None:
    name = filled_text_at(update, "ref-name", path)
    reference = snapshots.reference(update, name, path)
    if draft.entries("refs").get(name) == reference:
        return
    id_ = reference["snapshot-id"]
    if draft.snapshot(id_) is None:
        raise InvalidMetadata(
            f"{at(path, 'snapshot-id')}: cannot set {name} to unknown snapshot: {id_}"
        )
    draft.change("refs")[name] = reference
    if name == snapshots.MAIN:
        draft.set_main(id_)


def _remove_snapshot_ref(draft: Draft, update: Document, path: str) -> None:
    draft.remove_reference(filled_text_at(update, "ref-name", path))


def _remove_snapshots(draft: Draft, update: Document, path: str) -> None:
    """References and statistics go with their snapshot. What is gone already is no fault."""
    ids = set(integers_at(update, "snapshot-ids", path))
    if not _remove(draft, "snapshots", "snapshot-id", ids):
        return
    draft.removed_snapshots = True
    for name, reference in list(draft.entries("refs").items()):
        if reference["snapshot-id"] in ids:
            draft.remove_reference(name)
    _remove(draft, "statistics", "snapshot-id", ids)
    _remove(draft, "partition-statistics", "snapshot-id", ids)


# -- statistics and keys


def _set_statistics(draft: Draft, update: Document, path: str) -> None:
    file = object_at(update, "statistics", path)
    id_ = snapshots.check_statistics(file, at(path, "statistics"))
    given = optional_integer_at(update, "snapshot-id", path)
    if given is not None and given != id_:
        raise InvalidMetadata(f"{at(path, 'snapshot-id')} is not that of the statistics: {id_}")
    _set_file(draft, "statistics", file, id_)


def _set_partition_statistics(draft: Draft, update: Document, path: str) -> None:
    file = object_at(update, "partition-statistics", path)
    id_ = snapshots.check_partition_statistics(file, at(path, "partition-statistics"))
    _set_file(draft, "partition-statistics", file, id_)


def _set_file(draft: Draft, key: str, file: Document, snapshot: int) -> None:
    if file not in draft.items(key):
        _remove(draft, key, "snapshot-id", {snapshot})
        draft.append(key, file)


def _remove_statistics(draft: Draft, update: Document, path: str) -> None:
    _remove(draft, "statistics", "snapshot-id", {integer_at(update, "snapshot-id", path)})


def _remove_partition_statistics(draft: Draft, update: Document, path: str) -> None:
    id_ = integer_at(update, "snapshot-id", path)
    _remove(draft, "partition-statistics", "snapshot-id", {id_})


def _add_encryption_key(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "encryption-key")
    key = object_at(update, "encryption-key", path)
    id_ = snapshots.check_encryption_key(key, here)
    if draft.version < 3:
        raise InvalidMetadata(f"{here}: encryption keys are not supported until v3")
    if all(known["key-id"] != id_ for known in draft.items("encryption-keys")):
        draft.append("encryption-keys", key)


def _remove_encryption_key(draft: Draft, update: Document, path: str) -> None:
    _remove(draft, "encryption-keys", "key-id", {text_at(update, "key-id", path)})


# -- what they share


def _id_of_same(
    items: list[Document],
    wanted: Document,
    key: str,
    same: Callable[[Document, Document], bool],
) -> int | None:
    """The id of an equal schema, spec or order that is there already: it is used again."""
    return next((item.get(key, 0) for item in items if same(item, wanted)), None)


def _next_id(items: list[Document], key: str, *, first: int) -> int:
    return max((item.get(key, 0) + 1 for item in items), default=first)


def _chosen(update: Document, key: str, path: str, last: int | None) -> int:
    """The id that an update names; -1 is the one added last in this request."""
    id_ = integer_at(update, key, path, LAST_ADDED, INT_MAX)
    if id_ != LAST_ADDED:
        return id_
    if last is None:
        raise InvalidMetadata(f"{at(path, key)} is -1, but nothing was added before")
    return last


def _require(items: list[Document], key: str, id_: int, path: str) -> None:
    if all(item.get(key, 0) != id_ for item in items):
        raise InvalidMetadata(f"{path}: there is no {key} {id_}")


def _remove(draft: Draft, key: str, id_key: str, ids: set[int] | set[str]) -> bool:
    """Whether any was there."""
    kept = [item for item in draft.items(key) if item.get(id_key, 0) not in ids]
    if len(kept) == len(draft.items(key)):
        return False
    draft.replace(key, kept)
    return True


_HANDLERS: dict[str, Callable[[Draft, Document, str], None]] = {
    "assign-uuid": _assign_uuid,
    _UPGRADE: _upgrade_format_version,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "add-partition-spec": _add_spec,  # what an older page of the API calls it
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _set_default_sort_order,
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_snapshot_ref,
    "remove-snapshots": _remove_snapshots,
    "remove-snapshot-ref": _remove_snapshot_ref,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-statistics": _set_statistics,
    "remove-statistics": _remove_statistics,
    "set-partition-statistics": _set_partition_statistics,
    "remove-partition-statistics": _remove_partition_statistics,
    "remove-partition-specs": _remove_partition_specs,
    "remove-schemas": _remove_schemas,
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_encryption_key,
}
ACTIONS = frozenset(_HANDLERS)
