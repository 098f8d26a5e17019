"""Request bodies, read in the event loop completely, in time, and within the memory budget.

granian's stream of a body does not raise when a body is incomplete. It yields empty chunks: one at a
proper end, and two after an error or after trailers. A body of known length is compared with that length.
"""

import asyncio
import io
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from django.conf import settings

from api.errors import BodyTooSlow, TooManyRequests
from api.front.limits import RETRY_SECONDS, Owner, spell
from catalog.errors import CatalogError, InvalidInput, ServiceUnavailable

SMALL_BYTES = 16 << 10
"""Bodies up to this size are not counted by the budget, because a connection uses as much memory."""
_WINDOW_BYTES = 4 << 20
"""Maximum number of bytes of a streamed body that are read ahead."""
_WAKE_BYTES = 256 << 10
"""A thread that waits for a body is woken for so many bytes, and at the end. Chunks have a few KiB."""
DRAIN_BYTES, DRAIN_SECONDS = 64 << 20, 10.0
_DRAIN_SILENCE_SECONDS = 1.0
"""The time for a body that is discarded, in addition to that for the bytes that it brings."""


def broken(length: int | None) -> InvalidInput:
    """The refusal of a body that is shorter than declared or has invalid framing."""
    if length is None:
        return InvalidInput("The request body ended early, or its chunks are malformed")
    return InvalidInput(f"The request body is shorter than its Content-Length, {length} bytes")


def release(error: CatalogError) -> None:
    """Release the frames of an error's traceback.

    One of them refers to the connection, and another to the WSGI environment, which refers to the
    error. The garbage collector runs rarely, and the connection would stay open until then.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


class Budget:
    """The memory for bodies of one process.

    One owner gets at most half of it, but enough for one body. An owner is a principal; all clients without
    valid credentials are one.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._share = max(most // 2, settings.MONODON_MAX_BODY_BYTES)
        self._taken = Counter[Owner]()

    def take(self, count: int, owner: Owner) -> None:
        """Reserve memory. Raises ServiceUnavailable if the current requests leave too little, and
        TooManyRequests if those of the owner have its share."""
        if count > self._free:
            raise ServiceUnavailable("The server holds too many large request bodies")
        if self._taken[owner] + count > self._share:
            noun = "bytes of request bodies"
            raise TooManyRequests(spell(owner), self._share, RETRY_SECONDS, noun)
        self._free -= count
        self._taken[owner] += count

    def give(self, count: int, owner: Owner) -> None:
        """Release memory that was reserved for the same owner."""
        self._free += count
        self._taken[owner] -= count
        if not self._taken[owner]:
            del self._taken[owner]


class Stream:
    """The chunks of a body, from a client that sends them fast enough.

    The time limit of a client grows with the bytes that it has sent. Time that the server uses does not count.
    A client that ``may_pause`` can save time by sending faster. Others, whose bytes use memory until the
    body is complete, must go on within MONODON_BODY_SECONDS.
    """

    def __init__(self, protocol: Any, length: int | None, *, may_pause: bool = False) -> None:
        self._next: Callable[[], Any] | None = aiter(protocol).__anext__
        self._length = length
        self._loop = asyncio.get_running_loop()
        self._seconds_left: float | None = settings.MONODON_BODY_SECONDS
        """None: no limit."""
        self._most_seconds = float("inf") if may_pause else settings.MONODON_BODY_SECONDS
        self._read: asyncio.Task[bool] | None = None
        """The wait for a chunk that nobody needs."""
        self._empties = 0
        self.received = 0
        self.has_ended = False

    async def next(self) -> bytes:
        """Return the next chunk, empty at the end. Raises InvalidInput for an incomplete body, and
        BodyTooSlow."""
        while not self.has_ended and self._next is not None:
            began = self._loop.time()
            try:
                async with asyncio.timeout(self._seconds_left):
                    chunk: bytes = await self._next()
            except TimeoutError:
                raise too_slow() from None
            except StopAsyncIteration:
                self.has_ended = True
                break
            if self._seconds_left is not None:
                seconds = len(chunk) / settings.MONODON_BODY_MIN_RATE - (self._loop.time() - began)
                self._seconds_left = min(self._seconds_left + seconds, self._most_seconds)
            if chunk:
                self.received += len(chunk)
                return chunk
            self._empties += 1
        if self._empties != 1 if self._length is None else self.received != self._length:
            raise broken(self._length)
        return b""

    async def drain(self) -> bool:
        """Discard the remaining body, within limits. Return True if the client sends it too slowly.

        A client that sends its whole body before it reads gets the answer only if its writes succeed. A
        slow client reads the answer earlier than it could send the body. Its connection stays open until
        ``close``.
        """
        already, began = self.received, self._loop.time()
        self._seconds_left = None
        while (count := self.received - already) < DRAIN_BYTES:
            seconds = self._loop.time() - began
            if seconds >= DRAIN_SECONDS:
                break
            allowed = _DRAIN_SILENCE_SECONDS + count / settings.MONODON_BODY_MIN_RATE
            if seconds >= allowed:
                return True
            # granian closes the connection when the wait for a chunk is cancelled.
            self._read = self._loop.create_task(self._discard_next())
            await asyncio.wait({self._read}, timeout=min(allowed, DRAIN_SECONDS) - seconds)
            if not self._read.done():
                return True
            if not self._read.result():
                break
        return False

    async def _discard_next(self) -> bool:
        """Wait for the next chunk. Return False if there is none."""
        try:
            return bool(await self.next())
        except CatalogError:
            return False

    def close(self) -> None:
        """Release the connection, which the server closes if a part of the body is unread."""
        self._next = None
        if self._read is not None:
            self._read.cancel()
            self._read = None


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
        self._is_ready = False
        """True from when there are enough chunks to wake the reader until it has read them."""

    # -- in the event loop

    async def pump(self, stream: Stream) -> None:
        """Receive until the end or until the reader stops, at most a window ahead of the reader."""
        error: CatalogError | bool = broken(None)  # of a task that is cancelled
        try:
            while not self._is_discarded and (chunk := await stream.next()):
                with self._ready:
                    self._chunks.append(chunk)
                    self._size += len(chunk)
                    if self._size >= _WAKE_BYTES and not self._is_ready:
                        self._is_ready = True
                        self._ready.notify()
                if self._size > _WINDOW_BYTES:
                    self._room.clear()
                    # The reader sets the event, possibly before it is cleared here.
                    if self._size > _WINDOW_BYTES and not self._is_discarded:
                        await self._room.wait()
            error = True
        except CatalogError as exc:
            error = exc
        finally:
            self._finish(error)
            del error  # its traceback refers to this frame

    def _finish(self, end: CatalogError | bool) -> None:
        with self._ready:
            self._end = end
            self._ready.notify()

    def discard(self) -> None:
        """Stop receiving, because the reader has stopped."""
        self._is_discarded = True
        self._room.set()

    def close(self) -> None:
        """Release the received chunks, and wake a waiting reader."""
        end = self._end
        if isinstance(end, CatalogError):
            release(end)
        with self._ready:
            self._chunks.clear()
            self._finish(broken(None))

    # -- in the thread

    def readline(self, size: int = -1) -> bytes:
        """Required by WSGI. Batches are not read by line."""
        raise io.UnsupportedOperation("readline")

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, and none at the end. Raises InvalidInput and BodyTooSlow."""
        with self._ready:
            while not self._is_ready and not self._end:
                self._ready.wait()
            if not self._chunks:
                if isinstance(self._end, CatalogError):
                    raise self._end
                return b""
            chunk = self._chunks.popleft()
            if len(chunk) > size:
                self._chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            self._size -= len(chunk)
            self._is_ready = bool(self._chunks)
            has_room = self._size <= _WINDOW_BYTES // 2
        if has_room and not self._room.is_set():
            self._loop.call_soon_threadsafe(self._room.set)
        return chunk
