"""A TCP proxy that drops answers or switches its target on request."""

import asyncio
import contextlib
import threading
from typing import Self


class Proxy:
    """Forwards everything; while ``is_losing``, it breaks each connection when the answer arrives.

    The server has executed the request by then, which the client cannot know.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.is_losing = False
        self.lost = 0
        self.port = 0
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def switch(self, port: int) -> None:
        """Forward to this port from now on, and break connections to other ports."""
        self._upstream = port
        asyncio.run_coroutine_threadsafe(self._break_all(), self._loop).result(10)

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        await self._break_all()
        await asyncio.sleep(0.1)  # aborted transports close their sockets in a later turn

    async def _break_all(self) -> None:
        clients = dict(self._clients)
        for task, writer in clients.items():
            task.cancel()
            writer.transport.abort()  # a task that has not begun does not
        await asyncio.gather(*clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._clients[task] = writer
        task.add_done_callback(self._clients.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            above_reader, above_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        pumps = [
            asyncio.create_task(self._pump(reader, above_writer, is_answer=False)),
            asyncio.create_task(self._pump(above_reader, writer, is_answer=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            writer.transport.abort()
            above_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if is_answer and self.is_losing:
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()
