"""Requests for small JSON documents: without redirects, and with bounds on size and time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from monodon.client.transport import is_loopback
from monodon.sign_on.errors import SignOnFailed, SignOnUnavailable

if TYPE_CHECKING:
    import httpx

_MAX_BYTES = 512 * 1024
_STEP_SECONDS, _WHOLE_SECONDS = 5.0, 15.0
_LONGEST_URL = 2000


def require_safe(url: object, name: str) -> str:
    """Return the URL if it is https, or http on this machine. Raises SignOnFailed, with the URL's ``name``."""
    text = url if isinstance(url, str) else ""
    try:
        parts = urlsplit(text)
        is_valid = bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        is_valid = False
    # ASCII, so that the address on the screen is the one that is opened.
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' "<>\\^`{|}')
    if not (is_valid and is_plain) or len(text) > _LONGEST_URL:
        raise SignOnFailed(f"{name} is not a URL")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(text)):
        raise SignOnFailed(f"{name}, {text}, does not begin with https://")
    return text


def origin(url: str) -> tuple[str, str | None, int]:
    """The scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80}.get(parts.scheme, 443)


class Requests:
    """Sends requests to one origin. Use it as a context manager.

    The proxies of the environment apply, except to this machine.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        import httpx

        self._url = url
        self._http = httpx.Client(
            # Compressed answers could be larger than they are allowed to be.
            headers={"user-agent": "monodon-client", "accept-encoding": "identity"},
            timeout=_STEP_SECONDS,
            transport=transport,
            mounts={"http://": None, "https://": None} if is_loopback(url) else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, url: str, form: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object at a URL; empty if the answer is not a JSON object.

        With ``form``, the request is a POST. Raises SignOnUnavailable, and SignOnFailed for a redirect or an
        answer that is too large.
        """
        import httpx

        if origin(url) != origin(self._url):
            raise ValueError("a request to another origin")
        verb = "GET" if form is None else "POST"
        headers = {"accept": "application/json"}
        try:
            with self._http.stream(verb, url, data=form, headers=headers) as response:
                return response.status_code, self._object(response)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            # Without the text of the error, which may name the content of the request.
            raise SignOnUnavailable(
                f"{self._url} does not answer ({type(error).__name__})"
            ) from None

    def _object(self, response: httpx.Response) -> dict[str, Any]:
        if 300 <= response.status_code < 400:
            target = response.headers.get("location", "another address")[:_LONGEST_URL]
            raise SignOnFailed(f"{self._url} redirects to {target}, which is not followed")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise SignOnFailed(f"{self._url} answers with compressed content")
        deadline, content = time.monotonic() + _WHOLE_SECONDS, b""
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > _MAX_BYTES:
                raise SignOnFailed(f"{self._url} answers with more than {_MAX_BYTES // 1024} KiB")
            if time.monotonic() > deadline:
                raise SignOnUnavailable(f"{self._url} answers too slowly")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}
