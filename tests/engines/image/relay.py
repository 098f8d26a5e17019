"""Addresses of the tests' database and broker for containers, whose user may not open their sockets."""

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import psycopg


@contextmanager
def database(url: str) -> Iterator[str]:
    """A URL with a TCP port and a password."""
    parts = urlsplit(url)
    directory = parse_qs(parts.query).get("host", [""])[0]
    if not directory.startswith("/"):
        yield url
        return
    with psycopg.connect(url) as connection:
        credentials = f"{quote(connection.info.user)}:{quote(connection.info.password)}"
    with _port_of(Path(directory, f".s.PGSQL.{parts.port or 5432}")) as port:
        yield f"postgresql://{credentials}@127.0.0.1:{port}{parts.path}"


@contextmanager
def broker(url: str) -> Iterator[str]:
    """A URL with a TCP port."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        yield url
        return
    with _port_of(Path(unquote(parts.path))) as port:
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def _port_of(path: Path) -> Iterator[int]:
    """A port of loopback that forwards to a Unix socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, path), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, path: Path) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(path))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_forward, args=(source, target), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with source, contextlib.suppress(OSError):
        shutil.copyfileobj(source.makefile("rb", buffering=0), target.makefile("wb", buffering=0))
        target.shutdown(socket.SHUT_WR)
