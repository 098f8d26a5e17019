"""A small client of the Lance protocol over Django's test client."""

import base64
import json
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from django.http import HttpResponse
from django.test import Client

from tests.factories import fingerprint


def spell(*names: str, delimiter: str = "$") -> str:
    """An identifier in the form of a URL's path."""
    return quote(delimiter.join(names) if names else delimiter, safe="")


class Lance:
    """Calls operations with an API key, and checks that refusals change nothing."""

    def __init__(self, key: str | None = None, **headers: str) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = {"x-api-key": key, **headers} if key else dict(headers)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> HttpResponse:
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        return self.client.generic(
            method,
            path,
            content,
            content_type="application/json",
            headers={**self.headers, **(headers or {})},
        )

    def send(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        """The JSON of a successful call; None for an empty answer."""
        response = self.call(method, path, body, **options)
        assert response.status_code == status, response.content
        if not response.content:
            return None
        assert response["content-type"] == "application/json"
        return response.json()

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self.send("POST", path, body, **options)

    def get(self, path: str, **options: Any) -> Any:
        return self.send("GET", path, **options)

    def refused(
        self,
        status: int,
        code: int,
        error: str,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        **options: Any,
    ) -> HttpResponse:
        """Expect a refusal in the Lance form whose text holds ``error``, and no changed row."""
        before = fingerprint()
        response = self.call(method, path, body, **options)
        assert response["content-type"] == "application/json", response.content
        form = response.json()
        assert (response.status_code, form.get("code")) == (status, code), form
        assert error in form["error"], form
        assert form["instance"]
        assert response["x-request-id"]
        assert fingerprint() == before
        return response


def stream(table: pa.Table, *, max_chunksize: int | None = None) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max_chunksize)
    return sink.getvalue().to_pybytes()


def encoded_schema(schema: pa.Schema) -> str:
    """A schema in the JSON form of requests."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()
