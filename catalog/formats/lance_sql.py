"""How deep an SQL expression is nested, before Lance reads it.

Lance walks expressions by recursion and does not look how deep it goes: with a stack of 2 MB some
500 operators in a row end the process. Chains of AND and OR it walks in another way, and long lists
are flat.
"""

import re

from catalog.errors import InvalidInput

MAX_CHAIN = 300
"""Operators and names that depend on each other."""
MAX_LOGICAL = 10_000
"""ANDs and ORs. At 30 000 Lance still answers, at 50 000 it does not."""
_SURELY_SHORT = 2 * MAX_CHAIN

_TOKEN = re.compile(r"""--|/\*|'[^']*'|`[^`]*`|"[^"]*"|\d[\w.]*|\w+|[(\[]|[)\]]|\S""")
_LITERAL = frozenset("'0123456789")


def check(expression: str) -> None:
    """Raises InvalidInput for an expression that might be too deep to be read."""
    if len(expression) <= _SURELY_SHORT:
        return
    outer: list[tuple[int, int]] = []  # of the parentheses around: the chain, and its longest
    around = chain = longest = logical = 0
    in_between, before = False, "("
    for found in _TOKEN.finditer(expression):
        part = found[0]
        if part in "([":
            outer.append((chain, longest))
            around += chain
            chain = longest = 0
        elif part in ")]":
            if outer:
                inner = max(chain, longest)
                chain, longest = outer.pop()
                around -= chain
                chain += inner
        elif part == ",":
            chain, longest = 0, max(chain, longest)
        elif part in {"--", "/*"}:
            raise InvalidInput("A long expression cannot have comments")
        elif part[0] not in _LITERAL and not (part in "-+" and before in "(,"):
            word = part.lower()
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
        before = part
