"""Hostile clients use no resources after they disconnect."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from benchmarks.hostile import Pulse
from tests.live import LiveServer, live_template
from tests.security.wire import Wire

pytestmark = pytest.mark.xdist_group("front recovery")  # the server starts once

__all__ = ["live_template"]
ARROW = "Content-Type: application/vnd.apache.arrow.stream"
COUNT = 30
BODY_SECONDS = 1
SETTLED_SECONDS = 10.0
MANY = 400
LIVE_MS = 2000.0
"""A server as in test_front_attacks."""


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(
        workers=1,
        threads=2,
        MONODON_BODY_SECONDS=str(BODY_SECONDS),
        # So small that two kinds of attacks would exhaust the slots if they were not released.
        MONODON_REQUESTS_PER_ADDRESS=str(2 * COUNT),
        MONODON_REQUESTS_PER_PRINCIPAL=str(2 * COUNT),
    ) as server:
        assert server.post("/v1/namespace/hostile/create")[0] == 200
        assert server.post("/v1/table/hostile$rows/declare")[0] == 200
        yield server


def slow_rows(wire: Wire) -> None:
    """A thread waits for some of the bodies; the others are refused at once."""
    path = "/v1/table/hostile$rows/insert"
    wire.head("POST", path, ARROW, "Content-Length: 1000000").send(b"a")


def slow_large(wire: Wire) -> None:
    wire.head("POST", "/v1/namespaces", "Content-Length: 90000").send(b"{")


def slow_small(wire: Wire) -> None:
    wire.head("POST", "/v1/namespaces", "Content-Length: 900").send(b"{")


def slow_chunks(wire: Wire) -> None:
    wire.head("POST", "/v1/namespaces", "Transfer-Encoding: chunked").send(b"1\r\n{\r\n")


def slow_without_key(wire: Wire) -> None:
    wire.head("POST", "/v1/namespaces", "Content-Length: 900", key=None).send(b"{")


def slow_token(wire: Wire) -> None:
    wire.head("POST", "/oauth/token", "Content-Length: 900", key=None).send(b"a")


KINDS = (slow_rows, slow_large, slow_small, slow_chunks, slow_without_key, slow_token)


def sockets(server: LiveServer, peers: set[int]) -> list[str]:
    """The states of the server's sockets whose peers have these ports."""
    return [
        connection.status
        for connection in psutil.net_connections("tcp")
        if connection.pid is not None
        and connection.laddr.port == server.port
        and connection.raddr
        and connection.raddr.port in peers
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_no_connection_outlives_its_client(server: LiveServer, kind: Callable[[Wire], None]):
    """Each client reads its refusal, continues to send for a moment, and disconnects."""
    wires = [Wire(server) for _ in range(COUNT)]
    peers = {wire.local_port for wire in wires}
    for wire in wires:
        kind(wire)
    for wire in wires:
        assert wire.first_bytes().startswith(
            b"HTTP/1.1 4" if kind is not slow_rows else b"HTTP/1.1 "
        )
    for _ in range(4):
        time.sleep(0.3)
        for wire in wires:
            with suppress(OSError):
                wire.send(b"a")
    for wire in wires:
        wire.seconds_until_closed(0.01)  # unread bytes would turn the close into a reset
        wire.close()
    deadline = time.monotonic() + SETTLED_SECONDS
    while (remaining := sockets(server, peers)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert remaining == []
    assert server.post("/v1/table/hostile$rows/exists")[0] == 200


@pytest.mark.parametrize("leave_early", [False, True])
def test_many_refusals_at_once_do_not_stop_others(server: LiveServer, leave_early: bool):
    """The time limits of all bodies expire, or all clients disconnect, at the same moment."""
    wires = [Wire(server, source=f"127.0.1.{2 + number % 50}") for number in range(MANY)]
    for wire in wires:
        slow_token(wire)
    with Pulse(server.port) as pulse:
        if leave_early:
            for wire in wires:
                wire.close()
        deadline = time.monotonic() + BODY_SECONDS + 2
        while time.monotonic() < deadline:
            assert server.post("/v1/table/hostile$rows/exists")[0] == 200
    assert max(pulse.milliseconds) < LIVE_MS
    for wire in wires:
        if not leave_early:
            assert wire.first_bytes().startswith(b"HTTP/1.1 408")
            wire.close()
