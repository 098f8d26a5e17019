"""Two servers behind a load balancer are restarted one after the other, and no request fails."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import urllib3

from tests.clients.balancer import Balancer
from tests.live import KEY, LiveServer

CLIENTS = 4
_PAUSE = 0.05
"""Seconds between the tables of a client, who would use a whole processor otherwise."""


def wait_until(condition: Callable[[], bool], reason: str, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, reason
        time.sleep(0.05)


class Client(threading.Thread):
    """Creates tables and reads them, over one connection, until it is stopped or a request fails."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name)
        self._url = f"http://127.0.0.1:{port}"
        self._http = urllib3.PoolManager(maxsize=1, retries=False)
        self.stopped = threading.Event()
        self.created: list[str] = []
        self.failure = ""

    def run(self) -> None:
        try:
            self._create()
        except (urllib3.exceptions.HTTPError, AssertionError) as error:
            self.failure = repr(error)

    def _create(self) -> None:
        self._post(f"namespace/{self.name}/create")
        while not self.stopped.is_set():
            table = f"{self.name}$t{len(self.created)}"
            self._post(f"table/{table}/declare")
            self.created.append(table)
            self._post(f"table/{table}/describe")
            self.stopped.wait(_PAUSE)

    def _post(self, path: str) -> None:
        headers = {"x-api-key": KEY, "content-type": "application/json"}
        answer = self._http.request(
            "POST", f"{self._url}/v1/{path}", body=b"{}", headers=headers, timeout=60
        )
        assert answer.status == 200, (answer.status, json.loads(answer.data))


@pytest.fixture
def servers(live_template: None, tmp_path: Path) -> Iterator[list[LiveServer]]:
    drain_files = [str(tmp_path / f"draining-{number}") for number in range(2)]
    with (
        LiveServer(workers=1, MONODON_DRAIN_FILE=drain_files[0]) as first,
        LiveServer(workers=1, beside=first, MONODON_DRAIN_FILE=drain_files[1]) as second,
    ):
        yield [first, second]


def test_no_request_fails_while_servers_are_restarted(servers: list[LiveServer], tmp_path: Path):
    ports = [server.port for server in servers]
    with Balancer(ports) as balancer:
        wait_until(lambda: balancer.ready == set(ports), "both servers are ready")
        clients = [Client(balancer.port, f"client{number}") for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for number, server in enumerate(servers):
            restart(server, balancer, tmp_path / f"draining-{number}")
            counts = [len(client.created) for client in clients]
            wait_until(
                lambda counts=counts: all(
                    client.failure or len(client.created) > count
                    for client, count in zip(clients, counts, strict=True)
                ),
                "every client continues",
            )
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(60)
    assert [client.failure for client in clients] == [""] * CLIENTS
    with servers[0].database() as connection:
        rows = connection.execute(
            "SELECT namespace.name || '$' || t.name FROM catalog_table AS t"
            " JOIN catalog_namespace AS namespace ON namespace.id = t.namespace_id"
        ).fetchall()
    assert sorted(name for (name,) in rows) == sorted(
        name for client in clients for name in client.created
    )


def restart(server: LiveServer, balancer: Balancer, drain_file: Path) -> None:
    drain_file.touch()
    wait_until(lambda: server.port not in balancer.ready, "the server is not ready while draining")
    wait_until(lambda: not balancer.open[server.port], "every client has left the server")
    server.stop()
    drain_file.unlink()
    server.start()
    wait_until(lambda: server.port in balancer.ready, "the server is ready again")
