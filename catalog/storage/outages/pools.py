"""The threads that serve requests, and those of them that wait for an object store.

A thread enters the pool that it belongs to when it starts. While it waits for a store it holds a
slot, which counts against the limit of the pool. Threads outside of any pool, as in jobs and
commands, hold no slots.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

changed = threading.Condition(threading.RLock())
"""Guards the slots of all pools and the states of all stores, and is notified of their changes."""


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
    slots: set["Slot"] = field(default_factory=set, repr=False)
    changed_at: float = field(default_factory=time.monotonic)
    """When a slot was last acquired or released, by time.monotonic()."""

    @property
    def is_full(self) -> bool:
        return self.limit is not None and len(self.slots) >= self.limit


@dataclass(eq=False)
class Slot:
    """A thread of a pool that waits for a store."""

    pool: Pool
    store: object
    since: float = field(default_factory=time.monotonic)
    is_replaced: bool = False

    def acquire(self) -> None:
        """Count the thread. The lock is held."""
        self.pool.slots.add(self)
        self.pool.changed_at = self.since

    def release(self) -> None:
        """Stop counting the thread; a thread that was started instead of it is removed."""
        with changed:
            if self.is_replaced:
                self.pool.replaced -= 1
                self.pool.remove_thread()
            else:
                self.pool.slots.remove(self)
                self.pool.changed_at = time.monotonic()
            changed.notify_all()

    def replace(self) -> None:
        """Start another thread in place of the waiting one, within limits. The lock is held."""
        if self.pool.replaced < self.pool.max_replaced:
            self.is_replaced = True
            self.pool.replaced += 1
            self.pool.slots.remove(self)
            self.pool.changed_at = time.monotonic()
            self.pool.add_thread()


class _Membership(threading.local):
    pool: Pool | None = None

    def __init__(self) -> None:
        self.held: dict[object, Slot] = {}
        """The slots of this thread, by store."""


_own = _Membership()


def enter(pool: Pool) -> None:
    """Make the current thread one of a pool, until it ends."""
    _own.pool = pool


def current() -> Pool | None:
    """The pool of the current thread; None if it belongs to none."""
    return _own.pool


def held_slots() -> dict[object, Slot]:
    """The slots of the current thread, by store."""
    return _own.held


def release_all() -> None:
    """Release all slots of the current thread: its request has ended."""
    while _own.held:
        _own.held.popitem()[1].release()


@contextmanager
def outside() -> Iterator[None]:
    """Take the current thread out of its pool for the block, because another one has replaced it."""
    release_all()
    pool, _own.pool = _own.pool, None
    try:
        yield
    finally:
        _own.pool = pool
