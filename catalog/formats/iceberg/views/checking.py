"""Validation of view versions and of a whole view metadata document (View Spec)."""

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    as_object,
    at,
    filled_text_at,
    integer_at,
    objects_at,
    optional_text_at,
    shown,
    strings_by_name_at,
    texts_at,
    uuid_at,
)
from catalog.formats.iceberg.schema import schemas

FORMAT_VERSION = 1


def check(document: Document) -> None:
    """Raise InvalidMetadata with the path to the first fault."""
    as_object(document, "")
    integer_at(document, "format-version", "", FORMAT_VERSION, FORMAT_VERSION)
    uuid_at(document, "view-uuid", "")
    filled_text_at(document, "location", "")
    strings_by_name_at(document, "properties", "")
    schema_ids = _check_schemas(document)
    version_ids = _check_versions(document, schema_ids)
    current = integer_at(document, "current-version-id", "", high=INT_MAX)
    if current not in version_ids:
        raise InvalidMetadata(f"current-version-id {current} is not in versions")
    # An entry may name a removed version: not every writer shortens the log with the versions.
    for i, entry in enumerate(objects_at(document, "version-log", "")):
        integer_at(entry, "version-id", f"version-log[{i}]", high=INT_MAX)
        integer_at(entry, "timestamp-ms", f"version-log[{i}]")


def _check_schemas(document: Document) -> set[int]:
    ids: set[int] = set()
    for i, schema in enumerate(objects_at(document, "schemas", "")):
        path = f"schemas[{i}]"
        schemas.index(schema, path)
        _add_id(ids, schema.get("schema-id") or 0, path, "schema-id")
    return ids


def _check_versions(document: Document, schema_ids: set[int]) -> set[int]:
    ids: set[int] = set()
    for i, version in enumerate(objects_at(document, "versions", "")):
        path = f"versions[{i}]"
        _add_id(ids, integer_at(version, "version-id", path, high=INT_MAX), path, "version-id")
        check_version(version, path)
        if version["schema-id"] not in schema_ids:
            raise InvalidMetadata(f"{path}: there is no schema {version['schema-id']}")
    return ids


def _add_id(ids: set[int], id_: int, path: str, key: str) -> None:
    if id_ in ids:
        raise InvalidMetadata(f"{path}: there are two with {key} {id_}")
    ids.add(id_)


def check_version(version: Document, path: str) -> None:
    """Raise InvalidMetadata for a malformed version. Its ids may be -1: not assigned yet."""
    integer_at(version, "version-id", path, -1, INT_MAX)
    integer_at(version, "schema-id", path, -1, INT_MAX)
    integer_at(version, "timestamp-ms", path)
    strings_by_name_at(version, "summary", path)
    optional_text_at(version, "default-catalog", path)
    texts_at(version, "default-namespace", path)
    _check_representations(version, path)


def _check_representations(version: Document, path: str) -> None:
    here = at(path, "representations")
    representations = objects_at(version, "representations", path)
    if not representations:
        raise InvalidMetadata(f"{here} must not be empty: a view needs a query")
    dialect_names: set[str] = set()
    for i, representation in enumerate(representations):
        entry_path = f"{here}[{i}]"
        kind = filled_text_at(representation, "type", entry_path)
        if kind.lower() != "sql":
            raise InvalidMetadata(f"{at(entry_path, 'type')} must be 'sql', not {shown(kind)}")
        filled_text_at(representation, "sql", entry_path)
        dialect = filled_text_at(representation, "dialect", entry_path).lower()
        if dialect in dialect_names:
            raise InvalidMetadata(
                f"Invalid view version: Cannot add multiple queries for dialect {dialect} ({entry_path})"
            )
        dialect_names.add(dialect)


def dialects(version: Document) -> set[str]:
    """The dialects of a valid version in lower case, as they are compared."""
    return {representation["dialect"].lower() for representation in version["representations"]}
