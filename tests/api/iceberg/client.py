"""A small client of the Iceberg protocol over Django's test client."""

import json
import re
from typing import Any
from urllib.parse import quote

from django.http import HttpResponse
from django.test import Client

from tests.factories import fingerprint


def own(answer: Any) -> Any:
    """The description of a namespace without its default location, which it must have."""
    properties = dict(answer["properties"])
    assert re.search(r"^file:///.+-[0-9a-f]{32}$", properties.pop("location"))
    return {**answer, "properties": properties}


def spell(*levels: str) -> str:
    """A namespace in the form of a URL's path."""
    return quote("\x1f".join(levels), safe="")


class Iceberg:
    """Calls operations with a bearer token, and checks that refusals change nothing."""

    def __init__(self, token: str | None = None, prefix: str = "", **headers: str) -> None:
        self.client = Client(raise_request_exception=False)
        self.token = token
        self.headers = {"authorization": f"Bearer {token}", **headers} if token else dict(headers)
        self.root = f"/v1/{prefix}/" if prefix else "/v1/"

    def at(self, prefix: str) -> "Iceberg":
        """The client of a warehouse, with the same token."""
        return Iceberg(self.token, prefix)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request. ``path`` is relative to ``/v1/`` and the prefix, or absolute if it begins
        with a slash."""
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        return self.client.generic(
            method,
            path if path.startswith("/") else self.root + path,
            content,
            content_type="application/json",
            headers={**self.headers, **(headers or {})},
        )

    def send(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The JSON of a successful call; None for a 204."""
        response = self.call(method, path, body, **options)
        if response.status_code == 204:
            assert response.content == b""
            assert "content-type" not in response
            return None
        assert response.status_code == 200, response.content
        assert response["content-type"] == "application/json"
        return response.json()

    def get(self, path: str, **options: Any) -> Any:
        return self.send("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self.send("POST", path, body, **options)

    def delete(self, path: str, **options: Any) -> Any:
        return self.send("DELETE", path, **options)

    def refused(
        self,
        status: int,
        kind: str,
        error: str,
        request: str,
        body: Any = None,
        **options: Any,
    ) -> HttpResponse:
        """Expect a refusal in the Iceberg form whose text holds ``error``, and no changed row.

        ``request`` is the method and the path: ``GET namespaces/a``.
        """
        method, _, path = request.partition(" ")
        before = fingerprint()
        response = self.call(method, path, body, **options)
        assert response["x-request-id"]
        if method == "HEAD":
            assert (response.status_code, response.content) == (status, b"")
        else:
            assert response["content-type"] == "application/json", response.content
            form = response.json()
            assert set(form) == {"error"}
            assert set(form["error"]) == {"message", "type", "code"}
            actual = (response.status_code, form["error"]["code"], form["error"]["type"])
            assert actual == (status, status, kind), form
            assert error in form["error"]["message"], form
        assert fingerprint() == before
        return response
