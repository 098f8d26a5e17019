"""Partition and sort transforms, and the types they apply to (spec: Partition Transforms)."""

import re
from collections.abc import Sequence

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    at,
    integer_at,
    integers_at,
    optional_integer_at,
    shown,
    text_at,
)
from catalog.formats.iceberg.schema import primitives
from catalog.formats.iceberg.schema.schemas import Column, Columns

_PARAMETER = re.compile(r"(?P<name>bucket|truncate)\[(?P<width>[0-9]{1,10})\]")
_TIMESTAMPS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_DATES = _TIMESTAMPS | {"date"}
_TRUNCATED = frozenset({"int", "long", "decimal", "string", "binary"})
_BUCKETED = _TRUNCATED | _DATES | {"time", "uuid", "fixed"}
_SOURCES = {
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": _TIMESTAMPS,
    "bucket": _BUCKETED,
    "truncate": _TRUNCATED,
}
_OF_ONE_COLUMN = frozenset({"identity", "year", "month", "day", "hour", "truncate"})
# The specification does not name these transforms yet: future names are expected to match this.
_OF_SEVERAL = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(\[[0-9]{1,10}\])?")
_FIRST_OF_SEVERAL = 3
_WORDS = ("transform", "direction", "null-order")
_NOT_IDENTITY = frozenset({"variant", "geometry", "geography"})


def _name(transform: str, path: str) -> str:
    """The transform without its width. Raises InvalidMetadata if the specification has none."""
    if transform in {"identity", "void", "year", "month", "day", "hour"}:
        return transform
    match = _PARAMETER.fullmatch(transform)
    if match is None:
        raise InvalidMetadata(f"{path}: unknown transform {shown(transform)}")
    if not 1 <= int(match["width"]) <= INT_MAX:
        raise InvalidMetadata(f"{path}: {transform} needs a width of 1 to {INT_MAX}")
    return match["name"]


def check(field: Document, columns: Columns, path: str, *, use: str) -> None:
    """Raise InvalidMetadata if a transform does not fit its source columns.

    ``use`` is "partition" or "sort". The column of a void field may be missing: v1 keeps dropped
    partition fields as void.
    """
    transform, ids = field["transform"], sources(field)
    if len(ids) > 1:
        for id_ in ids:
            _require_source(columns.get(id_), path, use=use)
        return
    name = _name(transform, f"{path}.transform")
    if name == "void":
        return
    source = _require_source(columns.get(ids[0]), path, use=use)
    base = primitives.base_name(str(source.type), path)
    fits = base not in _NOT_IDENTITY if name == "identity" else base in _SOURCES[name]
    if not fits:
        raise InvalidMetadata(
            f"{path}: column {shown(source.name)} of type {source.type} "
            f"does not fit transform {transform}"
        )


def _require_source(source: Column | None, path: str, *, use: str) -> Column:
    if source is None:
        raise InvalidMetadata(f"{path}: cannot find the source column of this {use} field")
    if isinstance(source.type, dict) or source.type == "variant":
        raise InvalidMetadata(f"{path}: cannot {use} by non-primitive column {shown(source.name)}")
    return source


# --- sources -----------------------------------------------------------------------------------


def sources(field: Document) -> tuple[int, ...]:
    """The ids of the source columns of a valid field: one, or several from v3 on."""
    several = field.get("source-ids")
    return (field["source-id"],) if several is None else tuple(several)


def check_sources(field: Document, path: str) -> None:
    """Raise InvalidMetadata if the source columns or the transform of a field are malformed."""
    transform = text_at(field, "transform", path)
    if field.get("source-ids") is None:
        integer_at(field, "source-id", path, high=INT_MAX)
        return
    ids = integers_at(field, "source-ids", path, high=INT_MAX)
    here = at(path, "source-ids")
    if not ids:
        raise InvalidMetadata(f"{here} must not be empty")
    first = optional_integer_at(field, "source-id", path, high=INT_MAX)
    if first is not None and first != ids[0]:
        raise InvalidMetadata(f"{at(path, 'source-id')} {first} is not the first of source-ids")
    match = _OF_SEVERAL.fullmatch(transform)
    if len(ids) > 1 and (match is None or match["name"] in _OF_ONE_COLUMN):
        raise InvalidMetadata(f"{here}: transform {shown(transform)} is not of several columns")


def check_version(fields: list[Document], version: int, path: str) -> None:
    """Raise InvalidMetadata for transforms of several columns before v3."""
    for i, field in enumerate(fields):
        if len(sources(field)) > 1 and version < _FIRST_OF_SEVERAL:
            raise InvalidMetadata(
                f"{path}[{i}]: transforms of several columns are not supported until v3"
            )


def with_plain_source(field: Document) -> Document:
    """The field with only ``source-id`` if it has one source, otherwise with only ``source-ids``.

    Readers that support one source must not use the first of several.
    """
    return _with_sources(field, sources(field)) if "source-ids" in field else field


def _with_sources(field: Document, ids: Sequence[int]) -> Document:
    others = {key: v for key, v in field.items() if key not in {"source-id", "source-ids"}}
    return {**others, **({"source-id": ids[0]} if len(ids) == 1 else {"source-ids": list(ids)})}


def plain(layout: Document) -> Document:
    """A spec or a sort order, valid or not, with keywords in lower case, as Java reads them."""
    fields = layout.get("fields")
    if not isinstance(fields, list):
        return layout
    return {**layout, "fields": [_plain_field(field) for field in fields]}


def _plain_field(field: object) -> object:
    if not isinstance(field, dict):
        return field
    words = {key: field[key] for key in _WORDS if isinstance(field.get(key), str)}
    return {**field, **{key: text.lower() for key, text in words.items()}}


def moved_sources(field: Document, moved: dict[int, int], path: str) -> Document:
    """The field with the new ids of its source columns."""
    ids = sources(field)
    for id_ in ids:
        if id_ not in moved:
            raise InvalidMetadata(f"{path}.source-id: the schema has no column with id {id_}")
    return _with_sources(field, [moved[id_] for id_ in ids])


Key = tuple[tuple[int, ...], str]


def key(field: Document) -> Key:
    """The source columns and the transform, which determine a partition field's values."""
    return sources(field), field["transform"]
