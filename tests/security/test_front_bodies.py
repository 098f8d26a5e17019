"""Bodies over real sockets: incomplete, slow, too large and compressed ones, and refusals that
require only the head."""

import base64
import gzip
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import pyarrow as pa
import pytest

from tests.live import KEY, LiveServer, live_template
from tests.security.wire import Answer, Wire, send_whole

pytestmark = pytest.mark.xdist_group("front bodies")  # the server starts once

__all__ = ["live_template"]
MEGABYTE = 1 << 20
ARROW = "Content-Type: application/vnd.apache.arrow.stream"
BODY_SECONDS = 2


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(
        workers=1,
        threads=2,
        MONODON_BODY_SECONDS=str(BODY_SECONDS),
        MONODON_BODY_MIN_RATE=str(MEGABYTE),
        MONODON_MAX_BODY_BYTES=str(MEGABYTE),
    ) as server:
        assert server.post("/v1/namespace/ws/create")[0] == 200
        assert rows_of(server, "t", create=True) == 3
        yield server


def arrow(rows: int = 3) -> bytes:
    table = pa.table({"id": pa.array(range(rows), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def rows_of(server: LiveServer, table: str, *, create: bool = False) -> int:
    if create:
        created = send_whole(server, "POST", f"/v1/table/ws${table}/create", arrow(), ARROW)
        assert created.status == 200, created.content
    status, count = server.post(f"/v1/table/ws${table}/count_rows")
    assert status == 200
    return int(count)  # type: ignore[call-overload]


@contextmanager
def unchanged(server: LiveServer) -> Iterator[None]:
    """Assert that the block changes no row of the catalog and no row of the table."""

    def state() -> tuple[object, ...]:
        with server.database() as connection:
            tables = ("namespace", "table", "tableversion", "labeldefinition", "transaction")
            counts = [
                connection.execute(f"SELECT count(*) FROM catalog_{name}").fetchone()
                for name in tables
            ]
        return (*counts, rows_of(server, "t"))

    before = state()
    yield
    assert state() == before


def message(answer: Answer) -> str:
    """The message of a refusal, in any of the forms."""
    body = answer.json()
    error = body.get("error_description") or body.get("error") or body["detail"]
    return str(error["message"] if isinstance(error, dict) else error)


def send_endlessly(wire: Wire) -> None:
    for _ in range(200):
        wire.send(b" " * MEGABYTE)


def whole_namespace(name: str) -> bytes:
    return json.dumps({"namespace": [name], "properties": {}}).encode()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


# -- incomplete bodies

OPERATIONS = {
    "lance": ("POST", "/v1/namespace/short/create", b"{}"),
    "iceberg": ("POST", "/v1/namespaces", whole_namespace("short")),
    "management": ("POST", "/management/v1/labels", b'{"key": "short"}'),
    "without a model": ("DELETE", "/v1/namespaces/ws", b"{}"),
    "token": (
        "POST",
        "/oauth/token",
        f"grant_type=client_credentials&client_secret={quote(KEY)}".encode(),
    ),
    "arrow": ("POST", "/v1/table/ws$t/insert", arrow()),
}
BROKEN = {
    "short": (["Content-Length: 1000"], lambda body: body),
    "long and short": (["Content-Length: 60000"], lambda body: body + b" " * 20_000),
    "chunk": (["Transfer-Encoding: chunked"], lambda body: chunk(body) + b"zz\r\nxx"),
    "no last chunk": (["Transfer-Encoding: chunked"], chunk),
    "no end": (["Transfer-Encoding: chunked"], lambda body: chunk(body) + b"0\r\n"),
    "trailers": (["Transfer-Encoding: chunked"], lambda body: chunk(body) + b"0\r\nX: 1\r\n\r\n"),
}


@pytest.mark.parametrize("defect", BROKEN)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_incomplete_body_changes_nothing(server: LiveServer, operation: str, defect: str):
    method, path, body = OPERATIONS[operation]
    lines, spoil = BROKEN[defect]
    if operation == "arrow":
        lines = [*lines, ARROW]
    with unchanged(server), Wire(server) as wire:
        wire.head(method, path, *lines).send(spoil(body))
        if defect != "trailers":
            wire.half_close()
        answer = wire.answer()
    assert answer.status == 400, answer.content
    words = "shorter than its Content-Length" if "short" in defect else "chunks are malformed"
    assert words in message(answer)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_client_that_leaves_changes_nothing(server: LiveServer, operation: str):
    method, path, body = OPERATIONS[operation]
    lines = [ARROW] if operation == "arrow" else []
    with unchanged(server):
        for length in (1000, 60_000):
            with Wire(server) as wire:
                wire.head(method, path, f"Content-Length: {length}", *lines).send(body)
        time.sleep(0.5)


def test_a_complete_chunked_body_is_processed(server: LiveServer):
    with Wire(server) as wire:
        wire.head("POST", "/v1/namespace/chunks/create", "Transfer-Encoding: chunked")
        assert wire.send(chunk(b"{") + chunk(b"}") + b"0\r\n\r\n").answer().status == 200
    with Wire(server) as wire:
        wire.head("POST", "/v1/table/ws$t/insert", "Transfer-Encoding: chunked", ARROW)
        assert wire.send(chunk(arrow()) + b"0\r\n\r\n").answer().status == 200


# -- refusals by the head


@pytest.mark.parametrize("key", [None, "monodon_wrong"])
@pytest.mark.parametrize("length", [50, 50_000, 5_000_000_000])
@pytest.mark.parametrize("operation", ["lance", "iceberg", "management", "arrow"])
def test_bad_credentials_are_refused_without_the_body(
    server: LiveServer, operation: str, length: int, key: str | None
):
    method, path, _ = OPERATIONS[operation]
    lines = [f"Content-Length: {length}", *([ARROW] if operation == "arrow" else [])]
    began = time.monotonic()
    with Wire(server) as wire:
        answer = wire.head(method, path, *lines, key=key).answer()
    assert answer.status == 401, answer.content
    assert time.monotonic() - began < BODY_SECONDS


def test_clients_that_write_first_read_the_credentials_error(server: LiveServer):
    body = b"x" * (20 * MEGABYTE)
    answer = send_whole(server, "POST", "/v1/table/ws$t/insert", body, ARROW, key=None)
    assert answer.status == 401


@pytest.mark.parametrize("path", ["/v1/namespaces", "/v1/table", "/management/v1/labels"])
def test_headers_with_underscores_are_refused(server: LiveServer, path: str):
    for line in (f"x_api_key: {server.key}", f"X_Api-Key: {server.key}", "x_request_id: a"):
        with Wire(server) as wire:
            answer = wire.head("GET", path, line, key=None).answer()
        assert answer.status == 400
        assert "contains an underscore" in message(answer)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["X-Api-Key: other"], "'x-api-key' occurs more than once"),
        (["Authorization: Bearer a", "authorization: Bearer b"], "'authorization' occurs more"),
    ],
)
def test_ambiguous_heads_are_refused(server: LiveServer, lines: list[str], words: str):
    with unchanged(server), Wire(server) as wire:
        wire.head("POST", "/v1/namespace/ambiguous/create", *lines)
        answer = wire.send(b"0\r\n\r\n").answer()
    assert answer.status == 400, answer.content
    assert words in message(answer)


def test_a_path_that_is_not_utf8_is_refused(server: LiveServer):
    with unchanged(server):
        answer = send_whole(server, "POST", "/v1/namespace/a%ff/create", b"{}")
    assert (answer.status, message(answer)) == (400, "The path is not valid UTF-8")


# -- slow bodies


@pytest.mark.parametrize("length", [1000, 60_000])
def test_slow_bodies_time_out(server: LiveServer, length: int):
    def send_slowly(operation: str) -> tuple[Answer, float, float | None]:
        method, path, body = OPERATIONS[operation]
        lines = [f"Content-Length: {length}", *([ARROW] if operation == "arrow" else [])]
        began = time.monotonic()
        with Wire(server) as wire:
            answer = wire.head(method, path, *lines).send(body[:10]).answer()
            return answer, time.monotonic() - began, wire.seconds_until_closed(12)

    with unchanged(server), ThreadPoolExecutor(len(OPERATIONS)) as clients:
        for answer, seconds, until_closed in clients.map(send_slowly, OPERATIONS):
            assert answer.status == 408, answer.content
            assert "did not arrive in time" in message(answer)
            assert BODY_SECONDS * 0.9 < seconds < BODY_SECONDS + 4
            assert until_closed is not None


def test_a_body_that_arrives_in_time_is_processed(server: LiveServer):
    """A small body in pieces, which takes longer than the time after which the credentials are
    checked."""
    with Wire(server) as wire:
        wire.head("POST", "/v1/namespace/patient/create", "Content-Length: 2").send(b"{")
        time.sleep(BODY_SECONDS / 2)
        assert wire.send(b"}").answer().status == 200


# -- large bodies


@pytest.mark.parametrize("operation", ["lance", "iceberg", "management", "token"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_clients_that_write_first_read_the_too_large_error(
    server: LiveServer, operation: str, is_chunked: bool
):
    method, path, _ = OPERATIONS[operation]
    body = b" " * (20 * MEGABYTE)
    with unchanged(server), Wire(server) as wire:
        framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
        wire.head(method, path, framing)
        answer = wire.send(chunk(body) + b"0\r\n\r\n" if is_chunked else body).answer()
        assert answer.status == 413, answer.content
        assert "is larger than" in message(answer)
        # The body was read completely, so the connection stays open.
        assert wire.head("GET", "/v1/config").answer().status == 200


def test_an_endless_body_is_cut_off(server: LiveServer):
    with Wire(server) as wire:
        wire.head("POST", "/v1/namespaces", "Content-Length: 50000000000")
        with pytest.raises((ConnectionError, TimeoutError)):
            send_endlessly(wire)


# -- compressed bodies


def test_a_compressed_body_is_read(server: LiveServer):
    body = gzip.compress(json.dumps({"properties": {"a": "b" * 100_000}}).encode())
    answer = send_whole(
        server, "POST", "/v1/namespace/packed/create", body, "Content-Encoding: gzip"
    )
    assert answer.status == 200, answer.content
    assert answer.json()["properties"]["a"] == "b" * 100_000
    body = gzip.compress(whole_namespace("packed2"))
    answer = send_whole(server, "POST", "/v1/namespaces", body, "Content-Encoding: GZIP")
    assert answer.status == 200, answer.content
    body = gzip.compress(b"grant_type=client_credentials&client_secret=" + KEY.encode())
    answer = send_whole(server, "POST", "/oauth/token", body, "Content-Encoding: gzip", key=None)
    assert answer.status == 200, answer.content


@pytest.mark.parametrize("padding", [0, 100_000])
def test_compressed_rows_are_read(server: LiveServer, padding: int):
    before = rows_of(server, "t")
    body = gzip.compress(arrow(3 + padding), compresslevel=0 if padding else 9)
    answer = send_whole(
        server, "POST", "/v1/table/ws$t/insert", body, ARROW, "Content-Encoding: gzip"
    )
    assert answer.status == 200, answer.content
    assert rows_of(server, "t") == before + 3 + padding


BOMB = gzip.compress(b'{"properties": {"a": "' + b"x" * (64 * MEGABYTE) + b'"}}')
BAD_ENCODINGS = {
    "bomb": (BOMB, "gzip", 413, "is larger than"),
    "no gzip": (b"{}", "gzip", 400, "is not valid gzip"),
    "cut": (gzip.compress(b"{}")[:-3], "gzip", 400, "its gzip stream is incomplete"),
    "more": (gzip.compress(b"{}") + b"{}", "gzip", 400, "has more content after"),
    "other": (b"{}", "br", 415, "Content-Encoding is 'br'"),
    "two": (gzip.compress(gzip.compress(b"{}")), "gzip, gzip", 415, "Content-Encoding is"),
}


@pytest.mark.parametrize("package", BAD_ENCODINGS)
@pytest.mark.parametrize("operation", ["lance", "iceberg", "management", "token"])
def test_a_bad_compressed_body_is_refused(server: LiveServer, operation: str, package: str):
    body, encoding, status, words = BAD_ENCODINGS[package]
    method, path, _ = OPERATIONS[operation]
    if package == "bomb" and operation == "token":
        status, words = 413, "is larger than"
    with unchanged(server):
        answer = send_whole(server, method, path, body, f"Content-Encoding: {encoding}")
    assert answer.status == status, answer.content
    assert words in message(answer)
    if status == 415:
        assert answer.headers["Accept-Encoding"] == "gzip" or operation == "token"


@pytest.mark.parametrize("package", ["no gzip", "cut", "more", "other"])
def test_corrupted_compressed_rows_are_refused(server: LiveServer, package: str):
    good = gzip.compress(arrow())
    body, encoding, status = {
        "no gzip": (arrow(), "gzip", 400),
        "cut": (good[:-3], "gzip", 400),
        "more": (good + b"more", "gzip", 400),
        "other": (arrow(), "zstd", 415),
    }[package]
    with unchanged(server):
        answer = send_whole(
            server, "POST", "/v1/table/ws$t/insert", body, ARROW, f"Content-Encoding: {encoding}"
        )
    assert answer.status == status, answer.content


def test_basic_credentials_return_a_token(server: LiveServer):
    basic = base64.b64encode(f":{server.key}".encode()).decode()
    answer = send_whole(
        server,
        "POST",
        "/v1/oauth/tokens",
        b"grant_type=client_credentials",
        f"Authorization: Basic {basic}",
        key=None,
    )
    assert answer.status == 200, answer.content
