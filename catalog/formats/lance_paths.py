"""Paths of Lance fields: ``a.b``, with segments in backticks where a name has a dot."""

import re
from collections.abc import Iterable

import pyarrow as pa

from catalog.errors import InvalidInput

_SEGMENT = re.compile(r"`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>[^.`]+)")
_PLAIN = re.compile(r"\w+")


def split(path: str) -> tuple[str, ...]:
    """The names of a path, outermost first. Raises InvalidInput."""
    names, position = [], 0
    while True:
        found = _SEGMENT.match(path, position)
        if found is None:
            raise InvalidInput(f"Field path {path!r} is malformed at position {position}")
        quoted = found["quoted"]
        names.append(found["bare"] if quoted is None else quoted.replace("``", "`"))
        position = found.end()
        if position == len(path):
            return tuple(names)
        if path[position] != ".":
            raise InvalidInput(f"Field path {path!r} is malformed at position {position}")
        position += 1


def join(names: Iterable[str]) -> str:
    """The path of these names as Lance writes it, with backticks where a name needs them."""
    return ".".join(name if _PLAIN.fullmatch(name) else _quoted(name) for name in names)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def find(schema: Iterable[pa.Field], names: tuple[str, ...]) -> pa.Field | None:
    """The field of this path, also inside lists; None if there is none."""
    for field in schema:
        if field.name == names[0]:
            return field if len(names) == 1 else find(_children(field.type), names[1:])
    return None


def _children(type_: pa.DataType) -> Iterable[pa.Field]:
    if pa.types.is_struct(type_):
        return [type_.field(index) for index in range(type_.num_fields)]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _children(type_.value_type)
    return ()
