"""A proxy before PostgreSQL that cuts connections around the moment of a commit."""

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit

import psycopg

# A separate COMMIT, and the single statement that is a commit.
_MOMENTS = (b"COMMIT\x00", b'"operation":"')
CUTS = ("before", "after", "late")
"""PostgreSQL never receives the commit, receives it while the client loses its connection, or
receives it some time after the client lost the connection."""
_LATE_SECONDS = 0.3


class Proxy:
    """A proxy on loopback that forwards to the database of a URL."""

    def __init__(self, url: str, seed: int, *, probability: float) -> None:
        self._url = urlsplit(url)
        with psycopg.connect(url) as connection:
            # The password file of a Unix socket has no line for an address.
            self._user, self._password = connection.info.user, connection.info.password
        self._dice = random.Random(seed)
        self._probability = probability
        self._guard = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cuts: Counter[str] = Counter()
        self.is_cutting = False
        self._open: set[socket.socket] = set()

    def shut(self) -> None:
        """End all connections and refuse new ones, like a stopped server."""
        self._port = self._listener.getsockname()[1]
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for side in list(self._open):
            _close(side)

    def reopen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        port = self._listener.getsockname()[1]
        credentials = f"{quote(self._user)}:{quote(self._password)}"
        return f"postgresql://{credentials}@127.0.0.1:{port}{self._url.path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = self._connect()
                self._open |= {client, server}
                threading.Thread(target=self._send, args=(client, server), daemon=True).start()
                threading.Thread(target=_forward, args=(server, client), daemon=True).start()

    def _connect(self) -> socket.socket:
        directory = parse_qs(self._url.query).get("host", [""])[0]
        if directory.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{directory}/.s.PGSQL.{self._url.port or 5432}")
            return server
        return socket.create_connection((self._url.hostname, self._url.port or 5432))

    def _send(self, client: socket.socket, server: socket.socket) -> None:
        """Forward data from the client to the server, and detect commits."""
        with contextlib.suppress(OSError):
            while content := client.recv(1 << 16):
                cut = self._choose() if any(moment in content for moment in _MOMENTS) else None
                if cut is None:
                    server.sendall(content)
                    continue
                if cut == "after":
                    server.sendall(content)
                _close(client)
                if cut == "late":
                    time.sleep(_LATE_SECONDS)
                    server.sendall(content)
                break
        if client.fileno() != -1:
            _close(client)
        # The server reads the sent bytes, and then the end.
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _choose(self) -> str | None:
        with self._guard:
            if not self.is_cutting or self._dice.random() >= self._probability:
                return None
            cut = self._dice.choice(CUTS)
            self.cuts[cut] += 1
            return cut


def _forward(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := server.recv(1 << 16):
            client.sendall(content)
    _close(client)
    _close(server)


def _close(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()
