"""A fixture for tests that change limits inside the row reader."""

import contextlib
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from catalog.row_reader import client, worker


@pytest.fixture
def in_process(monkeypatch) -> Iterator[None]:
    """Data files are decoded by threads of this process."""
    threads: list[Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            worker.serve(connection)

    def start(connection: socket.socket, seconds: float) -> None:
        assert seconds > 0
        threads.append(Thread(target=serve, args=(connection.dup(),)))
        threads[-1].start()

    monkeypatch.setattr(client, "_start_worker", start)
    yield
    for thread in threads:
        thread.join()
