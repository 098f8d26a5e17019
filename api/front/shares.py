"""Resources of which one principal or address gets at most half, rounded up: threads for rows and for passwords,
and large answers."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.errors import TooManyRequests
from api.front.limits import RETRY_SECONDS, Owner, spell
from catalog.errors import ServiceUnavailable


def _half(count: int) -> int:
    return (count + 1) // 2


class Turns:
    """The threads for streams of rows, or for passwords, all in the event loop.

    An owner that has its share waits, and others pass it.
    """

    def __init__(self, count: int, max_waiting: int, noun: str = "streams of rows") -> None:
        """``noun``: what takes turns, in messages."""
        self._noun = noun
        self._free = count
        self._share = _half(count)
        self._running = Counter[Owner]()
        self._max_waiting = max_waiting
        self._waiting: list[tuple[Owner, asyncio.Future[None]]] = []
        """In the order of their arrival."""

    @asynccontextmanager
    async def turn(self, owner: Owner) -> AsyncIterator[None]:
        """Wait for a thread, which is free again after the block. Raises ServiceUnavailable if too many wait,
        and TooManyRequests if too many of this owner wait."""
        if self._may_begin(owner):
            self._begin(owner)
        else:
            await self._wait(owner)
        try:
            yield
        finally:
            self._end(owner)

    async def _wait(self, owner: Owner) -> None:
        if len(self._waiting) >= self._max_waiting:
            raise ServiceUnavailable("The server has too many requests to work on")
        share = _half(self._max_waiting)
        if sum(waiting == owner for waiting, _ in self._waiting) >= share:
            most = self._share + share
            raise TooManyRequests(spell(owner), most, RETRY_SECONDS, self._noun)
        future = asyncio.get_running_loop().create_future()
        entry = owner, future
        self._waiting.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._end(owner)
            else:
                self._waiting.remove(entry)
            raise

    def _may_begin(self, owner: Owner) -> bool:
        return self._free > 0 and self._running[owner] < self._share

    def _begin(self, owner: Owner) -> None:
        self._free -= 1
        self._running[owner] += 1

    def _end(self, owner: Owner) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        for entry in self._waiting:
            if not entry[1].cancelled() and self._may_begin(entry[0]):
                self._waiting.remove(entry)
                self._begin(entry[0])
                entry[1].set_result(None)
                break


class Slots:
    """The large answers that are sent at once, from any thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._share = _half(count)
        self._taken = Counter[str]()
        self._lock = threading.Lock()

    def acquire(self, principal: str) -> None:
        """Take a slot. Raises ServiceUnavailable if all are taken, and TooManyRequests if the principal has its
        share."""
        with self._lock:
            if self._taken.total() >= self._count:
                raise ServiceUnavailable("The server sends too many large answers")
            if self._taken[principal] >= self._share:
                raise TooManyRequests(f"'{principal}'", self._share, RETRY_SECONDS, "large answers")
            self._taken[principal] += 1

    def release(self, principal: str) -> None:
        with self._lock:
            self._taken[principal] -= 1
            if not self._taken[principal]:
                del self._taken[principal]
