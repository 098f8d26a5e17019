"""The HTTP connection of a client, and the outcome that an answer means."""

import http.client
import re
import select
from typing import Any
from urllib.parse import urlsplit

import orjson

from tests.chaos.harness.history import FAIL, OK, UNKNOWN, Operation

_LANCE = {
    1: "missing",
    4: "missing",
    5: "exists",
    11: "no version",
    14: "conflict",
    19: "newest",  # the newest version is not deleted
}
_ICEBERG = {
    "NoSuchTableException": "missing",
    "NoSuchNamespaceException": "missing",
    "AlreadyExistsException": "exists",
    "CommitFailedException": "conflict",
}
_ELSEWHERE = re.compile("outside the table's location|does not belong to table")
_CLOCK = re.compile("Invalid snapshot timestamp")
_UNAVAILABLE = {408, 429, 503}
_UNANSWERED = {500, 502, 504}


class NotSent(Exception):
    """The connection was refused, so the request did not reach a server."""


class Connection:
    """A persistent connection; ``url`` may be that of a proxy. Requests are never repeated.

    It uses the standard library, because a request through urllib3 takes twice as long.
    """

    def __init__(self, url: str, key: str, timeout: float = 20.0) -> None:
        self._headers = {"x-api-key": key, "content-type": "application/json"}
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)

    def send(
        self,
        operation: Operation,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        **headers: str,
    ) -> dict[str, Any]:
        """Fill in the outcome; returns the answer's body. Raises NotSent."""
        self._connect()
        content = None if body is None and method == "GET" else orjson.dumps(body or {})
        try:
            names = self._headers | {"x-request-id": operation.id} | headers
            self._http.request(method, path, content, names)
            answer = self._http.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            operation.outcome, operation.message = UNKNOWN, f"{type(error).__name__}: {error}"
            return {}
        return _record(operation, answer.status, data)

    def _connect(self) -> None:
        if self._http.sock is not None and select.select([self._http.sock], [], [], 0)[0]:
            self._http.close()  # the server has closed it
        if self._http.sock is None:
            try:
                self._http.connect()
            except OSError as error:
                self._http.close()
                raise NotSent from error

    def close(self) -> None:
        self._http.close()


def _record(operation: Operation, status: int, data: bytes) -> dict[str, Any]:
    """Fill in the outcome of an answer, and return its body."""
    operation.status = status
    content = _parse(data)
    if status < 300:
        operation.outcome = OK
        return content
    operation.message = data[:500].decode("utf-8", "replace")
    if status in _UNANSWERED:
        operation.outcome = UNKNOWN
    else:
        operation.outcome = FAIL
        operation.output = {"error": _refusal(status, content)}
    return content


def _parse(data: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(data or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _refusal(status: int, content: dict[str, Any]) -> str:
    """The refusal in the terms of the model, which are the same for both protocols."""
    error = content.get("error")
    if "unexpected server error" in str(error):
        return f"unexpected {status}"
    if status in _UNAVAILABLE or "nothing was changed" in str(error):
        # Iceberg's clients interpret a 5xx as an unknown outcome, so definite failures are 409.
        return "unavailable"
    if status == 400 and _ELSEWHERE.search(str(error)):
        return "elsewhere"
    if status == 400 and _CLOCK.search(str(error)):
        return "clock"  # the clocks of server and client differ by more than a minute
    if isinstance(error, dict):  # Iceberg
        return _ICEBERG.get(error.get("type", ""), f"unexpected {status}")
    if "code" in content:  # Lance
        return _LANCE.get(content["code"], f"unexpected {status}")
    return {404: "missing", 409: "exists"}.get(status, f"unexpected {status}")  # management
