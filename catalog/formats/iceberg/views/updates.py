"""The 8 updates of a view's metadata (REST catalog spec: ViewUpdate), applied in order.

Each handler is one update: it reads the update, raises InvalidMetadata with the path to the first
fault, and changes the draft.
"""

from collections.abc import Callable

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.files import check_depth
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    as_array,
    as_object,
    at,
    filled_text_at,
    integer_at,
    object_at,
    optional_integer_at,
    shown,
    strings_by_name_at,
    text_at,
    texts_at,
    uuid_at,
)
from catalog.formats.iceberg.views.checking import FORMAT_VERSION
from catalog.formats.iceberg.views.draft import LAST_ADDED, ViewDraft
from catalog.limits import check_map


def apply(base: Document, updates: object, *, now_ms: int) -> Document:
    """The metadata after a commit; ``base`` itself if nothing changes.

    ``base`` is never changed, but the result shares unchanged parts with it. Raises InvalidMetadata.
    """
    read = [
        as_object(update, f"updates[{i}]") for i, update in enumerate(as_array(updates, "updates"))
    ]
    check_depth(read, "updates")
    draft = ViewDraft(base, now_ms=now_ms)
    for i, update in enumerate(read):
        path = f"updates[{i}]"
        action = text_at(update, "action", path)
        handler = _HANDLERS.get(action)
        if handler is None:
            raise InvalidMetadata(f"{at(path, 'action')}: unknown view update {shown(action)}")
        handler(draft, update, path)
    return draft.finish()


def _assign_uuid(draft: ViewDraft, update: Document, path: str) -> None:
    uuid = uuid_at(update, "uuid", path)
    if uuid != str(draft.document["view-uuid"]).lower():
        raise InvalidMetadata(
            f"{at(path, 'uuid')}: the view has UUID {draft.document['view-uuid']}, "
            "which cannot be reassigned"
        )


def _upgrade_format_version(draft: ViewDraft, update: Document, path: str) -> None:
    version = integer_at(update, "format-version", path, high=INT_MAX)
    here = at(path, "format-version")
    old = draft.document["format-version"]
    if version < old:
        raise InvalidMetadata(f"{here}: cannot downgrade v{old} view to v{version}")
    if version > FORMAT_VERSION:
        raise InvalidMetadata(
            f"{here}: cannot upgrade view to unsupported format version: "
            f"v{version} (supported: v{FORMAT_VERSION})"
        )
    draft.document["format-version"] = version


def _add_schema(draft: ViewDraft, update: Document, path: str) -> None:
    optional_integer_at(update, "last-column-id", path, high=INT_MAX)  # deprecated
    draft.add_schema(object_at(update, "schema", path), at(path, "schema"))


def _set_location(draft: ViewDraft, update: Document, path: str) -> None:
    location = filled_text_at(update, "location", path).rstrip("/")
    if not location:
        raise InvalidMetadata(f"{at(path, 'location')} must not be empty")
    draft.document["location"] = location


def _set_properties(draft: ViewDraft, update: Document, path: str) -> None:
    draft.document["properties"].update(strings_by_name_at(update, "updates", path))
    check_map("The properties", draft.document["properties"])


def _remove_properties(draft: ViewDraft, update: Document, path: str) -> None:
    for name in texts_at(update, "removals", path):
        draft.document["properties"].pop(name, None)


def _add_view_version(draft: ViewDraft, update: Document, path: str) -> None:
    draft.add_version(object_at(update, "view-version", path), at(path, "view-version"))


def _set_current_view_version(draft: ViewDraft, update: Document, path: str) -> None:
    id_ = integer_at(update, "view-version-id", path, LAST_ADDED, INT_MAX)
    draft.set_current_version(id_, at(path, "view-version-id"))


_HANDLERS: dict[str, Callable[[ViewDraft, Document, str], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-view-version": _add_view_version,
    "set-current-view-version": _set_current_view_version,
}
ACTIONS = frozenset(_HANDLERS)
