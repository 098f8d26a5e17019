"""The columns that a filter compares, as an index could look them up.

A filter is SQL of Lance. Only comparisons that stand alone are recognized: a path and a value, or one
of the functions that an index serves. What is not recognized is left out.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache

from catalog.formats.lance import paths

_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|`(?:[^`]|``)+`|"[^"]*"|\d[\w.]*|\w+|<=|>=|!=|<>|==|[=<>]|\S"""
)
_COMPARISONS = frozenset({"=", "==", "<", "<=", ">", ">=", "in", "between"})
_MIRRORED = _COMPARISONS - {"in", "between"}
_BEGIN = frozenset({"", "(", "and", "or"})
_END = frozenset({"", ")", "and", "or"})
_WORDS = frozenset({"and", "or", "not", "null", "true", "false", "case", "when", "is", "like"})
_LONGEST = 10_000


class Comparison(StrEnum):
    """What a filter asks of a column."""

    VALUE = "value"
    """It is equal to a value, or in a range."""
    LABELS = "labels"
    """Its list contains a value."""
    SUBSTRING = "substring"
    """Its text contains a part."""


_FUNCTIONS = {
    "array_has": Comparison.LABELS,
    "array_has_all": Comparison.LABELS,
    "array_has_any": Comparison.LABELS,
    "array_contains": Comparison.LABELS,
    "contains": Comparison.SUBSTRING,
}


@lru_cache(maxsize=1024)
def compared_columns(expression: str) -> frozenset[tuple[str, Comparison]]:
    """The paths of the columns that a filter compares, each with the comparison."""
    if len(expression) > _LONGEST:
        return frozenset()
    return frozenset(_compared(_TOKEN.findall(expression)))


def read_columns(expression: str) -> frozenset[str] | None:
    """The paths that an expression may read, among them words of SQL; None if it is too long.

    The name before a bracket is that of a function, unless it is quoted.
    """
    if len(expression) > _LONGEST:
        return None
    tokens = _TOKEN.findall(expression)
    read: set[str] = set()
    position = 0
    while position < len(tokens):
        path, end = _path(tokens, position)
        is_call = tokens[end : end + 1] == ["("] and tokens[position][0] != "`"
        if path and not is_call:
            read.add(path)
        position = end if path else position + 1
    return frozenset(read)


def _compared(tokens: list[str]) -> Iterator[tuple[str, Comparison]]:
    lower = ["", "", *(token.lower() for token in tokens), "", ""]
    position = 0
    while position < len(tokens):
        path, end = _path(tokens, position)
        if not path:
            position += 1
            continue
        before_that, before, after = lower[position], lower[position + 1], lower[end + 2]
        if (before in _BEGIN and after in _COMPARISONS) or (before in _MIRRORED and after in _END):
            yield path, Comparison.VALUE
        elif before == "(" and after == "," and before_that in _FUNCTIONS:
            yield path, _FUNCTIONS[before_that]
        position = end


def _path(tokens: list[str], position: int) -> tuple[str, int]:
    """The path that begins at a token, and the position after it; an empty path if there is none."""
    names: list[str] = []
    while position < len(tokens) and (name := _name(tokens[position])):
        names.append(name)
        position += 1
        if position + 1 >= len(tokens) or tokens[position] != ".":
            break
        position += 1
    return paths.join(names) if names else "", position


def _name(token: str) -> str:
    if token[0] == "`" and len(token) > 2:
        return token[1:-1].replace("``", "`")
    is_word = token[0].isalpha() or token[0] == "_"
    return token if is_word and token.lower() not in _WORDS else ""
