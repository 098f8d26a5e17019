"""The 23 updates of a table's metadata (REST catalog spec: TableUpdate), applied in order.

Each handler is one update: it reads the update, raises InvalidMetadata with the path to the first
fault, and changes the draft. Behaviour follows Java's ``TableMetadata.Builder``, from which the REST
specification was written.
"""

from collections.abc import Callable

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.files import check_depth
from catalog.formats.iceberg.metadata import layout_updates, snapshot_updates
from catalog.formats.iceberg.metadata.draft import (
    DEFAULT_VERSION,
    MAX_VERSION,
    Draft,
    set_current_snapshot,
)
from catalog.formats.iceberg.metadata.snapshots import MAIN
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    as_array,
    as_object,
    at,
    filled_text_at,
    integer_at,
    shown,
    strings_by_name_at,
    text_at,
    texts_at,
    uuid_at,
)
from catalog.limits import check_map

_UPGRADE = "upgrade-format-version"


def apply(
    base: Document | None,
    updates: object,
    *,
    now_ms: int,
    previous_location: str | None = None,
    is_replacement: bool = False,
) -> Document:
    """The metadata after a commit. If ``base`` is None, the updates alone create a table.

    Returns ``base`` itself if nothing changes, so that no commit is needed. ``base`` is never
    changed, but the result shares unchanged parts with it. ``previous_location`` is the file of
    ``base``, for the metadata log. With ``is_replacement`` the columns of a table without snapshots
    may change to any type. Raises InvalidMetadata, and RequirementFailed for a snapshot that is
    based on an older state of the table, which its writer can retry.
    """
    read = [
        as_object(update, f"updates[{i}]") for i, update in enumerate(as_array(updates, "updates"))
    ]
    check_depth(read, "updates")
    version = _first_version(read) if base is None else base["format-version"]
    draft = Draft(base, version=version, now_ms=now_ms)
    if is_replacement and not draft.items("snapshots"):
        draft.is_replaced = True
    for i, update in enumerate(read):
        path = f"updates[{i}]"
        action = text_at(update, "action", path)
        handler = _HANDLERS.get(action)
        if handler is None:
            raise InvalidMetadata(f"{at(path, 'action')}: unknown table update {shown(action)}")
        handler(draft, update, path)
    return draft.finish(previous_location)


def _first_version(updates: list[Document]) -> int:
    """The version of a created table: that of its upgrade, because v1 and v3 have other rules."""
    for i, update in enumerate(updates):
        if update.get("action") == _UPGRADE:
            return integer_at(update, "format-version", f"updates[{i}]", 1, MAX_VERSION)
    return DEFAULT_VERSION


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
        draft.replace("snapshots", [_numbered(s) for s in draft.items("snapshots")])
    if version >= 3:
        draft.document.setdefault("next-row-id", 0)
        if not draft.entries("refs").get(MAIN):
            set_current_snapshot(draft.document, None)


def _numbered(snapshot: Document) -> Document:
    """A v1 snapshot in v2, where every snapshot has a sequence number: 0."""
    return {**snapshot, "sequence-number": snapshot.get("sequence-number") or 0}


def _set_location(draft: Draft, update: Document, path: str) -> None:
    location = filled_text_at(update, "location", path).rstrip("/")
    if not location:
        raise InvalidMetadata(f"{at(path, 'location')} must not be empty")
    draft.put("location", location)


def _set_properties(draft: Draft, update: Document, path: str) -> None:
    new_values = strings_by_name_at(update, "updates", path)
    properties = draft.entries("properties")
    if any(properties.get(name) != text for name, text in new_values.items()):
        changed = draft.change("properties")
        changed.update(new_values)
        check_map("The properties", changed)


def _remove_properties(draft: Draft, update: Document, path: str) -> None:
    for name in texts_at(update, "removals", path):
        if name in draft.entries("properties"):
            del draft.change("properties")[name]


_HANDLERS: dict[str, Callable[[Draft, Document, str], None]] = {
    "assign-uuid": _assign_uuid,
    _UPGRADE: _upgrade_format_version,
    "add-schema": layout_updates.add_schema,
    "set-current-schema": layout_updates.set_current_schema,
    "add-spec": layout_updates.add_spec,
    "add-partition-spec": layout_updates.add_spec,  # the name in an older version of the API
    "set-default-spec": layout_updates.set_default_spec,
    "add-sort-order": layout_updates.add_sort_order,
    "set-default-sort-order": layout_updates.set_default_sort_order,
    "add-snapshot": snapshot_updates.add_snapshot,
    "set-snapshot-ref": snapshot_updates.set_snapshot_ref,
    "remove-snapshots": snapshot_updates.remove_snapshots,
    "remove-snapshot-ref": snapshot_updates.remove_snapshot_ref,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-statistics": snapshot_updates.set_statistics,
    "remove-statistics": snapshot_updates.remove_statistics,
    "set-partition-statistics": snapshot_updates.set_partition_statistics,
    "remove-partition-statistics": snapshot_updates.remove_partition_statistics,
    "remove-partition-specs": layout_updates.remove_partition_specs,
    "remove-schemas": layout_updates.remove_schemas,
    "add-encryption-key": snapshot_updates.add_encryption_key,
    "remove-encryption-key": snapshot_updates.remove_encryption_key,
}
ACTIONS = frozenset(_HANDLERS)
