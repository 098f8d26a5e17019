"""Tables of fields, and bodies in which one field is absent, null or empty."""

import copy
from typing import Any

ABSENT, NULL, EMPTY = range(3)


def rows(text: str) -> list[tuple[str, ...]]:
    """The lines of a table, each split at whitespace."""
    return [tuple(line.split()) for line in text.strip().splitlines()]


def changed(body: dict[str, Any], path: str, form: int) -> dict[str, Any]:
    """The body with one field absent, null or empty. An empty value instead of a null is an object."""
    copied = copy.deepcopy(body)
    *above, last = path.split(".")
    owner: Any = copied
    for step in above:
        owner = owner[int(step)] if step.isdigit() else owner[step]
    if form == ABSENT:
        del owner[last]
    elif form == NULL:
        owner[last] = None
    else:
        owner[last] = {} if owner[last] is None else type(owner[last])()
    return copied
