"""Many requests at once for large files of tables, in the memory of one of them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import lance
import pyarrow as pa
import pytest

from catalog.formats.lance import manifest as lance_manifest
from tests.live import LiveServer, live_template

__all__ = ["live_template"]
SIZE = 200 * 1024**2
REQUESTS = 16


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(workers=1) as started:
        yield started


def make_table(server: LiveServer, name: str) -> None:
    """A table whose manifest has a hole before its message: it costs its writer nothing."""
    location = server.warehouse / name
    lance.write_dataset(pa.table({"id": [1]}), str(location))
    server.post(f"/v1/table/w${name}/register", {"location": str(location)})
    (manifest,) = (location / "_versions").glob("*.manifest")
    content = manifest.read_bytes()
    start = lance_manifest.message_start(content[-16:], len(content))
    manifest.unlink()
    with Path(manifest).open("wb") as file:
        file.seek(SIZE)
        file.write(content[start:-16] + SIZE.to_bytes(8, "little") + content[-8:])


def count(server: LiveServer, name: str) -> int:
    return server.post(f"/v1/table/w${name}/count_rows")[0]


class Memory:
    """The largest memory of a server's processes during the block."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.growth = 0

    def __enter__(self) -> Self:
        self._before = sum(self._server.resident())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.growth = max(self.growth, sum(self._server.resident()) - self._before)


def test_many_requests_for_large_manifests(server: LiveServer) -> None:
    server.post("/v1/namespace/w/create")
    names = [f"t{number}" for number in range(REQUESTS)]
    for name in names:
        make_table(server, name)
    seconds = []
    with Memory(server) as memory, ThreadPoolExecutor(REQUESTS) as executor:
        answers = [executor.submit(count, server, name) for name in names]
        while not all(answer.done() for answer in answers):
            began = time.monotonic()
            assert server.post("/v1/namespace/w/describe")[0] == 200
            seconds.append(time.monotonic() - began)
    statuses = Counter(answer.result() for answer in answers)
    assert statuses[200] + statuses[503] == REQUESTS
    assert statuses[200] >= 1
    assert memory.growth < 2 * SIZE  # 4 threads took eight times as much
    assert max(seconds) < 5
