"""How deep an SQL expression is nested, before Lance reads it.

Lance walks expressions by recursion and does not look how deep it goes: with a stack of 2 MB some
500 operators in a row end the process. Chains of AND and OR it walks in another way, and long lists
are flat.

It also takes two or three times as long for each further level of some expressions: where its parser
tries what a bracket might be, and where a function or an operator uses what it is given twice. Brackets
that only hold a condition together are no such levels.
"""

import re
from dataclasses import dataclass

from catalog.errors import InvalidInput

MAX_CHAIN = 300
"""Operators and names that depend on each other."""
MAX_LOGICAL = 10_000
"""ANDs and ORs. At 30 000 Lance still answers, at 50 000 it does not."""
MAX_NESTED = 10
"""Levels that may take twice the time each, or more. 10 take some 40 ms, 15 eight seconds."""
_SURELY_SHORT = 2 * MAX_CHAIN

_TOKEN = re.compile(r"""--|/\*|'[^']*'|`[^`]*`|"[^"]*"|\d[\w.]*|\w+|[(\[]|[)\]]|\S""")
_LITERAL = frozenset("'0123456789")
_COSTLY = re.compile(r"[(\[]|interval|between", re.IGNORECASE)
_BEFORE_A_CONDITION = frozenset({"and", "or", "when", "then", "else"})


def check(expression: str) -> None:
    """Raises InvalidInput for an expression that might be too deep to be read."""
    if "\x00" in expression:
        raise InvalidInput("An expression cannot have a NUL character")
    if len(_COSTLY.findall(expression)) > MAX_NESTED and _nested(expression) > MAX_NESTED:
        raise InvalidInput(
            f"An expression has more than {MAX_NESTED} functions in functions, NOT (...) in NOT (...), "
            "or the like"
        )
    if len(expression) > _SURELY_SHORT:
        _check_chains(expression)


@dataclass(slots=True)
class _Level:
    """What is inside of a bracket."""

    is_costly: bool
    words: int = 0
    """INTERVAL and BETWEEN since the last AND, OR or comma."""
    most_words: int = 0
    deepest: int = 0

    def end_part(self) -> None:
        self.most_words, self.words = max(self.most_words, self.words), 0

    def total(self) -> int:
        self.end_part()
        return self.is_costly + self.most_words + self.deepest


def _nested(expression: str) -> int:
    """How many costly levels are in one another."""
    levels, before = [_Level(is_costly=False)], ""

    def close() -> None:
        inner = levels.pop().total()
        levels[-1].deepest = max(levels[-1].deepest, inner)

    for match in _TOKEN.finditer(expression):
        lexeme = match[0].lower()
        if lexeme in {"--", "/*", "$"}:  # a quote in a comment or in $$ is none
            return len(_COSTLY.findall(expression))
        if lexeme in "([":
            is_name = before[:1].isalpha() or before[:1] in {"_", "`", '"'}
            is_call = is_name and before not in _BEFORE_A_CONDITION
            levels.append(_Level(is_costly=lexeme == "[" or is_call))
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
    outer: list[tuple[int, int]] = []  # of the parentheses around: the chain, and its longest
    around = chain = longest = logical = 0
    in_between, before = False, "("
    for match in _TOKEN.finditer(expression):
        lexeme = match[0]
        if lexeme in "([":
            outer.append((chain, longest))
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
