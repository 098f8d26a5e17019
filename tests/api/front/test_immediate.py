"""Requests that need no thread, and the answers that need not even Django."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from api.front import environ, immediate, marker
from api.front.answer import Answer
from catalog import tracing
from catalog.access import SYSTEM
from catalog.services.access import api_keys, authentication, known_keys

CONFIG = "/v1/config"


@pytest.fixture
def request_of(db) -> Callable[..., dict[str, Any]]:
    _, key = api_keys.create_api_key(actor=SYSTEM, name="etl")

    def build(**others: str) -> dict[str, Any]:
        return {
            "PATH_INFO": CONFIG,
            "REQUEST_METHOD": "GET",
            "QUERY_STRING": "",
            "HTTP_X_API_KEY": key,
            **others,
        }

    authentication.authenticate(key)
    return build


def test_requests_that_need_no_thread(request_of):
    principal = immediate.principal_of(request_of())
    assert principal is not None
    assert principal.name == "etl"
    bearer = f"Bearer {request_of()['HTTP_X_API_KEY']}"
    assert immediate.principal_of(request_of(HTTP_X_API_KEY="", HTTP_AUTHORIZATION=bearer))


@pytest.mark.parametrize(
    "others",
    [
        {"QUERY_STRING": "warehouse=sales"},
        {"REQUEST_METHOD": "POST"},
        {"REQUEST_METHOD": "HEAD"},
        {"PATH_INFO": "/v1/namespaces"},
        {"PATH_INFO": "/v1/config/"},
        {"HTTP_X_API_KEY": "mnd_unknown"},
        {"HTTP_X_API_KEY": ""},
        {"HTTP_IF_NONE_MATCH": '"1"'},
        {"HTTP_X_LANCEDB_DATABASE": "prod"},
    ],
)
def test_requests_that_may_need_the_database(request_of, others):
    assert immediate.principal_of(request_of(**others)) is None


def test_a_key_that_is_not_cached_any_more_needs_a_thread(request_of):
    known_keys.forget_keys()
    assert immediate.principal_of(request_of()) is None


def test_the_configuration_is_answered_in_an_event_loop(request_of):
    """Django refuses to open a connection to the database there."""
    from config.wsgi import application

    request = request_of(SERVER_NAME="127.0.0.1", SERVER_PORT="2333", HTTP_HOST="127.0.0.1")
    request[marker.PRINCIPAL] = immediate.principal_of(request)
    known_keys.forget_keys()  # the principal has been read already

    async def answer() -> Answer:
        return application.answer(environ.set_body(request, b""))

    result = asyncio.run(answer())
    assert (result.status, result.principal) == (200, "etl")
    assert b"endpoints" in result.content


# -- repeated answers


@pytest.fixture
def configurations() -> immediate.Configurations:
    return immediate.Configurations()


@pytest.fixture
def ask(
    request_of: Callable[..., dict[str, Any]], configurations: immediate.Configurations
) -> Callable[..., tuple[Answer, bool]]:
    """A function that answers as the front does; it returns the answer, and whether it was repeated."""
    from config.wsgi import application

    def answer(**others: str) -> tuple[Answer, bool]:
        request = request_of(
            **{
                "SERVER_NAME": "127.0.0.1",
                "SERVER_PORT": "2333",
                "HTTP_HOST": "127.0.0.1",
                **others,
            }
        )
        principal = immediate.principal_of(request)
        assert principal is not None
        if (repeated := configurations.repeated(request, principal)) is not None:
            return repeated, True
        request[marker.PRINCIPAL] = principal
        first = application.answer(environ.set_body(request, b""))
        configurations.remember(request, first)
        return first, False

    return answer


def without_id(answer: Answer) -> dict[str, str]:
    headers = dict(answer.headers)
    assert len(headers) == len(answer.headers)
    assert headers.pop("x-request-id")
    return headers


def test_a_repeated_configuration_is_that_of_django(ask):
    (first, is_repeated), (second, is_second_repeated) = ask(), ask()
    assert (is_repeated, is_second_repeated) == (False, True)
    assert (second.status, second.content, second.principal) == (200, first.content, "etl")
    assert without_id(second) == without_id(first)
    assert dict(second.headers)["x-request-id"] != dict(first.headers)["x-request-id"]


def test_a_repeated_configuration_has_the_id_of_the_request(ask):
    ask()
    assert dict(ask(HTTP_X_REQUEST_ID="mine-1")[0].headers)["x-request-id"] == "mine-1"
    assert dict(ask(HTTP_X_REQUEST_ID="a b")[0].headers)["x-request-id"] != "a b"


def test_a_host_name_that_is_not_allowed_is_always_refused(ask):
    ask()
    for _ in range(2):
        answer, is_repeated = ask(HTTP_HOST="evil.example")
        assert (answer.status, is_repeated) == (400, False)
    assert not ask(HTTP_HOST="localhost")[1]
    assert ask(HTTP_HOST="localhost")[1]


def test_the_number_of_repeated_host_names_is_limited(ask, monkeypatch):
    monkeypatch.setattr(immediate, "_MAX_HOSTS", 1)
    ask()
    for _ in range(2):
        answer, is_repeated = ask(HTTP_HOST="localhost")
        assert (answer.status, is_repeated) == (200, False)


def test_repeated_answers_are_counted_and_logged(ask, settings, caplog):
    def counted() -> float:
        labels = {"operation": "GetConfig", "status": "2xx"}
        return REGISTRY.get_sample_value("monodon_requests_total", labels) or 0.0

    settings.LOG_REQUESTS = "all"
    before = counted()
    with caplog.at_level(logging.INFO, "monodon.request"):
        ask()
        ask()
    assert counted() == before + 2
    first, second = (record for record in caplog.records if record.name == "monodon.request")
    for field in ("operation", "target", "status", "queries", "actor"):
        assert getattr(second, field) == getattr(first, field)
    assert second.getMessage() == first.getMessage() == f"GET {CONFIG}"


def test_the_end_of_a_connection_is_not_repeated(ask, configurations):
    request = {"HTTP_HOST": "127.0.0.1"}
    configurations.remember(request, Answer(200, [("Connection", "close")], b"{}"))
    assert "Connection" not in dict(ask()[0].headers)


def test_traced_requests_are_answered_by_django(ask, monkeypatch):
    ask()
    monkeypatch.setattr(tracing, "is_on", lambda: True)
    assert not ask()[1]
