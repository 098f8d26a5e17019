"""The Host header: other names than those of this server are refused, in the form of each protocol."""

import pytest
from django.test import Client

from tests.cases import shared_cases
from tests.factories import make_table, unchanged

pytestmark = pytest.mark.django_db
WRONG = [
    "evil.example.com",
    "evil.example.com:2333",
    "localhost.evil.com",
    "127.0.0.1.evil.com",
    "10.0.0.7:2333",
    "",
    "a b",
    "localhost@evil.com",
    "x" * 5_000,
    "[::2]",
    "localhost:x",
]
RIGHT = [
    "localhost",
    "LOCALHOST:2333",
    "127.0.0.1:2333",
    "[::1]:2333",
    "catalog.example.com",
    "a.b.example.org",
]


@pytest.fixture(autouse=True)
def hosts(settings) -> None:
    settings.ALLOWED_HOSTS = [
        *("localhost", "127.0.0.1", "[::1]", "catalog.example.com", ".example.org"),
    ]


def send(lance, method: str, path: str, host: str, body: bytes = b"{}"):
    return lance.call(method, path, raw=body, headers={"host": host})


@shared_cases(
    "host",
    WRONG,
    prepare=lambda: make_table("ws", "t"),
)
def test_a_wrong_host_is_refused_by_lance(lance, host):
    with unchanged():
        answer = send(lance, "POST", "/v1/namespace/new/create", host)
    assert (answer.status_code, answer.json()["code"]) == (400, 13)
    assert "is not one of this server" in answer.json()["error"]
    answer = send(lance, "POST", "/v1/table/ws$t/describe", host)
    assert (answer.status_code, answer.json()["code"]) == (400, 13)


@shared_cases("host", WRONG)
@shared_cases(
    ("method", "path"),
    [("GET", "/v1/config"), ("POST", "/v1/namespaces"), ("POST", "/v1/oauth/tokens")],
)
def test_a_wrong_host_is_refused_by_iceberg(lance, host, method, path):
    with unchanged():
        answer = send(lance, method, path, host, b'{"namespace": ["new"]}')
    assert answer.status_code == 400
    if "oauth" not in path:  # its errors are those of RFC 6749
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("BadRequestException", 400)
        assert "is not one of this server" in error["message"]


@shared_cases("host", WRONG)
def test_a_wrong_host_is_refused_by_the_management_api(lance, host):
    answer = send(lance, "GET", "/management/v1/keys", host)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:monodon:invalid-input")


@shared_cases("host", ["evil.example.com", "10.0.0.7:2333"])
@shared_cases("path", ["/admin/login/", "/docs", "/help/", "/schema/lance", "/nowhere", "/"])
def test_a_wrong_host_is_refused_by_pages(path, host):
    answer = Client(raise_request_exception=False).get(path, headers={"host": host})
    assert answer.status_code == 400


@pytest.mark.parametrize("host", RIGHT)
def test_the_names_of_the_server_are_answered(lance, host):
    make_table("ws", "t")
    assert send(lance, "POST", "/v1/table/ws$t/describe", host).status_code == 200
    assert send(lance, "GET", "/v1/config", host, b"").status_code == 200
    assert send(lance, "GET", "/", host, b"").status_code == 302


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
def test_probes_by_address_are_answered(path):
    """Kubernetes uses the address of a pod."""
    answer = Client().get(path, headers={"host": "10.244.1.7:2333"})
    assert answer.status_code in {200, 503}
    assert answer.status_code == 200 or path == "/health/ready"
