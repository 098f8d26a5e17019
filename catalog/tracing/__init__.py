"""OpenTelemetry traces of requests, SQL statements and jobs.

Tracing is off unless the environment names an endpoint (``OTEL_EXPORTER_OTLP_ENDPOINT``). Then a thread
of each process sends the spans over OTLP/HTTP. The OpenTelemetry SDK reads all other settings.

    request      api.request_spans; its parent is the client's ``traceparent``
    statement    catalog.postgresql
    job          catalog.services.maintenance.job_runner; its parent is the request that started it

No column stores the parent of a job. The id of a request contains the ids of its trace and its span
(``new_request_id``), and the transaction of the job stores the id of the request.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from catalog.tracing.provider import Provider

Attributes = Mapping[str, str | int]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_REQUEST_ID = re.compile(r"([0-9a-f]{32})(?:-([0-9a-f]{16}))?")
_MAX_STATEMENT = 2000
_provider: "Provider | None" = None
"""None: tracing is off."""


@dataclass(frozen=True, slots=True)
class SpanIds:
    """The ids of a trace and of a span in it; neither is zero."""

    trace: int
    span: int


def connect() -> None:
    """Turn tracing on if the environment configures it."""
    global _provider  # noqa: PLW0603 -- one for the process
    if not is_configured(os.environ):
        return
    from catalog.tracing.provider import Provider

    _provider = Provider.from_environment()


def is_configured(environment: Mapping[str, str]) -> bool:
    """True if the environment names an endpoint and turns nothing off, as OpenTelemetry specifies."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
        return False
    return any(environment.get(name) for name in _ENDPOINTS)


def is_on() -> bool:
    return _provider is not None


def new_request_id(traceparent: str) -> str:
    """An id for a request whose client sent none: 32 hexadecimal digits, the id of its trace.

    If the client has sent a valid ``traceparent``, its trace is continued, and 16 digits for the span of
    the request follow after a hyphen.
    """
    if _provider is not None and traceparent:
        remote = _provider.remote_trace(traceparent)
        if remote is not None:
            return f"{remote:032x}-{os.urandom(8).hex()}"
    return os.urandom(16).hex()


def ids_of(request_id: str) -> SpanIds | None:
    """The ids of the span of a request; None for an id of another form, which the client has chosen."""
    match = _REQUEST_ID.fullmatch(request_id)
    if match is None:
        return None
    trace, span = int(match[1], 16), int(match[2] or match[1][16:], 16)
    return SpanIds(trace, span) if trace and span else None


@contextmanager
def request(name: str, *, request_id: str, traceparent: str) -> "Iterator[Span]":
    """The span of a request, which continues the trace of a valid ``traceparent``. Tracing must be on."""
    if _provider is None:
        raise AssertionError("tracing is off")
    parent = _provider.context_of(traceparent)
    with _provider.span(name, _provider.SERVER, parent, ids=ids_of(request_id)) as span:
        yield span


@contextmanager
def job(name: str, *, request_id: str, attributes: Attributes) -> Iterator[None]:
    """The span of a job, below that of the request that started it. Does nothing if tracing is off."""
    if _provider is None:
        yield
        return
    parent = _provider.context_below(ids_of(request_id))
    with _provider.span(name, _provider.CONSUMER, parent, attributes=attributes):
        yield


@contextmanager
def statement(sql: object) -> Iterator[None]:
    """The span of a statement, without its parameters, if the current request or job is traced."""
    if _provider is None or not _provider.is_recording():
        yield
        return
    text = sql.strip()[:_MAX_STATEMENT] if isinstance(sql, str) else ""
    name = text.split(None, 1)[0].upper() if text else "statement"
    attributes = {"db.system.name": "postgresql", "db.query.text": text}
    with _provider.span(name, _provider.CLIENT, attributes=attributes):
        yield


def annotate(attributes: Attributes, *, error: str = "") -> None:
    """Add attributes to the current span. ``error`` marks it as failed."""
    if _provider is not None:
        _provider.annotate(attributes, error)


def add_event(name: str) -> None:
    """Add an event, such as the beginning of a stage, to the current span."""
    if _provider is not None:
        _provider.add_event(name)


def traceparent() -> str:
    """The header ``traceparent`` for requests on behalf of the current span; empty if it is not traced."""
    return _provider.traceparent() if _provider is not None else ""
