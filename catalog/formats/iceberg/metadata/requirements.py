"""Requirements of a commit on the present state (REST catalog spec: TableRequirement).

Messages are those of Java's ``UpdateRequirement``, which clients and their tests match. "Expected"
is followed by the client's id, except in the UUID's message, which has the table's first.
"""

from collections.abc import Callable
from functools import partial

from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    as_array,
    as_object,
    at,
    filled_text_at,
    integer_at,
    optional_integer_at,
    shown,
    text_at,
    uuid_at,
)

_CREATE = "assert-create"
_Check = Callable[[Document | None], None]
_IDS = {
    # requirement: (its field, the field of the metadata, what changed)
    "assert-last-assigned-field-id": (
        "last-assigned-field-id", "last-column-id", "last assigned field id"
    ),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": (
        "last-assigned-partition-id", "last-partition-id", "last assigned partition id"
    ),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": (
        "default-sort-order-id", "default-sort-order-id", "default sort order"
    ),
}  # fmt: skip


def check(requirements: object, metadata: Document | None) -> None:
    """Raise RequirementFailed for the first requirement that does not hold.

    ``metadata`` is None if there is no table. InvalidMetadata for a malformed or unknown requirement
    takes precedence: such a request can never succeed, so its client must not retry.
    """
    for holds in [_read(value, f"requirements[{i}]") for i, value in _numbered(requirements)]:
        holds(metadata)


def is_create(requirements: object) -> bool:
    """True if the requirements assert that the table does not exist."""
    return any(
        as_object(value, f"requirements[{i}]").get("type") == _CREATE
        for i, value in _numbered(requirements)
    )


def is_replacement(requirements: object) -> bool:
    """True if the requirements are those with which Java's library replaces a table.

    The library asserts the current schema for every schema change except a replacement. The other
    sign of a replacement, the removal of main, is absent for an empty table.
    """
    names = {
        as_object(value, f"requirements[{i}]").get("type") for i, value in _numbered(requirements)
    }
    return "assert-last-assigned-field-id" in names and "assert-current-schema-id" not in names


def _numbered(requirements: object) -> list[tuple[int, object]]:
    return list(enumerate(as_array(requirements, "requirements")))


def _read(value: object, path: str) -> _Check:
    requirement = as_object(value, path)
    name = text_at(requirement, "type", path)
    read = _READERS.get(name)
    if read is None:
        raise InvalidMetadata(f"{at(path, 'type')}: unknown table requirement {shown(name)}")
    return read(requirement, path)


def _absent(_requirement: Document, _path: str) -> _Check:
    def holds(metadata: Document | None) -> None:
        if metadata is not None:
            raise RequirementFailed("table already exists")

    return holds


def _present(metadata: Document | None) -> Document:
    if metadata is None:
        raise RequirementFailed("table does not exist")
    return metadata


def _same_uuid(requirement: Document, path: str) -> _Check:
    expected = uuid_at(requirement, "uuid", path)

    def holds(metadata: Document | None) -> None:
        actual = _present(metadata).get("table-uuid")
        if str(actual).lower() != expected:
            raise RequirementFailed(f"UUID does not match: expected {actual} != {expected}")

    return holds


def _same_reference(requirement: Document, path: str) -> _Check:
    name = filled_text_at(requirement, "ref", path)
    # Null by the specification; Java and PyIceberg treat an absent id as null, too.
    expected = optional_integer_at(requirement, "snapshot-id", path, low=-1)

    def holds(metadata: Document | None) -> None:
        reference = (_present(metadata).get("refs") or {}).get(name)
        if reference is None:
            if expected is not None:
                raise RequirementFailed(f"branch or tag {name} is missing, expected {expected}")
            return
        if expected is None:
            raise RequirementFailed(f"{reference['type']} {name} was created concurrently")
        if expected != reference["snapshot-id"]:
            raise RequirementFailed(
                f"{reference['type']} {name} has changed: "
                f"expected id {expected} != {reference['snapshot-id']}"
            )

    return holds


def _same_id(field: str, key: str, subject: str, requirement: Document, path: str) -> _Check:
    expected = integer_at(requirement, field, path, -1, INT_MAX)

    def holds(metadata: Document | None) -> None:
        actual = _present(metadata)[key]
        if actual != expected:
            raise RequirementFailed(f"{subject} changed: expected id {expected} != {actual}")

    return holds


_READERS: dict[str, Callable[[Document, str], _Check]] = {
    _CREATE: _absent,
    "assert-table-uuid": _same_uuid,
    "assert-ref-snapshot-id": _same_reference,
    **{name: partial(_same_id, *names) for name, names in _IDS.items()},
}
TYPES = frozenset(_READERS)
