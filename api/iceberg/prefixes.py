"""The forms of a namespace in a URL: as the prefix of a warehouse, and in a path or a query."""

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

from catalog import identifiers
from catalog.identifiers import Identifier

SEPARATOR = "\x1f"
ESCAPED_SEPARATOR = "%1F"

RESERVED = frozenset(
    {
        # first words of the routes of this protocol
        *("config", "oauth", "namespaces", "tables", "views", "transactions", "functions"),
        # first words of the other protocol's routes, present and future
        *("namespace", "table", "view", "transaction", "materialized_view", "function", "index"),
        *("indices", "tag", "tags", "branch", "branches", "version", "versions", "udf"),
    }
)
"""First words of routes. A warehouse of such a name is called ``.table``, as no name is empty."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPE = re.compile(r"(?:~[0-9A-Fa-f]{2})+")


def spell(warehouse: Identifier) -> str:
    """The prefix of a warehouse: ``prod.ml``.

    Some clients put it into URLs unchanged, others quote it first. So it consists of characters that
    are the same in both cases, and other characters are encoded by their bytes: ``~20``.
    """
    text = ".".join(map(_escape, warehouse))
    return f".{text}" if text in RESERVED else text


@lru_cache(maxsize=4096)
def read(prefix: str) -> Identifier:
    """The warehouse that a prefix names. Raises InvalidIdentifier."""
    if SEPARATOR in prefix:
        return identifiers.check(prefix.split(SEPARATOR))
    levels = prefix.removeprefix(".").split(".")
    return identifiers.check([_ESCAPE.sub(_unescape, level) for level in levels])


def candidates(warehouse: str) -> list[Identifier]:
    """The namespaces that a ``warehouse`` parameter may name, most likely first.

    Levels are joined by dots, or by 0x1F if a name contains a dot.
    """
    if SEPARATOR in warehouse:
        return [tuple(warehouse.split(SEPARATOR))]
    levels = tuple(warehouse.split("."))
    return [levels, (warehouse,)] if len(levels) > 1 else [levels]


def levels(text: str) -> tuple[str, ...]:
    """The levels of a namespace in a path."""
    return tuple(text.split(SEPARATOR))


def quoted_levels(text: str) -> tuple[str, ...]:
    """The levels of a namespace that was quoted twice.

    PyIceberg and older Java clients quote each level of the ``parent`` that they list, and then
    the whole once more.
    """
    return tuple(unquote(level) for level in re.split(r"\x1f|%1[Ff]", text))


def _escape(level: str) -> str:
    if _PLAIN.fullmatch(level):
        return level
    parts: Sequence[str] = [
        char if _PLAIN.fullmatch(char) else "".join(f"~{byte:02X}" for byte in char.encode())
        for char in level
    ]
    return "".join(parts)


def _unescape(match: re.Match[str]) -> str:
    return bytes.fromhex(match.group().replace("~", "")).decode("utf-8", "replace")
