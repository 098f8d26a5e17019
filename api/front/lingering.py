"""Connections that stay open for some seconds after a refusal, because their clients send slowly.

A client whose connection is closed opens another, which costs more than the bytes that nobody reads. A
client that has read its answer can close the connection itself.
"""

import asyncio
from collections import deque

from api.front.bodies import Stream

SECONDS = 5.0
_BETWEEN_LOOKS_SECONDS = 0.5
_MAX_STREAMS = 1024


class Lingering:
    """The refused bodies of one process that are not read any more, all in its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: deque[tuple[Stream, float]] = deque()
        """Each with the time at which it is closed, in this order."""

    def add(self, stream: Stream) -> None:
        """Close the body, and with it the connection, after SECONDS, or earlier if there are too many."""
        if not self._streams:
            self._loop.call_later(SECONDS, self._close_expired)
        elif len(self._streams) >= _MAX_STREAMS:
            self._streams.popleft()[0].close()
        self._streams.append((stream, self._loop.time() + SECONDS))

    def _close_expired(self) -> None:
        now = self._loop.time()
        while self._streams and self._streams[0][1] <= now:
            self._streams.popleft()[0].close()
        if self._streams:
            self._loop.call_later(_BETWEEN_LOOKS_SECONDS, self._close_expired)
