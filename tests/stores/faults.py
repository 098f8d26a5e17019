"""A proxy before a store that fails on purpose, and records the requests.

    with FaultProxy(s3.endpoint) as proxy:
        proxy.faults = Faults(slow_down=0.05, lost_answer=0.05, seed=7)
        proxy.inject("lost_answer", lambda request: request.key.endswith(".manifest"))
        with proxy.recording() as requests:
            ...

Signatures stay valid, because the headers are forwarded as they are, `Host` among them. Therefore the
store must speak plain HTTP and accept any host name, as versitygw and moto do.
"""

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from catalog.storage.object_clients import PROBE_KEY

_STORE_SECONDS = 120.0
_ANSWER = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code>'
    "<Message>Please reduce your request rate.</Message><Resource>{}</Resource>"
    "<RequestId>4442587FB7D0A2F9</RequestId></Error>"
)
SLOW_DOWN, RESET, LOST_ANSWER, DELAY = "slow_down", "reset", "lost_answer", "delay"
KINDS = (SLOW_DOWN, RESET, LOST_ANSWER, DELAY)


@dataclass(frozen=True)
class Request:
    """A request of path style as the proxy received it."""

    method: str
    bucket: str
    key: str
    """Decoded; empty for requests to a bucket."""
    query: dict[str, str]
    headers: dict[str, str] = field(repr=False)
    """With names in lower case."""
    fault: str = ""
    """The kind of the injected fault, if any."""

    @property
    def is_read(self) -> bool:
        """True if the request reads an object, its metadata, or a listing."""
        return self.method in {"GET", "HEAD"}


@dataclass(frozen=True)
class Faults:
    """The probability of each fault, from 0 to 1, for the requests that ``applies`` selects."""

    slow_down: float = 0.0
    """The proxy answers 503 SlowDown; the store does not get the request."""
    reset: float = 0.0
    """The connection is reset; the store does not get the request."""
    lost_answer: float = 0.0
    """The store carries out the request; the connection is reset instead of the answer."""
    delay: float = 0.0
    """The store gets the request ``delay_seconds`` later."""
    delay_seconds: float = 0.5
    applies: Callable[[Request], bool] = lambda request: True
    seed: int | None = None
    """For the same sequence of random numbers; requests of concurrent clients still vary in order."""


@dataclass
class _Injection:
    kind: str
    applies: Callable[[Request], bool]
    times: int


class FaultProxy:
    """An HTTP proxy on loopback. Entering starts it, leaving ends it and its connections."""

    def __init__(self, endpoint: str) -> None:
        """``endpoint``: URL of the store."""
        self.store = urlsplit(endpoint)
        if self.store.scheme != "http":
            raise ValueError(f"The proxy cannot forward signed requests to {endpoint}")
        self.counts: Counter[str] = Counter()
        """Requests by the kind of fault, and those without a fault as "forwarded"."""
        self._faults = Faults()
        self._random = random.Random()
        self._injections: list[_Injection] = []
        self._recordings: list[list[Request]] = []
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._pending = 0

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    @property
    def faults(self) -> Faults:
        """The random faults from now on; none at first."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        with self._lock:
            self._faults = faults
            self._random = random.Random(faults.seed)

    def inject(
        self, kind: str, applies: Callable[[Request], bool] = lambda request: True, times: int = 1
    ) -> None:
        """Fail exactly the next ``times`` requests that ``applies`` selects."""
        if kind not in KINDS:
            raise ValueError(f"Unknown fault {kind!r}: use one of {', '.join(KINDS)}")
        with self._lock:
            self._injections.append(_Injection(kind, applies, times))

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Request]]:
        """A list to which the requests of the block are added when they arrive."""
        requests: list[Request] = []
        with self._lock:
            self._recordings.append(requests)
        try:
            yield requests
        finally:
            with self._lock:
                self._recordings = [each for each in self._recordings if each is not requests]

    def wait_until_idle(self, within: float = 60.0) -> None:
        """Wait until no request is on its way to the store, as delayed ones still may be."""
        deadline = time.monotonic() + within
        while self._pending:
            assert time.monotonic() < deadline, f"{self._pending} requests after {within} s"
            time.sleep(0.02)

    # -- called by the handlers

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """A block in which a request is sent to the store."""
        with self._lock:
            self._pending += 1
        try:
            yield
        finally:
            with self._lock:
                self._pending -= 1

    def admit(self, method: str, path: str, headers: dict[str, str]) -> Request:
        """Choose the fault of a request, count and record it."""
        target = urlsplit(path)
        bucket, _, key = target.path.lstrip("/").partition("/")
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        request = Request(method, unquote(bucket), unquote(key), query, headers)
        if request.key == PROBE_KEY:  # sent at any time, and fails only while every request does
            kind = next((kind for kind in KINDS if getattr(self._faults, kind) >= 1), "")
            return Request(method, request.bucket, request.key, query, headers, kind)
        with self._lock:
            if kind := self._choose(request):
                request = Request(method, request.bucket, request.key, query, headers, kind)
            self.counts[kind or "forwarded"] += 1
            for recording in self._recordings:
                recording.append(request)
        return request

    def _choose(self, request: Request) -> str:
        for injection in self._injections:
            if injection.times > 0 and injection.applies(request):
                injection.times -= 1
                return injection.kind
        if not self._faults.applies(request):
            return ""
        number = self._random.random()
        for kind in KINDS:
            number -= getattr(self._faults, kind)
            if number < 0:
                return kind
        return ""

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)


class _Server(ThreadingHTTPServer):
    proxy: FaultProxy
    daemon_threads = False  # so that closing waits for them
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may disconnect at any time; nothing is printed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.proxy.opened(self.connection)

    def finish(self) -> None:
        self.server.proxy.closed(self.connection)
        super().finish()

    def do_GET(self) -> None:
        self._relay()

    def do_HEAD(self) -> None:
        self._relay()

    def do_PUT(self) -> None:
        self._relay()

    def do_POST(self) -> None:
        self._relay()

    def do_DELETE(self) -> None:
        self._relay()

    def _relay(self) -> None:
        proxy = self.server.proxy
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = proxy.admit(self.command, self.path, headers)
        if request.fault == RESET:
            self._reset()
            return
        if request.fault == SLOW_DOWN:
            text = _ANSWER.format(escape(urlsplit(self.path).path)).encode()
            self._answer(503, "Slow Down", [("Content-Type", "application/xml")], text)
            return
        try:
            with proxy.forwarding():
                if request.fault == DELAY:
                    time.sleep(proxy.faults.delay_seconds)
                status, reason, answer_headers, content = self._forward(body)
        except (OSError, http.client.HTTPException):
            self._reset()
            return
        if request.fault == LOST_ANSWER:
            self._reset()
        else:
            self._answer(status, reason, answer_headers, content)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline() not in {b"\r\n", b""}:
            pass  # trailers
        return b"".join(chunks)

    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        store = self.server.proxy.store
        # A connection for each request, so that the store never closes one that is in use.
        connection = http.client.HTTPConnection(
            store.hostname or "", store.port, timeout=_STORE_SECONDS
        )
        with contextlib.closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _OF_ONE_CONNECTION:
                    connection.putheader(name, value)
            if "content-length" not in self.headers and body:  # it came in chunks
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, reason: str, headers: list[tuple[str, str]], content: bytes
    ) -> None:
        # The length of an answer to HEAD is that of the object.
        length = {name.lower(): value for name, value in headers}.get("content-length", "0")
        self.send_response_only(status, reason)
        for name, value in headers:
            if name.lower() not in {*_OF_ONE_CONNECTION, "content-length"}:
                self.send_header(name, value)
        if status not in {204, 304}:
            is_head = self.command == "HEAD"
            self.send_header("Content-Length", length if is_head else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        """End the connection with RST, without a byte of an answer."""
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def log_message(self, *args: object) -> None: ...


_OF_ONE_CONNECTION = {"connection", "expect", "keep-alive", "transfer-encoding"}
"""Headers that are not forwarded."""
