"""Requests from their admission to the end of their tasks."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from api.front import marker, threads
from api.front.answer import Answer
from api.front.application import Front
from api.front.connections import Guard
from api.front.limits import Limits
from catalog.access import Principal

CONFIG = "/v1/config"
ALICE = Principal("alice")


@pytest.fixture(autouse=True)
def _no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard would close connections of other tests."""
    monkeypatch.setattr(Guard, "start", lambda guard: None)


class Exchanges:
    """Requests to a front that runs in this event loop, each from a connection of its own."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.statuses: list[int] = []

    def send(self, path: str, client: str = "") -> asyncio.Task[None]:
        scope: Any = SimpleNamespace(
            path=path,
            method="GET",
            query_string="",
            server="127.0.0.1:2333",
            client=client or f"127.0.0.1:{len(self.statuses) + 1000}",
            scheme="http",
            http_version="1.1",
            headers={"x-api-key": "mnd_alice"},
        )
        return asyncio.create_task(self.front.__rsgi__(scope, self))

    def response_bytes(self, status: int, headers: Any, content: bytes) -> None:
        self.statuses.append(status)


def run(front: Front, work: Callable[[Exchanges], Awaitable[None]]) -> list[int]:
    """Run requests, and return the statuses of their answers."""
    exchanges = Exchanges(front)

    async def serve() -> None:
        front.__rsgi_init__(asyncio.get_running_loop())
        await work(exchanges)

    asyncio.run(serve())
    return exchanges.statuses


def test_a_client_with_its_answer_may_send_the_next_request(settings, monkeypatch):
    """The event loop hears of the end of a request later, but counts it no longer."""
    monkeypatch.setattr(threads, "_LOOK_SECONDS", 30.0)
    settings.MONODON_REQUESTS_PER_ADDRESS = settings.MONODON_REQUESTS_PER_PRINCIPAL = 1
    front = Front(lambda request: Answer(200, []))

    async def work(exchanges: Exchanges) -> None:
        for count in range(20):
            task = exchanges.send("/v1/namespaces")
            while len(exchanges.statuses) == count or not front.results._ready:  # noqa: ASYNC110 -- set by a thread
                await asyncio.sleep(0.001)
            assert not task.done()

    assert run(front, work) == [200] * 20


def test_a_connection_is_in_use_although_its_last_request_ends_late(monkeypatch):
    """The event loop hears of the end of a request when the next one has arrived on the connection."""
    monkeypatch.setattr(threads, "_LOOK_SECONDS", 30.0)
    front, go = Front(lambda request: Answer(200, [])), threading.Event()

    async def work(exchanges: Exchanges) -> None:
        first = exchanges.send("/v1/namespaces", "192.0.2.1:1000")
        while not front.results._ready:  # noqa: ASYNC110 -- set by a thread
            await asyncio.sleep(0.001)
        front._handler = lambda request: Answer(200, []) if go.wait(10) else Answer(500, [])
        exchanges.send("/v1/namespaces", "192.0.2.1:1000")
        await first
        assert "192.0.2.1:1000" in front.guard._active
        go.set()
        while not front.results._ready:  # noqa: ASYNC110 -- set by a thread
            await asyncio.sleep(0.001)
        front.results.deliver()
        await asyncio.sleep(0)
        assert not front.guard._active

    assert run(front, work) == [200, 200]


def test_a_request_above_the_limit_is_refused(settings):
    settings.MONODON_REQUESTS_PER_ADDRESS = 1
    go = threading.Event()

    def handler(request: dict[str, Any]) -> Answer:
        if marker.KEY in request:  # a refusal
            return Answer(429, [])
        go.wait(10)
        return Answer(200, [])

    async def work(exchanges: Exchanges) -> None:
        first = exchanges.send("/v1/namespaces")
        await asyncio.sleep(0.01)
        await exchanges.send("/v1/namespaces")
        go.set()
        await first

    assert run(Front(handler), work) == [429, 200]


def test_an_idle_front_does_not_look_for_results():
    front = Front(lambda request: Answer(200, []))

    async def work(exchanges: Exchanges) -> None:
        await exchanges.send("/v1/namespaces")
        await asyncio.sleep(2 * threads._LOOK_SECONDS)
        assert not front.results._looks
        await exchanges.send("/v1/namespaces")  # another look finds its end

    assert run(front, work) == [200, 200]


class Reads:
    """Answers the configuration in the event loop, unless ``permits`` is False."""

    def __init__(self, *, permits: bool = True) -> None:
        self.permits = permits
        self.learned: list[Answer] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        pass

    def find(self, request: dict[str, Any], body: bytes) -> Any:
        is_read = request["PATH_INFO"] == CONFIG
        return SimpleNamespace(principal=ALICE, learn=self.learned.append) if is_read else None

    async def answer(self, request: dict[str, Any], read: Any) -> Answer | None:
        await asyncio.sleep(0)
        return Answer(200, [], b"read", principal="alice") if self.permits else None


def test_a_frequent_read_needs_no_thread(settings):
    settings.MONODON_WEB_THREADS = 1
    go = threading.Event()

    def handler(request: dict[str, Any]) -> Answer:
        assert request["PATH_INFO"] != CONFIG
        go.wait(10)
        return Answer(204, [])

    front = Front(handler, frequent_reads=Reads())  # type: ignore[arg-type]

    async def work(exchanges: Exchanges) -> None:
        busy = exchanges.send("/v1/namespaces")
        await asyncio.sleep(0.01)
        await asyncio.wait_for(exchanges.send(CONFIG), 5)
        go.set()
        await busy

    assert run(front, work) == [200, 204]
    assert front.limits.is_proven(hash("mnd_alice"))


def test_a_read_that_the_event_loop_cannot_permit_takes_a_thread():
    names = []

    def handler(request: dict[str, Any]) -> Answer:
        names.append(threading.current_thread().name)
        return Answer(200, [], b"whole", principal="alice")

    reads = Reads(permits=False)
    front = Front(handler, frequent_reads=reads)  # type: ignore[arg-type]

    async def work(exchanges: Exchanges) -> None:
        await exchanges.send(CONFIG)

    assert run(front, work) == [200]
    assert [name.partition("-")[0] for name in names] == ["web"]
    assert [answer.content for answer in reads.learned] == [b"whole"]


@pytest.mark.parametrize("method", ["find", "answer"])
def test_a_read_that_fails_in_the_event_loop_takes_a_thread(monkeypatch, caplog, method):
    reads = Reads()
    monkeypatch.setattr(reads, method, Mock(side_effect=RuntimeError("unexpected")))
    front = Front(lambda request: Answer(204, []), frequent_reads=reads)  # type: ignore[arg-type]

    async def work(exchanges: Exchanges) -> None:
        await exchanges.send(CONFIG)

    assert run(front, work) == [204]
    assert "takes the ordinary way" in caplog.text


@pytest.mark.parametrize(("others_wait", "in_threads"), [(True, 2), (False, 0)])
def test_many_frequent_reads_take_turns_with_requests_that_wait(
    monkeypatch, others_wait, in_threads
):
    """The event loop would otherwise answer them before all requests that need a thread.

    Requests whose bodies have not arrived need none.
    """
    monkeypatch.setattr("api.front.limits._IMMEDIATE_PER_SECOND", 3)
    names = []

    def handler(request: dict[str, Any]) -> Answer:
        names.append(threading.current_thread().name)
        return Answer(200, [], principal="alice")

    front = Front(handler, frequent_reads=Reads())  # type: ignore[arg-type]
    front.limits = Limits(clock=lambda: 1000.0)
    front.limits.enter("192.0.2.1", "bob")
    front.limits.enter("192.0.2.1", None)
    monkeypatch.setattr(front.ordinary, "others_wait", lambda owner: others_wait)

    async def work(exchanges: Exchanges) -> None:
        for _ in range(5):
            await exchanges.send(CONFIG)

    assert run(front, work) == [200] * 5
    assert [name.partition("-")[0] for name in names] == ["web"] * in_threads
