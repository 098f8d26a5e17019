"""HTTP byte by byte, for requests that no client library would send."""

import json
import socket
import time
from http.client import HTTPResponse
from typing import Any, Self

from tests.live import LiveServer


class Answer:
    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.content = response.read()

    def json(self) -> Any:
        return json.loads(self.content)


class Wire:
    """One connection, from any address of the loopback network."""

    def __init__(self, server: LiveServer, *, source: str = "127.0.0.1") -> None:
        self._server = server
        self._socket = socket.create_connection(
            ("127.0.0.1", server.port), timeout=20, source_address=(source, 0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def head(self, method: str, path: str, *lines: str, key: str | None = "") -> Self:
        """Send the head of a request. An empty key stands for the server's key, None for no key."""
        key_headers = [f"x-api-key: {key or self._server.key}"] if key is not None else []
        text = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *key_headers, *lines])
        return self.send(text.encode() + b"\r\n\r\n")

    def send(self, content: bytes) -> Self:
        self._socket.sendall(content)
        return self

    def half_close(self) -> Self:
        self._socket.shutdown(socket.SHUT_WR)
        return self

    def close(self) -> None:
        self._socket.close()

    @property
    def local_port(self) -> int:
        return int(self._socket.getsockname()[1])

    def answer(self) -> Answer:
        response = HTTPResponse(self._socket)
        response.begin()
        return Answer(response)

    def first_bytes(self) -> bytes:
        return self._socket.recv(100)

    def seconds_until_closed(self, within: float) -> float | None:
        """Seconds for which the server kept the connection; None if it is still open."""
        began = time.monotonic()
        self._socket.settimeout(within)
        try:
            while self._socket.recv(1 << 16):
                pass
        except TimeoutError:
            return None
        except ConnectionResetError:
            pass
        return time.monotonic() - began


def send_whole(
    server: LiveServer, method: str, path: str, body: bytes, *lines: str, key: str | None = ""
) -> Answer:
    """Write everything, then read: as simple clients do."""
    with Wire(server) as wire:
        wire.head(method, path, f"Content-Length: {len(body)}", *lines, key=key)
        return wire.send(body).answer()
