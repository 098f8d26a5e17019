"""Streamed answers to clients that read slowly, do not read, or disconnect."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pyarrow as pa
import pytest

from tests.live import LiveServer, live_template
from tests.security.wire import Wire, send_whole

pytestmark = pytest.mark.xdist_group("front streams")  # the server starts once

__all__ = ["live_template"]
MEGABYTE = 1 << 20
ROWS, WIDTH = 180_000, 1000
"""Some 180 MB."""
STREAMS = 3
QUERY = b'{"k": 0, "vector": {}}'
ARROW = "Content-Type: application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(
        workers=1,
        threads=2,
        MONODON_ANSWER_STREAMS=str(2 * STREAMS),  # half of them for one principal
        MONODON_ANSWER_SECONDS="4",
        MONODON_LANCE_CACHE_BYTES=str(16 * MEGABYTE),
    ) as server:
        assert server.post("/v1/namespace/ws/create")[0] == 200
        table = pa.table({"id": range(ROWS), "text": ["x" * WIDTH] * ROWS})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=5000)
        body = sink.getvalue().to_pybytes()
        created = send_whole(server, "POST", "/v1/table/ws$t/create", body, ARROW)
        del table, sink, body
        assert created.status == 200, created.content
        yield server


def ask(wire: Wire) -> Wire:
    body = b'{"k": %d, "vector": {}, "columns": {"column_names": ["id", "text"]}}' % ROWS
    return wire.head("POST", "/v1/table/ws$t/query", f"Content-Length: {len(body)}").send(body)


def test_a_large_answer_is_complete(server: LiveServer):
    with Wire(server) as wire:
        answer = ask(wire).answer()
    assert answer.status == 200, answer.content[:500]
    assert "content-length" not in answer.headers
    table = pa.ipc.open_file(answer.content).read_all()
    assert sorted(table["id"].to_pylist()) == list(range(ROWS))


@pytest.fixture
def stalled(server: LiveServer) -> Iterator[list[Wire]]:
    """Connections that request the whole table and do not read the answer."""
    with ExitStack() as stack:
        yield [ask(stack.enter_context(Wire(server))) for _ in range(STREAMS)]


def test_slow_readers_use_bounded_memory_and_no_ordinary_thread(
    server: LiveServer, request: pytest.FixtureRequest
):
    before = max(server.resident())
    wires: list[Wire] = request.getfixturevalue("stalled")
    time.sleep(2)
    with ThreadPoolExecutor(4) as honest:
        statuses = list(honest.map(lambda _: server.post("/v1/table/ws$t/exists")[0], range(20)))
    assert statuses == [200] * 20
    assert max(server.resident()) - before < 200 * MEGABYTE  # the answers are 540 MB
    # A further stream of this principal is refused. The slots are released after
    # MONODON_ANSWER_SECONDS.
    with Wire(server) as wire:
        answer = ask(wire).answer()
    assert (answer.status, answer.json()["code"]) == (429, 21)
    assert answer.headers["Retry-After"] == "1"
    deadline = time.monotonic() + 30
    while True:
        with Wire(server) as wire:
            answer = ask(wire).answer()
        if answer.status == 200:
            break
        assert time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(5)  # none of them was read for MONODON_ANSWER_SECONDS
    for wire in wires:
        # The answer is incomplete, because the unread data was not sent in time.
        assert wire.seconds_until_closed(5) is not None


def test_a_disconnected_reader_frees_its_slot(server: LiveServer):
    for _ in range(STREAMS * 3):
        with Wire(server) as wire:
            ask(wire).first_bytes()
        time.sleep(0.3)
    with Wire(server) as wire:
        assert ask(wire).answer().status == 200
