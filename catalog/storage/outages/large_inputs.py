"""The bytes that requests read from files of tables, and the turns of those that read many.

Whoever may write to a table can make its metadata large, or let a small file expand. Parsed, it takes several
times its size of memory, and seconds of a processor. The threads of pools therefore count what their requests
read. A request that has read more than FREE_BYTES needs the turn, which one request of a process has at a time,
until it ends or sends its answer in pieces. After LONGEST_SECONDS another request may take it, because a request
may wait for a slow client or store. The others wait for a while, except for the last quarter of the pool, and are
refused then. Threads outside of any pool, as in jobs and commands, count nothing.
"""

import threading
import time
from dataclasses import dataclass

from catalog.errors import Busy
from catalog.storage.outages import pools
from catalog.storage.outages.pools import Pool

FREE_BYTES = 64 * 1024**2
PATIENCE_SECONDS = 5.0
LONGEST_SECONDS = 30.0
_MOST = 3
"""The requests of a pool without a limit that have the turn or wait for it."""

_changed = threading.Condition()
_occupied: dict[Pool, int] = {}
"""The threads of each pool that have the turn or wait for it."""


@dataclass(eq=False, slots=True)
class _Turn:
    pool: Pool
    ends_at: float
    """The time of this process from which another request may take it."""


class _Turns:
    """Guarded by the condition."""

    present: _Turn | None = None


class _Request(threading.local):
    bytes_read = 0
    is_exempt = False
    turn: _Turn | None = None


_turns = _Turns()
_request = _Request()


def count(size: int) -> None:
    """Count bytes that the request of the current thread has read or is about to read.

    Raises Busy if it needs the turn and does not get it in time.
    """
    pool = pools.current()
    if pool is None or _request.is_exempt:
        return
    if _request.turn is not None and _request.turn is _turns.present:
        return
    _request.bytes_read += size
    if _request.bytes_read > FREE_BYTES:
        _request.turn = _take_turn(pool)


def _take_turn(pool: Pool) -> _Turn:
    with _changed:
        limit = _MOST if pool.limit is None else pool.limit
        if _occupied.get(pool, 0) >= limit:
            raise _refusal()
        _occupied[pool] = _occupied.get(pool, 0) + 1
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (present := _turns.present) is not None:
            now = time.monotonic()
            if now >= present.ends_at:
                _leave(present.pool)
                break
            if now >= deadline:
                _leave(pool)
                raise _refusal()
            _changed.wait(min(deadline, present.ends_at) - now)
        turn = _turns.present = _Turn(pool, time.monotonic() + LONGEST_SECONDS)
    return turn


def exempt() -> None:
    """Count nothing more until the request ends: it has committed, so it must not be refused."""
    _request.is_exempt = pools.current() is not None


def release() -> None:
    """Forget what the current thread has read: its request has ended, or only sends its answer."""
    _request.bytes_read, _request.is_exempt = 0, False
    turn, _request.turn = _request.turn, None
    if turn is None:
        return
    with _changed:
        if turn is _turns.present:
            _turns.present = None
            _leave(turn.pool)
            _changed.notify_all()


def _leave(pool: Pool) -> None:
    _occupied[pool] -= 1
    if not _occupied[pool]:
        del _occupied[pool]


def _refusal() -> Busy:
    return Busy("The server is reading large files for other requests; try again", retry_seconds=5)
