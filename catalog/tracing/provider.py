"""The OpenTelemetry SDK, which is imported only if tracing is on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import environ

from django.conf import settings
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from catalog.tracing import Attributes, SpanIds

log = logging.getLogger(__name__)

_propagator = TraceContextTextMapPropagator()
_next_ids: ContextVar[SpanIds | None] = ContextVar("next_ids", default=None)


class _Ids(RandomIdGenerator):
    """Generates random ids, except for a request, whose id contains them."""

    def generate_trace_id(self) -> int:
        ids = _next_ids.get()
        return ids.trace if ids is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        ids = _next_ids.get()
        return ids.span if ids is not None else super().generate_span_id()


class Provider:
    """Creates the spans of a process."""

    SERVER = SpanKind.SERVER
    CONSUMER = SpanKind.CONSUMER
    CLIENT = SpanKind.CLIENT

    def __init__(self, processor: SpanProcessor) -> None:
        self._sdk = TracerProvider(resource=_resource(), id_generator=_Ids())
        self._sdk.add_span_processor(processor)
        self._tracer = self._sdk.get_tracer("monodon")

    @classmethod
    def from_environment(cls) -> "Provider":
        """A provider that sends the spans to the endpoint in the environment."""
        protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL"
        )
        if protocol not in {None, "", "http/protobuf"}:
            log.warning("Traces are sent with the protocol http/protobuf, not %s", protocol)
        return cls(BatchSpanProcessor(OTLPSpanExporter()))

    @contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind,
        parent: Context | None = None,
        *,
        ids: SpanIds | None = None,
        attributes: Attributes | None = None,
    ) -> Iterator[Span]:
        """Make a new span the current one. It ends with the block, and an exception marks it as failed.

        Without ``parent`` it is below the current span. Without ``ids`` its ids are random. The message of
        the exception is not recorded: messages of PostgreSQL quote the values of rows.
        """
        token = _next_ids.set(ids)
        try:
            span = self._tracer.start_span(name, parent, kind, dict(attributes or {}))
        finally:
            _next_ids.reset(token)
        with trace.use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield span
            except Exception as error:
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def context_of(self, traceparent: str) -> Context:
        """The context of a client's span; an empty one for a missing or malformed header."""
        return _propagator.extract({"traceparent": traceparent}, Context())

    def context_below(self, ids: SpanIds | None) -> Context:
        """The context of a span of another process; empty without ids."""
        if ids is None:
            return Context()
        # The decision of the sampler at the root of the trace depends on the id of the trace alone.
        decision = self._sdk.sampler.should_sample(Context(), ids.trace, "").decision
        is_sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = trace.TraceFlags.SAMPLED if is_sampled else trace.TraceFlags.DEFAULT
        remote = SpanContext(
            ids.trace, ids.span, is_remote=True, trace_flags=trace.TraceFlags(flags)
        )
        return trace.set_span_in_context(NonRecordingSpan(remote), Context())

    def remote_trace(self, traceparent: str) -> int | None:
        """The id of the trace in a header; None if it is malformed."""
        remote = trace.get_current_span(self.context_of(traceparent)).get_span_context()
        return remote.trace_id if remote.is_valid else None

    def is_recording(self) -> bool:
        return trace.get_current_span().is_recording()

    def annotate(self, attributes: Attributes, error: str) -> None:
        span = trace.get_current_span()
        span.set_attributes(dict(attributes))
        if error:
            span.set_status(Status(StatusCode.ERROR, error))

    def add_event(self, name: str) -> None:
        trace.get_current_span().add_event(name)

    def traceparent(self) -> str:
        """The header of the current span; empty if there is none."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return carrier.get("traceparent", "")

    def flush(self) -> None:
        """Send the spans that have ended."""
        self._sdk.force_flush()


def _resource() -> Resource:
    own: dict[str, str] = {"service.version": str(settings.SPECTACULAR_SETTINGS["VERSION"])}
    named = environ.get(OTEL_SERVICE_NAME) or "service.name=" in environ.get(
        OTEL_RESOURCE_ATTRIBUTES, ""
    )
    return Resource.create(own if named else {**own, "service.name": "monodon"})
