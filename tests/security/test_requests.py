"""Requests to each of the three APIs that are too large, too deeply nested, or contain line breaks."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from django.http import HttpResponse

from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged

pytestmark = pytest.mark.django_db

PATHS = {
    "lance": "/v1/namespace/new/create",
    "iceberg": "/v1/namespaces",
    "management": "/management/v1/labels",
}


@pytest.fixture
def send(lance) -> Callable[..., HttpResponse]:
    def call(method: str, path: str, raw: bytes = b"") -> HttpResponse:
        return lance.call(method, path, raw=raw)

    return call


DEEP: dict[str, bytes] = {
    "lists": b'{"properties": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "unended": b'{"a":[' * 200_000,
    "deep enough": b'{"properties": ' + b"[" * 900 + b"]" * 900 + b"}",
    "no object": b"[]",
    "a long number": b'{"properties": ' + b"9" * 1_000_000 + b"}",
    "no number": b'{"properties": NaN}',
    "no text": b'{"name": "\xff\xfe"}',
    "half a surrogate": b'{"name": "\\ud800", "namespace": ["\\ud800"], "key": "\\ud800"}',
    "a NUL": b'{"name": "a\\u0000b", "namespace": ["a\\u0000b"], "key": "a\\u0000b",'
    b' "properties": {"a": "b\\u0000"}}',
}


@shared_cases("body", DEEP)
@shared_cases("interface", PATHS)
def test_an_invalid_body_is_refused(send, interface, body):
    with unchanged():
        answer = send("POST", PATHS[interface], DEEP[body])
    assert 400 <= answer.status_code < 500, answer.content[:500]


@pytest.mark.parametrize("interface", PATHS)
def test_a_body_that_is_too_large_is_refused(send, settings, interface):
    settings.MONODON_MAX_BODY_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000
    with unchanged():
        answer = send("POST", PATHS[interface], b'{"properties": {"a": "' + b"x" * 20_000 + b'"}}')
    assert answer.status_code in {400, 413}, answer.content[:500]


BREAKS = [
    "a\r\nx-evil: 1",
    "a\nx-evil: 1",
    "a\rb",
    "a\u2028b",
    "a\u0085x-evil: 1",
    'a"; x="',
    "a\x00",
]


@pytest.mark.parametrize("name", BREAKS)
def test_names_cannot_inject_headers(send, name):
    make_namespace("ns")
    make_table("ns", "t")
    make_iceberg_table("ns", "i")
    spelled = quote(name, safe="")
    requests: list[tuple[str, str]] = [
        ("POST", f"/v1/namespace/{spelled}/create"),
        ("POST", f"/v1/table/ns${spelled}/declare"),
        ("POST", f"/v1/table/ns${spelled}/describe"),
        ("GET", f"/v1/namespaces/{spelled}"),
        ("HEAD", f"/v1/namespaces/ns/tables/{spelled}"),
        ("GET", f"/v1/namespaces/ns/tables/{spelled}"),
        ("GET", f"/management/v1/audit/export?format=csv&target={spelled}"),
        ("GET", f"/management/v1/labels/{spelled}"),
        ("GET", f"/management/v1/events?after={spelled}"),
        ("GET", f"/management/v1/webhooks/{spelled}"),
        ("GET", f"/{spelled}"),
        ("GET", f"/admin/{spelled}"),
    ]
    for method, path in requests:
        answer = send(method, path, b"{}" if method == "POST" else b"")
        assert answer.status_code < 500, (path, answer.content[:300])
        headers: Any = answer.headers
        assert "x-evil" not in headers
        for header, value in headers.items():
            assert not set("\r\n\x00") & set(header + value), (path, header, value)
