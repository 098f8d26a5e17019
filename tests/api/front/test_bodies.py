"""Bodies that are discarded after a refusal, and connections that stay open after it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock

import pytest

from api.front import bodies, lingering
from api.front.bodies import Stream
from api.front.lingering import Lingering


class Body:
    """granian's stream of a body: the chunks, and then silence, or the end."""

    def __init__(self, *chunks: bytes, ends: bool = False) -> None:
        self.chunks = list(chunks)
        self.ends = ends
        self.is_empty = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.chunks:
            yield self.chunks.pop(0)
        self.is_empty.set()
        if self.ends:
            yield b""
            return
        await asyncio.Event().wait()


def drain(body: Body, length: int, *, is_slow: bool = True) -> Stream:
    async def run() -> Stream:
        stream = Stream(body, length)
        assert await stream.next() == b"first"
        assert await asyncio.wait_for(stream.drain(), 30) is is_slow
        return stream

    return asyncio.run(run())


def test_a_slow_body_is_not_discarded_to_its_end(monkeypatch, settings):
    monkeypatch.setattr(bodies, "DRAIN_SECONDS", 3600.0)
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 0.05)
    settings.MONODON_BODY_SECONDS = 3600
    stream = drain(Body(b"first", b"a"), 1000)
    assert stream.received == 6
    assert not stream.has_ended


def test_bytes_before_the_refusal_bring_no_time(monkeypatch, settings):
    monkeypatch.setattr(bodies, "DRAIN_SECONDS", 3600.0)
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 0.05)
    settings.MONODON_BODY_MIN_RATE = 0.001
    assert drain(Body(b"first"), 1000).received == 5


def test_a_body_that_arrives_fast_is_discarded_to_its_end(monkeypatch):
    monkeypatch.setattr(bodies, "DRAIN_SECONDS", 3600.0)
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 3600.0)
    chunks = [b"x" * 100] * 50
    body = Body(b"first", *chunks)

    async def run() -> Stream:
        stream = Stream(body, 6000)
        assert await stream.next() == b"first"
        task = asyncio.create_task(stream.drain())
        await body.is_empty.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return stream

    stream = asyncio.run(asyncio.wait_for(run(), 30))
    assert (stream.received, body.chunks) == (5005, [])


def test_a_complete_body_is_not_slow():
    assert drain(Body(b"first", b"a", ends=True), 6, is_slow=False).has_ended


def test_a_fast_body_without_end_is_not_slow(monkeypatch):
    monkeypatch.setattr(bodies, "DRAIN_BYTES", 300)
    stream = drain(Body(b"first", *[b"x" * 100] * 50), 6000, is_slow=False)
    assert stream.received == 305


def test_a_body_that_stops_does_not_use_the_time_for_its_bytes(monkeypatch, settings):
    monkeypatch.setattr(bodies, "DRAIN_SECONDS", 0.05)
    settings.MONODON_BODY_MIN_RATE = 0.001
    assert drain(Body(b"first", b"x" * 100), 1000).received == 105


class SilentClient:
    """A client that sends nothing after the head of its request."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[bytes]] = []

    def __aiter__(self) -> "SilentClient":
        return self

    def __anext__(self) -> asyncio.Future[bytes]:
        self.reads.append(asyncio.get_running_loop().create_future())
        return self.reads[-1]


def test_a_slow_connection_stays_open_until_it_is_closed(monkeypatch):
    """granian closes a connection when a read is cancelled."""
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 0.01)
    client = SilentClient()

    async def run() -> list[bool]:
        stream = Stream(client, 1000)
        assert await stream.drain() is True
        cancelled = [client.reads[0].cancelled()]
        stream.close()
        for _ in range(3):
            await asyncio.sleep(0)
        return [*cancelled, client.reads[0].cancelled()]

    assert asyncio.run(run()) == [False, True]
    assert len(client.reads) == 1


class Loop:
    """The clock and the timers of an event loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], Any]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, work: Callable[[], Any]) -> None:
        self._timers.append((self.now + seconds, work))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and min(self._timers, key=lambda timer: timer[0])[0] <= end:
            timer = min(self._timers, key=lambda timer: timer[0])
            self._timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = end


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_slow_clients_keep_their_connections_for_some_seconds(loop: Any):
    waiting = Lingering(loop)
    first, second, third = (Mock(spec=Stream) for _ in range(3))
    waiting.add(first)
    loop.advance(lingering.SECONDS / 2)
    waiting.add(second)
    loop.advance(lingering.SECONDS / 2 - 0.01)
    assert not first.close.called
    loop.advance(0.02)
    first.close.assert_called_once_with()
    assert not second.close.called
    loop.advance(lingering.SECONDS / 2 + 1)
    second.close.assert_called_once_with()
    waiting.add(third)
    loop.advance(lingering.SECONDS)
    third.close.assert_called_once_with()
    assert (first.close.call_count, second.close.call_count) == (1, 1)


def test_the_oldest_of_too_many_connections_is_closed(loop: Any, monkeypatch):
    monkeypatch.setattr(lingering, "_MAX_STREAMS", 3)
    waiting = Lingering(loop)
    streams = [Mock(spec=Stream) for _ in range(5)]
    for stream in streams:
        waiting.add(stream)
    assert [stream.close.called for stream in streams] == [True, True, False, False, False]
