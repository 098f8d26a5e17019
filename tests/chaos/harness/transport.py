"""One HTTP connection of a client, and what an answer means to the history."""

import json
import re
from typing import Any

import urllib3

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
_UNAVAILABLE = {408, 429, 503}
_UNANSWERED = {500, 502, 504}


class NotSent(Exception):
    """The connection was refused, so nothing reached a server."""


class Connection:
    """``url`` may be that of a proxy. Nothing is ever sent twice."""

    def __init__(self, url: str, key: str, timeout: float = 20.0) -> None:
        self._url = url
        self._headers = {"x-api-key": key, "content-type": "application/json"}
        self._pool = urllib3.PoolManager(maxsize=1, retries=False, timeout=timeout)

    def send(
        self,
        operation: Operation,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        **headers: str,
    ) -> dict[str, Any]:
        """Fill in the outcome; returns the answer's body. Raises NotSent."""
        try:
            answer = self._pool.request(
                method,
                self._url + path,
                body=None if body is None and method == "GET" else json.dumps(body or {}).encode(),
                headers=self._headers | {"x-request-id": operation.id} | headers,
            )
        except urllib3.exceptions.NewConnectionError as error:
            raise NotSent from error
        except urllib3.exceptions.HTTPError as error:
            operation.outcome, operation.message = UNKNOWN, f"{type(error).__name__}: {error}"
            return {}
        operation.status = answer.status
        content = _parse(answer.data)
        if answer.status < 300:
            operation.outcome = OK
            return content
        operation.message = answer.data[:500].decode("utf-8", "replace")
        if answer.status in _UNANSWERED:
            operation.outcome = UNKNOWN
        else:
            operation.outcome = FAIL
            operation.output = {"error": _refusal(answer.status, content)}
        return content

    def close(self) -> None:
        self._pool.clear()


def _parse(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _refusal(status: int, content: dict[str, Any]) -> str:
    """The refusal in the words of the model, which has one vocabulary for both protocols."""
    error = content.get("error")
    if "unexpected server error" in str(error):
        return f"unexpected {status}"
    if status in _UNAVAILABLE or "nothing was changed" in str(error):
        # Iceberg's clients take a 5xx for an unknown outcome; what surely failed comes as a 409.
        return "unavailable"
    if status == 400 and _ELSEWHERE.search(str(error)):
        return "elsewhere"
    if isinstance(error, dict):  # Iceberg
        return _ICEBERG.get(error.get("type", ""), f"unexpected {status}")
    if "code" in content:  # Lance
        return _LANCE.get(content["code"], f"unexpected {status}")
    return {404: "missing", 409: "exists"}.get(status, f"unexpected {status}")  # management
