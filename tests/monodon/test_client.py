"""The client matches the OpenAPI document of the management API."""

import importlib.util
import inspect
import json
from pathlib import Path

import httpx
import pytest

from monodon.client import Client, RequestFailed, Unreachable, pages
from monodon.client.operations import ManagementOperations

pytestmark = pytest.mark.xdist_group("documents")  # the document is generated once

PROJECT = Path(__file__).resolve().parents[2]


def load_generator():
    spec = importlib.util.spec_from_file_location("client_generator", PROJECT / ".ci" / "client.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator():
    return load_generator()


@pytest.fixture(scope="module")
def document(generator):
    return generator.document()


def test_every_operation_has_a_method_with_its_parameters(generator, document):
    operations = [
        operation for methods in document["paths"].values() for operation in methods.values()
    ]
    assert len(operations) > 90
    names = set()
    for operation in operations:
        name = generator.method_name(operation["operationId"])
        names.add(name)
        parameters = inspect.signature(getattr(ManagementOperations, name)).parameters
        body = generator._body(operation, document["components"]["schemas"])
        expected = [parameter["name"] for parameter in operation.get("parameters", [])]
        expected += body.get("properties", {})
        assert set(parameters) - {"self"} == {generator.variable(text) for text in expected}, name
        required = {p["name"] for p in operation.get("parameters", []) if p.get("required")}
        required |= set(body.get("required", ()))
        assert {
            text for text, p in parameters.items() if p.default is p.empty and text != "self"
        } == {generator.variable(text) for text in required}, name
    defined = {name for name in vars(ManagementOperations) if not name.startswith("_")}
    assert defined == names


def test_the_generated_files_are_current(generator, document):
    for name, source in generator.sources(document).items():
        path = PROJECT / "monodon" / "client" / name
        assert path.read_text() == source, f"{name} is outdated: run make client"


# -- requests


def client_of(handler, **options) -> Client:
    return Client("http://server/", "the-key", transport=httpx.MockTransport(handler), **options)


def test_names_are_sent_with_a_delimiter_that_they_do_not_contain():
    requests = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append((request.method, request.url.raw_path.decode(), request.headers))
        return httpx.Response(200, json={})

    with client_of(handler) as client:
        client.plan_maintenance(("prod", "a.b"))
        client.plan_maintenance(("prod", "a$b"))
        client.plan_maintenance("prod$a/b")
        client.list_jobs(table=("x", "y$"), limit=3)
    paths = [path for _, path, _ in requests]
    assert paths == [
        "/management/v1/tables/prod%24a.b/plan",
        "/management/v1/tables/prod%7Ca%24b/plan?delimiter=%7C",
        "/management/v1/tables/prod%24a%2Fb/plan",
        "/management/v1/jobs?limit=3&table=x%7Cy%24&delimiter=%7C",
    ]
    assert {headers["x-api-key"] for _, _, headers in requests} == {"the-key"}


def test_only_fields_that_are_set_are_sent():
    bodies = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(201, json={})

    client = client_of(handler)
    client.create_key(principal="etl", name="k")
    client.create_key(principal="etl", name="k", expires_at=None)
    assert bodies == [
        {"principal": "etl", "name": "k"},
        {"principal": "etl", "name": "k", "expires_at": None},
    ]


def test_pages_follow_the_token():
    def handler(request: httpx.Request) -> httpx.Response:
        token = request.url.params.get("page_token")
        assert request.url.params["status"] == "failed"
        following = {None: "2", "2": None}[token]
        return httpx.Response(200, json={"jobs": [token], "next_page_token": following})

    assert list(pages(client_of(handler).list_jobs, status="failed")) == [None, "2"]


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [
        (
            {"type": "urn:monodon:job-not-found", "title": "t", "detail": "Job 7 does not exist"},
            "Job 7 does not exist",
            "job-not-found",
        ),
        (
            {"error": {"message": "No table", "type": "NoSuchTableException", "code": 404}},
            "No table",
            "NoSuchTableException",
        ),
        ({"error": "No table.", "code": 4, "detail": "Look again"}, "No table. Look again", "4"),
        ([], "The server answered with 404 Not Found", ""),
    ],
)
def test_errors_of_all_interfaces(content, message, code):
    client = client_of(
        lambda request: httpx.Response(404, json=content, headers={"x-request-id": "r1"})
    )
    with pytest.raises(RequestFailed) as caught:
        client.get_job(7)
    assert (str(caught.value), caught.value.code) == (message, code)
    assert (caught.value.status, caught.value.request_id) == (404, "r1")


def test_a_server_that_does_not_answer():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    def close(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("closed", request=request)

    with pytest.raises(Unreachable, match="No server answers at http://server"):
        client_of(refuse).get_job(1)
    with pytest.raises(Unreachable, match="use a URL with https"):
        client_of(close).get_job(1)
    with pytest.raises(Unreachable, match="does not answer like a Monodon server"):
        client_of(lambda request: httpx.Response(200, text="<html>")).get_job(1)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_another_program_at_the_url(status):
    """It has none of the paths, and answers with a page."""
    client = client_of(lambda request: httpx.Response(status, text="<html>"))
    with pytest.raises(Unreachable, match=rf"does not answer like a Monodon server \({status} "):
        client.get_job(1)
    with pytest.raises(Unreachable):
        list(client.export_audit())


def test_a_page_of_a_proxy_keeps_its_status():
    client = client_of(lambda request: httpx.Response(502, text="<html>"))
    with pytest.raises(RequestFailed, match="answered with 502 Bad Gateway") as caught:
        client.get_job(1)
    assert caught.value.status == 502


def test_streams_raise_the_errors_of_their_answers():
    client = client_of(lambda request: httpx.Response(403, json={"detail": "Not permitted"}))
    with pytest.raises(RequestFailed, match="Not permitted"):
        list(client.export_audit())


def test_a_redirect_is_not_followed():
    """The key belongs to the URL. An empty answer must not pass for success."""
    requests = []

    def redirect(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(301, headers={"location": "https://elsewhere/"})

    client = client_of(redirect)
    for call in (client.get_summary, lambda: list(client.export_audit())):
        with pytest.raises(Unreachable, match="redirects to https://elsewhere/"):
            call()
    assert len(requests) == 2


@pytest.mark.parametrize(
    "read",
    [
        lambda client: pages(client.list_keys),
        lambda client: client.list_lance_tables(("a",)),
        lambda client: client.list_iceberg_tables(("a",)),
    ],
)
def test_pages_that_never_end_are_an_error(read):
    page = {"keys": [], "tables": [], "identifiers": []}
    tokens = dict.fromkeys(("next_page_token", "page_token", "next-page-token"), "same")
    client = client_of(lambda request: httpx.Response(200, json=page | tokens))
    with pytest.raises(Unreachable, match="the same page twice"):
        list(read(client))


def test_names_of_dots_do_not_lead_to_another_path():
    paths = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append((request.method, request.url.raw_path.decode()))
        return httpx.Response(204)

    client = client_of(handler)
    client.drop_iceberg(("prod", ".."), "tables")
    client.drop_namespace(("..",))
    client.revoke_key(".")
    assert paths == [
        ("DELETE", "/v1/namespaces/prod/tables/%2E%2E"),
        ("POST", "/v1/namespace/%2E%2E/drop"),
        ("POST", "/management/v1/keys/%2E/revoke"),
    ]


@pytest.mark.parametrize(
    ("url", "is_direct"),
    [
        ("http://127.0.0.1:2333", True),
        ("https://localhost", True),
        ("http://[::1]:2333", True),
        ("http://10.0.0.1", False),
        ("https://localhost.example.com", False),
    ],
)
def test_no_proxy_gets_the_key_for_a_server_on_this_machine(monkeypatch, url, is_direct):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://proxy:3128")
    with Client(url, "key") as client:
        http = client._http()
        assert (http._transport_for_url(httpx.URL(url)) is http._transport) is is_direct
