"""Requests whose answers fail, and refusals before the body is read."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from api.errors import TooManyRequests
from api.front import bodies
from api.front.answer import Answer
from api.front.application import Front
from api.front.exchange import Exchange
from api.front.shares import Slots, Turns
from catalog.errors import ServiceUnavailable


def test_an_answer_in_pieces_is_closed_if_its_sending_does_not_begin():
    stream = SimpleNamespace(closed=False, close=Mock())
    answer = Answer(200, [("Content-Type", "text/event-stream")], stream=stream)
    front: Any = SimpleNamespace(
        handler=lambda request: answer,
        streams=Slots(1),
        draining=SimpleNamespace(closing=lambda refusal: refusal),
    )
    threads: Any = SimpleNamespace(replaced=Mock(side_effect=RuntimeError("no new thread")))
    scope = SimpleNamespace(method="GET", path="/")
    protocol = Mock()
    exchange = Exchange(front, scope, protocol, {"PATH_INFO": "/"}, None)
    assert exchange._work(threads) is None
    stream.close.assert_called_once_with()
    protocol.response_bytes.assert_called_once()


class Silence:
    """A client that sends the head of a request, and nothing more."""

    def __init__(self) -> None:
        self.reads = 0

    def __aiter__(self) -> "Silence":
        return self

    async def __anext__(self) -> bytes:
        self.reads += 1
        return await asyncio.Event().wait()  # type: ignore[return-value]


def test_rows_without_a_thread_are_refused_before_they_are_read(monkeypatch):
    """The client keeps its connection for some seconds if it does not send the rows."""
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 0.01)
    client = Silence()
    reads_at_refusal = []

    async def refuse(protocol: Any, request: Any, error: Exception) -> None:
        assert isinstance(error, ServiceUnavailable)
        reads_at_refusal.append(client.reads)

    front: Any = SimpleNamespace(
        refuse=refuse,
        turns=Turns(0, max_waiting=0),
        lingering=Mock(),
        limits=SimpleNamespace(is_proven=lambda _: True, principal=lambda _: "alice"),
    )
    request = {
        "PATH_INFO": "/v1/table/ns$t/insert",
        "CONTENT_TYPE": "application/vnd.apache.arrow.stream",
        "CONTENT_LENGTH": "1000000",
    }
    asyncio.run(Exchange(front, SimpleNamespace(), client, request, 1).run())
    assert reads_at_refusal == [0]
    front.lingering.add.assert_called_once()
    assert front.lingering.add.call_args[0][0].received == 0


def answered(monkeypatch: pytest.MonkeyPatch, answer: Answer, **request: str) -> Front:
    """A front that has answered a request whose credential, 1, was alice's a while ago."""
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 0.0)
    front = Front(lambda request: answer)
    front.lingering = Mock()
    monkeypatch.setattr("api.front.limits._PROVEN_SECONDS", 0.0)
    front.limits.prove(1, "alice")

    async def in_thread(exchange: Exchange, threads: Any, job: Any, **options: Any) -> Any:
        return job()

    monkeypatch.setattr(Exchange, "_in_thread", in_thread)
    protocol = Mock(__aiter__=lambda _: Silence())
    environ = {"PATH_INFO": "/v1/table/ns$t/describe", "REQUEST_METHOD": "POST", **request}
    asyncio.run(Exchange(front, Mock(), protocol, environ, 1).run())
    protocol.response_bytes.assert_called_once()
    return front


BODIES = {
    "none": {},
    "large": {"CONTENT_LENGTH": "100000"},
    "rows": {
        "CONTENT_LENGTH": "100000",
        "CONTENT_TYPE": "application/vnd.apache.arrow.stream",
    },
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("status", [401, 419])
def test_refused_credentials_do_not_count_for_their_former_principal(monkeypatch, status, body):
    """Somebody with a revoked key could otherwise use up the requests of its principal."""
    front = answered(monkeypatch, Answer(status, []), **BODIES[body])
    assert front.limits.principal(1) == 1


@pytest.mark.parametrize("status", [404, 429, 503])
def test_other_refusals_do_not_change_whose_a_credential_is(monkeypatch, status):
    front = answered(monkeypatch, Answer(status, []))
    assert front.limits.principal(1) == "alice"


def test_a_request_for_a_token_does_not_change_whose_its_header_is(monkeypatch):
    """Its credentials are in the body, and the header may be anything."""
    answer = Answer(200, [], principal="mallory")
    front = answered(monkeypatch, answer, PATH_INFO="/oauth/token")
    assert front.limits.principal(1) == "alice"


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Front:
    """A front whose clock stands still."""
    front = Front(Mock())
    front.loop = Mock(time=lambda: 100.0)
    monkeypatch.setattr(front.refusals, "answer", lambda request, error: Answer(429, []))
    return front


def test_a_single_refusal_is_sent_at_once(front: Front):
    protocol = Mock()
    refusal = front.refuse(protocol, {}, TooManyRequests("address 192.0.2.1", 3, 7))
    with pytest.raises(StopIteration):
        refusal.send(None)
    protocol.response_bytes.assert_called_once_with(429, [], b"")


def test_refusals_of_one_moment_are_sent_in_turns(front: Front):
    error = TooManyRequests("address 192.0.2.1", 3, 7)
    protocols = [Mock() for _ in range(5)]

    async def run() -> list[int]:
        tasks = [asyncio.create_task(front.refuse(protocol, {}, error)) for protocol in protocols]
        sent = [0]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            sent.append(sum(protocol.response_bytes.call_count for protocol in protocols))
        return sent

    sent = asyncio.run(run())
    assert sent[-1] == 5
    assert max(later - earlier for earlier, later in pairwise(sent)) == 1


@pytest.mark.parametrize("path", ["/admin/login/", "/admin/password_change/"])
def test_passwords_are_checked_in_a_thread_of_their_own(monkeypatch, path):
    """Ordinary requests do not wait for them, and of one address only a few wait."""
    used: list[Any] = []
    running = asyncio.Event()

    async def in_thread(exchange: Exchange, threads: Any, job: Any, **options: Any) -> Any:
        used.append(threads)
        await running.wait()

    monkeypatch.setattr(Exchange, "_in_thread", in_thread)

    async def log_ins() -> Front:
        front = Front(lambda request: Answer(200, []))
        front.refuse = AsyncMock()  # type: ignore[method-assign]

        def send(address: str, method: str = "POST") -> asyncio.Task[None]:
            environ = {"PATH_INFO": path, "REQUEST_METHOD": method}
            exchange = Exchange(front, Mock(), Mock(), environ, None, address=address)
            return asyncio.create_task(exchange.run())

        tasks = [send("192.0.2.1") for _ in range(32)]
        await asyncio.sleep(0)
        tasks += [send("192.0.2.2"), send("192.0.2.1", "GET")]
        await asyncio.sleep(0)
        assert used == [front.passwords, front.ordinary]
        running.set()
        await asyncio.gather(*tasks)
        return front

    front = asyncio.run(log_ins())
    assert used.count(front.passwords) == 1 + 4 + 1
    refusals = [call.args[2] for call in front.refuse.await_args_list]
    assert len(refusals) == 32 - 5
    assert all(isinstance(refusal, TooManyRequests) for refusal in refusals)
    assert "More than 5 log-ins at once from '192.0.2.1'" in refusals[0].message
