"""The bytes that requests read from files of tables, and the turns of those that read many.

Whoever may write to a table can make its metadata large, or let a small file expand. Parsed, it takes several
times its size of memory, and seconds of a processor. The threads of pools therefore count what their requests
read. A request that has read more than FREE_BYTES needs the turn, which one request of a process has at a time,
until it ends or sends its answer in pieces. After LONGEST_SECONDS another request may take it, because a request
may wait for a slow client or store. The others wait for a while, except for the last quarter of the pool, and are
refused then. Threads outside of any pool, as in jobs and commands, count nothing.

Principals alternate, however many requests they send: of those that wait, the principal whose last turn is the
longest ago gets the next one. A principal's first request waits as long as a turn may take. If there is no room
for it, it displaces the newest request of the principal that has most.
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass

from catalog.errors import Busy
from catalog.storage.outages import pools
from catalog.storage.outages.pools import Pool

FREE_BYTES = 64 * 1024**2
PATIENCE_SECONDS = 5.0
LONGEST_SECONDS = 30.0
_MOST = 3
"""The requests of a pool without a limit that have the turn or wait for it."""

_MAX_PRINCIPALS = 10_000

_changed = threading.Condition()
_occupied: dict[Pool, int] = {}
"""The threads of each pool that have the turn or wait for it."""


@dataclass(eq=False, slots=True)
class _Turn:
    pool: Pool
    principal: str
    ends_at: float
    """The time of this process from which another request may take it."""


@dataclass(eq=False, slots=True)
class _Waiter:
    pool: Pool
    principal: str
    is_displaced: bool = False


class _Turns:
    """Guarded by the condition."""

    def __init__(self) -> None:
        self.present: _Turn | None = None
        self.waiters: list[_Waiter] = []
        """The oldest first."""
        self.last: dict[str, None] = {}
        """The principals that had a turn, the latest at the end."""

    def next(self) -> _Waiter:
        """The first waiter of the principal whose last turn is the longest ago."""
        order = {principal: number for number, principal in enumerate(self.last)}
        return min(self.waiters, key=lambda waiter: order.get(waiter.principal, -1))

    def begin(self, waiter: _Waiter) -> _Turn:
        self.waiters.remove(waiter)
        self.last.pop(waiter.principal, None)
        self.last[waiter.principal] = None
        if len(self.last) > _MAX_PRINCIPALS:
            del self.last[next(iter(self.last))]
        ends_at = time.monotonic() + LONGEST_SECONDS
        self.present = _Turn(waiter.pool, waiter.principal, ends_at)
        return self.present

    def places(self, pool: Pool | None = None) -> Counter[str]:
        """The number of requests that have the turn or wait for it, by principal; only those of a pool if given."""
        inside: list[_Turn | _Waiter] = [*self.waiters]
        if self.present is not None:
            inside.append(self.present)
        return Counter(place.principal for place in inside if pool in {None, place.pool})


class _Request(threading.local):
    principal = ""
    bytes_read = 0
    is_exempt = False
    turn: _Turn | None = None


_turns = _Turns()
_request = _Request()


def attribute(principal: str) -> None:
    """Attribute what the request of the current thread reads to a principal."""
    _request.principal = principal


def principal() -> str:
    """The principal of the current thread's request; empty if there is none."""
    return _request.principal


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
        own = _Waiter(pool, _request.principal)
        is_first = not _turns.places()[own.principal]
        _occupy(own)
        deadline = time.monotonic() + (LONGEST_SECONDS if is_first else PATIENCE_SECONDS)
        while True:
            now, present = time.monotonic(), _turns.present
            is_free = present is None or now >= present.ends_at
            if is_free and not own.is_displaced and _turns.next() is own:
                break
            if own.is_displaced or now >= deadline:
                _give_up(own)
                raise _refusal()
            until = deadline if present is None or is_free else min(deadline, present.ends_at)
            _changed.wait(until - now)
        if present is not None:
            _leave(present.pool)
        return _turns.begin(own)


def _occupy(own: _Waiter) -> None:
    """Let a request wait. Raises Busy if others leave no room for it."""
    pool = own.pool
    limit = _MOST if pool.limit is None else pool.limit
    if _occupied.get(pool, 0) >= limit:
        places = _turns.places(pool)
        waiters = [other for other in _turns.waiters if other.pool is pool]
        largest = max(waiters, key=lambda other: places[other.principal], default=None)
        if largest is None or places[largest.principal] <= places[own.principal] + 1:
            raise _refusal()
        newest = [other for other in waiters if other.principal == largest.principal][-1]
        _give_up(newest)
        newest.is_displaced = True
    _occupied[pool] = _occupied.get(pool, 0) + 1
    _turns.waiters.append(own)


def _give_up(waiter: _Waiter) -> None:
    if not waiter.is_displaced:
        _turns.waiters.remove(waiter)
        _leave(waiter.pool)
        _changed.notify_all()


def exempt() -> None:
    """Count nothing more until the request ends: it has committed, so it must not be refused."""
    _request.is_exempt = pools.current() is not None


def release() -> None:
    """Forget what the current thread has read: its request has ended, or only sends its answer."""
    _request.principal, _request.bytes_read, _request.is_exempt = "", 0, False
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
