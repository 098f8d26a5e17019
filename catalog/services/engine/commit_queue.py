"""The commit queue: commits to one table run one after another, on one machine.

Commits to Iceberg tables take turns, and small inserts into Lance tables in local files. A commit is correct
without a turn: it succeeds only if the state that it read is still current. But of 8 writers that prepare
a commit at once one succeeds, and 7 have written a file for nothing.

Turns overlap. A commit prepares on the result of the one before it while that one is still running;
it waits for that one to end before it swaps, and fails if that one fails.

    turn of A   prepare │ write the file │ swap
    turn of B             prepare │ write the file │ · · · │ swap
    turn of C                       prepare │ write the file │ · · · · · · │ swap

Between the threads of a process the queue is kept in memory. Between the processes of a machine a
turn is a lock on a byte of a file; the system releases it when a process dies, and a process keeps it
while turns overlap, and for a while if its threads wait: the next turn of the same process finds the
table in memory. Waiting in the database instead took two more statements, a quarter of a commit.
Commits of other machines conflict at the swap.
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
# A process has a few threads. Once this many wait in it, further ones give up after a shorter time, so
# that a table whose commits are slow does not keep all other requests waiting.
_PATIENT = 2
_IMPATIENT_SECONDS = 2.0
# A process that holds a turn longer than this is considered stopped: the others proceed without it.
_PASS_BY_SECONDS = 2.0
_LOOK_SECONDS = 0.0002
_KEEP_SECONDS = 0.1
"""How long a process keeps a turn for its own waiting threads, at most."""
# Without this, a process with waiting threads would never let another process have a turn.
_STEP_BACK_EVERY = 16

_waiting: list[int] = []


class _Queue:
    """The queue of this process for the tables whose digests map to one number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        """Held by the thread that prepares."""
        self.last: Turn | None = None
        self.latest: dict[uuid.UUID, Turn] = {}
        """The latest prepared turn of each table, while turns overlap."""
        self._guard = threading.Lock()
        self._waiting = self._inside = 0
        self._count = 0
        self._is_held = False
        self._held_since = 0.0

    def wait(self) -> None:
        """Acquire ``lock``, and then the turn among the processes. Raises Busy when either takes too long."""
        with self._guard:
            self._waiting += 1
        try:
            _acquire(self.lock)
            try:
                self._enter()
            except BaseException:
                self.lock.release()
                raise
        except BaseException:
            with self._guard:
                self._waiting -= 1
                if not self._inside and not self._waiting:
                    self._release()
            raise

    def _enter(self) -> None:
        self._count += 1
        if self._count % _STEP_BACK_EVERY == 0:
            if (last := self.last) is not None:
                last.wait()  # after it, all turns have ended
            with self._guard:
                if not self._inside:
                    self._release()
            time.sleep(2 * _LOOK_SECONDS)
        with self._guard:
            self._inside += 1
            is_first = self._inside == 1 and not self._is_held
        try:
            if is_first:
                self._is_held = _take_in_time(self.number)
                self._held_since = time.monotonic()
        except BaseException:
            with self._guard:
                self._inside -= 1
            raise
        with self._guard:
            self._waiting -= 1

    def leave(self) -> None:
        with self._guard:
            self._inside -= 1
            if self._inside:
                return
            self.latest.clear()
            self.last = None
            if not self._waiting or time.monotonic() - self._held_since > _KEEP_SECONDS:
                self._release()

    def _release(self) -> None:
        if self._is_held:
            fcntl.lockf(_file(), fcntl.LOCK_UN, 1, self.number)
            self._is_held = False


_QUEUES = tuple(_Queue(number) for number in range(256))


class Turn:
    """The turn of a commit to one table."""

    def __init__(self, queue: _Queue, name: uuid.UUID) -> None:
        self._queue, self._name = queue, name
        self._before, self._base = queue.last, queue.latest.get(name)
        self.made: Any = None
        self._is_preparing, self.stands = True, False
        self._course = threading.Lock()
        self._course.acquire()
        queue.last = self

    @property
    def latest(self) -> Any:
        """The table as the preceding turn changes it, if that stands; None: read the table."""
        return None if self._base is None else self._base.made

    def settle(self) -> None:
        """Wait until the preceding turns have ended, so that the table can be read."""
        if self._before is not None:
            self._before.wait()
            self._before = None
        self._base = None
        self._queue.latest.pop(self._name, None)

    def prepared(self, made: Any) -> None:
        """Let the next turn prepare on the result of this one. None: it has to read the table."""
        self.made = made
        if made is not None:
            self._queue.latest[self._name] = self
        self._is_preparing = False
        self._queue.lock.release()

    def is_next(self) -> bool:
        """Wait until the preceding turns have ended. False: this one is based on one that failed."""
        if self._before is not None:
            self._before.wait()
            self._before = None
        return self._base is None or self._base.stands

    def wait(self) -> None:
        """Wait until this turn has ended. Raises Busy when it does not end in time."""
        _acquire(self._course)
        self._course.release()

    def end(self, *, stands: bool) -> None:
        self.stands = stands
        if not stands and self.made is not None:
            self._queue.latest.pop(self._name, None)  # turns based on this one fail too
        self._before = self._base = None  # otherwise the chain of turns would stay in memory
        self._queue.leave()
        self._course.release()
        if self._is_preparing:
            self._queue.lock.release()


@contextmanager
def turn(name: uuid.UUID) -> Iterator[Turn]:
    """Hold a turn of a commit to this table. Raises Busy when it does not come in time."""
    with admission.enter([name], tuple):
        yield from _turn(name)


def _turn(name: uuid.UUID) -> Iterator[Turn]:
    queue = _queue(name)
    queue.wait()
    own = Turn(queue, name)
    try:
        yield own
    except BaseException:
        own.end(stands=False)
        raise
    own.end(stands=True)


@contextmanager
def turns(names: Sequence[uuid.UUID]) -> Iterator[None]:
    """Hold turns of these tables that overlap with no others. Raises Busy when one does not come."""
    by_queue = {_queue(name).number: name for name in names}
    with ExitStack() as stack:
        # In a fixed order, to avoid deadlocks.
        for _, name in sorted(by_queue.items()):
            stack.enter_context(turn(name)).settle()
        for name in names:
            _queue(name).latest.pop(name, None)
        yield


def _queue(name: uuid.UUID) -> _Queue:
    return _QUEUES[name.int % len(_QUEUES)]


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
    """Lock a queue among the processes; False if that takes longer than ``_PASS_BY_SECONDS``."""
    file = _file()
    deadline = time.monotonic() + _PASS_BY_SECONDS
    while not _take(file, number):
        if time.monotonic() > deadline:
            log.warning(
                "The commit proceeds without its turn in the queue: another process has held the"
                " lock for more than %s seconds",
                _PASS_BY_SECONDS,
            )
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _take(file: int, number: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except (BlockingIOError, PermissionError):  # either error means that another process holds it
        return False
    return True


@cache
def _file() -> int:
    """The file descriptor of this process. It stays open: closing any releases the locks."""
    directory = settings.MONODON_HOME / "run"
    directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory / "turns", os.O_RDWR | os.O_CREAT, 0o600)
