"""Turns: commits to one Iceberg table go one after another, on one machine.

No commit needs a turn to be right: each swaps the pointer only if what it read is still current. But
of 8 writers that prepare a commit at once one succeeds, and 7 have written a file for nothing.

Turns overlap. A commit prepares on what the one before it makes of the table, while that one is under
way; it waits for its end before it swaps, and fails with it.

    turn of A   prepare │ write the file │ swap
    turn of B             prepare │ write the file │ · · · │ swap
    turn of C                       prepare │ write the file │ · · · · · · │ swap

They are kept in memory between the threads of a process. Between the processes of a machine a turn is
a lock on a byte of a file, which the system releases for a process that dies, and which a process
keeps while turns overlap. Waiting in the database instead took two statements more, a quarter of a
commit. Other machines are simply met at the swap.
"""

import fcntl
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from django.conf import settings

from catalog.errors import Busy
from catalog.services.engine.admission import admission

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

_waiting: list[int] = []


class _Place:
    """Where the commits to some tables stand in line, in this process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        """Of who prepares."""
        self.last: Turn | None = None
        self.latest: dict[uuid.UUID, Turn] = {}
        """The turns that prepared last, each for its table, while turns overlap."""
        self._guard = threading.Lock()
        self._inside = 0
        self._count = 0
        self._is_held = False

    def enter(self) -> None:
        """Have the turn among the processes; called with ``lock`` held."""
        self._count += 1
        if self._count % _STEP_BACK_EVERY == 0:
            if (last := self.last) is not None:
                last.wait()  # then all have left
            time.sleep(2 * _LOOK_SECONDS)
        with self._guard:
            self._inside += 1
            if self._inside > 1:
                return
        self._is_held = _take_in_time(self.number)

    def leave(self) -> None:
        with self._guard:
            self._inside -= 1
            if self._inside:
                return
            self.latest.clear()
            self.last = None
            if self._is_held:
                fcntl.lockf(_file(), fcntl.LOCK_UN, 1, self.number)
                self._is_held = False


_PLACES = tuple(_Place(number) for number in range(256))


class Turn:
    """The turn of a commit to one table."""

    def __init__(self, place: _Place, name: uuid.UUID) -> None:
        self._place, self._name = place, name
        self._before, self._base = place.last, place.latest.get(name)
        self.made: Any = None
        self._is_preparing, self.stands = True, False
        self._course = threading.Lock()
        self._course.acquire()
        place.last = self

    @property
    def latest(self) -> Any:
        """What the turn before this one makes of the table, if it stands; None: look at the table."""
        return None if self._base is None else self._base.made

    def settle(self) -> None:
        """Wait until the turns before this one have ended, and look at the table."""
        if self._before is not None:
            self._before.wait()
            self._before = None
        self._base = None
        self._place.latest.pop(self._name, None)

    def prepared(self, made: Any) -> None:
        """Let the next one prepare, on what this one makes of the table. None: it is to look."""
        self.made = made
        if made is not None:
            self._place.latest[self._name] = self
        self._is_preparing = False
        self._place.lock.release()

    def is_next(self) -> bool:
        """Wait until the turns before this one have ended. False: it was made on one that failed."""
        if self._before is not None:
            self._before.wait()
            self._before = None
        return self._base is None or self._base.stands

    def wait(self) -> None:
        """Until it has ended. Raises Busy when it does not."""
        _acquire(self._course)
        self._course.release()

    def end(self, *, stands: bool) -> None:
        self.stands = stands
        if not stands and self.made is not None:
            self._place.latest.pop(self._name, None)  # what was made on this falls with it
        self._before = self._base = None  # else they would all be kept
        self._place.leave()
        self._course.release()
        if self._is_preparing:
            self._place.lock.release()


@contextmanager
def turn(name: uuid.UUID) -> Iterator[Turn]:
    """The turn of a commit to this table. Raises Busy when it does not come."""
    with admission.enter([name], tuple):
        yield from _turn(name)


def _turn(name: uuid.UUID) -> Iterator[Turn]:
    place = _place(name)
    _acquire(place.lock)
    try:
        place.enter()
    except BaseException:
        place.lock.release()
        raise
    own = Turn(place, name)
    try:
        yield own
    except BaseException:
        own.end(stands=False)
        raise
    own.end(stands=True)


@contextmanager
def turns(names: Sequence[uuid.UUID]) -> Iterator[None]:
    """Hold the whole turns of these tables. Raises Busy when one does not come."""
    by_place = {_place(name).number: name for name in names}
    with ExitStack() as stack:
        # In one order, so that no two wait for each other.
        for _, name in sorted(by_place.items()):
            stack.enter_context(turn(name)).settle()
        for name in names:
            _place(name).latest.pop(name, None)
        yield


def _place(name: uuid.UUID) -> _Place:
    return _PLACES[name.int % len(_PLACES)]


def _acquire(lock: threading.Lock) -> None:
    if lock.acquire(blocking=False):
        return
    seconds = _WAIT_SECONDS if len(_waiting) < _PATIENT else _IMPATIENT_SECONDS
    _waiting.append(1)
    try:
        if not lock.acquire(timeout=seconds):
            raise Busy("Too many commits wait for this table; try again")
    finally:
        _waiting.pop()


def _take_in_time(number: int) -> bool:
    """Whether this process got the lock of a place before its patience ended."""
    file = _file()
    deadline = time.monotonic() + _PASS_BY_SECONDS
    while not _take(file, number):
        if time.monotonic() > deadline:
            log.warning("A commit goes ahead without its turn: another process holds it too long")
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _take(file: int, number: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except (BlockingIOError, PermissionError):  # the two ways of saying that somebody has it
        return False
    return True


@cache
def _file() -> int:
    """The descriptor of this process, which stays open: closing any would give up its locks."""
    directory = settings.MONODON_HOME / "run"
    directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory / "turns", os.O_RDWR | os.O_CREAT, 0o600)
