"""Refusals without the database: few are rendered by Django, and the others repeat their content.

Django takes as long for a refusal as for a read, and during an attack there are hundreds a second. So
RENDERED_AT_ONCE of them are rendered and logged, and then RENDERED_PER_SECOND. Further ones repeat an answer to
an equal request, with an id of their own, or are answered in the form of the management API. They are logged
as a number. Refusals that can be repeated use at most half of the allowance, so that an attack with equal
requests leaves the other half for other refusals.
"""

import asyncio
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.front import environ, marker
from api.front.answer import Answer
from api.front.exchange import OPERATIONS, TOKEN_PATHS
from api.management import errors
from api.middleware import GIVEN_ID, REQUEST_ID_HEADER, REQUESTS
from catalog.errors import CatalogError

log = logging.getLogger(__name__)

RENDERED_AT_ONCE = 25
RENDERED_PER_SECOND = 5
REPORT_SECONDS = 10.0
_MAX_ANSWERS = 256
_MAX_PATH = 1000
_HEADERS = ("HTTP_HOST", "HTTP_X_LANCEDB_DATABASE", "HTTP_IDEMPOTENCY_KEY", "CONTENT_TYPE")
"""The headers on which the form of a refusal depends."""
_GENERATED_ID = re.compile(r"[0-9a-f]{32}")

_Handler = Callable[[dict[str, Any]], Answer]
_Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Rendered:
    status: int
    headers: list[tuple[str, str]]
    """All but the id."""
    content: list[bytes]
    """The pieces between the occurrences of the id."""


class Refusals:
    """The refusals of one process, all in its event loop. ``clock`` returns seconds."""

    def __init__(self, handler: _Handler, clock: Callable[[], float] = time.monotonic) -> None:
        self._handler = handler
        self._clock = clock
        self._allowance = float(RENDERED_AT_ONCE)
        self._refilled_at = clock()
        self._rendered: OrderedDict[_Key, _Rendered] = OrderedDict()
        self._repeated = 0

    def answer(self, request: dict[str, Any], error: CatalogError) -> Answer:
        """Return a refusal in the form of the request's protocol."""
        key = _key(request, error)
        rendered = self._rendered.get(key)
        if self._may_render(reserve=RENDERED_AT_ONCE // 2 if rendered is not None else 0):
            answer = self.render(request, error)
            self._remember(key, request, answer)
            return answer
        return self._repeat(request, error, rendered)

    def render(self, request: dict[str, Any], error: CatalogError) -> Answer:
        """Render a refusal, from any thread."""
        path = request["PATH_INFO"]
        if path.startswith(OPERATIONS) or path in TOKEN_PATHS:
            return self._handler(environ.set_body({**request, marker.KEY: error}, b""))
        return _problem(path, error)

    def report(self) -> None:
        """Log the number of refusals since the last report that have no line of their own."""
        repeated, self._repeated = self._repeated, 0
        if repeated:
            log.warning(
                "refused %d more requests within %.0f seconds, which have no line each",
                repeated,
                REPORT_SECONDS,
            )

    def _may_render(self, reserve: int) -> bool:
        """Use the allowance once, unless that leaves less than ``reserve``."""
        now = self._clock()
        refill = (now - self._refilled_at) * RENDERED_PER_SECOND
        self._allowance = min(self._allowance + refill, float(RENDERED_AT_ONCE))
        self._refilled_at = now
        if self._allowance < 1 + reserve:
            return False
        self._allowance -= 1
        return True

    def _remember(self, key: _Key, request: dict[str, Any], answer: Answer) -> None:
        request_id = dict(answer.headers).get(REQUEST_ID_HEADER, "")
        # The id that a client gave might occur in the content by chance.
        if "HTTP_X_REQUEST_ID" in request or not _GENERATED_ID.fullmatch(request_id):
            return
        if answer.stream is not None or len(request["PATH_INFO"]) > _MAX_PATH:
            return
        headers = [header for header in answer.headers if header[0] != REQUEST_ID_HEADER]
        content = answer.content.split(request_id.encode())
        self._rendered[key] = _Rendered(answer.status, headers, content)
        self._rendered.move_to_end(key)
        if len(self._rendered) > _MAX_ANSWERS:
            self._rendered.popitem(last=False)

    def _repeat(
        self, request: dict[str, Any], error: CatalogError, rendered: _Rendered | None
    ) -> Answer:
        requested_id = request.get("HTTP_X_REQUEST_ID", "")
        is_valid = GIVEN_ID.fullmatch(requested_id)
        request_id = requested_id if is_valid else os.urandom(16).hex()
        if rendered is None:
            answer = _problem(request["PATH_INFO"], error)
            answer.headers.append((REQUEST_ID_HEADER, request_id))
        else:
            headers = [*rendered.headers, (REQUEST_ID_HEADER, request_id)]
            content = request_id.encode().join(rendered.content)
            answer = Answer(rendered.status, headers, content)
        REQUESTS.labels("other", f"{answer.status // 100}xx").inc()
        if not self._repeated:
            asyncio.get_running_loop().call_later(REPORT_SECONDS, self.report)
        self._repeated += 1
        return answer


def _key(request: dict[str, Any], error: CatalogError) -> _Key:
    return (
        request["REQUEST_METHOD"],
        request["PATH_INFO"],
        *map(request.get, _HEADERS),
        type(error),
        error.message,
        error.detail,
    )


def _problem(path: str, error: CatalogError) -> Answer:
    status, content, headers = errors.answer(error, path)
    return Answer(status, [("Content-Type", errors.MEDIA), *headers.items()], content)
