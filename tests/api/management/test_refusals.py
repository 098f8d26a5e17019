"""Errors that any route may answer. Each is a problem document, and changes nothing."""

import json
import logging

import pytest
from django.db import OperationalError
from django.http import HttpResponse

from catalog.access import SYSTEM, tokens
from catalog.services.access import api_keys
from catalog.services.access.known_keys import find_key
from tests.api.each import on_each
from tests.api.management.client import Management
from tests.api.management.examples import EXAMPLES, make_catalog, spell
from tests.api.management.test_coverage import operations
from tests.cases import shared_cases
from tests.factories import unchanged
from tests.undo import undone

WRITING = [name for name, view in operations().items() if view.changes]
AUTHENTICATED = sorted(set(operations()) - {"GetSignOn"})
"""Operations that need credentials."""
WITH_BODY = [name for name, example in EXAMPLES.items() if example.body is not None]


@pytest.fixture(autouse=True)
def substitutes(management) -> dict[str, int]:
    return make_catalog()


@pytest.fixture
def call(substitutes):
    """Function that sends the example of an operation."""

    def send(client: Management, operation: str, **options) -> HttpResponse:
        example = EXAMPLES[operation]
        path = spell(example.path, substitutes)
        return client.call(example.method, path, example.body, **options)

    return send


@pytest.fixture
def attempt(call, warehouse):
    """Function that sends the example of an operation, and undoes its changes."""

    def send(client: Management, operation: str, **options) -> HttpResponse:
        with undone(warehouse):
            return call(client, operation, **options)

    return send


@pytest.fixture
def refuse(substitutes):
    """Function that sends the example of an operation, and expects a refusal that changes nothing."""

    def send(client, operation, status, kind, text, *, method="", **options) -> HttpResponse:
        example = EXAMPLES[operation]
        request = f"{method or example.method} {spell(example.path, substitutes)}"
        return client.refused(status, kind, text, request, example.body, **options)

    return send


def test_every_operation_has_an_example():
    assert set(EXAMPLES) == set(operations())
    assert set(WRITING) <= set(operations())


@on_each(operations())
def test_every_example_succeeds(management, attempt, operation):
    assert attempt(management, operation).status_code == EXAMPLES[operation].status


# --- authentication and access ----------------------------------------------------------------------


@on_each(AUTHENTICATED)
def test_requests_without_a_key_are_refused(refuse, operation):
    response = refuse(Management(), operation, 401, "unauthenticated", "No API key was given")
    assert response["www-authenticate"] == "Bearer"


@on_each(AUTHENTICATED)
def test_requests_with_an_unknown_key_are_refused(refuse, operation):
    refuse(Management("mnd_no_such"), operation, 401, "unauthenticated", "unknown, expired")


OF_OTHERS = {"GetKey", "RotateKey", "RevokeKey"}
"""Operations on keys whose existence is secret."""


@on_each(sorted({*WRITING} - OF_OTHERS))
def test_a_read_only_key_may_not_write(reader, refuse, operation):
    refuse(reader, operation, 403, "permission-denied", "'reader' may not ")


@on_each(sorted(OF_OTHERS))
def test_keys_of_other_principals_get_404(reader, refuse, operation):
    refuse(reader, operation, 404, "key-not-found", "'known' does not exist")


FOR_ADMINISTRATORS = {
    "ListPrincipals",
    "GetPrincipal",
    "ListMembers",
    "ListWebhooks",
    "GetWebhook",
    "ListDeliveries",
    *("ListStorageProfiles", "GetStorageProfile", "PreviewStorageProfile"),
    *("ListStorageTests", "GetStorageTest"),
    *("ListEngineProfiles", "GetEngineProfile"),
    "GetGovernance",
    "PlanGovernance",
}


@on_each(sorted(FOR_ADMINISTRATORS))
def test_a_read_only_key_may_not_call_operations_of_administrators(reader, refuse, operation):
    refuse(reader, operation, 403, "permission-denied", "'reader' may not administer")


FOR_MANAGERS = {"ListAudit", "ExportAudit", "PlanRegistrations"}
FOR_GRANTERS = {
    "ExplainNamespaceAccess",
    "ExplainTableAccess",
    "ListNamespaceGrants",
    "ListTableGrants",
    "WhatIfNamespaceGrant",
    "WhatIfTableGrant",
}
_NOT_FOR_READERS = {*FOR_MANAGERS, *FOR_GRANTERS, *FOR_ADMINISTRATORS, *OF_OTHERS}


@on_each(sorted(FOR_GRANTERS))
def test_a_read_only_key_may_not_call_operations_that_require_grant(reader, refuse, operation):
    refuse(reader, operation, 403, "permission-denied", "'reader' may not ")


@on_each(sorted(FOR_MANAGERS))
def test_a_read_only_key_may_not_call_operations_that_require_manage(reader, refuse, operation):
    refuse(reader, operation, 403, "permission-denied", "'reader' may not manage")


@on_each(sorted(set(operations()) - {*WRITING, *_NOT_FOR_READERS}))
def test_a_read_only_key_reads_without_changing_anything(reader, call, operation):
    with unchanged():
        assert call(reader, operation).status_code == 200


@on_each(AUTHENTICATED)
def test_an_admin_session_does_not_replace_a_key(refuse, operation, admin_client):
    client = Management()
    client.client = admin_client
    refuse(client, operation, 401, "unauthenticated", "No API key was given")


def test_a_key_is_accepted_as_a_bearer_token():
    _, key = api_keys.create_api_key(actor=SYSTEM, name="bearer")
    token = tokens.issue_token(find_key(key).pk)
    for value in (f"Bearer {key}", f"bearer {token}"):
        assert Management(authorization=value).get("rules")["rules"]
    Management(authorization=f"Basic {key}").refused(
        401, "unauthenticated", "No API key", "GET rules"
    )


@pytest.mark.parametrize(("granted", "read", "write"), [("none", 401, 401), ("read", 200, 403)])
def test_anonymous_access_follows_the_setting(settings, call, granted, read, write):
    settings.MONODON_ANONYMOUS = granted
    assert call(Management(), "ListRules").status_code == read
    assert call(Management(), "StartMaintenance").status_code == write


# --- routes, methods, names -------------------------------------------------------------------------


@shared_cases(
    "path",
    [
        "/management",
        "/management/",
        "/management/v1",
        "/management/v1/",
        "/management/v1/nothing",
        "/management/v2/rules",
        "/management/v1/tables/ws$t",
        "/management/v1/tables//policy",
        "/management/v1/tables/ws$t/policy/",
        "/management/v1/jobs/1/nothing",
    ],
)
@shared_cases("method", ["GET", "POST", "HEAD"])
def test_unknown_routes_get_404(management, path, method):
    management.refused(404, "route-not-found", f"no operation at {path}", f"{method} {path}")
    Management().refused(401, "unauthenticated", "No API key", f"{method} {path}")


def _bare(path: str) -> str:
    return path.partition("?")[0]


@on_each(operations())
def test_wrong_methods_get_405(management, refuse, operation):
    path = _bare(EXAMPLES[operation].path)
    allowed = [example.method for example in EXAMPLES.values() if _bare(example.path) == path]
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - set(allowed):
        text = f"{method} is not allowed"
        response = refuse(management, operation, 405, "method-not-allowed", text, method=method)
        assert response["allow"] == ", ".join(allowed)


_NAMED = [name for name, example in EXAMPLES.items() if "ws" in example.path]


@on_each(_NAMED)
def test_missing_objects_get_404(management, operation):
    example = EXAMPLES[operation]
    request = f"{example.method} {example.path.replace('ws', 'no')}"
    management.refused(404, "namespace-not-found", "'no' does not", request, example.body)
    if "ws$t" in example.path:
        request = f"{example.method} {example.path.replace('ws$t', 'ws$no')}"
        management.refused(404, "table-not-found", "'ws.no' does not", request, example.body)


@on_each(_NAMED)
@pytest.mark.parametrize("name", ["$$", "ws$", "ws%00", "ws%0A", "ws$" + "x" * 256])
def test_invalid_names_are_refused(management, operation, name):
    example = EXAMPLES[operation]
    path = example.path.replace("ws$t", name).replace("/ws/", f"/{name}/")
    management.refused(400, "invalid-identifier", "name", f"{example.method} {path}", example.body)


@shared_cases("operation", ["GetJob", "CancelJob", "RetryJob"])
@shared_cases("job", ["0", "999999", "nothing", "-1", "9" * 30, "%D9%A1"])
def test_missing_jobs_get_404(management, operation, job):
    example = EXAMPLES[operation]
    path = example.path.replace("WAITS", job).replace("FAILED", job)
    management.refused(404, "job-not-found", "does not exist", f"{example.method} {path}")


# --- bodies -----------------------------------------------------------------------------------------

_NO_BODIES = [
    b"",
    b"{",
    b"nonsense",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b"{}{}",
    b"{}",
    b"[" * 100_000,
    b'{"values": 1, "kind": 1}',
    b'{"values": {}, "kind": "compact", "more": 1}',
    b'{"values": {"a\\u0000": 1}, "kind": "\\u0000"}',
]


_WITHOUT_FIELDS = {
    *("UndropTrashItem", "PurgeTrashItem", "ApproveRequest"),
    *("UpdateNamespaceAnnotations", "UpdateTableAnnotations", "UpdateLabel", "UpdatePrincipal"),
    *("RepairTable", "DetachDependents"),
}
"""Operations that accept an empty object."""


@on_each(WITH_BODY)
def test_invalid_bodies_are_refused(management, refuse, operation):
    for raw in _NO_BODIES:
        if not (raw == b"{}" and operation in _WITHOUT_FIELDS):
            refuse(management, operation, 400, "invalid-input", "", raw=raw)


@on_each(WITH_BODY)
def test_duplicate_keys_in_json_are_refused(management, refuse, operation):
    body = json.dumps(EXAMPLES[operation].body)
    if body == "{}":
        return
    raw = f"{body[:-1]}, {body[1:]}".encode()
    refuse(management, operation, 400, "contradictory-input", "more than once", raw=raw)


@on_each(WITH_BODY)
def test_a_body_that_is_too_large_is_refused(management, refuse, attempt, operation, settings):
    settings.MONODON_MAX_BODY_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    fits = json.dumps(EXAMPLES[operation].body).encode().ljust(1000)
    refuse(management, operation, 413, "body-too-large", "than 1000 bytes", raw=fits + b" ")
    assert attempt(management, operation, raw=fits).status_code == EXAMPLES[operation].status


# --- queries ----------------------------------------------------------------------------------------


@shared_cases(
    ("query", "text"),
    [
        ("health?limit=0", "'limit' is '0'"),
        ("health?limit=x", "'limit' is 'x'"),
        ("health?page_token=x", "'x' is not one of this list"),
        ("health?page_token=1.2.3", "not one of this list"),
        ("health?page_token=1", "not one of this list"),
        ("health?format=csv", "use lance, iceberg"),
        ("health?max_score=101", "use 0 to 100"),
        ("health?max_score=-1", "use 0 to 100"),
        ("jobs?status=gone", "use queued, running"),
        ("jobs?kind=compact,nothing", "'kind' is 'compact,nothing'"),
        ("jobs?since=yesterday", "a time such as"),
        ("jobs?since=9999-99-99T00:00:00Z", "a time such as"),
        ("jobs?page_token=-1", "not one of this list"),
        ("jobs/WAITS?page_token=x", "not one of this list"),
        ("summary?days=366", "use 1 to 365"),
        ("tables/ws$t/health?days=91", "use 1 to 90"),
        ("tables/ws$t/health?points=1001", "use 1 to 1000"),
    ],
)
def test_invalid_queries_are_refused(management, substitutes, query, text):
    management.refused(400, "invalid-input", text, f"GET {spell(query, substitutes)}")


def test_missing_and_invalid_names_in_queries_are_refused(management):
    management.refused(404, "namespace-not-found", "'no'", "GET health?namespace=no")
    management.refused(404, "table-not-found", "'ws.no'", "GET jobs?table=ws$no")
    management.refused(400, "invalid-identifier", "empty", "GET jobs?table=ws$")
    management.refused(400, "invalid-identifier", "delimiter", "GET jobs?table=ws&delimiter=")
    query = "&".join(f"a{n}={n}" for n in range(101))
    management.refused(400, "invalid-input", "more than 100 parameters", f"GET rules?{query}")


# --- bugs and outages -------------------------------------------------------------------------------


@on_each(operations())
def test_an_internal_error_is_reported_without_its_stack(
    management, refuse, operation, monkeypatch, caplog
):
    def broken(self, request, **path):
        raise ZeroDivisionError("a secret of the inside")

    served = operations()[operation]
    monkeypatch.setattr(served.view, served.action, broken)
    caplog.set_level(logging.CRITICAL)
    response = refuse(
        management,
        operation,
        500,
        "internal-server-error",
        "request id r-7",
        headers={"x-request-id": "r-7"},
    )
    assert "secret" not in response.content.decode()
    assert "Traceback" not in response.content.decode()


@on_each(operations())
def test_an_unreachable_database_is_reported(management, refuse, operation, monkeypatch):
    def away(self, request, **path):
        raise OperationalError("connection refused: host=secret")

    served = operations()[operation]
    monkeypatch.setattr(served.view, served.action, away)
    response = refuse(management, operation, 503, "service-unavailable", "is not available")
    assert response["retry-after"] == "1"
    assert "secret" not in response.content.decode()
