"""Limits on the nesting of SQL expressions, checked before Lance parses them.

Lance recurses over expressions without a limit: with a stack of 2 MB about 500 operators in a row end
the process. It handles chains of AND and OR differently, and long lists are flat.

Some expressions take two or three times as long with each further level: where the parser tries
several meanings of a bracket, and where a function or an operator evaluates its argument twice.
Brackets that only group a condition do not count as levels.
"""

import re
from dataclasses import dataclass

from catalog.errors import InvalidInput
from catalog.formats.lance import sql_growth

MAX_CHAIN = 300
"""The maximum number of dependent operators and names."""
MAX_LOGICAL = 10_000
"""The maximum number of ANDs and ORs. Lance handles 30 000, but not 50 000."""
MAX_NESTED = 10
"""The maximum number of levels that at least double the time: 10 take 40 ms, 15 take 8 s."""
_SURELY_SHORT = 2 * MAX_CHAIN

_TOKEN = re.compile(r"""--|/\*|'[^']*'|`[^`]*`|"[^"]*"|\d[\w.]*|\w+|[(\[]|[)\]]|\S""")
_CALL = re.compile(r"(?<!\w)(?!(?:in|and|or|not)\b)[^\W\d]\w*[`\"]?\s*\(|--|/\*", re.IGNORECASE)
"""A function, or a comment that may hide one."""
_SURELY_FAST = 1000
_LITERAL = frozenset("'0123456789")
_COSTLY = re.compile(r"[(\[]|interval|between", re.IGNORECASE)
_BEFORE_A_CONDITION = frozenset({"and", "or", "when", "then", "else"})


def check(expression: str) -> None:
    """Raise InvalidInput for an expression that may be too deep for Lance."""
    if "\x00" in expression:
        raise InvalidInput("An expression cannot have a NUL character")
    sql_growth.check(expression)
    if len(_COSTLY.findall(expression)) > MAX_NESTED and _nested(expression) > MAX_NESTED:
        raise InvalidInput(
            f"An expression has more than {MAX_NESTED} functions in functions, NOT (...) in NOT (...), "
            "or the like"
        )
    if len(expression) > _SURELY_SHORT:
        _check_chains(expression)


def may_take_long(expression: str) -> bool:
    """True if an expression may take longer than to read the rows.

    Some functions take the square of the length of a value: a single row may take hours.
    """
    return len(expression) > _SURELY_FAST or _CALL.search(expression) is not None


@dataclass(slots=True)
class _Level:
    """The content of a bracket."""

    is_costly: bool
    words: int = 0
    """The number of INTERVAL and BETWEEN since the last AND, OR or comma."""
    most_words: int = 0
    deepest: int = 0

    def end_part(self) -> None:
        self.most_words, self.words = max(self.most_words, self.words), 0

    def total(self) -> int:
        self.end_part()
        return self.is_costly + self.most_words + self.deepest


def _nested(expression: str) -> int:
    """The depth of nested costly levels."""
    levels, before = [_Level(is_costly=False)], ""

    def close() -> None:
        inner = levels.pop().total()
        levels[-1].deepest = max(levels[-1].deepest, inner)

    for match in _TOKEN.finditer(expression):
        lexeme = match[0].lower()
        if lexeme in {"--", "/*", "$"}:  # quotes in comments and in $$ do not quote
            return len(_COSTLY.findall(expression))
        if lexeme in "([":
            is_name = before[:1].isalpha() or before[:1] in {"_", "`", '"'}
            is_call = is_name and before not in _BEFORE_A_CONDITION
            levels.append(_Level(is_costly=lexeme == "[" or is_call))
            sql_growth.require_depth(len(levels))
        elif lexeme in ")]":
            if len(levels) > 1:
                close()
        elif lexeme in {"interval", "between"}:
            levels[-1].words += 1
        elif lexeme in {",", "and", "or"}:
            levels[-1].end_part()
        before = lexeme
    while len(levels) > 1:
        close()
    return levels[0].total()


def _check_chains(expression: str) -> None:
    outer: list[tuple[int, int]] = []  # chain and longest chain of each enclosing bracket
    around = chain = longest = logical = 0
    in_between, before = False, "("
    for match in _TOKEN.finditer(expression):
        lexeme = match[0]
        if lexeme in "([":
            outer.append((chain, longest))
            sql_growth.require_depth(len(outer))
            around += chain
            chain = longest = 0
        elif lexeme in ")]":
            if outer:
                inner = max(chain, longest)
                chain, longest = outer.pop()
                around -= chain
                chain += inner
        elif lexeme == ",":
            chain, longest = 0, max(chain, longest)
        elif lexeme in {"--", "/*"}:
            raise InvalidInput("A long expression cannot have comments")
        elif lexeme[0] not in _LITERAL and not (lexeme in "-+" and before in "(,"):
            word = lexeme.lower()
            if word == "or" or (word == "and" and not in_between):
                chain, longest, logical = 0, max(chain, longest), logical + 1
            else:
                chain += 1
            in_between = word == "between" or (in_between and word != "and")
        if around + chain > MAX_CHAIN or logical > MAX_LOGICAL:
            raise InvalidInput(
                f"An expression has more than {MAX_CHAIN} operators and names in a row, "
                f"or more than {MAX_LOGICAL} times AND and OR",
                detail="A list, as in 'id IN (1, 2, 3)', may be as long as you like.",
            )
        before = lexeme
