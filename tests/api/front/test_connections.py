"""Sockets of this process: lookup by client, and closing of idle or blocked connections."""

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.front import connections
from api.front.connections import Guard


class Listener:
    """A server that accepts connections on all addresses."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("0.0.0.0", 0))
        self.port = self._listening.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self._clients: list[socket.socket] = []

    def connect(self, source: str = "127.0.0.1") -> tuple[socket.socket, str]:
        """A client, and its address in the form of RSGI."""
        client = socket.create_connection(
            ("127.0.0.1", self.port), timeout=5, source_address=(source, 0)
        )
        self._clients.append(client)
        self.accepted.append(self._listening.accept()[0])
        return client, f"{source}:{client.getsockname()[1]}"

    def close(self) -> None:
        for connection in (*self._clients, *self.accepted, self._listening):
            connection.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def is_closed(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False


def test_a_connection_is_found_by_its_client(listener: Listener):
    listener.connect()
    client, address = listener.connect()
    connection = connections.find(address, f"0.0.0.0:{listener.port}")
    assert connection is not None
    with connection:
        connection.sendall(b"here")
    assert client.recv(4) == b"here"
    assert connections.find("127.0.0.1:1", f"0.0.0.0:{listener.port}") is None
    assert connections.find(address, "0.0.0.0:1") is None


def test_an_aborted_connection_is_closed_on_both_sides(listener: Listener):
    client, address = listener.connect()
    connection = connections.find(address, f"0.0.0.0:{listener.port}")
    connections.abort(connection)
    assert connection is not None
    connection.close()
    assert is_closed(client)
    assert listener.accepted[0].recv(1) == b""


def test_idle_connections_over_the_limit_of_an_address_are_closed(listener: Listener, settings):
    settings.MONODON_CONNECTIONS_PER_ADDRESS = 2
    guard = Guard(ports=[listener.port])
    active, address = listener.connect("127.0.0.5")
    guard.enter(address)
    greedy = [listener.connect("127.0.0.5")[0] for _ in range(3)]
    other = listener.connect("127.0.0.6")[0]
    guard.scan(0.0)
    assert sum(map(is_closed, greedy)) == 2
    assert not is_closed(active)
    assert not is_closed(other)


@pytest.mark.parametrize(("most", "proxies"), [(0, 0), (2, 1)])
def test_behind_proxies_and_without_a_limit_no_connection_is_closed(
    listener: Listener, settings, most: int, proxies: int
):
    settings.MONODON_CONNECTIONS_PER_ADDRESS = most
    settings.MONODON_PROXIES = proxies
    clients = [listener.connect()[0] for _ in range(4)]
    Guard(ports=[listener.port]).scan(0.0)
    assert not any(map(is_closed, clients))


def test_idle_connections_are_closed_near_the_limit_of_the_process(listener: Listener, settings):
    settings.MONODON_MAX_CONNECTIONS = 10
    guard = Guard(ports=[listener.port])
    greedy = [listener.connect("127.0.0.5")[0] for _ in range(7)]
    modest = [listener.connect("127.0.0.6")[0] for _ in range(3)]
    guard.scan(0.0)
    assert [sum(map(is_closed, group)) for group in (greedy, modest)] == [2, 0]


def test_all_ports_of_the_process_are_checked_by_default(listener: Listener, settings):
    settings.MONODON_CONNECTIONS_PER_ADDRESS = 1
    clients = [listener.connect("127.0.0.7")[0] for _ in range(3)]
    Guard().scan(0.0)
    assert sum(map(is_closed, clients)) == 2


def test_clients_that_do_not_read_are_disconnected(listener: Listener, settings):
    settings.MONODON_ANSWER_SECONDS = 5
    guard = Guard(ports=[listener.port])
    reading, _ = listener.connect()
    silent, _ = listener.connect()
    for server in listener.accepted:
        server.setblocking(False)
        try:
            while True:
                server.send(b"x" * 65536)
        except BlockingIOError:
            pass
    time.sleep(0.5)  # until the kernel has delivered the buffered bytes
    guard.scan(100.0)
    guard.scan(104.0)
    reading.settimeout(0.2)
    read = 0
    while read < 256 << 10:
        read += len(reading.recv(1 << 16))
    time.sleep(0.1)
    guard.scan(105.1)
    assert listener.accepted[0].send(b"more") == 4
    with pytest.raises(BrokenPipeError):
        listener.accepted[1].send(b"more")
    del silent


def test_many_connections_are_checked_more_often(settings):
    settings.MONODON_MAX_CONNECTIONS = 100_000
    settings.MONODON_CONNECTIONS_PER_ADDRESS = 100_000
    assert not connections._is_crowded()
    settings.MONODON_CONNECTIONS_PER_ADDRESS = 1
    assert connections._is_crowded()
    settings.MONODON_PROXIES = 1  # then the addresses are those of proxies
    assert not connections._is_crowded()
    settings.MONODON_MAX_CONNECTIONS = 1
    assert connections._is_crowded()


# --- few descriptors ----------------------------------------------------------------------------


@contextmanager
def spare_descriptors(number: int) -> Iterator[None]:
    """Let the process open only a few more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/dev/fd").iterdir())
    filled = [os.open(os.devnull, os.O_RDONLY)]
    while filled[-1] < highest:
        filled.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 1 + number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in filled:
            os.close(descriptor)


def test_a_look_at_many_connections_needs_few_descriptors(listener: Listener, settings):
    """Otherwise it would miss the connections that it has none left for, and requests could open no file."""
    settings.MONODON_MAX_CONNECTIONS = 50
    clients = [listener.connect("127.0.0.5")[0] for _ in range(60)]
    guard = Guard(ports=[listener.port])
    with spare_descriptors(3):
        guard.scan(0.0)
    assert sum(map(is_closed, clients)) == 20


def test_a_process_with_few_files_has_fewer_connections(settings):
    settings.MONODON_MAX_CONNECTIONS = 4096
    settings.MONODON_CONNECTIONS_PER_ADDRESS = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    numbers = {}
    try:
        for files in (8192, 4096, 1024):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            numbers[files] = connections._most_connections()
        assert not connections._is_crowded()
        with spare_descriptors(3):
            assert connections._is_crowded()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert numbers == {8192: 4096, 4096: 3072, 1024: 512}


def test_a_connection_that_becomes_active_meanwhile_stays(
    listener: Listener, settings, monkeypatch
):
    settings.MONODON_CONNECTIONS_PER_ADDRESS = 1
    guard = Guard(ports=[listener.port])
    clients = [listener.connect("127.0.0.5") for _ in range(3)]
    excess = guard._excess

    def begin_requests(peers):
        idle = excess(peers)
        for _, address in clients:
            guard.enter(address)
        return idle

    monkeypatch.setattr(guard, "_excess", begin_requests)
    guard.scan(0.0)
    assert not any(is_closed(client) for client, _ in clients)
