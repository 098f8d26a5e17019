"""View metadata documents: create and parse them, and check the requirements of a commit.

Spec: https://iceberg.apache.org/view-spec/ and the REST catalog's ViewUpdate and ViewRequirement.
"""

from uuid import UUID, uuid4

from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.files import check_depth, dump, load
from catalog.formats.iceberg.reading import (
    Document,
    as_array,
    as_object,
    as_text,
    at,
    shown,
    strings_by_name,
    text_at,
    uuid_at,
)
from catalog.formats.iceberg.views import checking
from catalog.formats.iceberg.views.draft import LAST_ADDED, ViewDraft
from catalog.formats.iceberg.views.updates import apply

__all__ = ["apply", "check", "dump", "new_view", "parse"]


def new_view(
    *,
    schema: object,
    view_version: object,
    location: object,
    properties: object = None,
    now_ms: int,
    view_uuid: UUID | str | None = None,
) -> Document:
    """The metadata of a created view: one schema with id 0, and one version, which is current.

    The version keeps the client's id, or gets 1 if that is -1, and the schema's id. Raises
    InvalidMetadata.
    """
    requested_properties = {} if properties is None else strings_by_name(properties, "properties")
    view_location = as_text(location, "location").rstrip("/")
    if not view_location:
        raise InvalidMetadata("location must not be empty")
    empty: Document = {
        "view-uuid": str(view_uuid or uuid4()),
        "format-version": checking.FORMAT_VERSION,
        "location": view_location,
        "properties": dict(requested_properties),
        "schemas": [],
        "versions": [],
        "version-log": [],
    }
    draft = ViewDraft(empty, now_ms=now_ms)
    draft.add_schema(as_object(schema, "schema"), "schema")
    version = as_object(view_version, "view-version")
    checking.check_version(version, "view-version")
    draft.add_version({**version, "schema-id": LAST_ADDED}, "view-version")
    draft.set_current_version(LAST_ADDED, "view-version")
    document = draft.finish()
    check_depth(document, "The metadata")
    return document


def parse(content: bytes) -> Document:
    """Parse and validate a metadata file, plain or gzip. Raises InvalidMetadata."""
    document = load(content)
    if document.get("properties") is None:  # Java omits an empty map
        document["properties"] = {}
    checking.check(document)
    return document


TYPES = frozenset({"assert-view-uuid"})
"""The requirements of views."""


def check(requirements: object, view: Document | None) -> None:
    """Raise RequirementFailed for the first requirement that does not hold.

    ``view`` is None if there is no view. InvalidMetadata for a malformed or unknown requirement
    takes precedence: such a request can never succeed, so its client must not retry.
    """
    expected = [
        _read(value, f"requirements[{i}]")
        for i, value in enumerate(as_array(requirements, "requirements"))
    ]
    for uuid in expected:
        if view is None:
            raise RequirementFailed("view does not exist")
        if str(view["view-uuid"]).lower() != uuid:
            raise RequirementFailed(f"UUID does not match: expected {view['view-uuid']} != {uuid}")


def _read(value: object, path: str) -> str:
    """The UUID that a requirement names."""
    requirement = as_object(value, path)
    name = text_at(requirement, "type", path)
    if name not in TYPES:
        raise InvalidMetadata(f"{at(path, 'type')}: unknown view requirement {shown(name)}")
    return uuid_at(requirement, "uuid", path)
