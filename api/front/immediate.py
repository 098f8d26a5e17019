"""Requests that are answered in the event loop, because they need neither the database nor a thread."""

import time
from http import HTTPStatus
from typing import Any

from api import credentials, database_header, middleware
from api.front.answer import Answer
from api.request_id import request_id
from catalog import tracing
from catalog.access import Principal
from catalog.services.access import known_keys

_CONFIG = "/v1/config"
_MAX_HOSTS = 64


def principal_of(request: dict[str, Any]) -> Principal | None:
    """The principal of such a request: for the Iceberg configuration of the whole catalog, by a cached key.

    None: the request needs a thread.
    """
    if request["PATH_INFO"] != _CONFIG or request["REQUEST_METHOD"] != "GET":
        return None
    if request["QUERY_STRING"] or "HTTP_IF_NONE_MATCH" in request or database_header.KEY in request:
        return None
    key = credentials.key_of(request)
    return None if key is None else known_keys.cached_principal(key)


class Configurations:
    """Answers for ``principal_of``, which are the same for all principals but for the request id.

    Django renders the first one for each host name, which it checks. The next ones take a fifth of the time.
    """

    def __init__(self) -> None:
        self._answers: dict[str | None, Answer] = {}

    def remember(self, request: dict[str, Any], answer: Answer) -> None:
        """Repeat Django's answer from now on, if it is the configuration."""
        if answer.status != HTTPStatus.OK or len(self._answers) >= _MAX_HOSTS:
            return
        others = {middleware.REQUEST_ID_HEADER, "Connection"}
        headers = [(name, value) for name, value in answer.headers if name not in others]
        self._answers[request.get("HTTP_HOST")] = Answer(answer.status, headers, answer.content)

    def repeated(self, request: dict[str, Any], principal: Principal) -> Answer | None:
        """The answer to another request, which is logged and counted as the first. None: Django must answer it."""
        answer = self._answers.get(request.get("HTTP_HOST"))
        if answer is None or tracing.is_on():
            return None
        started = time.perf_counter()
        current = middleware.id_of_request(request.get("HTTP_X_REQUEST_ID", ""), "")
        answer = Answer(
            answer.status,
            [*answer.headers, (middleware.REQUEST_ID_HEADER, current)],
            answer.content,
            principal=principal.name,
        )
        seconds = time.perf_counter() - started
        middleware.count("protocols", "GetConfig", answer.status, seconds)
        token = request_id.set(current)
        middleware.log_result(
            "GET",
            _CONFIG,
            answer.status,
            seconds,
            lambda: {
                "operation": "GetConfig",
                "target": "-",
                "queries": 0,
                "actor": principal.name,
            },
        )
        request_id.reset(token)
        return answer
