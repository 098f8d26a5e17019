"""The memory for bodies: its shares, and bodies that would keep it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from api.errors import BodyTooLarge, BodyTooSlow, TooManyRequests
from api.front import bodies
from api.front.application import Front
from api.front.exchange import Exchange
from catalog.errors import CatalogError, ServiceUnavailable

KILOBYTE = 1 << 10
BUDGET = 1000 * KILOBYTE
LENGTH = 60 * KILOBYTE
ALICE, BOB, UNKNOWN = 1, 2, 3


class Client:
    """A client that sends a complete body, or a part of it and then nothing."""

    def __init__(self, content: bytes, *, is_complete: bool) -> None:
        self._content = content
        self._is_complete = is_complete

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content
        if self._is_complete:
            yield b""
        else:
            await asyncio.Event().wait()


class Requests:
    """Requests to one front. Credentials are known, and complete requests are recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.front = Front(Mock())
        self.front.limits.prove(ALICE, "alice")
        self.front.limits.prove(BOB, "bob")
        self.front.lingering = Mock()
        self.refusals: list[CatalogError] = []
        self.answered: list[int] = []
        monkeypatch.setattr(self.front, "refuse", self._refuse)
        monkeypatch.setattr(Exchange, "_answer", self._answer)

    async def _refuse(self, protocol: Any, request: Any, error: CatalogError) -> None:
        self.refusals.append(error)

    async def _answer(self, body: bytes) -> None:
        self.answered.append(len(body))

    async def send(
        self, path: str, credential: int | None, *, length: int = LENGTH, missing: int = 0
    ) -> None:
        """Send a request whose body lacks some bytes at its end."""
        request = {"PATH_INFO": path, "REQUEST_METHOD": "POST", "CONTENT_LENGTH": str(length)}
        client = Client(b"x" * (length - missing), is_complete=not missing)
        await Exchange(self.front, Mock(), client, request, credential).run()

    @asynccontextmanager
    async def incomplete(
        self, path: str, credential: int | None, count: int
    ) -> AsyncIterator[None]:
        """During the block, bodies wait that lack their last byte."""
        tasks = [asyncio.create_task(self.send(path, credential, missing=1)) for _ in range(count)]
        for _ in range(5):
            await asyncio.sleep(0)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def requests(settings, monkeypatch) -> Requests:
    settings.MONODON_BODY_MEMORY_BYTES = BUDGET
    settings.MONODON_MAX_BODY_BYTES = 400 * KILOBYTE
    monkeypatch.setattr(bodies, "_DRAIN_SILENCE_SECONDS", 0.0)
    return Requests(monkeypatch)


@pytest.mark.parametrize("path", ["/admin/login/", "/", "/schema/lance", "/help/", "/oauth/token"])
@pytest.mark.parametrize("credential", [None, UNKNOWN])
def test_bodies_without_valid_credentials_leave_half_of_the_memory(
    requests: Requests, path: str, credential: int | None
):
    async def run() -> None:
        async with requests.incomplete(path, credential, BUDGET // LENGTH + 1):
            assert {type(error) for error in requests.refusals} == {TooManyRequests}
            await requests.send("/v1/namespaces", ALICE)

    asyncio.run(run())
    assert requests.answered == [LENGTH]


def test_one_principal_gets_half_of_the_memory(requests: Requests):
    async def run() -> None:
        async with requests.incomplete("/v1/namespaces", ALICE, BUDGET // LENGTH + 1):
            most = BUDGET // 2 // LENGTH
            assert len(requests.refusals) == BUDGET // LENGTH + 1 - most
            assert requests.refusals[0].message == (
                f"More than {BUDGET // 2} bytes of request bodies at once from 'alice';"
                " try again later"
            )
            await requests.send("/management/v1/labels", BOB)
        await requests.send("/v1/namespaces", ALICE)  # the memory is free again

    asyncio.run(run())
    assert requests.answered == [LENGTH, LENGTH]


def test_all_principals_get_no_more_than_the_memory(requests: Requests):
    async def run() -> None:
        most = BUDGET // 2 // LENGTH
        async with (
            requests.incomplete("/v1/namespaces", ALICE, most),
            requests.incomplete("/v1/namespaces", BOB, most),
        ):
            assert requests.refusals == []
            await requests.send("/oauth/token", None)

    asyncio.run(run())
    assert [type(error) for error in requests.refusals] == [ServiceUnavailable]


def test_one_body_may_be_larger_than_half_of_the_memory(requests: Requests, settings):
    settings.MONODON_MAX_BODY_BYTES = BUDGET
    requests.front.budget = bodies.Budget(BUDGET)
    asyncio.run(requests.send("/v1/namespaces", ALICE, length=BUDGET - KILOBYTE))
    assert requests.answered == [BUDGET - KILOBYTE]


@pytest.mark.parametrize(
    ("path", "length", "is_accepted"),
    [
        ("/", 65, False),
        ("/schema/lance", 65, False),
        ("/help/", 65, False),
        ("/accounts", 65, False),
        ("/accounts", 64, True),
        ("/admin/login/", 65, False),
        ("/admin/catalog/function/add/", 1024, True),
        ("/admin/catalog/function/add/", 1025, False),
        ("/v1/namespaces", 1025, True),
    ],
)
def test_other_paths_accept_small_bodies_only(
    requests: Requests, settings, path: str, length: int, is_accepted: bool
):
    settings.MONODON_MAX_BODY_BYTES = 1 << 30
    requests.front.budget = bodies.Budget(1 << 30)
    asyncio.run(requests.send(path, ALICE, length=length * KILOBYTE))
    assert requests.answered == [length * KILOBYTE] * is_accepted
    assert [type(error) for error in requests.refusals] == [BodyTooLarge] * (not is_accepted)


def test_a_body_that_stops_is_refused_although_much_of_it_arrived(requests: Requests, settings):
    settings.MONODON_BODY_SECONDS = 0.05
    settings.MONODON_BODY_MIN_RATE = 1  # the received bytes alone would allow 17 hours
    asyncio.run(asyncio.wait_for(requests.send("/v1/namespaces", ALICE, missing=1), 30))
    assert [type(error) for error in requests.refusals] == [BodyTooSlow]
    assert requests.answered == []
