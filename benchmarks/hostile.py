"""Hostile clients against a server of its own: does it still live, and do honest clients get on?

    python -m benchmarks.hostile [--sockets 2000] [--seconds 10] [--kinds slow_body,idle]

Six kinds of sockets that want to cost the server more than they cost their owner, each from addresses of
their own on the loopback network. Meanwhile wrk describes tables as an honest client does, and
/health/live is asked 20 times a second.
"""

# ruff: noqa: ARG001 -- all kinds are called alike
import argparse
import asyncio
import contextlib
import multiprocessing
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from server.options import PROJECT

GOAL_LIVE_MS, GOAL_SHARE = 100.0, 0.8
_CONNECTIONS = 8
_ADDRESSES = 50
_NICENESS = 19
_PAUSE = 3.0
"""Before a socket that was closed is opened again: the cost of new connections is not the question."""

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
    """Streams of rows that never end, and streams of events, with a key that is good."""
    key = f"x-api-key: {target.key}"
    if id(writer) % 2:
        writer.write(_head("GET", "/management/v1/events/stream", key))
        await reader.read()
    else:
        arrow = "Content-Type: application/vnd.apache.arrow.stream"
        path = "/v1/table/hostile$rows/insert"
        writer.write(_head("POST", path, key, arrow, "Content-Length: 1000000"))
        await _trickle(writer)


async def half_closed(target: Target, reader: Reader, writer: Writer) -> None:
    """Sends a part of a body, closes its own side and waits."""
    writer.write(_head("POST", "/v1/namespaces", f"x-api-key: {target.key}", "Content-Length: 99"))
    writer.write(b"{")
    writer.write_eof()
    await reader.read()


Kind = Callable[[Target, Reader, Writer], Awaitable[None]]
KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (slow_header, slow_body, slow_reader, idle, many_streams, half_closed)
}


def _head(method: str, path: str, *lines: str) -> bytes:
    text = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines])
    return f"{text}\r\n\r\n".encode()


async def _trickle(writer: Writer) -> None:
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(1)


async def attack(target: Target, kinds: list[str], sockets: int, seconds: float) -> int:
    """Keep so many sockets busy for so long; who is closed comes back. Returns how often."""
    ends = time.monotonic() + seconds
    opened = 0

    async def connection(number: int) -> None:
        nonlocal opened
        kind = KINDS[kinds[number % len(kinds)]]
        source = f"127.0.{1 + number % len(kinds)}.{2 + number % _ADDRESSES}"
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
                opened += 1
                try:
                    await kind(target, reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(_PAUSE)

    tasks = [asyncio.create_task(connection(number)) for number in range(sockets)]
    await asyncio.sleep(max(0.0, ends - time.monotonic()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return opened


class Attack:
    """An attack in the background, as a context manager."""

    def __init__(
        self, target: Target, kinds: list[str], sockets: int, seconds: float, *, niceness: int = 0
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=_run, args=(target, kinds, sockets, seconds, niceness), daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.join()


def _run(target: Target, kinds: list[str], sockets: int, seconds: float, niceness: int) -> None:
    _lower_priority(niceness)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(attack(target, kinds, sockets, seconds))


def _lower_priority(niceness: int) -> None:
    """Lower the priority of this process below that of the server, which may be in another session.

    Where Linux groups processes by session (autogroup), a process's niceness counts only inside its
    session, so the session itself is given the same niceness.
    """
    os.nice(niceness)
    os.setsid()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))


class Pulse:
    """Latency of /health/live, measured 20 times a second, each time over a new connection."""

    def __init__(self, port: int) -> None:
        self.milliseconds: list[float] = []
        self._url = f"http://127.0.0.1:{port}/health/live"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(0.05):
            began = time.perf_counter()
            try:
                with urllib.request.urlopen(self._url, timeout=10) as answer:
                    answer.read()
            except OSError:
                self.milliseconds.append(10_000.0)
            else:
                self.milliseconds.append((time.perf_counter() - began) * 1000)

    def percentile(self, fraction: float) -> float:
        ordered = sorted(self.milliseconds) or [10_000.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def _second_key(environment: dict[str, str]) -> str:
    """A key of another principal than the honest clients'."""
    made = subprocess.run(
        [sys.executable, "-c", _MAKE_KEY],
        cwd=PROJECT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings"},
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stdout.strip().splitlines()[-1]


_MAKE_KEY = """
import django
django.setup()
from catalog.access import SYSTEM
from catalog.services.access import api_keys
print(api_keys.create_api_key(actor=SYSTEM, name="hostile")[1])
"""


def main() -> None:
    from benchmarks import load, wrk
    from benchmarks.load import Size
    from benchmarks.stack import running

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="each,all")
    options = parser.parse_args()
    size = Size(namespaces=10, tables=20, versions=5)
    wrk.require()
    with running(None) as stack:
        url = stack.postgres.url
        stack.bootstrap(url)
        load.seed(url, size, stack.warehouse)
        _, port = stack.start_web(url)
        target = Target(port, _second_key(stack.environment(url)))
        urllib.request.urlopen(f"http://127.0.0.1:{port}/schema/lance", timeout=60).read()

        def measure(seed: int) -> tuple[float, Pulse]:
            with Pulse(port) as pulse:
                run = wrk.run(
                    "describe",
                    port=port,
                    connections=_CONNECTIONS,
                    seconds=options.seconds,
                    namespaces=size.namespaces,
                    tables=size.tables,
                    seed=seed,
                )
            return run.requests / run.seconds, pulse

        measure(0)
        groups = []
        for word in options.kinds.split(","):
            if word == "each":
                groups += [[kind] for kind in KINDS]
            else:
                groups.append(list(KINDS) if word == "all" else [word])
        failed = False
        print(f"{options.sockets} sockets, {options.rounds} rounds of {options.seconds} s")
        for kinds in groups:
            shares, calm_ms, hostile_ms = [], [], []
            for number in range(options.rounds):
                calm, pulse = measure(number)
                calm_ms.append(pulse.percentile(0.99))
                # Attackers would have their own processors; here they use what the server leaves idle.
                with Attack(
                    target, kinds, options.sockets, options.seconds + 6.0, niceness=_NICENESS
                ):
                    time.sleep(5)
                    hostile, pulse = measure(number)
                shares.append(hostile / calm)
                hostile_ms.append(pulse.percentile(0.99))
                time.sleep(1)
            share, live = statistics.median(shares), statistics.median(hostile_ms)
            is_good = share >= GOAL_SHARE and live < GOAL_LIVE_MS
            failed = failed or not is_good
            print(
                f"{' + '.join(kinds) if len(kinds) < len(KINDS) else 'all':14} honest"
                f" {share:5.0%}  live p99 {live:6.1f} ms (calm {statistics.median(calm_ms):.1f})"
                f"  {'' if is_good else 'MISSED'}",
                flush=True,
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
