"""A small client of the management API over Django's test client."""

import json
from typing import Any

from django.http import HttpResponse
from django.test import Client

from tests.factories import fingerprint


class Management:
    """Calls operations with an API key, and checks that refusals change nothing.

    Paths are relative to ``/management/v1/``, or absolute if they begin with a slash.
    """

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
            path if path.startswith("/") else f"/management/v1/{path}",
            content,
            content_type="application/json",
            headers={**self.headers, **(headers or {})},
        )

    def send(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """The JSON of a successful call; None for a 204."""
        response = self.call(method, path, body)
        assert response.status_code == status, response.content
        if status == 204:
            assert response.content == b""
            assert "content-type" not in response
            return None
        assert response["content-type"] == "application/json"
        return response.json()

    def get(self, path: str) -> Any:
        return self.send("GET", path)

    def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        return self.send("POST", path, body, status=status)

    def put(self, path: str, body: Any) -> Any:
        return self.send("PUT", path, body)

    def delete(self, path: str) -> None:
        self.send("DELETE", path, status=204)

    def refused(
        self, status: int, kind: str, detail: str, request: str, body: Any = None, **options: Any
    ) -> HttpResponse:
        """Expect a problem of this type whose detail holds a text, and no changed row.

        ``request`` is the method and the path: ``GET jobs``.
        """
        method, _, path = request.partition(" ")
        before = fingerprint()
        response = self.call(method, path, body, **options)
        assert response["x-request-id"]
        if method == "HEAD":
            assert (response.status_code, response.content) == (status, b"")
        else:
            assert response["content-type"] == "application/problem+json", response.content
            problem = response.json()
            assert set(problem) == {"type", "title", "status", "detail", "instance", "request_id"}
            assert (response.status_code, problem["type"]) == (status, f"urn:monodon:{kind}"), (
                problem
            )
            assert problem["status"] == status
            assert detail in problem["detail"], problem
            assert problem["instance"].startswith("/management")
            assert problem["request_id"] == response["x-request-id"]
        assert fingerprint() == before
        return response
