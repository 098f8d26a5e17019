"""Errors that any route may answer. Each has the Lance form, and changes nothing."""

import json
import logging
from datetime import timedelta

import pytest
from django.db import OperationalError, close_old_connections, connection
from django.http import HttpResponse
from django.utils import timezone

from catalog.access import SYSTEM, credentials
from catalog.models import ApiKey, AuditEvent, Namespace
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from catalog.services.engine import commit
from catalog.services.tables import namespaces, tables
from tests.access.protocols import PROTOCOLS
from tests.api.client import Lance
from tests.api.lance.examples import EXAMPLES, make_catalog
from tests.api.lance.test_coverage import operations
from tests.cases import shared_cases
from tests.factories import make_namespace, unchanged

WRITING = [name for name, view in operations().items() if view.changes]
WITH_BODY = [name for name, view in operations().items() if view.request_model is not None]
every_operation = pytest.mark.parametrize("operation", list(operations()))
# For refusals before an operation begins, which need nothing that it has prepared.
of_all_operations = shared_cases("operation", list(operations()))


@pytest.fixture(autouse=True)
def _catalog(request, lance):
    make_catalog()
    operation = getattr(request.node, "callspec", None) and request.node.callspec.params.get(
        "operation"
    )
    if operation is not None and (prepare := EXAMPLES[operation].prepare) is not None:
        prepare(lance)


def test_every_operation_has_an_example():
    assert set(EXAMPLES) == set(operations())


def test_operations_that_require_more_than_read_write():
    reading = {Privilege.BROWSE, Privilege.READ}
    rules = PROTOCOLS["lance"].rules.items()
    assert set(WRITING) == {name for name, rule in rules if rule.needs not in reading}


@every_operation
def test_the_example_works(lance: Lance, operation):
    example = EXAMPLES[operation]
    response = lance.call(example.method, example.path, example.body, **example.options)
    assert response.status_code == example.status, response.content


@every_operation
def test_a_trailing_slash_is_accepted(lance: Lance, operation):
    example = EXAMPLES[operation]
    path, _, query = example.path.partition("?")
    response = lance.call(example.method, f"{path}/?{query}", example.body, **example.options)
    assert response.status_code == example.status, response.content


def refused(
    client: Lance,
    operation: str,
    status: int,
    code: int,
    error: str,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
) -> HttpResponse:
    """Check that the example is refused and changes nothing."""
    example = EXAMPLES[operation]
    options = example.options
    options["headers"] = options.get("headers", {}) | (headers or {})
    return client.refused(
        status,
        code,
        error,
        example.path,
        example.body,
        method=method or example.method,
        **options,
    )


# --- authentication -------------------------------------------------------------------------------


@of_all_operations
def test_unauthenticated(operation):
    response = refused(Lance(), operation, 401, 16, "No API key was given")
    assert response["www-authenticate"] == "Bearer"


@of_all_operations
def test_an_unknown_key(operation):
    refused(Lance("mnd_no_such_key"), operation, 401, 16, "unknown, expired")


@pytest.mark.parametrize("operation", WRITING)
def test_a_read_only_key_does_not_write(reader: Lance, operation):
    refused(reader, operation, 403, 15, "'reader' may not ")


@pytest.mark.parametrize("operation", [name for name in operations() if name not in WRITING])
def test_a_read_only_key_reads(reader: Lance, operation):
    example = EXAMPLES[operation]
    with unchanged():
        assert reader.call(example.method, example.path, example.body).status_code == 200


def test_a_bearer_token_is_accepted_as_key():
    _, key = api_keys.create_api_key(actor=SYSTEM, name="bearer")
    for value in (f"Bearer {key}", f"bearer  {key} "):
        Lance(authorization=value).post("/v1/namespace/ws/exists")
    Lance(authorization=f"Basic {key}").refused(401, 16, "No API key", "/v1/namespace/ws/exists")


def test_expired_and_revoked_keys():
    row, key = api_keys.create_api_key(
        actor=SYSTEM, name="brief", expires_at=timezone.now() + timedelta(hours=1)
    )
    client = Lance(key)
    client.post("/v1/namespace/ws/exists")
    api_keys.revoke_api_key(actor=SYSTEM, key=row)
    client.refused(401, 16, "revoked", "/v1/namespace/ws/exists")
    _, expired = api_keys.create_api_key(
        actor=SYSTEM, name="old", expires_at=timezone.now() - timedelta(seconds=1)
    )
    Lance(expired).refused(401, 16, "expired", "/v1/namespace/ws/exists")


def test_the_key_is_stored_nowhere(lance: Lance):
    key = lance.headers["x-api-key"]
    row = ApiKey.objects.get(name="tester")
    assert row.digest == credentials.key_digest(key) != key
    assert key not in json.dumps(
        [str(v) for v in ApiKey.objects.values().get(name="tester").values()]
    )
    response = lance.call("POST", "/v1/table/no$t/describe", {})
    assert key not in response.content.decode()


@pytest.mark.parametrize(
    ("granted", "read", "write"), [("none", 401, 401), ("read", 200, 403), ("admin", 200, 200)]
)
def test_anonymous(settings, granted, read, write):
    settings.MONODON_ANONYMOUS = granted
    nobody = Lance()
    assert nobody.call("POST", "/v1/namespace/ws/exists").status_code == read
    assert nobody.call("POST", "/v1/namespace/new/create").status_code == write


def test_a_wrong_key_is_not_treated_as_anonymous(settings):
    settings.MONODON_ANONYMOUS = "admin"
    Lance("mnd_no_such_key").refused(401, 16, "unknown", "/v1/namespace/ws/exists")


# --- routes and methods ---------------------------------------------------------------------------


@shared_cases(
    "path",
    [
        "/v1/",
        "/v1/nothing",
        "/v1/table/t",
        "/v1/table/t/nothing",
        "/v1/namespace",
        "/v1/table//describe",
    ],
)
@shared_cases("method", ["GET", "POST", "PUT"])
def test_unknown_routes(lance: Lance, path, method):
    lance.refused(404, 0, f"There is no operation at {path}", path, method=method)


@of_all_operations
def test_wrong_methods(lance: Lance, operation):
    example = EXAMPLES[operation]
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - {example.method}:
        response = refused(lance, operation, 405, 0, f"{method} is not allowed", method=method)
        assert response["allow"] == example.method
    assert lance.call("HEAD", example.path).status_code == 405


# --- bodies ---------------------------------------------------------------------------------------


NO_BODIES = [
    b"{",
    b"nonsense",
    b"[]",
    b"null",
    b'"text"',
    b"1",
    b"\xff\xfe",
    b'{"id": ["\\ud800"]}',
    b"{}{}",
    b"[" * 100_000,
]


@shared_cases("operation", WITH_BODY)
def test_bad_json(lance: Lance, operation):
    example = EXAMPLES[operation]
    with unchanged():
        for raw in NO_BODIES:
            if raw == b"null" and not operations()[operation].documents_body:
                continue  # LanceDB's client declares an empty body
            response = lance.call(example.method, example.path, raw=raw)
            assert (response.status_code, response.json()["code"]) == (400, 13), raw[:40]


@pytest.mark.parametrize("operation", WITH_BODY)
def test_a_body_that_is_too_large(lance: Lance, operation, settings):
    settings.MONODON_MAX_BODY_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    example = EXAMPLES[operation]
    method, path = example.method, example.path
    fits = json.dumps(example.body or {}).encode()
    with unchanged():
        response = lance.call(method, path, raw=fits + b" " * (1001 - len(fits)))
    assert (response.status_code, response.json()["code"]) == (413, 13)
    assert "larger than 1000 bytes" in response.json()["error"]
    response = lance.call(method, path, raw=fits + b" " * (1000 - len(fits)))
    assert response.status_code == example.status


def test_context_and_identity_in_a_body_are_accepted(lance: Lance):
    body = {"identity": {"api_key": "x", "auth_token": "y"}, "context": {"trace_id": "z"}}
    assert lance.post("/v1/table/ws$t/exists", body) is None


def test_a_query_of_many_parameters(lance: Lance):
    query = "&".join(f"a{n}={n}" for n in range(100))
    assert lance.get(f"/v1/table?{query}") == {"tables": ["ws$t"]}
    lance.refused(400, 13, "more than 100 parameters", f"/v1/table?{query}&more=1", method="GET")


def test_a_query_that_is_not_utf8_is_refused(lance: Lance):
    response = lance.call("GET", "/v1/table?page_token=%ff%fe")
    assert (response.status_code, response.json()["code"]) == (400, 13)


# --- bugs and outages -------------------------------------------------------------------------------


@of_all_operations
def test_a_bug_is_reported_without_its_stack(lance: Lance, operation, monkeypatch, caplog):
    def broken(self, actor, body, **path):
        raise ZeroDivisionError("a secret of the inside")

    caplog.set_level(logging.CRITICAL)
    with monkeypatch.context() as patch:
        patch.setattr(operations()[operation], "handle", broken)
        response = refused(lance, operation, 500, 18, "unexpected", headers={"x-request-id": "r-7"})
    assert response["x-request-id"] == "r-7"
    assert "r-7" in response.json()["detail"]
    assert "secret" not in response.content.decode()
    assert "Traceback" not in response.content.decode()


def test_a_bug_in_a_service_changes_nothing(lance: Lance, monkeypatch):
    def broken(*groups):
        assert isinstance(groups[-1][0], AuditEvent)
        raise RuntimeError("bug")

    monkeypatch.setattr(commit, "insert", broken)
    monkeypatch.setattr(commit, "insert_together", broken)
    lance.refused(500, 18, "unexpected", "/v1/namespace/new/create", {})
    # Committed with locks.
    lance.refused(500, 18, "unexpected", "/v1/namespace/new/create", {"mode": "ExistOk"})
    assert not Namespace.objects.filter(name="new").exists()


@pytest.mark.parametrize("service", ["describe_namespace", "list_namespaces"])
def test_an_unreachable_database_is_reported(lance: Lance, monkeypatch, service):
    def unreachable(**options):
        raise OperationalError("connection refused: host=secret")

    monkeypatch.setattr(namespaces, service, unreachable)
    method = "GET" if service.startswith("list") else "POST"
    path = f"/v1/namespace/ws/{'list' if method == 'GET' else 'describe'}"
    response = lance.refused(503, 17, "database is not available", path, method=method)
    assert response["retry-after"] == "1"
    assert "secret" not in response.content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_broken_connection_is_replaced(monkeypatch):
    _, key = api_keys.create_api_key(actor=SYSTEM, name="healing")
    client = Lance(key)
    client.get("/v1/table")
    real = tables.list_all_tables

    def broken(**options):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return real(**options)

    with monkeypatch.context() as patch:
        patch.setattr(tables, "list_all_tables", broken)
        response = client.call("GET", "/v1/table")
    assert (response.status_code, response.json()["code"]) == (503, 17)
    close_old_connections()  # Django does this after every request; the test client does not
    assert client.call("GET", "/v1/table").status_code == 200


# --- request ids ------------------------------------------------------------------------------------


def test_request_ids(lance: Lance):
    response = lance.call("GET", "/v1/table", headers={"x-request-id": "my-id.7"})
    assert response["x-request-id"] == "my-id.7"
    for hostile in ("a b", "x" * 101, "<script>", ""):
        response = lance.call("GET", "/v1/table", headers={"x-request-id": hostile})
        assert response["x-request-id"] != hostile
        assert len(response["x-request-id"]) == 32


def test_reads_are_not_audited(lance: Lance):
    make_namespace("other")
    with unchanged():
        for operation, example in EXAMPLES.items():
            if operation not in WRITING and example.prepare is None:
                headers = {"x-lance-ctx-trace_id": "x"}
                response = lance.call(example.method, example.path, example.body, headers=headers)
                assert response.status_code == 200
