"""HTTP requests to webhook receivers, and the addresses that are allowed.

Receivers have public addresses and use https. The operator allows other receivers in
MONODON_WEBHOOK_HOSTS; otherwise anybody who may add a webhook could reach addresses that only this
server can reach. A host name is resolved once, and the connection uses the addresses that were
checked. Redirects are not followed. An attempt ends after ``_WHOLE_SECONDS``, however slow or long
the response is.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import secrets
import socket
import threading
import time
from concurrent.futures import Future
from typing import Self
from urllib.parse import SplitResult, urlsplit

import urllib3
from django.conf import settings
from urllib3.connection import HTTPConnection, HTTPSConnection

from catalog.errors import InvalidInput
from catalog.services.events import feed

SECRET_PREFIX = "whsec_"  # noqa: S105 -- how a secret begins
MAX_ANSWER = 500
"""Maximum number of characters of a response that are stored."""
_CONNECT_SECONDS, _WHOLE_SECONDS = 5.0, 20.0
_MAX_ADDRESSES = 3
_MAX_URL = 2000
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # services for virtual machines on Azure
        "192.0.0.0/24",  # protocol assignments, and the metadata of machines on Oracle Cloud
        "192.88.99.0/24",  # relays of 6to4
        "3fff::/20",  # documentation
    )
)
"""Networks that Python's ``ipaddress`` considers global."""


class Refused(Exception):
    """A failed attempt; the message gives the reason."""


FAILURES = (
    Refused,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,  # including name resolution and TLS errors
    ValueError,  # such as a name that cannot be encoded
)
"""Exceptions that an attempt may raise."""


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def sign(secret: str, event_id: str, moment: int, body: bytes) -> str:
    """Signature header of Standard Webhooks: HMAC-SHA256 of id, Unix time and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{event_id}.{moment}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def check_url(url: str) -> None:
    """Check the URL of a receiver, without resolving its host name. Raises InvalidInput."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"{url[:100]!r} is not a URL") from None
    host = parts.hostname or ""
    is_plain = url.isascii() and url.isprintable() and not set(' "<>\\^`{|}') & set(url)
    if len(url) > _MAX_URL or not is_plain or not host or port == 0:
        raise InvalidInput(
            f"{url[:100]!r} is not a valid receiver URL; percent-encode non-ASCII characters"
        )
    if "@" in parts.netloc or parts.fragment:
        raise InvalidInput("A receiver URL must not contain a user, a password or a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_named(host)):
        raise InvalidInput(
            "A receiver URL must begin with https://; http:// is allowed only for hosts in"
            " MONODON_WEBHOOK_HOSTS"
        )
    try:
        is_public = _is_public(host)
    except ValueError:
        return  # a host name, which is resolved when an event is sent
    if not (is_public or _is_named(host)):
        raise InvalidInput(
            f"{host} is not a public address; add it to MONODON_WEBHOOK_HOSTS to allow it"
        )


def post(url: str, secret: str, event_id: str, body: bytes) -> tuple[int, str]:
    """Send an event; returns the status and the start of an error response. Raises FAILURES."""
    parts = urlsplit(url)
    with _Deadline(_WHOLE_SECONDS) as deadline:
        connection = _connect(parts, deadline)
        with contextlib.closing(connection):
            moment = int(time.time())
            connection.request(
                "POST",
                (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
                body=body,
                headers={
                    "Host": parts.netloc,
                    "Content-Type": feed.MEDIA,
                    "User-Agent": "Monodon-Webhook",
                    "webhook-id": event_id,
                    "webhook-timestamp": str(moment),
                    "webhook-signature": sign(secret, event_id, moment, body),
                },
                preload_content=False,
                decode_content=False,
            )
            response = connection.getresponse()
            if deadline.is_over:
                raise Refused(_TIMEOUT_MESSAGE)
            text = b""
            if not 200 <= response.status < 300:  # a 2xx status is a success, whatever the body
                with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
                    text = response.read(MAX_ANSWER)
    return response.status, text.decode("utf-8", "replace")


def printable(text: str) -> str:
    """Printable text of limited length: receivers control responses and what errors quote."""
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_ANSWER].strip()


_TIMEOUT_MESSAGE = f"TimeoutError: the request took longer than {_WHOLE_SECONDS:.0f} s"


class _Deadline:
    """Deadline of a connection, even for a receiver that sends a few bytes now and then.

    A socket timeout limits each read, but the receiver decides how many reads a response takes.
    """

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._watched: list[socket.socket] = []
        self.is_over = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        with self._lock:
            for descriptor in self._watched:
                descriptor.close()
            self._watched.clear()

    def watch(self, connected: socket.socket) -> None:
        """Watch a duplicate descriptor, because TLS detaches the original one."""
        with self._lock:
            self._watched.append(connected.dup())

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            for descriptor in self._watched:
                with contextlib.suppress(OSError):
                    descriptor.shutdown(socket.SHUT_RDWR)


def _connect(parts: SplitResult, deadline: _Deadline) -> HTTPConnection:
    """Connect to the first address that accepts the connection."""
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = _addresses(host, port)[:_MAX_ADDRESSES]
    if deadline.is_over:
        raise Refused(_TIMEOUT_MESSAGE)
    for address in addresses:
        connection = _connection(parts.scheme, host, address, port, deadline)
        try:
            connection.connect()
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError):
            if address == addresses[-1] or deadline.is_over:
                raise
        else:
            if connection.sock is not None:
                connection.sock.settimeout(_WHOLE_SECONDS)
            return connection
    raise Refused(f"{host} has no address")


def _connection(
    scheme: str, host: str, address: str, port: int, deadline: _Deadline
) -> HTTPConnection:
    connection: _Watched
    if scheme == "https":
        connection = _WatchedTls(
            address,
            port,
            server_hostname=host,
            assert_hostname=host,
            cert_reqs="CERT_REQUIRED",
            timeout=_CONNECT_SECONDS,
        )
    else:
        connection = _Watched(address, port, timeout=_CONNECT_SECONDS)
    connection.deadline = deadline
    return connection


class _Watched(HTTPConnection):
    deadline: _Deadline

    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        self.deadline.watch(connected)
        return connected


class _WatchedTls(_Watched, HTTPSConnection):
    pass


def _is_named(host: str) -> bool:
    return host.lower() in settings.MONODON_WEBHOOK_HOSTS


def _addresses(host: str, port: int) -> list[str]:
    """Addresses of a host, all public unless MONODON_WEBHOOK_HOSTS has it. Raises Refused."""
    addresses = _resolve(host, port)
    if not _is_named(host) and not all(map(_is_public, addresses)):
        raise Refused(f"{host} has an address that is not public")
    return addresses


def _resolve(host: str, port: int) -> list[str]:
    """Addresses of a host. Raises OSError, and Refused after ``_WHOLE_SECONDS``.

    The name servers of the host, which may be the receiver's, decide how long a lookup takes, and it cannot be
    interrupted. So a thread waits for it, until the resolver of the system gives up.
    """
    future: Future[list[str]] = Future()

    def look_up() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            future.set_exception(error)
        else:
            future.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    threading.Thread(target=look_up, name="webhook lookup", daemon=True).start()
    try:
        return future.result(_WHOLE_SECONDS)
    except TimeoutError:
        if future.done():  # the lookup itself raised it
            raise
        raise Refused(
            f"TimeoutError: the lookup of {host} took longer than {_WHOLE_SECONDS:.0f} s"
        ) from None


def _is_public(text: str) -> bool:
    """True if an address is public. Raises ValueError if the text is not an address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public(str(address.ipv4_mapped))
        if address.is_site_local or address.sixtofour is not None:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    # Prefixes that translate to IPv4, such as 64:ff9b::/96, are reserved.
    return address.is_global and not address.is_multicast and not address.is_reserved
