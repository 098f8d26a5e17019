"""A server that does almost nothing: what an attack costs the attackers and the system alone.

It accepts connections and closes each after some seconds, without reading. If it closes them as often as the
real server does, attackers use as much CPU as against the real server, and so does the loopback network.
"""

import heapq
import multiprocessing
import select
import socket
import time
from multiprocessing.connection import Connection
from typing import Self

from benchmarks.attackers import PAUSE, TRICKLE_SECONDS, TRICKLING, allow_many_files

_FOREVER = 3600.0


def lifetimes(kinds: list[str], sockets: int, opened_per_second: list[float]) -> list[float]:
    """Seconds after which connections of each kind must be closed for this number of new ones per second."""
    seconds = []
    for kind, rate in zip(kinds, opened_per_second, strict=True):
        cycle = sockets / len(kinds) / rate if rate else _FOREVER
        notice = TRICKLE_SECONDS if kind in TRICKLING else 0.0
        seconds.append(max(0.0, cycle - PAUSE - notice))
    return seconds


class Sink:
    """The server in its own process, as a context manager."""

    port: int

    def __init__(self, seconds: list[float]) -> None:
        """``seconds``: the lifetimes of connections by kind, as of ``lifetimes``."""
        context = multiprocessing.get_context("spawn")
        self._ports, ports = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(ports, seconds), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self.port = self._ports.recv()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.join()


def _serve(ports: Connection, seconds: list[float]) -> None:
    allow_many_files()
    connections: list[tuple[float, int, socket.socket]] = []
    """With the times of their ends, as a heap."""
    count = 0
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        listener.setblocking(False)
        ports.send(listener.getsockname()[1])
        while True:
            wait = max(0.0, connections[0][0] - time.monotonic()) if connections else _FOREVER
            if select.select([listener], [], [], wait)[0]:
                connection, (host, _) = listener.accept()
                # The attackers' addresses are 127.0.x.y; x - 1 is the index of the kind.
                end = time.monotonic() + seconds[int(host.split(".")[2]) - 1]
                count += 1
                heapq.heappush(connections, (end, count, connection))
            while connections and connections[0][0] <= time.monotonic():
                heapq.heappop(connections)[2].close()
