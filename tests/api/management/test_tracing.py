"""Traces: spans of requests, statements and jobs, which follow each other's ids."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Self

import pytest
from django.db import connection
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from api import request_spans
from catalog import tracing
from catalog.errors import Unsupported
from catalog.models import Job
from catalog.services.maintenance import job_control, job_runner
from catalog.tracing.provider import Provider
from tests import factories
from tests.api.management.client import Management

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.all() if span.kind == kind]

    def request(self) -> ReadableSpan:
        (span,) = self.of(SpanKind.SERVER)
        return span


@pytest.fixture
def spans(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Tracing is on. Spans are kept in memory."""
    collected = Spans()
    provider = Provider(SimpleSpanProcessor(collected.exporter))
    monkeypatch.setattr(tracing, "_provider", provider)
    connection.cached_cursor = None
    yield collected
    connection.cached_cursor = None


def ids(span: ReadableSpan) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def test_a_request_has_a_span_with_its_statements_below(spans, management):
    answer = management.call("GET", "jobs?limit=1")
    span = spans.request()
    assert span.name == "ListJobs"
    assert span.parent is None
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["url.path"] == "/management/v1/jobs"  # without the query
    assert span.attributes["monodon.request_id"] == answer["x-request-id"]
    assert ids(span) == (answer["x-request-id"], answer["x-request-id"][16:])
    statements = spans.of(SpanKind.CLIENT)
    assert {statement.name for statement in statements} >= {"SELECT"}
    assert all(statement.parent.span_id == span.context.span_id for statement in statements)
    assert any("catalog_job" in statement.attributes["db.query.text"] for statement in statements)


def test_statements_contain_no_values_and_requests_no_secrets(spans, management):
    management.post("principals", {"name": "user:secretive", "kind": "user"}, status=201)
    texts = [str(dict(span.attributes)) for span in spans.all()]
    assert texts
    assert not any("secretive" in text for text in texts)
    assert not any("mnd_" in text for text in texts)


def test_a_statement_that_fails_is_an_error_without_the_values_in_its_message(spans, management):
    new = {"name": "user:secretive", "kind": "user"}
    management.post("principals", new, status=201)
    assert management.call("POST", "principals", new).status_code == 409
    failed = [span for span in spans.all() if span.status.status_code == StatusCode.ERROR]
    assert [span.status.description for span in failed] == ["IntegrityError"]
    assert not any("secretive" in span.to_json() for span in spans.all())


def test_a_commit_has_a_span(transactional_db, spans, management):
    management.post("principals", {"name": "user:grace", "kind": "user"}, status=201)
    assert [span.name for span in spans.of(SpanKind.CLIENT)].count("COMMIT") == 1


def test_a_request_continues_the_trace_of_the_client(spans, management):
    answer = management.call("GET", "jobs", headers={"traceparent": TRACEPARENT})
    span = spans.request()
    assert ids(span)[0] == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert answer["x-request-id"] == "-".join(ids(span))


@pytest.mark.parametrize(
    "header",
    ["", "00", TRACEPARENT.replace(TRACE, "0" * 32), TRACEPARENT.replace("-", "_"), "x" * 9000],
    ids=["none", "short", "zero", "malformed", "long"],
)
def test_a_malformed_header_begins_a_new_trace(spans, management, header):
    answer = management.call("GET", "jobs", headers={"traceparent": header})
    assert answer.status_code == 200
    span = spans.request()
    assert span.parent is None
    assert ids(span)[0] == answer["x-request-id"]


def test_a_client_may_choose_the_id_of_the_request(spans, management):
    answer = management.call("GET", "jobs", headers={"x-request-id": "nightly-7"})
    assert answer["x-request-id"] == "nightly-7"
    assert spans.request().attributes["monodon.request_id"] == "nightly-7"


def test_a_trace_that_the_client_does_not_sample_is_not_recorded(spans, management):
    management.call("GET", "jobs", headers={"traceparent": TRACEPARENT[:-2] + "00"})
    assert spans.all() == []


def test_refusals_are_not_errors_of_the_server(spans, management):
    assert management.call("GET", "jobs/0").status_code == 404
    assert spans.request().status.status_code == StatusCode.UNSET


def test_failures_of_the_server_are_errors(spans, management, monkeypatch):
    monkeypatch.setattr(job_control, "list_jobs", lambda *_, **__: 1 / 0)
    assert management.call("GET", "jobs").status_code == 500
    assert spans.request().status.status_code == StatusCode.ERROR


def start_job(management: Management, **headers: str) -> Job:
    factories.make_lance_table(("ns", "t"))
    path = "tables/ns$t/maintenance"
    answer = management.call("POST", path, {"kind": "compact"}, headers=headers)
    assert answer.status_code == 202, answer.content
    return Job.objects.get()


@pytest.mark.parametrize("headers", [{}, {"traceparent": TRACEPARENT}], ids=["alone", "continued"])
def test_a_job_is_below_the_request_that_started_it(spans, management, headers):
    job = start_job(management, **headers)
    request = spans.request()
    job_runner.run_job(job.pk)
    (span,) = spans.of(SpanKind.CONSUMER)
    assert span.name == "job compact"
    assert ids(span)[0] == ids(request)[0]
    assert span.parent.span_id == request.context.span_id
    assert span.attributes["monodon.job"] == job.pk
    assert span.attributes["monodon.job.status"] == "succeeded"
    below = [
        statement for statement in spans.of(SpanKind.CLIENT) if statement.parent == span.context
    ]
    assert below


def test_a_job_whose_request_had_an_id_of_its_own_begins_a_trace(spans, management):
    job = start_job(management, **{"x-request-id": "nightly-7"})
    job_runner.run_job(job.pk)
    (span,) = spans.of(SpanKind.CONSUMER)
    assert span.parent is None


def test_a_job_that_fails_is_an_error(spans, management, monkeypatch):
    job = start_job(management)
    monkeypatch.setattr(job_runner, "require_runnable", refuse)
    job_runner.run_job(job.pk)
    (span,) = spans.of(SpanKind.CONSUMER)
    assert span.attributes["monodon.job.status"] == "failed"
    assert span.status.status_code == StatusCode.ERROR


def refuse(_policy: object) -> None:
    raise Unsupported("not here")


def test_nothing_is_recorded_without_an_endpoint(management, monkeypatch):
    assert not tracing.is_on()
    assert request_spans.traced(len) is len
    assert (
        len(management.call("GET", "jobs", headers={"traceparent": TRACEPARENT})["x-request-id"])
        == 32
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_environment_turns_tracing_on(environment, expected):
    assert tracing.is_configured(environment) is expected


def test_spans_reach_a_collector(db, management, monkeypatch):
    """Over OTLP/HTTP, with the settings of the SDK."""
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        provider = Provider.from_environment()
        monkeypatch.setattr(tracing, "_provider", provider)
        answer = Management(management.headers["x-api-key"]).call("GET", "jobs")
        provider.flush()
    ((path, message),) = collector.received
    assert path == "/v1/traces"
    (resource,) = message.resource_spans
    attributes = {
        attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
    }
    assert attributes["service.name"] == "monodon"
    assert attributes["deployment.environment.name"] == "test"
    names = {
        span.name: span.trace_id.hex() for scope in resource.scope_spans for span in scope.spans
    }
    assert names["ListJobs"] == answer["x-request-id"]


class Collector:
    """A collector of OpenTelemetry on loopback."""

    def __init__(self) -> None:
        self.received: list[tuple[str, ExportTraceServiceRequest]] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
