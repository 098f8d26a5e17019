"""The issuer that a server names, and its endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from monodon.client.transport import is_loopback
from monodon.sign_on.errors import SignOnFailed, SignOnUnavailable
from monodon.sign_on.requests import Requests, origin, require_safe

if TYPE_CHECKING:
    import httpx

_NOT_OFFERED = {401, 404, 405}
"""Answers of releases without the sign-on document."""
_LONGEST_TEXT = 1000


@dataclass(frozen=True)
class DeviceClient:
    """The public client of the command line at an issuer."""

    issuer: str
    client_id: str
    scope: str


def client_of(server: str, transport: httpx.BaseTransport | None = None) -> DeviceClient | None:
    """The client that a Monodon server names; None: it offers no single sign-on.

    Raises SignOnFailed, SignOnUnavailable.
    """
    with Requests(server, transport) as requests:
        status, content = requests.send(f"{server}/management/v1/sign-on")
    if status in _NOT_OFFERED:
        return None
    if status != 200 or "device" not in content:
        raise SignOnUnavailable(f"{server} does not answer like a Monodon server ({status})")
    device = content["device"]
    if device is None:
        return None
    issuer, client_id, scope = (
        device.get(name) if isinstance(device, dict) else None
        for name in ("issuer", "client_id", "scope")
    )
    if not (is_text(client_id) and is_text(scope)):
        raise SignOnFailed(f"{server} names an invalid client for single sign-on")
    require_issuer(issuer, server)
    return DeviceClient(str(issuer), str(client_id), str(scope))


def require_issuer(issuer: object, server: str) -> None:
    """Raises SignOnFailed for an issuer that a server must not name."""
    url = require_safe(issuer, f"The issuer that {server} names")
    if urlsplit(url).query or urlsplit(url).fragment:
        raise SignOnFailed(f"The issuer that {server} names, {url}, has a query or a fragment")
    if is_loopback(url) and not is_loopback(server):
        # Otherwise a server could direct requests to other programs of the person.
        raise SignOnFailed(f"{server} names an issuer on this machine, {url}")


def is_text(value: object) -> bool:
    """True for printable text of a length that fits on a screen."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT and value.isprintable()


def seconds(value: object) -> float | None:
    """A positive number of at most 30 years; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e9 else None


class Issuer:
    """An issuer whose endpoints are at its own origin. Use it as a context manager.

    Its description (OpenID Connect Discovery 1.0) is fetched with the first request.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._requests = Requests(url, transport)
        self._document: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._requests.close()

    def endpoint(self, name: str) -> str | None:
        """The URL of an endpoint; None: the issuer has none. Raises SignOnFailed, SignOnUnavailable."""
        if self._document is None:
            path = f"{self.url.rstrip('/')}/.well-known/openid-configuration"
            status, document = self._requests.send(path)
            if status != 200:
                raise SignOnUnavailable(f"{self.url} answers with {status} to {path}")
            if document.get("issuer") != self.url:
                raise SignOnFailed(f"{self.url} describes another issuer")
            self._document = document
        if not self._document.get(name):
            return None
        url = require_safe(self._document[name], f"The {name} of {self.url}")
        if origin(url) != origin(self.url):
            raise SignOnFailed(
                f"The {name} of {self.url} is at another address, {url}; tokens are sent only to the"
                " issuer itself"
            )
        return url

    def post(self, name: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """The status and the answer of an endpoint. Raises SignOnFailed, SignOnUnavailable."""
        url = self.endpoint(name)
        if url is None:
            raise SignOnFailed(f"{self.url} has no {name}")
        return self._requests.send(url, form)


def reason(status: int, content: Mapping[str, Any]) -> str:
    """The error of an OAuth answer (RFC 6749, section 5.2) in words."""
    texts = [content.get(name) for name in ("error", "error_description")]
    words = ": ".join(text[:_LONGEST_TEXT] for text in texts if isinstance(text, str) and text)
    return words or f"status {status}"
