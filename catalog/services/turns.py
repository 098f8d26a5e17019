"""Turns: commits to one Iceberg table go one after another.

No commit needs a turn to be right: each swaps the pointer only if what it read is still current. But
of 8 writers that prepare a commit at once one succeeds, and 7 have written a file for nothing.

Within a process a turn is a lock in memory. Where a commit of another process came between, this one
and the next ones of its process also queue up in the database, which takes two statements more.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from django.db import DatabaseError, InterfaceError, OperationalError

from catalog.errors import CommitConflict
from catalog.services.statements import hot_cursor

log = logging.getLogger(__name__)

_WAIT_SECONDS = 20.0
_QUEUE_SECONDS = 10.0
_MET_LIMIT = 10_000

_LOCKS = tuple(threading.Lock() for _ in range(256))
_queue_until: dict[uuid.UUID, float] = {}


@contextmanager
def turns(names: Sequence[uuid.UUID]) -> Iterator[None]:
    """Hold the turns of these tables. Raises CommitConflict when one does not come."""
    with ExitStack() as stack:
        # In one order, so that no two wait for each other.
        for index in sorted({name.int % len(_LOCKS) for name in names}):
            if not _LOCKS[index].acquire(timeout=_WAIT_SECONDS):
                raise CommitConflict("Too many commits wait for this table; try again")
            stack.callback(_LOCKS[index].release)
        now = time.monotonic()
        contended = [name for name in names if _queue_until.get(name, 0.0) > now]
        if contended:
            stack.enter_context(_queued(contended))
        yield


def met_another(names: Sequence[uuid.UUID]) -> None:
    """Tell that a commit of another process came between one that held these turns."""
    if len(_queue_until) > _MET_LIMIT:
        _queue_until.clear()
    _queue_until.update(dict.fromkeys(names, time.monotonic() + _QUEUE_SECONDS))


def forget() -> None:
    """Make this process queue up for no table."""
    _queue_until.clear()


# The queue belongs to the session, not to a transaction: no row is locked and none is kept from
# vacuum while files are written. Who stops in it holds the others up for two seconds each.
_ENTER = """
    SELECT set_config('lock_timeout', '2s', true), pg_advisory_lock(key)
    FROM unnest(%s::bigint[]) AS key
"""
_LEAVE = "SELECT pg_advisory_unlock_all()"


@contextmanager
def _queued(names: Sequence[uuid.UUID]) -> Iterator[None]:
    try:
        hot_cursor().execute(_ENTER, [sorted({name.int >> 65 for name in names})])
    except OperationalError as error:
        log.warning("A commit goes ahead without its turn: %s", error)
    try:
        yield
    finally:
        try:
            hot_cursor().execute(_LEAVE)
        except (DatabaseError, InterfaceError) as error:
            log.warning("A turn ends with its session: %s", error)
