"""Partition and sort transforms, and the types they apply to (spec: Partition Transforms)."""

import re

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import primitives
from catalog.formats.iceberg.reading import INT_MAX, Document, shown
from catalog.formats.iceberg.schemas import Column

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
_NOT_IDENTITY = frozenset({"variant", "geometry", "geography"})


def _name(transform: str, path: str) -> str:
    """The transform without its width. Refuses what the specification does not list."""
    if transform in {"identity", "void", "year", "month", "day", "hour"}:
        return transform
    match = _PARAMETER.fullmatch(transform)
    if match is None:
        raise InvalidMetadata(f"{path}: unknown transform {shown(transform)}")
    if not 1 <= int(match["width"]) <= INT_MAX:
        raise InvalidMetadata(f"{path}: {transform} needs a width of 1 to {INT_MAX}")
    return match["name"]


def check(transform: str, source: Column | None, path: str, *, use: str) -> None:
    """Refuses a transform that its source column cannot take; ``use`` is "partition" or "sort".

    A void field may have lost its column: v1 keeps dropped partition fields that way.
    """
    name = _name(transform, f"{path}.transform")
    if name == "void":
        return
    if source is None:
        raise InvalidMetadata(f"{path}: cannot find the source column of this {use} field")
    if isinstance(source.type, dict) or source.type == "variant":
        raise InvalidMetadata(f"{path}: cannot {use} by non-primitive column {shown(source.name)}")
    base = primitives.base_name(source.type, path)
    fits = base not in _NOT_IDENTITY if name == "identity" else base in _SOURCES[name]
    if not fits:
        raise InvalidMetadata(
            f"{path}: column {shown(source.name)} of type {source.type} "
            f"does not fit transform {transform}"
        )


def key(field: Document) -> tuple[int, str]:
    """What makes two partition fields the same data: source column and transform."""
    return field["source-id"], field["transform"]
