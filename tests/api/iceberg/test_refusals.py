"""Errors that any route may answer. Each has the Iceberg form, and changes nothing."""

import json
import logging
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, close_old_connections, connection
from django.test.utils import CaptureQueriesContext

from api import operation
from api.iceberg.views import namespaces as views
from api.operation import MAX_DEPTH, parse_object
from catalog.access import SYSTEM
from catalog.errors import InvalidInput, OutcomeUnknown, ServiceUnavailable
from catalog.models import Namespace
from catalog.services.access import api_keys
from catalog.services.engine import batch, commit
from catalog.services.storage import namespace_locations
from catalog.services.tables import namespaces
from tests.api.iceberg.client import Iceberg
from tests.factories import make_namespace, make_root, unchanged

WITH_BODY = ["namespaces", "namespaces/ws/properties"]


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()
    make_namespace("ws")


# --- authentication ---------------------------------------------------------------------------------

EVERY = [
    ("GET", "config", None),
    ("GET", "namespaces", None),
    ("POST", "namespaces", {"namespace": ["new"]}),
    ("GET", "namespaces/ws", None),
    ("HEAD", "namespaces/ws", None),
    ("DELETE", "namespaces/ws", None),
    ("POST", "namespaces/ws/properties", {"updates": {"k": "v"}}),
    ("GET", "tables/nothing", None),
]


@pytest.mark.parametrize(("method", "path", "body"), EVERY)
def test_credentials_are_required(method, path, body):
    for token, error in ((None, "No API key was given"), ("mnd_no_such_key", "unknown, expired")):
        response = Iceberg(token).refused(
            401, "NotAuthorizedException", error, f"{method} {path}", body
        )
        assert response["www-authenticate"] == "Bearer"


def test_an_api_key_in_its_own_header():
    _, key = api_keys.create_api_key(actor=SYSTEM, name="own")
    assert Iceberg(**{"x-api-key": key}).get("namespaces/ws")["namespace"] == ["ws"]


@pytest.mark.parametrize(
    ("granted", "read", "write"), [("none", 401, 401), ("read", 200, 403), ("admin", 200, 200)]
)
def test_anonymous(settings, granted, read, write):
    settings.MONODON_ANONYMOUS = granted
    nobody = Iceberg()
    assert nobody.call("GET", "namespaces").status_code == read
    assert nobody.call("POST", "namespaces", {"namespace": ["new"]}).status_code == write


# --- bodies -----------------------------------------------------------------------------------------


NO_BODIES = [
    b"",
    b"{",
    b"nonsense",
    b"[]",
    b"null",
    b'"text"',
    b"1",
    b"NaN",
    b"\xff\xfe",
    b'{"namespace": ["\\ud800"]}',
    b'{"namespace": ["\x00"]}',
    b"{}{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
]


@pytest.mark.parametrize("path", WITH_BODY)
def test_bad_json(iceberg: Iceberg, path):
    with unchanged():
        for raw in NO_BODIES:
            response = iceberg.call("POST", path, raw=raw)
            actual = response.status_code, response.json()["error"]["type"]
            assert actual == (400, "BadRequestException"), raw[:40]


def nested(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(levels - 1):
        body = {"a": body}
    return body


def test_nesting():
    assert parse_object(json.dumps(nested(MAX_DEPTH)).encode()) == nested(MAX_DEPTH)
    with pytest.raises(InvalidInput, match="nested deeper than 200 levels"):
        parse_object(json.dumps(nested(MAX_DEPTH + 1)).encode())
    lists = b'{"a": ' + b"[" * 199 + b"]" * 199 + b"}"
    assert parse_object(lists)
    with pytest.raises(InvalidInput, match="nested deeper"):
        parse_object(lists.replace(b"[]", b"[[]]"))
    wide = {"a": [[{}] for _ in range(1000)]}
    assert parse_object(json.dumps(wide).encode()) == wide


def test_integers_are_exact():
    text = b'{"a": 9223372036854775807, "b": -9223372036854775808}'
    assert parse_object(text) == {"a": 2**63 - 1, "b": -(2**63)}


def test_nul_anywhere():
    for body in ({"a": "\0"}, {"\0": 1}, {"a": [{"b": ["x", "y\0"]}]}, {"a": {"b\0": {}}}):
        with pytest.raises(InvalidInput, match="NUL character"):
            parse_object(json.dumps(body).encode())
    harmless = {"a": "\\u0000", "b": ["\\", "u0000"]}
    assert parse_object(json.dumps(harmless).encode()) == harmless


@pytest.mark.parametrize("path", WITH_BODY)
def test_a_body_that_is_too_large(iceberg: Iceberg, path, settings):
    settings.MONODON_MAX_BODY_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    fits = b'{"namespace": ["new"]}'
    error = "larger than 1000 bytes"
    raw = fits + b" " * (1001 - len(fits))
    iceberg.refused(413, "BadRequestException", error, f"POST {path}", raw=raw)
    assert iceberg.call("POST", path, raw=raw[:1000]).status_code == 200


def test_a_long_query_is_not_cached(iceberg: Iceberg):
    cached_before = operation._parse_known.cache_info().currsize
    for number in range(10):
        path = f"config?x{number}={'x' * 1000}"
        assert Iceberg().call("GET", path).status_code == 401
        iceberg.get(path)
    assert operation._parse_known.cache_info().currsize == cached_before


def test_a_query_of_many_parameters(iceberg: Iceberg):
    query = "&".join(f"a{n}={n}" for n in range(100))
    assert iceberg.get(f"namespaces?{query}")["namespaces"] == [["ws"]]
    request = f"GET namespaces?{query}&more=1"
    iceberg.refused(400, "BadRequestException", "more than 100 parameters", request)


# --- bugs and outages -------------------------------------------------------------------------------


def raising(error: Exception) -> Any:
    def raise_(*_: object, **__: object) -> None:
        raise error

    return raise_


def test_a_bug_is_reported_without_its_stack(iceberg: Iceberg, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(namespace_locations, "describe", raising(ZeroDivisionError("a secret")))
    headers = {"x-request-id": "r-7"}
    response = iceberg.refused(
        500, "InternalServerError", "request id r-7", "GET namespaces/ws", headers=headers
    )
    assert "secret" not in response.content.decode()
    assert "Traceback" not in response.content.decode()
    monkeypatch.setattr(namespaces, "require_namespace", raising(ZeroDivisionError("a secret")))
    iceberg.refused(500, "", "", "HEAD namespaces/ws")


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_an_unreachable_database_is_reported(iceberg: Iceberg, monkeypatch, error):
    monkeypatch.setattr(namespaces, "list_children", raising(error("host=secret")))
    response = iceberg.refused(
        503, "SlowDownException", "database is not available", "GET namespaces"
    )
    assert response["retry-after"] == "1"
    assert "secret" not in response.content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_broken_connection_is_replaced(monkeypatch):
    _, key = api_keys.create_api_key(actor=SYSTEM, name="healing")
    client = Iceberg(key)
    client.get("namespaces")
    real = namespaces.list_children

    def broken(**options: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return real(**options)

    with monkeypatch.context() as patch:
        patch.setattr(namespaces, "list_children", broken)
        assert client.call("GET", "namespaces").status_code == 503
    close_old_connections()  # Django does this after every request; the test client does not
    assert client.call("GET", "namespaces").status_code == 200


@pytest.fixture
def committing(monkeypatch):
    """Treat 5xx answers of createNamespace as unknown outcomes."""
    monkeypatch.setattr(views.CreateNamespace, "is_commit", True)
    return monkeypatch


@pytest.mark.parametrize(
    "error", [ServiceUnavailable("busy"), OperationalError("away"), ZeroDivisionError("bug")]
)
def test_a_certainly_failed_commit_is_a_409(iceberg: Iceberg, committing, caplog, error):
    caplog.set_level(logging.CRITICAL)
    committing.setattr(commit, "insert", raising(error))
    committing.setattr(commit, "insert_together", raising(error))
    response = iceberg.refused(
        409,
        "CommitFailedException",
        "nothing was changed",
        "POST namespaces",
        {"namespace": ["new"]},
    )
    assert ("retry-after" in response) == (not isinstance(error, ZeroDivisionError))


def test_an_unreachable_database_before_the_commit(iceberg: Iceberg, committing):
    committing.setattr(
        "api.credentials.authentication.authenticate", raising(OperationalError("away"))
    )
    body = {"namespace": ["new"]}
    error = "nothing was changed"
    iceberg.refused(409, "CommitFailedException", error, "POST namespaces", body)


@pytest.mark.parametrize(
    "error", [ServiceUnavailable("busy"), OperationalError("away"), ZeroDivisionError("bug")]
)
def test_an_error_after_the_commit_is_an_unknown_outcome(
    iceberg: Iceberg, committing, caplog, error
):
    caplog.set_level(logging.CRITICAL)
    committing.setattr(batch.Batch, "finish", raising(error))
    response = iceberg.call("POST", "namespaces", {"namespace": ["new"]})
    form = response.json()["error"]
    assert (response.status_code, form["type"]) == (500, "CommitStateUnknownException")
    assert Namespace.objects.filter(name="new").exists()


def test_an_unknown_outcome(iceberg: Iceberg, committing):
    committing.setattr(views, "commit", raising(OutcomeUnknown("lost while committing")))
    body = {"namespace": ["new"]}
    iceberg.refused(500, "CommitStateUnknownException", "lost while", "POST namespaces", body)


# --- statements -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "namespaces"),
        ("GET", "namespaces?parent=ws&pageSize=5&pageToken="),
        ("GET", "/v1/ws/namespaces"),
        ("GET", "namespaces/ws"),
        ("HEAD", "namespaces/ws"),
        ("GET", "config?warehouse=ws"),
    ],
)
def test_reads_take_one_statement(iceberg: Iceberg, method, path):
    iceberg.get("config")  # the key is in the cache now
    with CaptureQueriesContext(connection) as captured:
        assert iceberg.call(method, path).status_code in {200, 204}
    assert len(captured) == 1


def test_an_update_locks_before_it_writes(iceberg: Iceberg):
    with CaptureQueriesContext(connection) as captured:
        iceberg.post("namespaces/ws/properties", {"updates": {"k": "v"}})
    texts = [query["sql"] for query in captured.captured_queries]
    lock = next(i for i, sql in enumerate(texts) if "FOR NO KEY UPDATE" in sql)
    write = next(i for i, sql in enumerate(texts) if sql.startswith('UPDATE "catalog_namespace"'))
    assert lock < write
    assert "ORDER BY" in texts[lock]
