"""The threads that serve requests, and those of them that wait for an object store.

A thread enters the pool that it belongs to when it starts. While it waits for a store it holds a
place, which counts against the limit of the pool. Threads outside of any pool, as in jobs and
commands, hold no places.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

changed = threading.Condition(threading.RLock())
"""Guards the places of all pools and the states of all stores, and is notified of their changes."""


@dataclass(eq=False)
class Pool:
    """Threads of one kind that serve requests."""

    limit: int | None = None
    """The number of threads that may wait for object stores at the same time; None: all of them."""
    add_thread: Callable[[], None] = field(default=lambda: None, repr=False)
    """Starts a thread in place of one that waits for a store that does not answer."""
    remove_thread: Callable[[], None] = field(default=lambda: None, repr=False)
    """Lets one thread end after its present work: a replaced one has come back."""
    max_replaced: int = 0
    replaced: int = 0
    places: set["Place"] = field(default_factory=set, repr=False)
    changed_at: float = field(default_factory=time.monotonic)
    """When a place was last taken or left, by time.monotonic()."""

    @property
    def is_full(self) -> bool:
        return self.limit is not None and len(self.places) >= self.limit


@dataclass(eq=False)
class Place:
    """A thread of a pool that waits for a store."""

    pool: Pool
    store: object
    since: float = field(default_factory=time.monotonic)
    is_replaced: bool = False

    def take(self) -> None:
        """Count the thread. The lock is held."""
        self.pool.places.add(self)
        self.pool.changed_at = self.since

    def leave(self) -> None:
        """Stop counting the thread; a thread that was started in its place is removed."""
        with changed:
            if self.is_replaced:
                self.pool.replaced -= 1
                self.pool.remove_thread()
            else:
                self.pool.places.remove(self)
                self.pool.changed_at = time.monotonic()
            changed.notify_all()

    def replace(self) -> None:
        """Start another thread in place of the waiting one, within limits. The lock is held."""
        if self.pool.replaced < self.pool.max_replaced:
            self.is_replaced = True
            self.pool.replaced += 1
            self.pool.places.remove(self)
            self.pool.changed_at = time.monotonic()
            self.pool.add_thread()


class _Membership(threading.local):
    pool: Pool | None = None

    def __init__(self) -> None:
        self.held: dict[object, Place] = {}
        """The places of this thread, by store."""


_own = _Membership()


def enter(pool: Pool) -> None:
    """Make the current thread one of a pool, until it ends."""
    _own.pool = pool


def current() -> Pool | None:
    """The pool of the current thread; None if it belongs to none."""
    return _own.pool


def held() -> dict[object, Place]:
    """The places of the current thread, by store."""
    return _own.held


def leave_all() -> None:
    """Leave all places of the current thread: its request has ended."""
    while _own.held:
        _own.held.popitem()[1].leave()


@contextmanager
def outside() -> Iterator[None]:
    """Take the current thread out of its pool for the block, because another one has replaced it."""
    leave_all()
    pool, _own.pool = _own.pool, None
    try:
        yield
    finally:
        _own.pool = pool
