"""The WSGI environment of a request."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from api.front import environ


class Headers:
    def __init__(self, *items: tuple[str, str]) -> None:
        self._items = list(items)

    def items(self) -> list[tuple[str, str]]:
        return self._items


@dataclass
class Scope:
    headers: Headers = field(default_factory=Headers)
    method: str = "GET"
    path: str = "/v1/config"
    query_string: str = "a=%20b"
    http_version: str = "1.1"
    scheme: str = "http"
    client: str = "192.0.2.1:5000"
    server: str = "127.0.0.1:2333"


def build(*items: tuple[str, str], **facts: Any) -> tuple[dict[str, Any], Any]:
    return environ.build(Scope(Headers(*items), **facts))


def test_the_environment_has_all_parts_of_a_request():
    request, error = build(
        ("host", "x"), ("content-type", "a/b"), ("x-a", "1"), ("x-a", "2"), ("cookie", "c=1"),
        ("cookie", "d=2"), client="[2001:db8::1]:5000", path="/ü", http_version="1",
    )  # fmt: skip
    assert error is None
    expected = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/Ã¼",
        "QUERY_STRING": "a=%20b",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "2333",
        "SERVER_PROTOCOL": "HTTP/1.0",
        "REMOTE_ADDR": "2001:db8::1",
        "HTTP_HOST": "x",
        "CONTENT_TYPE": "a/b",
        "HTTP_X_A": "1,2",
        "HTTP_COOKIE": "c=1; d=2",
    }
    assert {name: request[name] for name in expected} == expected


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("x_forwarded_for", "x-forwarded-for"),
        ("x_api_key", "x-api-key"),
        ("if_none_match", "if-none-match"),
        ("content_length", "content-length"),
        ("cookie_", "cookie-"),
    ],
)
def test_a_header_with_an_underscore_is_refused_beside_its_twin(
    name: str, twin: str, is_first: bool
):
    headers = [(name, "9.9.9.9"), (twin, "203.0.113.1")]
    request, error = build(*(headers if is_first else reversed(headers)))
    assert f"'{name}' contains an underscore" in error.message
    assert "9.9.9.9" not in request.values()
    assert not [value for value in request.values() if "9.9.9.9," in str(value)]
    assert not [value for value in request.values() if ",9.9.9.9" in str(value)]


@pytest.mark.parametrize("name", ["x_api_key", "x-api_key", "content_length", "x_forwarded-for"])
def test_header_names_with_an_underscore_are_refused(name: str):
    request, error = build((name, "5"))
    assert "contains an underscore" in error.message
    assert "5" not in request.values()


@pytest.mark.parametrize(
    "name", ["x-api-key", "authorization", "host", "content-type", "idempotency-key"]
)
def test_duplicates_of_some_headers_are_refused(name: str):
    request, error = build((name, "1"), (name, "2"))
    assert error.message == f"The header '{name}' occurs more than once"
    assert "1,2" not in request.values()


def test_a_body_sets_the_content_length():
    request, _ = build(("transfer-encoding", "chunked"))
    environ.set_body(request, b"hello")
    assert request["CONTENT_LENGTH"] == "5"
    assert request["wsgi.input"].read() == b"hello"
    assert "HTTP_TRANSFER_ENCODING" not in request


def test_the_path_of_other_catalogs_is_that_of_the_operation():
    for path, expected in (
        ("/catalog/v1/config", "/v1/config"),
        ("/catalog/v1/oauth/tokens", "/v1/oauth/tokens"),
        ("/api/catalog/v1/config", "/v1/config"),
        ("/api/catalog/v2/config", "/api/catalog/v2/config"),
        ("/catalog/v10", "/catalog/v10"),
        ("/catalog", "/catalog"),
        ("/v1/catalog/v1/x", "/v1/catalog/v1/x"),
    ):
        assert build(path=path)[0]["PATH_INFO"] == expected
