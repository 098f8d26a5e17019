"""Threads for rows and large answers: one principal does not get all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest

from api.errors import TooManyRequests
from api.front import bodies
from api.front.answer import Answer
from api.front.application import Front
from api.front.exchange import Exchange
from api.front.shares import Slots, Turns
from api.front.threads import Results
from catalog.errors import CatalogError, ServiceUnavailable

ALICE, BOB, CAROL = 1, 2, 3
NAMES = {ALICE: "alice", BOB: "bob", CAROL: "carol"}
THREADS = 3
SHARE = 2
"""Half of the threads, rounded up."""


class Client:
    """A client that sends a row, and more when the test says so."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"row"
        await self.goes_on.wait()
        yield b"end"
        yield b""


class Rows:
    """Requests with streams of rows to one front, whose threads read them to their end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.front = Front(Mock())
        self.front.loop = asyncio.get_running_loop()
        self.front.results = Results(self.front.loop)
        self.front.lingering = Mock()
        self.front.data.start()
        for credential, name in NAMES.items():
            self.front.limits.prove(credential, name)
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.begun: list[str] = []
        self.refusals: list[CatalogError] = []
        monkeypatch.setattr(self.front, "refuse", self._refuse)
        work = self._work
        monkeypatch.setattr(Exchange, "_work", lambda exchange: work(exchange))  # noqa: PLW0108

    async def _refuse(self, protocol: Any, request: Any, error: CatalogError) -> None:
        self.refusals.append(error)

    def _work(self, exchange: Exchange) -> None:
        self.begun.append(NAMES[exchange._credential])
        while exchange._request["wsgi.input"].read(100):
            pass

    async def send(self, *credentials: int) -> None:
        for credential in credentials:
            request = {
                "PATH_INFO": "/v1/table/ns$t/insert",
                "REQUEST_METHOD": "POST",
                "CONTENT_TYPE": "application/vnd.apache.arrow.stream",
                "HTTP_TRANSFER_ENCODING": "chunked",
            }
            client = Client()
            self.clients.append(client)
            exchange = Exchange(self.front, Mock(), client, request, credential)
            self.tasks.append(asyncio.create_task(exchange.run()))
            await asyncio.sleep(0.02)

    async def wait_for(self, *names: str) -> None:
        """Wait until these requests, in this order, have threads."""
        async with asyncio.timeout(20):
            while len(self.begun) < len(names):  # noqa: ASYNC110 -- a thread appends
                await asyncio.sleep(0.005)
        assert self.begun == list(names)

    async def finish(self) -> None:
        for client in self.clients:
            client.goes_on.set()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 20)


@pytest.fixture(autouse=True)
def few_threads(settings, monkeypatch) -> None:
    settings.MONODON_DATA_THREADS = THREADS
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 0.0)


def test_slow_rows_of_one_principal_leave_a_thread(monkeypatch):
    async def run() -> None:
        rows = Rows(monkeypatch)
        await rows.send(*[ALICE] * THREADS)
        await rows.send(BOB)
        await rows.wait_for("alice", "alice", "bob")
        assert rows.refusals == []
        await rows.finish()
        assert rows.begun == ["alice", "alice", "bob", "alice"]

    asyncio.run(run())


def test_waiting_rows_begin_in_their_order(monkeypatch):
    async def run() -> None:
        rows = Rows(monkeypatch)
        await rows.send(ALICE, ALICE, BOB, CAROL, BOB)
        await rows.wait_for("alice", "alice", "bob")
        rows.clients[0].goes_on.set()
        await rows.wait_for("alice", "alice", "bob", "carol")
        await rows.finish()
        assert rows.begun == ["alice", "alice", "bob", "carol", "bob"]

    asyncio.run(run())


def test_one_principal_waits_at_half_of_the_places(monkeypatch):
    async def run() -> None:
        rows = Rows(monkeypatch)
        places = 4 * THREADS
        await rows.send(*[ALICE] * (SHARE + places // 2 + 1))
        assert [type(error) for error in rows.refusals] == [TooManyRequests]
        assert "'alice'" in rows.refusals[0].message
        await rows.send(*[BOB] * (1 + places // 2))
        assert len(rows.refusals) == 1
        await rows.send(CAROL)
        assert type(rows.refusals[1]) is ServiceUnavailable
        await rows.finish()
        assert len(rows.begun) == SHARE + places + 1

    asyncio.run(run())


def test_a_cancelled_wait_leaves_no_trace(monkeypatch):
    async def run() -> None:
        rows = Rows(monkeypatch)
        await rows.send(*[ALICE] * (SHARE + 1))
        task = rows.tasks.pop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await rows.finish()
        rows.clients.clear()
        await rows.send(*[ALICE] * SHARE)
        await rows.wait_for(*["alice"] * 2 * SHARE)
        await rows.finish()

    asyncio.run(run())


def test_a_thread_is_not_given_to_a_request_that_was_just_cancelled():
    async def wait(turns: Turns) -> None:
        async with turns.turn("alice"):
            await asyncio.sleep(0)

    async def run() -> None:
        turns = Turns(1, max_waiting=4)
        async with turns.turn("alice"):
            tasks = [asyncio.create_task(wait(turns)) for _ in range(2)]
            await asyncio.sleep(0)
            tasks[0].cancel()
        async with asyncio.timeout(5):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, type(None)]
        assert (turns._free, turns._waiting) == (1, [])
        assert not turns._running

    asyncio.run(run())


def test_one_principal_gets_half_of_the_large_answers():
    slots = Slots(3)
    slots.acquire("alice")
    slots.acquire("alice")
    with pytest.raises(TooManyRequests, match="More than 2 large answers at once from 'alice'"):
        slots.acquire("alice")
    slots.acquire("bob")
    with pytest.raises(ServiceUnavailable):
        slots.acquire("carol")
    for principal in ("alice", "bob", "alice"):
        slots.release(principal)
    assert not slots._taken
    slots.acquire("alice")


@pytest.mark.parametrize(("count", "error"), [(1, ServiceUnavailable), (2, TooManyRequests)])
def test_a_large_answer_without_a_slot_is_not_sent(
    settings, monkeypatch, count: int, error: type[CatalogError]
):
    settings.MONODON_ANSWER_STREAMS = count
    front = Front(Mock())
    errors: list[type[CatalogError]] = []

    def render(request: Any, refusal: CatalogError) -> Answer:
        errors.append(type(refusal))
        return Answer(429, [])

    monkeypatch.setattr(front.refusals, "render", render)
    monkeypatch.setattr("api.front.exchange.send_stream", Mock(side_effect=AssertionError))
    front.streams.acquire("alice")
    answer = Answer(200, [], stream=Mock(), principal="alice")
    protocol = Mock()
    Exchange(front, Mock(), protocol, {"PATH_INFO": "/"}, None)._stream(answer, Mock())
    assert errors == [error]
    answer.stream.close.assert_called_once_with()
    protocol.response_bytes.assert_called_once_with(429, [], b"")
    assert front.streams._taken == {"alice": 1}


def test_a_large_answer_frees_its_slot(monkeypatch):
    front = Front(Mock())
    taken: list[dict[str, int]] = []
    monkeypatch.setattr(
        "api.front.exchange.send_stream", lambda *_: taken.append(dict(front.streams._taken))
    )
    answer = Answer(200, [], stream=Mock(), principal="alice")
    threads = Mock(replaced=nullcontext)
    Exchange(front, Mock(), Mock(), {"PATH_INFO": "/"}, None)._stream(answer, threads)
    assert taken == [{"alice": 1}]
    assert not front.streams._taken
