"""Names of namespaces and tables: as people type them, and in requests."""

from collections.abc import Sequence
from urllib.parse import quote

from monodon.client.errors import InvalidName

Name = str | Sequence[str]
"""A sequence of names from the root down, or text that is joined by ``$``, such as ``prod$users``."""

_DELIMITERS = ("$", "|", "~", "^", "\x1f")


def parse(text: str) -> tuple[str, ...]:
    """The parts of a typed name. The empty tuple is the root namespace.

    Parts are separated by dots, or by ``$`` if the text has one outside quotes: ``prod.users``, ``prod$users``.
    Double quotes protect dots and ``$``; a quote inside quotes is doubled: ``prod."a.b"``. ``$`` and ``.`` are the
    root. Raises InvalidName.
    """
    if text in {"", "$", "."}:
        return ()
    characters = _characters(text)
    separator = "$" if any(c == "$" and not quoted for c, quoted in characters) else "."
    parts = [""]
    for character, is_quoted in characters:
        if character == separator and not is_quoted:
            parts.append("")
        else:
            parts[-1] += character
    if not all(parts):
        raise InvalidName(f"'{text}' has an empty part: write names as prod.users, or prod.\"a.b\"")
    return tuple(parts)


def _characters(text: str) -> list[tuple[str, bool]]:
    """The characters without the quotes around them, each with whether it is quoted."""
    characters: list[tuple[str, bool]] = []
    quoted, position = False, 0
    while position < len(text):
        character = text[position]
        if character == '"' and quoted and text[position + 1 : position + 2] == '"':
            characters.append(('"', True))
            position += 1
        elif character == '"':
            quoted = not quoted
        else:
            characters.append((character, quoted))
        position += 1
    if quoted:
        raise InvalidName(f"A quote of '{text}' is not closed")
    return characters


def display(name: Sequence[str]) -> str:
    """The name as ``parse`` reads it."""
    if not name:
        return "$"
    special = set('."$')
    return ".".join(
        '"' + level.replace('"', '""') + '"' if special & set(level) else level for level in name
    )


def delimiter_of(*names: Name | None) -> str:
    """A delimiter that no level of these names contains; ``$`` if one of them is text."""
    if any(isinstance(name, str) for name in names):
        return "$"
    levels = [level for name in names if name is not None for level in name]
    for delimiter in _DELIMITERS:
        if not any(delimiter in level for level in levels):
            return delimiter
    raise InvalidName(f"The name {display(levels)} cannot be sent")


def join(name: Name, delimiter: str = "$") -> str:
    """The name in the form of the Lance protocol. The delimiter alone is the root."""
    return name if isinstance(name, str) else delimiter.join(name) or delimiter


def path_segment(name: Name, delimiter: str = "$") -> str:
    return segment(join(name, delimiter))


def segment(value: object) -> str:
    """A value as one segment of a path.

    The dots of ``.`` and ``..`` are encoded, because these segments would lead to another path.
    """
    text = str(value)
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="")
