"""The order of the tables of a namespace.

    turn       = due since − head start
    head start = an hour for each doubling of the value, from 0 to ``MAX_HEAD_START``
    value      = priority × saving of a read × reads per day / expected seconds of the jobs

The table with the earliest turn comes first. A turn does not change while a table waits, so an index
can hold it; and however little a table is worth, only tables that became due at most
``MAX_HEAD_START`` after it can come before it. Therefore no table starves.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from catalog.read_costs import FULL_READS, MIB

UNREAD = 0.25
"""Reads per day that are assumed for a table that nobody reads: its storage has a value."""
REFERENCE = MIB
"""The value without a head start: bytes saved per day, for each second of work."""
DOUBLING = timedelta(hours=1)
MAX_HEAD_START = timedelta(days=1)
RECENT = timedelta(hours=1)
"""A table that had a job so recently has no head start. Otherwise a table with busy writers, which is
due all the time, would be served again and again before others."""
NEVER = timedelta(days=36_500)
"""Tables that need nothing come this much later."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Since when a table needs maintenance, and the moment by which tables are ordered."""

    due_since: datetime | None
    """None if the table needs none."""
    at: datetime


def value(
    saved: Iterable[int], reads_per_day: float | None, seconds: float, priority: int
) -> float:
    """Bytes that readers save per day, for each second of work.

    ``saved`` are the parts of the cost of a read that maintenance removes, in bytes. A table whose
    use is not known yet counts as one that is often read.
    """
    reads = FULL_READS if reads_per_day is None else max(reads_per_day, UNREAD)
    return priority * sum(saved) * reads / max(seconds, 0.1)


def head_start(worth: float) -> timedelta:
    """The time that a table of this value gains, at most ``MAX_HEAD_START``."""
    if worth <= REFERENCE:
        return timedelta(0)
    return min(math.log2(worth / REFERENCE) * DOUBLING, MAX_HEAD_START)


def turn(
    *,
    is_needed: bool,
    worth: float,
    was_due_since: datetime | None,
    last_job: datetime | None,
    now: datetime,
) -> Turn:
    """The turn of a table that is measured now.

    ``was_due_since`` is the value of the measurement before, and ``last_job`` the end of the last
    maintenance of the table. A table that got a job since then begins to wait again.
    """
    if not is_needed:
        return Turn(None, now + NEVER)
    waits = was_due_since is not None and (last_job is None or last_job <= was_due_since)
    due_since = was_due_since if was_due_since is not None and waits else now
    if last_job is not None and now - last_job < RECENT:
        return Turn(due_since, due_since)
    return Turn(due_since, due_since - head_start(worth))
