"""A load balancer that opens connections to the servers that are ready."""

import asyncio
import contextlib
import itertools
import threading
import urllib.request
from collections import Counter
from collections.abc import Sequence
from typing import Self

_LOOK_SECONDS = 0.1


class Balancer:
    """Forwards each connection to one of the servers at these ports, in turn.

    It asks each server for ``/health/ready`` ten times a second, and opens no connection to those that
    do not answer 200. Open connections stay where they are.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.ready: frozenset[int] = frozenset()
        self.open: Counter[int] = Counter()
        """The open connections to each port."""
        self.opened: Counter[int] = Counter()
        """The number of connections that were opened to each port."""
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        self._looking = asyncio.run_coroutine_threadsafe(self._look(), self._loop)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def withdraw(self, port: int) -> None:
        """Open no further connections to a port."""
        self._ports = tuple(other for other in self._ports if other != port)
        self.ready -= {port}

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            ready = {port for port in self._ports if await asyncio.to_thread(_is_ready, port)}
            self.ready = frozenset(ready.intersection(self._ports))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = sorted(self.ready)
        port = ports[next(self._turns) % len(ports)] if ports else 0
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        self.open[port] += 1
        self.opened[port] += 1
        pumps = [
            asyncio.create_task(_pump(reader, server_writer)),
            asyncio.create_task(_pump(server_reader, writer)),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # at the end of the test
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open[port] -= 1
            for pump in pumps:
                pump.cancel()
            writer.close()
            server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
