"""Limits on functions of SQL whose results are much larger than their arguments.

Lance builds the values of a batch of rows in memory: ``repeat('a', 2000000000)`` takes gigabytes for a
single row, and no limit on time or on the size of the request prevents it. So the numbers in such calls
must be literals, and the growth of all calls of an expression together is limited.

It builds them for 8192 rows at once: ``concat(text, '…')`` with a text of a megabyte takes 8 GB. So the values that a
function or an operator builds from an expression are limited, too, where a value of the table counts as 8 bytes.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from catalog.errors import InvalidInput

MAX_GROWTH = 1000
"""The maximum factor by which the calls of an expression may enlarge a value, together."""
MAX_DEPTH = 300
"""The maximum number of brackets in brackets: each takes memory here, and more of it in Lance."""
MAX_BUILT = 16 << 10
"""The maximum number of bytes that a function or an operator may build for a row."""
MAX_VALUES_BUILT = 64 << 10
"""The maximum number of bytes that all expressions for columns may build for a row, together."""
_MAX_ARGUMENTS = 1000
_VALUE = 8
_QUOTES = frozenset("'\"")
_PATH = re.compile(r"(?:`[^`]*`|[\w.])+")
_SEPARATORS = frozenset(
    {",", "=", "<", ">", "!", "and", "or", "like", "ilike", "between", "is", "when", "then", "else"}
)
"""What ends a value that operators build."""
_TESTS = frozenset(
    {"in", "contains", "starts_with", "ends_with", "strpos", "instr", "position", "regexp_like"}
    | {f"{kind}_has{which}" for kind in ("array", "list") for which in ("", "_all", "_any")}
    | {"array_contains", "list_contains", "find_in_set", "contains_tokens", "levenshtein"}
)
"""Functions that read long arguments without building them for each row, and return a small value."""
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
_PATTERNS = frozenset(
    {f"regexp_{name}" for name in ("like", "match", "replace", "count", "instr", "substr")}
)
"""Functions whose second argument is a pattern, of which each different one takes memory until the batch ends."""
_NAMES = frozenset({*_COUNTED, *_RANGES, *_REPLACING, *_PATTERNS, _CAST})
_CHOOSING = frozenset({"coalesce", "nvl", "nvl2", "ifnull", "nullif", "greatest", "least"})
"""Functions whose result is one of their arguments."""
_WIDENING = {"encode": 2, "string_to_array": 4, "string_to_list": 4}
"""Functions whose results take more bytes than their arguments, and how many times."""
_GROWING = re.compile(rf"(?<!\w)(?:{'|'.join(_NAMES)})(?!\w)", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"""(--|/\*|\$|\b[eE]')|'[^']*'|"[^"]*\"""")
"""Comments, and texts with escapes or other quotes, in which brackets and quotes have no meaning; or plain texts."""
_TOKEN = re.compile(r"""'[^']*'|`[^`]*`|"[^"]*"|\d[\w.]*|\w+|\S""")


@dataclass(slots=True)
class _Call:
    """A bracket, and the name of the function before it."""

    name: str = ""
    arguments: list[list[str]] = field(default_factory=lambda: [[]])
    """Of the functions with limits only: a list in another bracket may have millions of values."""
    literal_size: int = 0
    is_call: bool = False
    size: int = 0
    """Bytes of the values in the bracket, for a row."""
    first_size: int = 0
    """Those of the first argument."""
    largest: int = 0
    """Those of the largest value."""
    value: int = 0
    """Those of the present value."""
    is_joined: bool = False
    """True if an operator builds the present value."""

    def measure(self, lexeme: str) -> None:
        """Add the size of a value, or end it."""
        if lexeme[0] in _QUOTES:
            self.value += max(len(lexeme) - 2, 1)
        elif lexeme.lower() in _SEPARATORS:
            self.end_value()
            self.first_size = self.first_size or self.size
        elif lexeme == "|":
            self.is_joined = True
        elif lexeme[0].isalnum() or lexeme[0] in "_`":
            self.value += _VALUE

    def end_value(self) -> None:
        if self.is_joined:
            _require_size(self.value)
        self.size += self.value
        self.largest = max(self.largest, self.value)
        self.value, self.is_joined = 0, False

    def built(self, factor: int) -> int:
        """The size of the result for a row."""
        self.end_value()
        if self.name in _TESTS:
            return _VALUE
        if self.name in _COUNTED:
            self.size = (self.first_size or self.size) * factor
        elif self.name in _CHOOSING:
            self.size = self.largest
        elif self.name in _RANGES:
            self.size = _VALUE * factor
        elif self.name in _REPLACING:
            columns = max(self.size - self.literal_size, _VALUE)
            self.size = self.literal_size + columns * factor
        self.size *= _WIDENING.get(self.name, 1)
        if self.is_call:
            _require_size(self.size)
        return self.size

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
    if not _is_short(expression) or _GROWING.search(expression):
        _size(expression)


def _is_short(expression: str) -> bool:
    """True if an expression is surely small."""
    return _VALUE * len(expression) <= MAX_BUILT


def check_values(expressions: Collection[str]) -> None:
    """Raise InvalidInput for expressions whose values for columns are together too large for many rows at once."""
    if values_size(expressions) > MAX_VALUES_BUILT:
        raise InvalidInput(
            f"The expressions for columns have texts and lists of more than {MAX_VALUES_BUILT >> 10} KiB for each row"
        )


def values_size(expressions: Collection[str]) -> int:
    """The bytes that expressions for columns build for a row, at least. Raises as ``check``."""
    return sum(_size(text) for text in expressions if not _PATH.fullmatch(text))


def _size(expression: str) -> int:
    """The size of the value of an expression."""
    growing, is_short = _GROWING.search(expression), _is_short(expression)
    may_build = growing and "(" in expression if is_short else True
    if may_build and any(match[1] for match in _AMBIGUOUS.finditer(expression)):
        reason = f"of more than {MAX_BUILT // _VALUE} bytes"
        if growing is not None:
            reason = f"with '{growing[0]}'"
        raise InvalidInput(
            f"An expression {reason} cannot have comments, dollar signs or escaped texts"
        )
    calls, growth, before = [_Call()], 1, ""
    for match in _TOKEN.finditer(expression):
        lexeme = match[0]
        if lexeme in "([":
            name = before.strip("`").lower() if lexeme == "(" else ""
            calls.append(_Call(name, is_call=_is_name(before) and lexeme == "("))
            require_depth(len(calls))
        elif lexeme in ")]" and len(calls) > 1:
            call = calls.pop()
            factor = _factor(call)
            growth *= factor
            calls[-1].value += call.built(factor)
            calls[-1].add("()")
            calls[-1].literal_size += call.literal_size
        else:
            calls[-1].measure(lexeme)
            calls[-1].add(lexeme)
            calls[-1].literal_size += len(lexeme) - 2 if lexeme[0] in _QUOTES else 0
        before = lexeme
    if growth > MAX_GROWTH:
        raise InvalidInput(
            f"The functions of an expression may enlarge values at most {MAX_GROWTH} times"
        )
    return calls[0].built(1)


def _is_name(lexeme: str) -> bool:
    """True before the bracket of a call."""
    is_word = lexeme[:1].isalpha() or lexeme[:1] in {"_", "`", '"'}
    return is_word and lexeme.lower() not in {*_SEPARATORS, "not", "in"}


def _require_size(size: int) -> None:
    """Raise InvalidInput for a value that is too large to be built for many rows."""
    if size > MAX_BUILT:
        raise InvalidInput(
            f"A function or an operator may build at most {MAX_BUILT >> 10} KiB for a row, of its texts and "
            "arguments"
        )


def require_depth(depth: int) -> None:
    """Raises InvalidInput for too many brackets in brackets."""
    if depth > MAX_DEPTH:
        raise InvalidInput(f"An expression has more than {MAX_DEPTH} brackets in brackets")


def _factor(call: _Call) -> int:
    if call.name in _PATTERNS:
        pattern = call.arguments[1] if len(call.arguments) > 1 else []
        if len(pattern) != 1 or pattern[0][0] not in _QUOTES:
            raise InvalidInput(f"The pattern in '{call.name}' must be a text in quotes")
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
