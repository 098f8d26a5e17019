"""A body that a thread reads while the event loop receives it."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest

from api.front import bodies
from api.front.bodies import Feed, Stream
from catalog.errors import InvalidInput

CHUNK = b"x" * (8 << 10)


async def body(*chunks: bytes) -> AsyncIterator[bytes]:
    """granian's stream of a body: its chunks, and an empty one at the end."""
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk
    yield b""


def read_through(chunks: list[bytes], *, length: int | None, size: int) -> list[bytes]:
    """Return what a thread reads of a body that the event loop receives."""
    read: list[bytes] = []

    async def run() -> None:
        feed = Feed(asyncio.get_running_loop())
        pump = asyncio.create_task(feed.pump(Stream(body(*chunks), length)))

        def reader() -> None:
            while part := feed.read(size):
                read.append(part)

        try:
            await asyncio.wait_for(asyncio.to_thread(reader), 60)
        finally:
            feed.close()
            await pump

    asyncio.run(run())
    return read


@pytest.mark.parametrize("size", [1, 8 << 10, 4 << 20], ids=["one-byte", "chunk", "window"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_short_body_is_complete(count: int, size: int) -> None:
    chunks = [b"ab", b"cd", b"ef"][:count]
    assert b"".join(read_through(chunks, length=2 * count, size=size)) == b"".join(chunks)


@pytest.mark.parametrize("size", [5_000, 4 << 20])
def test_a_body_longer_than_the_window_is_complete(size: int) -> None:
    count = 2 * bodies._WINDOW_BYTES // len(CHUNK) + 3
    read = read_through([CHUNK] * count, length=None, size=size)
    assert sum(map(len, read)) == count * len(CHUNK)
    assert max(map(len, read)) <= size


def test_the_bytes_of_a_broken_body_come_before_the_error() -> None:
    async def run() -> None:
        feed = Feed(asyncio.get_running_loop())
        await feed.pump(Stream(body(b"abc"), 10))
        assert feed.read(2) == b"ab"
        assert feed.read(2) == b"c"
        with pytest.raises(InvalidInput, match="shorter than its Content-Length, 10 bytes"):
            feed.read(2)
        feed.close()

    asyncio.run(run())


def test_a_reader_is_not_woken_for_each_chunk() -> None:
    async def run() -> int:
        feed = Feed(asyncio.get_running_loop())
        with patch.object(feed._ready, "notify") as notify:
            await feed.pump(Stream(body(*[CHUNK] * 20), 20 * len(CHUNK)))
        feed.close()
        return notify.call_count

    assert asyncio.run(run()) == 1, "at the end"
