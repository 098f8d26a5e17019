"""Arrow streams over real sockets: long, incomplete, and too large ones."""

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from tests.live import LiveServer

pytestmark = pytest.mark.xdist_group("arrow streams")  # the server starts once
MEGABYTE = 1 << 20
BATCH = 8 * MEGABYTE
SCHEMA = pa.schema({"id": pa.int64(), "v": pa.list_(pa.float32(), 255)})
ROWS = BATCH // (255 * 4 + 8)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def streaming(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(workers=1, MONODON_LOG_LEVEL="info") as server:
        server.post("/v1/namespace/w/create")
        yield server


def batches(count: int) -> Iterator[pa.RecordBatch]:
    vectors = np.random.default_rng(1).random(ROWS * 255, dtype=np.float32)
    for number in range(count):
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        vector = pa.FixedSizeListArray.from_arrays(pa.array(vectors), 255)
        yield pa.RecordBatch.from_arrays([ids, vector], schema=SCHEMA)


class _Sink:
    """Collects written bytes until they are taken."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, content: Any) -> int:
        self.parts.append(bytes(content))
        return len(content)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        content = b"".join(self.parts)
        self.parts.clear()
        return content


def parts(data: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> Iterator[bytes]:
    """An IPC stream in pieces."""
    sink = _Sink()
    writer = pa.ipc.new_stream(sink, schema)
    for batch in data:
        writer.write_batch(batch)
        yield sink.take()
    writer.close()
    yield sink.take()


def send(
    server: LiveServer, path: str, body: Iterable[bytes] | bytes, *, length: int | None = None
) -> tuple[int, dict[str, Any]]:
    """Send a body, chunked unless its length is given."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    headers = {"x-api-key": server.key, "content-type": "application/vnd.apache.arrow.stream"}
    if length is not None:
        headers["content-length"] = str(length)
    connection.request("POST", path, body, headers, encode_chunked=length is None)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


def highest(server: LiveServer, work: Callable[[], Any]) -> tuple[int, Any]:
    """Peak memory of the web processes during the work, and the result of the work."""
    most, most_and_stop = sum(server.resident()), threading.Event()

    def watch() -> None:
        nonlocal most
        while not most_and_stop.wait(0.02):
            most = max(most, sum(server.resident()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return most, work()
    finally:
        most_and_stop.set()
        thread.join()
        highest.peak = most  # type: ignore[attr-defined]


def test_a_long_insert_uses_memory_for_a_few_batches(streaming: LiveServer) -> None:
    status, made = send(streaming, "/v1/table/w$long/create", parts(batches(1)))
    assert (status, made["version"]) == (200, 1)
    before, used = sum(streaming.resident()), []
    # If other programs use the disk, data to be written accumulates; then a second insert decides.
    for _ in range(2):
        _, (status, answer) = highest(
            streaming, lambda: send(streaming, "/v1/table/w$long/insert", parts(batches(100)))
        )
        assert (status, answer["num_inserted_rows"]) == (200, 100 * ROWS)
        used.append(highest.peak - before)  # type: ignore[attr-defined]
        if used[-1] < 3 * BATCH + 300 * MEGABYTE:
            break
    print(f"800 MB inserted with {min(used) / MEGABYTE:.0f} MB")
    assert min(used) < 3 * BATCH + 300 * MEGABYTE


def test_a_body_for_an_unknown_route_is_refused_in_the_lance_form(streaming: LiveServer) -> None:
    content = b"".join(parts(batches(8)))
    for body, length in ((content, len(content)), (iter([content]), None)):
        status, answer = send(streaming, "/v1/table/w$no/insert", body, length=length)
        assert (status, answer["code"]) == (404, 4)


def test_more_than_the_limit_is_refused(live_template: None) -> None:
    with LiveServer(workers=1, MONODON_MAX_DATA_BYTES=str(20 * MEGABYTE)) as server:
        server.post("/v1/namespace/w/create")
        content = b"".join(parts(batches(4)))
        for body, length in ((content, len(content)), (iter([content]), None)):
            status, answer = send(server, "/v1/table/w$t/create", body, length=length)
            assert (status, answer["code"]) == (413, 13), answer
            assert "20971520 bytes" in answer["error"]
        assert server.post("/v1/table/w$t/exists")[0] == 404
        assert list(server.warehouse.iterdir()) == []


@pytest.mark.parametrize("is_length_known", [True, False], ids=["length", "chunked"])
def test_a_disconnected_client_changes_nothing(
    streaming: LiveServer, is_length_known: bool
) -> None:
    """The client disconnects between two batches, where an Arrow stream may end."""
    name = f"t{int(is_length_known)}"
    send(streaming, f"/v1/table/w${name}/create", parts(batches(1)))
    refused = streaming.log.count("status=400")
    files = sorted(streaming.warehouse.iterdir())
    for path in (f"/v1/table/w${name}/insert", "/v1/table/w$u/create"):
        connection = http.client.HTTPConnection(urlsplit(streaming.url).netloc, timeout=60)
        connection.putrequest("POST", path)
        connection.putheader("x-api-key", streaming.key)
        connection.putheader("content-type", "application/vnd.apache.arrow.stream")
        if is_length_known:
            connection.putheader("content-length", str(100 * BATCH))
        else:
            connection.putheader("transfer-encoding", "chunked")
        connection.endheaders()
        for batch in itertools.islice(parts(batches(5)), 3):
            connection.send(batch if is_length_known else b"%x\r\n%s\r\n" % (len(batch), batch))
        connection.close()
    _until(lambda: streaming.log.count("status=400") == refused + 2)
    assert _notes(streaming) == 0
    assert sorted(streaming.warehouse.iterdir()) == files
    assert streaming.post("/v1/table/w$u/exists")[0] == 404
    status, listed = streaming.post(f"/v1/table/w${name}/version/list")
    assert (status, [v["version"] for v in listed["versions"]]) == (200, [1])


def _notes(server: LiveServer) -> int:
    """Number of tables that are being created."""
    with server.database() as connection:
        row = connection.execute("SELECT count(*) FROM catalog_stagedfile").fetchone()
    assert row is not None
    return int(row[0])


def _until(is_so: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
