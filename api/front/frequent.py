"""Frequent reads, which are answered in the event loop, with one statement of a pipeline or none.

A thread takes as long to be woken, and to wait for PostgreSQL, as the remaining work of such a read. The event loop checks
the same as the operation: the host, the key, the privilege, and that what it repeats is current. It answers only what
it can permit. Everything else takes the ordinary way, which alone refuses.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from api import credentials, database_header, hosts, middleware
from api.front.answer import Answer
from api.request_id import request_id
from catalog import tracing
from catalog.access import ObjectRead, Principal
from catalog.errors import TooManyAttempts
from catalog.postgresql.pipeline import NoRow, Parameters, Pipeline, Row
from catalog.privileges import Privilege
from catalog.services.access import known_keys
from catalog.services.access.throttle import throttle

_LONGEST_BODY = 1_000
"""In bytes. Threads parse longer ones."""


class Content(NamedTuple):
    """The part of an answer that does not depend on its request."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""


class Read(NamedTuple):
    """A read of one request."""

    principal: Principal
    operation: str
    target: str
    """The object, as in the log."""
    statement: bytes
    """Its name; empty: the answer needs none."""
    parameters: Parameters
    content: Callable[[Row | None], Content | None]
    """The answer for the first row of the statement; None: the ordinary way decides."""
    learn: Callable[[Answer], None] | None = None
    """Called with the answer of the ordinary way."""


def read_of(
    principal: Principal,
    operation: str,
    target: str,
    *,
    statement: ObjectRead,
    privilege: Privilege,
    parameters: Parameters,
    render: Callable[[Row], Content | None],
    learn: Callable[[Answer], None] | None = None,
) -> Read | None:
    """The read of an object on which the principal must hold a privilege; None: no statement decides about that.

    ``render`` returns the answer for the columns of the statement; None: the ordinary way decides.
    """
    name = statement.statement(principal, privilege)
    if name is None:
        return None

    def content(row: Row | None) -> Content | None:
        columns = statement.permitted(principal, privilege, row)
        return None if columns is None else render(columns)

    return Read(principal, operation, target, name, parameters, content, learn)


class Reads(Protocol):
    """The frequent reads of a protocol."""

    statements: Mapping[str, str]

    def find(self, request: dict[str, Any], body: bytes, principal: Principal) -> Read | None:
        """The read of a request for an allowed host; None: it is not a frequent read."""


class FrequentReads:
    """The frequent reads of one process."""

    _pipeline: Pipeline | None = None

    def __init__(self, protocols: Sequence[Reads]) -> None:
        self._protocols = protocols

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        statements = {
            name: text for reads in self._protocols for name, text in reads.statements.items()
        }
        self._pipeline = Pipeline(loop, statements)

    def stop(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()

    def find(self, request: dict[str, Any], body: bytes) -> Read | None:
        """The read of a request with its complete body; None: it takes the ordinary way."""
        if len(body) > _LONGEST_BODY or tracing.is_on():
            return None
        if database_header.KEY in request or not request["PATH_INFO"].isascii():
            return None
        key = credentials.key_of(request)
        principal = None if key is None else known_keys.cached_principal(key)
        if key is None or principal is None or not hosts.is_allowed(request.get("HTTP_HOST")):
            return None
        candidates = (reads.find(request, body, principal) for reads in self._protocols)
        read = next((read for read in candidates if read is not None), None)
        if read is None:
            return None
        try:
            throttle.check(key, _address(request))
        except TooManyAttempts:
            return None
        return read

    async def answer(self, request: dict[str, Any], read: Read) -> Answer | None:
        """The answer to a read; None: it takes the ordinary way."""
        started = time.perf_counter()
        row = None
        if read.statement:
            if self._pipeline is None:
                return None
            future = self._pipeline.execute(read.statement, read.parameters)
            if future is None:
                return None
            try:
                row = await future
            except NoRow:
                return None
        content = read.content(row)
        return None if content is None else _answer(request, read, content, started)


def _address(request: dict[str, Any]) -> str:
    """The address of the client, as ``RequestMiddleware`` finds it."""
    forwarded = request.get("HTTP_X_FORWARDED_FOR", "")
    return middleware.client_address(forwarded, request["REMOTE_ADDR"])


def _answer(request: dict[str, Any], read: Read, content: Content, started: float) -> Answer:
    """The answer, which is logged and counted as that of an operation."""
    current = middleware.id_of_request(request.get("HTTP_X_REQUEST_ID", ""), "")
    seconds = time.perf_counter() - started
    middleware.count("protocols", read.operation, content.status, seconds)
    token = request_id.set(current)
    middleware.log_result(
        request["REQUEST_METHOD"],
        request["PATH_INFO"],
        content.status,
        seconds,
        lambda: {
            "operation": read.operation,
            "target": read.target,
            "queries": 1 if read.statement else 0,
            "actor": read.principal.name,
        },
    )
    request_id.reset(token)
    headers = [
        *content.headers,
        (middleware.REQUEST_ID_HEADER, current),
        ("Cache-Control", "private"),
    ]
    return Answer(content.status, headers, content.body, principal=read.principal.name)
