"""Limits on functions of SQL whose results are much larger than their arguments.

Lance builds the values of a batch of rows in memory: ``repeat('a', 2000000000)`` takes gigabytes for a
single row, and no limit on time or on the size of the request prevents it. So the numbers in such calls
must be literals, and the growth of all calls of an expression together is limited.
"""

import re
from dataclasses import dataclass, field

from catalog.errors import InvalidInput

MAX_GROWTH = 1000
"""The maximum factor by which the calls of an expression may enlarge a value, together."""
MAX_DEPTH = 300
"""The maximum number of brackets in brackets: each takes memory here, and more of it in Lance."""
_MAX_ARGUMENTS = 1000
_COUNTED = frozenset(
    {"repeat", "lpad", "rpad", "array_repeat", "list_repeat", "array_resize", "list_resize"}
)
"""Functions whose second argument is the size of the result, or its factor."""
_RANGES = frozenset({"range", "generate_series"})
_REPLACING = frozenset(
    {"replace", "regexp_replace", "concat_ws", "array_to_string", "list_to_string"}
    | {"array_join", "list_join"}
    | {f"{kind}_replace{which}" for kind in ("array", "list") for which in ("", "_n", "_all")}
)
"""Functions that insert an argument at many places."""
_CAST = "arrow_cast"
_NAMES = frozenset({*_COUNTED, *_RANGES, *_REPLACING, _CAST})
_GROWING = re.compile(rf"(?<!\w)(?:{'|'.join(_NAMES)})(?!\w)", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"--|/\*|\$|\b[eE]'")
"""Comments, and texts with escapes or other quotes, in which brackets and quotes have no meaning."""
_TOKEN = re.compile(r"""'[^']*'|`[^`]*`|"[^"]*"|\d[\w.]*|\w+|\S""")


@dataclass(slots=True)
class _Call:
    """A bracket, and the name of the function before it."""

    name: str = ""
    arguments: list[list[str]] = field(default_factory=lambda: [[]])
    """Of the functions with limits only: a list in another bracket may have millions of values."""
    literal_size: int = 0

    def add(self, lexeme: str) -> None:
        if self.name not in _NAMES:
            return
        if lexeme == ",":
            self.arguments.append([])
        else:
            self.arguments[-1].append(lexeme)
        if len(self.arguments) > _MAX_ARGUMENTS or len(self.arguments[-1]) > _MAX_ARGUMENTS:
            raise InvalidInput(
                f"'{self.name}' has more than {_MAX_ARGUMENTS} arguments or operators"
            )


def check(expression: str) -> None:
    """Raise InvalidInput for an expression whose values may be much larger than those of the table."""
    growing = _GROWING.search(expression)
    if growing is None:
        return
    if "(" in expression and _AMBIGUOUS.search(expression):
        raise InvalidInput(
            f"An expression with '{growing[0]}' cannot have comments, dollar signs or escaped texts"
        )
    calls, growth, before = [_Call()], 1, ""
    for match in _TOKEN.finditer(expression):
        lexeme = match[0]
        if lexeme in "([":
            calls.append(_Call(before.strip("`").lower() if lexeme == "(" else ""))
            require_depth(len(calls))
        elif lexeme in ")]" and len(calls) > 1:
            call = calls.pop()
            growth *= _factor(call)
            calls[-1].add("()")
            calls[-1].literal_size += call.literal_size
        else:
            calls[-1].add(lexeme)
            calls[-1].literal_size += len(lexeme) - 2 if lexeme[0] == "'" else 0
        before = lexeme
    if growth > MAX_GROWTH:
        raise InvalidInput(
            f"The functions of an expression may enlarge values at most {MAX_GROWTH} times"
        )


def require_depth(depth: int) -> None:
    """Raises InvalidInput for too many brackets in brackets."""
    if depth > MAX_DEPTH:
        raise InvalidInput(f"An expression has more than {MAX_DEPTH} brackets in brackets")


def _factor(call: _Call) -> int:
    if call.name in _COUNTED:
        return _number(call.name, call.arguments[1] if len(call.arguments) > 1 else [])
    if call.name in _RANGES:
        numbers = (_number(call.name, argument) for argument in call.arguments)
        return max(numbers, default=1)
    if call.name in _REPLACING:
        return max(call.literal_size, 1)
    if call.name == _CAST and any(
        "fixedsize" in lexeme.lower() for argument in call.arguments for lexeme in argument
    ):
        raise InvalidInput(f"'{_CAST}' to a type of a fixed size is not supported")
    return 1


def _number(name: str, argument: list[str]) -> int:
    """The value of an argument, at least 1."""
    text = "".join(argument[1:] if argument[:1] == ["-"] else argument)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= MAX_GROWTH):
        raise InvalidInput(f"The size in '{name}' must be a number of at most {MAX_GROWTH}")
    return max(int(text), 1)
