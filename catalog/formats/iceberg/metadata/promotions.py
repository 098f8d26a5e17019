"""Type promotions that a column allows (spec: Schema Evolution).

Data files keep the type that a column had when they were written, under the column's id. Readers
can read them with the types listed here, and with no others.
"""

import re

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata.draft import Draft
from catalog.formats.iceberg.reading import shown
from catalog.formats.iceberg.schema import schemas, transforms
from catalog.formats.iceberg.schema.schemas import Column, Columns

_ALWAYS = {("int", "long"), ("float", "double")}
_SINCE_V3 = {("date", "timestamp"), ("date", "timestamp_ns")}
_FIRST_VERSION = 3
# These transforms return the same for a date and for its timestamp.
_UNCHANGED_TRANSFORMS = frozenset({"year", "month", "day", "void"})
_DECIMAL = re.compile(r"decimal\( *([0-9]+) *, *([0-9]+) *\)")


def check(draft: Draft, columns: Columns, path: str) -> None:
    """Raise InvalidMetadata if a new schema changes the type of an existing column illegally.

    For a column that the current schema no longer has, its last type counts: older files have it.
    """
    items = draft.items("schemas")
    current = draft.document["current-schema-id"]
    # The current schema first, then the newest.
    ordered = sorted(
        items,
        key=lambda schema: (schema.get("schema-id", 0) == current, schema.get("schema-id", 0)),
        reverse=True,
    )
    last: int = draft.document["last-column-id"]
    unseen = {id_ for id_ in columns if id_ <= last}
    for schema in ordered:
        if not unseen:
            break
        before = schemas.index(schema, "schema")
        for id_ in unseen & before.keys():
            _check(draft, before[id_], columns[id_], path)
        unseen -= before.keys()


def _check(draft: Draft, old: Column, new: Column, path: str) -> None:
    before, after = _plain(old), _plain(new)
    if before == after or (before == "unknown" and draft.version >= _FIRST_VERSION):
        return
    if (before, after) in _ALWAYS or _is_wider(before, after):
        return
    is_later = (before, after) in _SINCE_V3 and draft.version >= _FIRST_VERSION
    if is_later and not _is_partition_source(draft, old.id):
        return
    raise InvalidMetadata(
        f"{path}: column {shown(new.name)} (id {new.id}) cannot change from {before} to {after}"
    )


def _plain(column: Column) -> str:
    """The type as text; for a nested type its kind, because its fields are columns themselves."""
    if isinstance(column.type, dict):
        return str(column.type["type"])
    return column.type.replace(" ", "")


def _is_wider(before: str, after: str) -> bool:
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if old is None or new is None:
        return False
    return old[2] == new[2] and int(new[1]) > int(old[1])


def _is_partition_source(draft: Draft, id_: int) -> bool:
    """True if a partition field transforms this column in a way that depends on its type."""
    return any(
        id_ in transforms.sources(field) and field["transform"] not in _UNCHANGED_TRANSFORMS
        for spec in draft.items("partition-specs")
        for field in spec["fields"]
    )
