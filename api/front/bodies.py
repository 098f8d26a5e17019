"""Reading request bodies in the event loop: whole, in time, and within memory.

granian's stream of a body does not raise when a body breaks off; it yields empty chunks, one at a
proper end and two after an error or after trailers. A body of known length is compared with that length.
"""

import asyncio
import io
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.conf import settings

from api.errors import BodyTooSlow
from catalog.errors import CatalogError, InvalidInput, ServiceUnavailable

SMALL_BYTES = 16 << 10
"""Bodies up to this are not counted by the budget: a connection costs the server as much."""
_WINDOW_BYTES = 4 << 20
"""The most of a streamed body that is read ahead."""
DRAIN_BYTES, DRAIN_SECONDS = 64 << 20, 10.0


def broken(length: int | None) -> InvalidInput:
    """The refusal of a body that is shorter than declared, or whose framing is broken."""
    if length is None:
        return InvalidInput("The request body ended early, or its chunks are malformed")
    return InvalidInput(f"The request body is shorter than its Content-Length, {length} bytes")


def release(error: CatalogError) -> None:
    """Let go of the frames that an error has passed through.

    One of them holds the connection, and another one the WSGI environment, which holds the error. The
    garbage collector runs rarely, and until then the connection would stay open.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


class Budget:
    """The memory for bodies of one process."""

    def __init__(self, most: int) -> None:
        self._free = most

    def take(self, count: int) -> None:
        """Raises ServiceUnavailable when the requests at hand leave too little."""
        if count > self._free:
            raise ServiceUnavailable("The server holds too many large request bodies")
        self._free -= count

    def give(self, count: int) -> None:
        self._free += count


class Stream:
    """The chunks of a body, from a client that sends them fast enough.

    The time that a client may take grows with what it has sent; the time that we take does not count.
    """

    def __init__(self, protocol: Any, length: int | None) -> None:
        self._next: Callable[[], Any] | None = aiter(protocol).__anext__
        self._length = length
        self._loop = asyncio.get_running_loop()
        self._waited = 0.0
        self._empties = 0
        self.received = 0
        self.has_ended = False

    async def next(self) -> bytes:
        """The next chunk, empty at the end. Raises InvalidInput when it broke off, BodyTooSlow."""
        while not self.has_ended and self._next is not None:
            began = self._loop.time()
            allowed = settings.MONODON_BODY_SECONDS + self.received / settings.MONODON_BODY_MIN_RATE
            try:
                async with asyncio.timeout(allowed - self._waited):
                    chunk: bytes = await self._next()
            except TimeoutError:
                raise too_slow() from None
            except StopAsyncIteration:
                self.has_ended = True
                break
            self._waited += self._loop.time() - began
            if chunk:
                self.received += len(chunk)
                return chunk
            self._empties += 1
        if self._empties != 1 if self._length is None else self.received != self._length:
            raise broken(self._length)
        return b""

    async def drain(self) -> None:
        """Discard the rest within bounds.

        A client that writes all before it reads sees the answer only if its writes do not fail.
        """
        with suppress(TimeoutError, CatalogError):
            async with asyncio.timeout(DRAIN_SECONDS):
                enough = self.received + DRAIN_BYTES
                while self.received < enough and await self.next():
                    pass

    def close(self) -> None:
        """Let go of the connection, which the server closes if it holds the rest of a body."""
        self._next = None


def too_slow() -> BodyTooSlow:
    return BodyTooSlow(settings.MONODON_BODY_SECONDS, settings.MONODON_BODY_MIN_RATE)


class Feed:
    """A body that a thread reads while the event loop receives it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._end: CatalogError | bool = False
        self._room = asyncio.Event()
        self._is_discarded = False

    # -- the event loop's side

    async def pump(self, stream: Stream) -> None:
        """Receive until the end, or until nobody reads, no more than a window ahead of the reader."""
        error: CatalogError | bool = broken(None)  # of a task that is cancelled
        try:
            while not self._is_discarded and (chunk := await stream.next()):
                with self._ready:
                    self._chunks.append(chunk)
                    self._size += len(chunk)
                    self._ready.notify()
                if self._size > _WINDOW_BYTES:
                    self._room.clear()
                    # The reader sets it; it may have done so before it was cleared.
                    if self._size > _WINDOW_BYTES and not self._is_discarded:
                        await self._room.wait()
            error = True
        except CatalogError as exc:
            error = exc
        finally:
            self._finish(error)
            del error  # whose traceback holds this frame

    def _finish(self, end: CatalogError | bool) -> None:
        with self._ready:
            self._end = end
            self._ready.notify()

    def discard(self) -> None:
        """Stop receiving: nobody reads any more."""
        self._is_discarded = True
        self._room.set()

    def close(self) -> None:
        """Release what was received, and a reader that still waits."""
        end = self._end
        if isinstance(end, CatalogError):
            release(end)
        with self._ready:
            self._chunks.clear()
            self._finish(broken(None))

    # -- the thread's side

    def readline(self, size: int = -1) -> bytes:
        """Part of WSGI; nobody reads batches line by line."""
        raise io.UnsupportedOperation("readline")

    def read(self, size: int) -> bytes:
        """Up to so many bytes, and none at the end. Raises InvalidInput and BodyTooSlow."""
        with self._ready:
            while not self._chunks:
                if self._end is True:
                    return b""
                if self._end:
                    raise self._end
                self._ready.wait()
            chunk = self._chunks.popleft()
            if len(chunk) > size:
                self._chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            self._size -= len(chunk)
            has_room = self._size <= _WINDOW_BYTES // 2
        if has_room and not self._room.is_set():
            self._loop.call_soon_threadsafe(self._room.set)
        return chunk
