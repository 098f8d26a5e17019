"""Hostile clients: sockets that want to cost the server more than they cost their owner."""

# ruff: noqa: ARG001 -- all kinds are called alike
import asyncio
import contextlib
import multiprocessing
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Self, TypeAlias

_ADDRESSES = 50
PAUSE = 3.0
"""Seconds before a socket that was closed is opened again: the cost of new connections is not the question."""
TRICKLE_SECONDS = 1.0

Opened: TypeAlias = "SynchronizedArray[int]"
"""The number of connections opened so far, for each kind of an attack."""
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


@dataclass(frozen=True)
class Target:
    port: int
    key: str
    """Key of a principal, for the kinds that need one."""


async def slow_header(target: Target, reader: Reader, writer: Writer) -> None:
    """A head that never ends."""
    writer.write(b"GET /v1/config HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    await _trickle(writer)


async def slow_body(target: Target, reader: Reader, writer: Writer) -> None:
    """A body that never ends, where no key is needed to send one."""
    writer.write(_head("POST", "/oauth/token", "Content-Length: 10000"))
    await _trickle(writer)


async def slow_reader(target: Target, reader: Reader, writer: Writer) -> None:
    """Asks for a large answer again and again, and reads none of it."""
    writer.write(_head("GET", "/schema/lance") * 8)
    await asyncio.sleep(3600)


async def idle(target: Target, reader: Reader, writer: Writer) -> None:
    """Send nothing."""
    await reader.read(1)


async def many_streams(target: Target, reader: Reader, writer: Writer) -> None:
    """A stream of rows that never ends, with a valid key."""
    key = f"x-api-key: {target.key}"
    arrow = "Content-Type: application/vnd.apache.arrow.stream"
    path = "/v1/table/hostile$rows/insert"
    writer.write(_head("POST", path, key, arrow, "Content-Length: 1000000"))
    await _trickle(writer)


async def event_streams(target: Target, reader: Reader, writer: Writer) -> None:
    """A stream of events, with a valid key."""
    writer.write(_head("GET", "/management/v1/events/stream", f"x-api-key: {target.key}"))
    await reader.read()


async def half_closed(target: Target, reader: Reader, writer: Writer) -> None:
    """Sends a part of a body, closes its own side and waits."""
    writer.write(_head("POST", "/v1/namespaces", f"x-api-key: {target.key}", "Content-Length: 99"))
    writer.write(b"{")
    writer.write_eof()
    await reader.read()


Kind = Callable[[Target, Reader, Writer], Awaitable[None]]
KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        slow_header,
        slow_body,
        slow_reader,
        idle,
        many_streams,
        event_streams,
        half_closed,
    )
}
TRICKLING = {"slow_header", "slow_body", "many_streams"}
"""The kinds that notice a closed connection only when they write."""


def _head(method: str, path: str, *lines: str) -> bytes:
    text = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines])
    return f"{text}\r\n\r\n".encode()


async def _trickle(writer: Writer) -> None:
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(TRICKLE_SECONDS)


async def attack(
    target: Target, kinds: list[str], sockets: int, seconds: float, opened: Opened
) -> None:
    """Keep so many sockets busy for so long; who is closed comes back."""
    ends = time.monotonic() + seconds

    async def connection(number: int) -> None:
        index = number % len(kinds)
        kind = KINDS[kinds[index]]
        source = f"127.0.{1 + index}.{2 + number % _ADDRESSES}"
        await asyncio.sleep(number / sockets)  # not all in one moment
        while time.monotonic() < ends:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                plain = socket.socket()
                plain.setblocking(False)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                plain.bind((source, 0))
                try:
                    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", target.port))
                    reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
                except BaseException:
                    plain.close()
                    raise
                opened[index] += 1
                try:
                    await kind(target, reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE)

    tasks = [asyncio.create_task(connection(number)) for number in range(sockets)]
    await asyncio.sleep(max(0.0, ends - time.monotonic()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Attack:
    """An attack in the background, as a context manager. Raises RuntimeError if it has failed meanwhile."""

    def __init__(self, target: Target, kinds: list[str], sockets: int, seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.opened: Opened = context.Array("L", len(kinds))
        self._process = context.Process(
            target=_run, args=(target, kinds, sockets, seconds, self.opened), daemon=True
        )

    @property
    def pid(self) -> int:
        """The process of the attackers. Raises RuntimeError before the attack has begun."""
        if self._process.pid is None:
            raise RuntimeError("the attack has not begun")
        return self._process.pid

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        failure = self._process.exitcode
        self._process.kill()
        self._process.join()
        if failure:
            raise RuntimeError(f"the attackers ended with exit code {failure}")


def _run(target: Target, kinds: list[str], sockets: int, seconds: float, opened: Opened) -> None:
    allow_many_files()
    asyncio.run(attack(target, kinds, sockets, seconds, opened))


def allow_many_files() -> None:
    """Let this process have as many connections as the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
