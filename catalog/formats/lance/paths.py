"""Paths of Lance fields: ``a.b``, with backticks around names that contain a dot."""

import re
from collections.abc import Iterable

import pyarrow as pa

from catalog.errors import InvalidInput

_SEGMENT = re.compile(r"`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>[^.`]+)")
_PLAIN = re.compile(r"\w+")
_ROW_COLUMNS = {
    "_rowid",
    "_rowaddr",
    "_rowoffset",
    "_row_last_updated_at_version",
    "_row_created_at_version",
}


def check_name(name: str) -> None:
    """Raise InvalidInput for a name that a column cannot have or that Lance cannot read."""
    if not name or name in _ROW_COLUMNS:
        raise InvalidInput(f"A column cannot have the name '{name}'")
    if "`" in name:
        raise InvalidInput(f"Lance cannot read column '{name}', for the backtick in its name")


def check_names(schema: Iterable[pa.Field]) -> None:
    """Check the names of all columns of a schema; nested fields may have any name."""
    for field in schema:
        check_name(field.name)


def split(path: str) -> tuple[str, ...]:
    """The names of a path, outermost first. Raises InvalidInput."""
    names, position = [], 0
    while True:
        match = _SEGMENT.match(path, position)
        if match is None:
            raise InvalidInput(f"Field path {path!r} is malformed at position {position}")
        quoted = match["quoted"]
        names.append(match["bare"] if quoted is None else quoted.replace("``", "`"))
        position = match.end()
        if position == len(path):
            return tuple(names)
        if path[position] != ".":
            raise InvalidInput(f"Field path {path!r} is malformed at position {position}")
        position += 1


def join(names: Iterable[str]) -> str:
    """The path of these names, with backticks where Lance needs them."""
    return ".".join(name if _PLAIN.fullmatch(name) else quoted(name) for name in names)


def quoted_path(path: str) -> str:
    """The path in SQL, where unquoted names lose their case. Raises InvalidInput."""
    return ".".join(map(quoted, split(path)))


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def find(schema: Iterable[pa.Field], names: tuple[str, ...]) -> pa.Field | None:
    """The field of a path, also inside lists; None if it does not exist."""
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
