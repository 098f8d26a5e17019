"""View metadata documents: a new one, one from a file, and what a commit to one was made against.

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
    """The metadata of a created view: one schema, with id 0, and one version, the current one.

    The version keeps the id that its sender gave it, 1 if that is -1, and gets the schema's id.
    Raises InvalidMetadata.
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
    """The sound document of a metadata file, plain or gzip. Raises InvalidMetadata."""
    document = load(content)
    if document.get("properties") is None:  # Java leaves an empty map out
        document["properties"] = {}
    checking.check(document)
    return document


def check(requirements: object, view: Document | None) -> None:
    """Raises RequirementFailed for the first that does not hold; ``view`` None: no view.

    InvalidMetadata for one that is malformed or unknown comes first: such a request can never
    succeed, and its sender must not be told to try again.
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
    """The UUID that the only requirement of views asserts."""
    requirement = as_object(value, path)
    name = text_at(requirement, "type", path)
    if name != "assert-view-uuid":
        raise InvalidMetadata(f"{at(path, 'type')}: unknown view requirement {shown(name)}")
    return uuid_at(requirement, "uuid", path)
