"""The bytes that requests read from files of tables, and the turns of those that read many.

Whoever may write to a table can make its metadata large, or let a small file expand. Parsed, it takes several
times its size of memory, and seconds of a processor. The threads of pools therefore count what their requests
read. A request that has read more than FREE_BYTES needs the turn, which one request of a process has at a time,
and keeps it until it ends. The others wait for a while, except for the last quarter of the pool, and are refused
then. Threads outside of any pool, as in jobs and commands, count nothing.
"""

import threading

from catalog.errors import Busy
from catalog.storage.outages import pools
from catalog.storage.outages.pools import Pool

FREE_BYTES = 64 * 1024**2
PATIENCE_SECONDS = 5.0
_MOST = 3
"""The requests of a pool without a limit that have the turn or wait for it."""

_turn = threading.Lock()
_lock = threading.Lock()
_occupied: dict[Pool, int] = {}
"""The threads of each pool that have the turn or wait for it."""


class _Request(threading.local):
    bytes_read = 0
    is_exempt = False
    holder: Pool | None = None
    """The pool of the thread, while it has the turn."""


_request = _Request()


def count(size: int) -> None:
    """Count bytes that the request of the current thread has read or is about to read.

    Raises Busy if it needs the turn and does not get it in time.
    """
    pool = pools.current()
    if pool is None or _request.holder is not None or _request.is_exempt:
        return
    _request.bytes_read += size
    if _request.bytes_read > FREE_BYTES:
        _take_turn(pool)


def _take_turn(pool: Pool) -> None:
    with _lock:
        limit = _MOST if pool.limit is None else pool.limit
        if _occupied.get(pool, 0) >= limit:
            raise _refusal()
        _occupied[pool] = _occupied.get(pool, 0) + 1
    if not _turn.acquire(timeout=PATIENCE_SECONDS):
        _leave(pool)
        raise _refusal()
    _request.holder = pool


def exempt() -> None:
    """Count nothing more until the request ends: it has committed, so it must not be refused."""
    _request.is_exempt = pools.current() is not None


def release() -> None:
    """Forget what the current thread has read: its request has ended."""
    _request.bytes_read, _request.is_exempt = 0, False
    pool, _request.holder = _request.holder, None
    if pool is not None:
        _turn.release()
        _leave(pool)


def _leave(pool: Pool) -> None:
    with _lock:
        _occupied[pool] -= 1
        if not _occupied[pool]:
            del _occupied[pool]


def _refusal() -> Busy:
    return Busy("The server is reading large files for other requests; try again", retry_seconds=5)
