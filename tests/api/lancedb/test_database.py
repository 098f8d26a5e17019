"""The header that names the database: names are relative to it, and whatever it holds is only a name."""

import json
import uuid

import pyarrow as pa
import pytest
from django.test import RequestFactory
from django.urls import reverse

from api.lance import urls as lance_urls
from api.lancedb import urls
from api.lancedb.operation import DatabaseOperation
from catalog.access import SYSTEM, credentials
from catalog.models import ApiKey, AuditEvent, Namespace, Table
from catalog.services.access import api_keys
from catalog.services.audit import refusals
from tests.access.protocols import KEY, principal
from tests.api.client import Lance, stream
from tests.api.lance.example import data
from tests.api.lancedb.client import Database
from tests.api.lancedb.examples import OPERATIONS
from tests.cases import shared_cases
from tests.factories import make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
ROWS = pa.table({"id": pa.array([7], pa.int64())})
STREAM = {"content-type": "application/vnd.apache.arrow.stream"}


@pytest.fixture
def client() -> Lance:
    make_root()
    make_table("ws", "t")
    make_table("other", "secret")
    make_table("top")
    return Lance(api_keys.create_api_key(actor=SYSTEM, name="tests")[1])


def send(client: Lance, path: str, database: str, method: str = "POST", **options):
    headers = {"x-lancedb-database": database, **options.pop("headers", {})}
    return client.call(method, path, headers=headers, **options)


def test_other_operations_are_those_of_the_lance_protocol():
    """Except for the names: neither their work nor their answers are defined again."""
    for template, operation in urls.ROUTES.items():
        assert issubclass(operation, DatabaseOperation)
        if operation.__name__ in OPERATIONS or template.startswith("jobs/"):
            continue
        assert operation.__bases__ == (DatabaseOperation, lance_urls.ROUTES[template])
        assert {*vars(operation)} <= {"__module__", "__doc__", "post", "get"}


def test_names_are_relative_to_the_database(client):
    assert send(client, "/v1/table/t/exists", "ws").status_code == 200
    assert send(client, "/v1/table/secret/exists", "ws").status_code == 404
    assert send(client, "/v1/table/secret/exists", "other").status_code == 200
    assert send(client, "/v1/table/", "ws", "GET").json() == {"tables": ["t"]}
    assert send(client, "/v1/namespace/$/table/list", "ws", "GET").json() == {"tables": ["t"]}
    assert send(client, "/v1/namespace/$/list", "ws", "GET").json() == {"namespaces": []}
    dropped = send(client, "/v1/table/t/drop", "ws").json()
    assert dropped["id"] == ["t"]
    event = AuditEvent.objects.latest("pk")
    assert (event.target, event.interface) == ("ws.t", "lance")


def test_the_identifier_in_a_body_is_relative_too(client):
    assert send(client, "/v1/table/t/exists", "ws", body={"id": ["t"]}).status_code == 200
    refused = send(client, "/v1/table/t/exists", "ws", body={"id": ["ws", "t"]})
    assert (refused.status_code, refused.json()["code"]) == (400, 13)


def test_the_database_itself_is_a_namespace_and_no_table(client):
    make_namespace("empty")
    make_table("empty2")
    created = send(client, "/v1/namespace/$/create", "new", body={"mode": "ExistOk"})
    assert created.status_code == 200
    assert Namespace.objects.named(("new",)).exists()
    for path in ("describe", "drop", "query", "insert", "version/list", "tags/list"):
        with unchanged():
            response = send(client, f"/v1/table/$/{path}", "top", body={})
        assert response.status_code == 400, path
    assert send(client, "/v1/namespace/$/drop", "empty", body={}).status_code == 200


@shared_cases(
    ("database", "status", "code"),
    [
        ("a" * 256, 400, 13),
        ("%00", 400, 13),
        ("a%0Ab", 400, 13),
        ("%FF", 400, 13),
        ("Größe".encode().decode("latin-1"), 400, 13),
        ("x/table", 400, 13),
        # These are names of namespaces that do not exist, not paths.
        ("ws$t", 404, 1),
        ("ws$", 404, 1),
        ("$", 404, 1),
        ("ws.t", 404, 1),
        ("ws%1Ft", 400, 13),
        ("../ws", 404, 1),
        ("ws,other", 404, 1),
        ("%24", 404, 1),
        ("' OR true --", 404, 1),
    ],
)
def test_unusual_names_are_refused_or_missing(client, database, status, code):
    for method, path in (
        ("GET", "/v1/namespace/$/table/list"),
        ("POST", "/v1/table/t/drop"),
        ("POST", "/v1/table/secret/query"),
    ):
        body = {"k": 1} if path.endswith("query") else None
        with unchanged():
            response = send(client, path, database, method, body=body)
        assert response.status_code == status, response.content
        if method == "GET":
            assert response.json()["code"] == code
        assert response["content-type"] == "application/json"
        assert response["phalanx-version"] == "0.3.0"


def test_a_prefix_names_namespaces_in_the_database(client):
    make_table("ws", "eu", "hr", "t2")
    headers = {"x-lancedb-database-prefix": "eu/hr"}
    assert send(client, "/v1/table/t2/exists", "ws", headers=headers).status_code == 200
    for prefix, status in (("eu//hr", 400), ("eu/../hr", 404), ("eu%2Fhr", 404), ("a" * 300, 400)):
        headers = {"x-lancedb-database-prefix": prefix}
        assert send(client, "/v1/table/t2/exists", "ws", headers=headers).status_code == status


def test_an_empty_name_is_the_root(client):
    """As sent for ``db://``. Namespaces of the root are databases."""
    assert send(client, "/v1/table/", "", "GET").json() == {"tables": ["top"]}
    assert send(client, "/v1/table/top/exists", "").status_code == 200
    assert send(client, "/v1/table/ws$t/exists", "").status_code == 200
    assert send(client, "/v1/table/t/exists", "").status_code == 404
    with unchanged():
        assert send(client, "/v1/namespace/$/drop", "", body={}).status_code == 400


def test_percent_encoded_names(client):
    make_table("a b/é", "t")
    assert send(client, "/v1/table/t/exists", "a%20b%2F%C3%A9").status_code == 200


def test_the_header_only_applies_to_paths_of_the_protocol(client):
    answer = send(client, "/management/v1/jobs", "ws", "GET")
    assert answer.status_code == 200
    assert "phalanx-version" not in answer
    assert client.call("GET", "/v1/table").json()["tables"] == ["ws$t", "other$secret", "top"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/table/batch-commit"),
        ("POST", "/v1/table/version/batch-create"),
        ("POST", "/v1/materialized_view/view/create"),
        ("POST", "/v1/table/t/branches/diff"),
        ("GET", "/v1/namespace/$/view/list"),
        ("GET", "/v1/namespace/ws/secret/list"),
        ("GET", "/v1/config"),
        ("GET", "/v1/ws/namespaces"),
    ],
)
def test_other_routes_are_not_supported(client, method, path):
    body = {"operations": [{"deregister_table": {"id": ["other", "secret"]}}]}
    with unchanged():
        response = send(client, path, "ws", method, body=body if method == "POST" else None)
    assert (response.status_code, response.json()["code"]) == (406, 0)
    assert "not supported" in response.json()["error"]


def test_a_repeated_key_of_another_database_is_another_request(client):
    headers = {**STREAM, "idempotency-key": str(uuid.uuid4())}
    first = send(client, "/v1/table/new/create", "ws", raw=stream(ROWS), headers=headers)
    assert first.status_code == 200
    again = send(client, "/v1/table/new/create", "ws", raw=stream(ROWS), headers=headers)
    assert json.loads(again.content)["location"] == json.loads(first.content)["location"]
    with unchanged():
        other = send(client, "/v1/table/new/create", "other", raw=stream(ROWS), headers=headers)
    assert (other.status_code, other.json()["code"]) == (400, 13)
    assert not Table.objects.named(("other", "new")).exists()


@pytest.mark.parametrize(
    ("database", "prefix", "target"),
    [
        ("ws", "", "ws.t"),
        ("%77s", "", "ws.t"),
        ("ws", "eu/h%72", "ws.eu.hr.t"),
        ("%FF", "", "%FF.t"),
    ],
)
def test_refusals_in_the_audit_trail_name_the_database(
    client, monkeypatch, database, prefix, target
):
    delivered = []
    monkeypatch.setattr(refusals.ledger, "deliver", delivered.extend)
    row = principal("reader")
    ApiKey.objects.create(name="reader", principal=row, digest=credentials.key_digest(KEY))
    headers = {"x-lancedb-database-prefix": prefix} if prefix else {}
    response = send(Lance(KEY), "/v1/table/t/drop", database, headers=headers)
    assert response.status_code in {400, 404}
    refusals.ledger.flush()
    (refusal,) = (refusal for refusal, _ in delivered)
    assert target in refusal.kind


def test_a_renamed_table_stays_in_the_database(client):
    make_namespace("ws", "inner")
    body = {"new_table_name": "u", "new_namespace": ["inner"]}
    assert send(client, "/v1/table/t/rename", "ws", body=body).status_code == 200
    assert Table.objects.named(("ws", "inner", "u")).exists()
    with unchanged():
        body = {"new_table_name": "v", "new_namespace": ["other"]}
        response = send(client, "/v1/table/inner$u/rename", "ws", body=body)
    assert (response.status_code, response.json()["code"]) == (404, 1)


def test_the_same_request_in_two_dialects(client):
    """Answers are cached by version and request, so the dialects must not share a spelling."""
    data(client)
    database = Database(client.headers["x-api-key"])
    query = {"k": 1, "vector": {}, "columns": {"column_names": ["id"]}}
    for sender in (client, database):
        response = sender.call("POST", "/v1/table/ws$data/query", query)
        assert pa.ipc.open_file(response.content).read_all().schema.names == ["id"]


def test_routes_of_the_dialect_are_not_those_of_later_requests(client):
    """The live server resolves paths itself; its threads answer requests of all protocols."""
    from config.wsgi import application

    for path in ("/v1/table/t/index/a/stats", "/v1/nothing", "/v1/table/t/describe"):
        request = RequestFactory().post(path, headers={"x-lancedb-database": "ws"})
        view = application.resolve_request(request)[0]
        assert issubclass(view.view_class, DatabaseOperation)
        assert reverse("admin:index") == "/admin/"
    request = RequestFactory().post("/v1/table/t/describe")
    assert (
        application.resolve_request(request)[0].view_class
        is lance_urls.ROUTES["table/{id}/describe"]
    )
