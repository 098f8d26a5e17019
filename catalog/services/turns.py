"""Turns: commits to one Iceberg table go one after another, on one machine.

No commit needs a turn to be right: each swaps the pointer only if what it read is still current. But
of 8 writers that prepare a commit at once one succeeds, and 7 have written a file for nothing.

A turn is a lock in memory, between the threads of a process, and a lock on a byte of a file, between
the processes of a machine; the system releases that of a process that dies. Waiting in the database
instead took two statements more, a quarter of a commit. Other machines are simply met at the swap.
"""

import fcntl
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache

from django.conf import settings

from catalog.errors import CommitConflict

log = logging.getLogger(__name__)

_WAIT_SECONDS = 10.0
# A process has a few threads. Once so many wait in it, the next ones soon give up their turn, so that
# a table whose commits are slow does not keep all other requests waiting.
_PATIENT = 2
_IMPATIENT_SECONDS = 2.0
# Who holds a turn longer than this has stopped: the others go ahead without.
_PASS_BY_SECONDS = 2.0
_LOOK_SECONDS = 0.0002
# A process whose threads wait would never let another one in between.
_STEP_BACK_EVERY = 16

_LOCKS = tuple(threading.Lock() for _ in range(256))
_count = itertools.count(1)
_waiting: list[int] = []


@contextmanager
def turns(names: Sequence[uuid.UUID]) -> Iterator[None]:
    """Hold the turns of these tables. Raises CommitConflict when one does not come."""
    with ExitStack() as stack:
        # In one order, so that no two wait for each other.
        for place in sorted({name.int % len(_LOCKS) for name in names}):
            if not _acquire(_LOCKS[place]):
                raise CommitConflict("Too many commits wait for this table; try again")
            stack.callback(_LOCKS[place].release)
            stack.enter_context(_among_processes(place))
        yield


def _acquire(lock: threading.Lock) -> bool:
    if lock.acquire(blocking=False):
        return True
    seconds = _WAIT_SECONDS if len(_waiting) < _PATIENT else _IMPATIENT_SECONDS
    _waiting.append(1)
    try:
        return lock.acquire(timeout=seconds)
    finally:
        _waiting.pop()


@contextmanager
def _among_processes(place: int) -> Iterator[None]:
    if next(_count) % _STEP_BACK_EVERY == 0:
        time.sleep(2 * _LOOK_SECONDS)
    file = _file()
    deadline = time.monotonic() + _PASS_BY_SECONDS
    while not _take(file, place):
        if time.monotonic() > deadline:
            log.warning("A commit goes ahead without its turn: another process holds it too long")
            yield
            return
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


def _take(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):  # the two ways of saying that somebody has it
        return False
    return True


@cache
def _file() -> int:
    """The descriptor of this process, which stays open: closing any would give up its locks."""
    directory = settings.MONODON_HOME / "run"
    directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory / "turns", os.O_RDWR | os.O_CREAT, 0o600)
