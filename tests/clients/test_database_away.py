"""A restart of the database: requests wait for it within limits, and health checks do not."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3

from tests.chaos.cutting import Proxy
from tests.live import LiveServer

CLIENTS = 8


@pytest.fixture
def proxy(live_template: None):
    server = LiveServer(workers=1, threads=8)
    with Proxy(server.database_url, seed=1, probability=0) as proxy:
        server._environment["DATABASE_URL"] = proxy.url
        with server:
            yield server, proxy


def test_requests_survive_a_database_restart(proxy) -> None:
    server, database = proxy
    assert server.post("/v1/namespace/ns/create")[0] == 200
    http = urllib3.PoolManager(maxsize=2 * CLIENTS, retries=False)

    def send(number: int) -> tuple[int, bool]:
        answer = http.request(
            "POST",
            f"{server.url}/v1/namespace/ns$n{number}/create",
            body=b"{}",
            headers={"x-api-key": server.key},
            timeout=60,
        )
        return answer.status, "retry-after" in answer.headers

    database.shut()
    threading.Timer(1.5, database.reopen).start()
    with ThreadPoolExecutor(CLIENTS) as pool:
        sent = pool.map(send, range(CLIENTS))
        started = time.monotonic()
        live = http.request("GET", f"{server.url}/health/live", timeout=60)
        ready = http.request("GET", f"{server.url}/health/ready", timeout=60)
        answers = list(sent)
    assert live.status == 200
    assert (ready.status, ready.headers["retry-after"]) == (503, "1")
    assert time.monotonic() - started < 30
    # Six of the eight threads may wait; other requests were answered with Retry-After.
    assert set(answers) <= {(200, False), (503, True)}
    assert answers.count((200, False)) >= 6
    with server.database() as connection:
        query = "SELECT count(*) FROM catalog_namespace WHERE name LIKE 'n_' AND name <> 'ns'"
        assert connection.execute(query).fetchone() == (answers.count((200, False)),)


def test_a_permanently_unreachable_database_is_reported(proxy) -> None:
    server, database = proxy
    database.shut()
    started = time.monotonic()
    answer = urllib3.request(
        "GET",
        f"{server.url}/v1/table",
        headers={"x-api-key": server.key},
        timeout=60,
        retries=False,
    )
    assert 3 < time.monotonic() - started < 30
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"] == "The database is not available"
    database.reopen()
    assert server.post("/v1/namespace/ns/create")[0] == 200
