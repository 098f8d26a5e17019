"""Plans of expressions before pylance plans them while it holds Python's lock.

To plan an expression, Lance computes its constants, and a function of long constants may take hours. For the columns
of a scan, for an update, and for the rows that a merge deletes, pylance holds the lock meanwhile: no other thread of the process runs, not
even the one that answers health checks. It does not for a filter. So a filter is planned first, within the time limit
of the call around it.
"""

import re
import time
from collections.abc import Iterable

from lance.dataset import LanceDataset

from catalog.errors import InvalidInput
from catalog.formats.lance import sql as lance_sql

MAX_SECONDS = 1.0
"""How long the lock may be held."""
_MAX_SHOWN = 80
_ONLY_IN_RESULTS = re.compile(r"\b_(?:distance|score|relevance_score)\b")


def rehearse(dataset: LanceDataset, expressions: Iterable[str]) -> None:
    """Plan expressions that may take long, each as a filter.

    Raises InvalidInput for one that takes longer than MAX_SECONDS, and the errors of Lance.
    """
    for expression in expressions:
        if not lance_sql.may_take_long(expression):
            continue
        # The first time, Lance may wait for storage.
        if all(_seconds(dataset, expression) > MAX_SECONDS for _ in range(2)):
            shown = expression if len(expression) <= _MAX_SHOWN else f"{expression[:_MAX_SHOWN]}…"
            raise InvalidInput(
                f"The constants of '{shown}' take more than {MAX_SECONDS:.0f} second to compute"
            )


def _seconds(dataset: LanceDataset, expression: str) -> float:
    began = time.monotonic()
    try:
        _plan(dataset, expression)
    except ValueError:
        in_filter = _ONLY_IN_RESULTS.sub("1.0", expression)
        if in_filter == expression:
            raise
        _plan(dataset, in_filter)
    return time.monotonic() - began


def _plan(dataset: LanceDataset, expression: str) -> None:
    # The line breaks end a comment.
    dataset.scanner(filter=f"(\n{expression}\n) IS NULL").explain_plan()
