"""Requests to a server, and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from monodon.client.errors import RequestFailed, Unreachable
from monodon.client.names import Name, delimiter_of, join, path_segment, segment

if TYPE_CHECKING:
    import httpx

_NAMES = ("namespace", "table")
"""Parameters of queries that name an object."""


_NO_OPERATION = (404, 405, 501)
"""The answers of other programs to paths and methods that they do not have. Monodon's are JSON."""


class Unset:
    """The type of ``UNSET``."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()
"""Stands for a field of a body that is not sent. ``None`` is sent as null."""


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not UNSET}


def is_loopback(url: str) -> bool:
    """True for the URL of a server on this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # not a URL, or not an address
        return False


class Sender:
    """Sends requests with an API key or a token. Use it as a context manager, or call ``close``.

    ``token``: a function that returns the bearer token of a request, such as the access token of an issuer.
    ``timeout``: seconds for connecting, and between two parts of an answer. Redirects are not followed, because
    the key belongs to the URL. The proxies of the environment, such as HTTPS_PROXY, do not apply to this machine.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:2333",
        api_key: str | None = None,
        *,
        token: Callable[[], str] | None = None,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        if api_key and token:
            raise ValueError("Use an API key or a token, not both")
        self._api_key = api_key
        self._token = token
        self._timeout = timeout
        self._transport = transport
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def send(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        name: Name | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the JSON of the answer; None if it is empty. ``{}`` in the path stands for ``name``.

        Raises RequestFailed, Unreachable.
        """
        path, parameters = _address(path, query, name)
        sent = {**(headers or {}), **self._authorization()}
        with self._errors():
            response = self._http().request(verb, path, params=parameters, json=body, headers=sent)
        self._check(response)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise Unreachable(f"{self.url} does not answer like a Monodon server") from None

    def lines(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        name: Name | None = None,
    ) -> Iterator[str]:
        """The lines of a streamed answer. Raises RequestFailed, Unreachable."""
        path, parameters = _address(path, query, name)
        headers = self._authorization()
        with (
            self._errors(),
            self._http().stream(verb, path, params=parameters, headers=headers) as response,
        ):
            self._check(response)
            yield from response.iter_lines()

    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token()}"} if self._token is not None else {}

    def _check(self, response: httpx.Response) -> None:
        """Raises RequestFailed for an error, and Unreachable for a redirect or the error of another program."""
        if response.is_error:
            response.read()
            if response.status_code in _NO_OPERATION and not _is_json(response):
                status = f"{response.status_code} {response.reason_phrase}".strip()
                raise Unreachable(f"{self.url} does not answer like a Monodon server ({status})")
            raise failure(response)
        if response.is_redirect:
            target = response.headers.get("location", "another URL")
            raise Unreachable(f"{self.url} redirects to {target}: use the URL of the server itself")

    def _http(self) -> httpx.Client:
        import httpx

        if self._client is None:
            headers = {"user-agent": "monodon-client"}
            if self._api_key:
                headers["x-api-key"] = self._api_key
            self._client = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=self._timeout,
                transport=self._transport,
                mounts={"http://": None, "https://": None} if is_loopback(self.url) else None,
            )
        return self._client

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
            raise Unreachable(f"No server answers at {self.url}: {reason}") from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise Unreachable(f"{self.url} is not a URL such as http://127.0.0.1:2333") from error
        except httpx.RemoteProtocolError as error:
            hint = ""
            if urlsplit(self.url).scheme == "http":
                hint = ". If the server is reached over TLS, use a URL with https"
            raise Unreachable(f"{self.url} closed the connection: {error}{hint}") from error
        except httpx.TransportError as error:
            raise Unreachable(f"{self.url} did not answer completely: {error}") from error


def _address(
    path: str, query: Mapping[str, Any] | None, name: Name | None
) -> tuple[str, dict[str, Any]]:
    """The path and the parameters of a request, with names joined by one delimiter."""
    query = {key: value for key, value in (query or {}).items() if value is not None}
    names = [query[key] for key in _NAMES if key in query]
    delimiter = query.get("delimiter") or delimiter_of(name, *names)
    for key in _NAMES:
        if key in query:
            query[key] = join(query[key], delimiter)
    if delimiter != "$":
        query["delimiter"] = delimiter
    for key, value in query.items():
        if isinstance(value, bool):
            query[key] = str(value).lower()
    if name is not None:
        path = path.replace("{}", path_segment(name, delimiter), 1)
    return path, query


def _is_json(response: httpx.Response) -> bool:
    try:
        response.json()
    except ValueError:
        return False
    return True


def failure(response: httpx.Response) -> RequestFailed:
    """The error of an answer in the form of the management API or of one of the protocols."""
    try:
        content = response.json()
    except ValueError:
        content = {}
    if not isinstance(content, dict):
        content = {}
    iceberg = content.get("error")
    if isinstance(iceberg, dict):
        message, code = str(iceberg.get("message", "")), str(iceberg.get("type", ""))
    else:
        texts = [content.get("detail") or content.get("title") or content.get("error")]
        if "code" in content:  # the Lance protocol has the remedy in the detail
            texts = [content.get("error"), content.get("detail")]
        message = ". ".join(str(text).rstrip(".") for text in texts if text)
        code = str(content.get("type", content.get("code", ""))).rpartition(":")[2]
    return RequestFailed(
        message or f"The server answered with {response.status_code} {response.reason_phrase}",
        status=response.status_code,
        code=code,
        request_id=response.headers.get("x-request-id", ""),
        retry_after=response.headers.get("retry-after", ""),
    )


def next_token(page: Mapping[str, Any], field: str, current: str | None) -> str | None:
    """The token of the next page; None: this is the last one.

    Raises Unreachable if it is the current token, because the pages would never end.
    """
    token: str | None = page.get(field) or None
    if token is not None and token == current:
        raise Unreachable("The server answered with the same page twice")
    return token


__all__ = [
    "UNSET",
    "Name",
    "Sender",
    "Unset",
    "failure",
    "fields",
    "is_loopback",
    "next_token",
    "segment",
]
