"""Event streams of a live server during concurrent commits."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3

from tests.live import LiveServer, live_template
from tests.streams import Listener

pytestmark = pytest.mark.xdist_group("event streams")  # the server starts once

__all__ = ["live_template"]
STREAMS = 4
SHARE = 2


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(workers=1, threads=2, MONODON_EVENT_STREAMS=str(STREAMS)) as server:
        assert server.post("/v1/namespace/ws/create")[0] == 200
        yield server


def declare(server: LiveServer, name: str) -> None:
    status, answer = server.post(f"/v1/table/ws${name}/declare")
    assert status == 200, answer


def until(holds: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def position(server: LiveServer) -> str:
    """The position after all committed events. Transactions of other databases may delay it."""
    with server.database() as connection:
        until(
            lambda: (
                connection.execute(
                    "SELECT NOT EXISTS (SELECT FROM catalog_auditevent"
                    " WHERE xid >= pg_snapshot_xmin(pg_current_snapshot()))"
                ).fetchone()
                == (True,)
            )
        )
    answer = urllib3.request(
        "GET", f"{server.url}/management/v1/events", headers={"x-api-key": server.key}
    )
    return str(json.loads(answer.data)["position"])


def test_a_stream_delivers_events_of_concurrent_commits(server: LiveServer) -> None:
    names = [f"a{number}" for number in range(40)]
    with Listener(server, last_id=position(server), types="table.*") as listener:
        until(lambda: listener.opened > 0)
        with ThreadPoolExecutor(2) as writers:
            list(writers.map(lambda name: declare(server, name), names))
        until(lambda: len(listener.events) >= len(names))
    assert sorted(event["subject"] for event in listener.events) == sorted(
        f"ws.{name}" for name in names
    )
    assert len(set(listener.ids)) == len(names)
    assert {event["type"] for event in listener.events} == {"monodon.table.declare"}


def test_a_client_that_reconnects_misses_no_event(server: LiveServer) -> None:
    with Listener(server, last_id=position(server), types="table.*") as first:
        declare(server, "b0")
        until(lambda: len(first.events) == 1)
    for number in range(1, 6):  # while no client is connected
        declare(server, f"b{number}")
    with Listener(server, last_id=first.last_id, types="table.*") as second:
        until(lambda: len(second.events) == 5)
        declare(server, "b6")
        until(lambda: len(second.events) == 6)
    subjects = [event["subject"] for event in first.events + second.events]
    assert subjects == [f"ws.b{number}" for number in range(7)]


def test_a_stream_has_a_position_before_its_first_event(server: LiveServer) -> None:
    """A client whose connection breaks before the first event misses nothing."""
    position(server)
    with Listener(server, types="table.*") as listener:
        until(lambda: bool(listener.last_id))
    assert listener.events == []
    declare(server, "c0")
    with Listener(server, last_id=listener.last_id, types="table.*") as again:
        until(lambda: len(again.events) == 1)
    assert again.events[0]["subject"] == "ws.c0"


def test_streams_leave_threads_for_other_requests(server: LiveServer) -> None:
    with Listener(server) as first, Listener(server) as second, Listener(server) as third:
        until(lambda: first.opened + second.opened + third.opened >= SHARE)
        until(lambda: 429 in first.statuses | second.statuses | third.statuses)
        with ThreadPoolExecutor(4) as writers:
            list(writers.map(lambda number: declare(server, f"d{number}"), range(12)))
    # New streams are accepted once the server has noticed that the clients are gone.
    with Listener(server) as later:
        until(lambda: later.opened > 0)
    assert later.statuses <= {200, 429}
