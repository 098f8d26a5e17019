"""Refusals: few are rendered, and the others repeat their content in the form of the same protocol."""

import asyncio
import gc
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from api.errors import TooManyRequests
from api.front import environ
from api.front.answer import Answer
from api.front.refusals import RENDERED_AT_ONCE, RENDERED_PER_SECOND, Refusals
from catalog.errors import CatalogError

ERROR = TooManyRequests("address 192.0.2.1", 3, 7)
ID = "x-request-id"
RESERVE = RENDERED_AT_ONCE // 2
"""The allowance that equal refusals do not use."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(path: str, **headers: str) -> dict[str, Any]:
    base = environ._BASE | {"QUERY_STRING": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80"}
    base |= {"REQUEST_METHOD": "POST", "PATH_INFO": path, "REMOTE_ADDR": "192.0.2.1"}
    return base | {"wsgi.url_scheme": "http", "HTTP_HOST": "localhost"} | headers


@pytest.fixture
def rendered() -> list[str]:
    """The paths of the requests that Django has answered."""
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    thresholds = gc.get_threshold()
    from config import wsgi

    monkeypatch.setattr("config.wsgi.close_old_connections", lambda: None)
    yield wsgi.application
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def refusals(rendered: list[str], clock: Clock, application: Any) -> Refusals:
    def handle(request: dict[str, Any]) -> Answer:
        rendered.append(request["PATH_INFO"])
        return application.answer(request)

    return Refusals(handle, clock)


def in_loop(work: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return work()

    return asyncio.run(run())


def spend(refusals: Refusals, path: str = "/v1/namespaces", *, reserve: bool = False) -> Answer:
    """Use the allowance of equal refusals, with ``reserve`` that of others too. Return the first answer."""
    first = refusals.answer(request(path), ERROR)
    for _ in range(RENDERED_AT_ONCE - RESERVE - 1):
        refusals.answer(request(path), ERROR)
    if reserve:
        for number in range(RESERVE):
            refusals.answer(request(f"/v1/namespaces/{number}"), ERROR)
    return first


@pytest.mark.parametrize(
    "path", ["/v1/namespaces", "/v1/table/ns$t/insert", "/oauth/token", "/management/v1/labels"]
)
def test_repeated_refusals_differ_only_in_their_id(
    refusals: Refusals, rendered: list[str], path: str
):
    first = spend(refusals, path)
    again = in_loop(lambda: refusals.answer(request(path), ERROR))
    assert len(rendered) == RENDERED_AT_ONCE - RESERVE
    assert (first.status, again.status) == (429, 429)
    ids = [dict(answer.headers)[ID] for answer in (first, again)]
    assert ids[0] != ids[1]
    assert len(ids[1]) == 32
    assert [h for h in again.headers if h[0] != ID] == [h for h in first.headers if h[0] != ID]
    assert again.content == first.content.replace(ids[0].encode(), ids[1].encode())
    assert dict(again.headers)["Retry-After"] == "7"


def test_the_id_of_a_client_is_returned(refusals: Refusals):
    path = "/management/v1/labels"
    spend(refusals, path)
    again = in_loop(lambda: refusals.answer(request(path, HTTP_X_REQUEST_ID="mine"), ERROR))
    assert dict(again.headers)[ID] == "mine"
    assert json.loads(again.content)["request_id"] == "mine"


def test_an_answer_with_the_id_of_a_client_is_not_repeated(refusals: Refusals):
    path = "/v1/namespaces"
    for _ in range(RENDERED_AT_ONCE):
        refusals.answer(request(path, HTTP_X_REQUEST_ID="error"), ERROR)
    again = in_loop(lambda: refusals.answer(request(path), ERROR))
    assert dict(again.headers)["Content-Type"] == "application/problem+json"
    assert json.loads(again.content)["title"] == "Too many requests"


@pytest.mark.parametrize(
    ("later", "error"),
    [
        (request("/v1/table/ns$u/insert"), ERROR),
        (request("/v1/namespaces", HTTP_HOST="elsewhere.example"), ERROR),
        (request("/v1/namespaces", HTTP_X_LANCEDB_DATABASE="db"), ERROR),
        (request("/v1/namespaces", HTTP_IDEMPOTENCY_KEY="k"), ERROR),
        (request("/v1/namespaces", REQUEST_METHOD="GET"), ERROR),
        (request("/v1/namespaces"), TooManyRequests("these credentials", 3, 7)),
    ],
)
def test_other_refusals_are_not_repeated(
    refusals: Refusals, rendered: list[str], later: dict[str, Any], error: CatalogError
):
    """They are rendered. Without an allowance, they have the form of the management API, with their own
    path and text."""
    spend(refusals, reserve=True)
    assert len(rendered) == RENDERED_AT_ONCE
    answer = in_loop(lambda: refusals.answer(later, error))
    assert len(rendered) == RENDERED_AT_ONCE
    assert answer.status == 429
    assert {"Content-Type", "Retry-After", ID} == set(dict(answer.headers))
    problem = json.loads(answer.content)
    assert (problem["detail"], problem["instance"]) == (error.message, later["PATH_INFO"])


def test_refusals_are_rendered_again_after_a_pause(
    refusals: Refusals, rendered: list[str], clock: Clock
):
    spend(refusals)
    clock.now += 2.5 / RENDERED_PER_SECOND
    for _ in range(3):
        in_loop(lambda: refusals.answer(request("/v1/namespaces"), ERROR))
    assert len(rendered) == RENDERED_AT_ONCE - RESERVE + 2


def test_an_attack_with_equal_requests_leaves_other_refusals_their_form(
    refusals: Refusals, rendered: list[str]
):
    spend(refusals, "/oauth/token")
    in_loop(lambda: [refusals.answer(request("/oauth/token"), ERROR) for _ in range(1000)])
    assert "/v1/table/ns$t/insert" not in rendered
    answer = refusals.answer(request("/v1/table/ns$t/insert"), ERROR)
    assert rendered[-1] == "/v1/table/ns$t/insert"
    assert json.loads(answer.content)["code"] == 21


def test_repeated_refusals_are_counted_in_the_log(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO):
        spend(refusals)
        lines = len(caplog.records)
        in_loop(lambda: [refusals.answer(request("/v1/namespaces"), ERROR) for _ in range(4)])
        assert len(caplog.records) == lines
        refusals.report()
        refusals.report()
    assert lines == RENDERED_AT_ONCE - RESERVE
    assert [record.getMessage() for record in caplog.records[lines:]] == [
        "refused 4 more requests within 10 seconds, which have no line each"
    ]
