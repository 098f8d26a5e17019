"""Threads of the web server that wait for slow calls of Lance.

A call of Lance may take minutes, and cannot be interrupted. If all threads that serve requests waited for such
calls, the process would serve nothing else. So there are two kinds of places for slow calls: in some of them, another
thread replaces the waiting one; in others, a thread waits without a replacement, which three quarters of the threads may
do. A principal gets half of the places of each kind.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from catalog.storage.outages import pools
from catalog.storage.outages.pools import Pool

GRACE_SECONDS = 2.0
"""A call that takes longer is slow."""
_lock = threading.Lock()
_calls: list["_Call"] = []


@dataclass(eq=False, slots=True)
class _Call:
    """A slow call, for which a thread of a pool waits."""

    pool: Pool
    principal: str
    is_replaced: bool


def is_full(principal: str) -> bool:
    """True if no further thread of the current pool may wait for a slow call of this principal."""
    pool = _limited_pool()
    with _lock:
        return pool is not None and _place(pool, principal) is None


@contextmanager
def waiting(principal: str) -> Iterator[bool]:
    """Count the current thread as one that waits for a slow call, during the block.

    Yields False if it may not wait.
    """
    pool = _limited_pool()
    if pool is None:
        yield True
        return
    with _lock:
        call = _place(pool, principal)
        if call is not None:
            _calls.append(call)
    if call is None:
        yield False
        return
    if call.is_replaced:
        pool.add_thread()
    try:
        yield True
    finally:
        if call.is_replaced:
            pool.remove_thread()
        with _lock:
            _calls.remove(call)


def _limited_pool() -> Pool | None:
    """The pool of the current thread, unless all of its threads may wait."""
    pool = pools.current()
    return None if pool is None or pool.limit is None else pool


def _place(pool: Pool, principal: str) -> _Call | None:
    """The next slow call of a principal; None if there is no place for it. The lock is held."""
    share = (pool.max_replaced + 1) // 2
    calls = [call for call in _calls if call.pool is pool]
    for is_replaced, most in ((True, pool.max_replaced), (False, pool.limit or 0)):
        same = [call.principal for call in calls if call.is_replaced is is_replaced]
        if len(same) < most and same.count(principal) < share:
            return _Call(pool, principal, is_replaced)
    return None
