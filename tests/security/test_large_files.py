"""Many requests at once for large files of tables, in the memory of one of them."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

import lance
import pyarrow as pa
import pytest

from catalog.formats.lance import manifest as lance_manifest
from tests.live import LiveServer, live_template
from tests.security.wire import Wire

__all__ = ["live_template"]
SIZE = 200 * 1024**2
REQUESTS = 16
OTHER_KEY = "mnd_the_key_of_another_administrator"
_OTHER = """
from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
api_keys.create_api_key(actor=SYSTEM, name="other", key={key!r})
"""


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


def count(server: LiveServer, name: str, key: str = "") -> int:
    with Wire(server) as wire:
        path = f"/v1/table/w${name}/count_rows"
        return wire.head("POST", path, "Content-Length: 2", key=key).send(b"{}").answer().status


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


@pytest.mark.engines
def test_many_requests_of_another_principal(server: LiveServer) -> None:
    """They delay a request by one turn, and do not cause its refusal."""
    server.post("/v1/namespace/w/create")
    names = [
        f"t{number}" for number in range(3 * REQUESTS)
    ]  # a second read of a table takes no turn
    singles = [f"single{number}" for number in range(3)]
    for name in (*names, *singles):
        make_table(server, name)
    server.manage(_OTHER.format(key=OTHER_KEY))
    waiting, done = deque(names), deque[str]()

    def read_all() -> None:
        with suppress(IndexError):
            while True:
                name = waiting.popleft()
                while count(server, name) != 200:
                    pass
                done.append(name)

    with ThreadPoolExecutor(REQUESTS) as executor:
        for _ in range(REQUESTS):
            executor.submit(read_all)
        try:
            for single in singles:
                before = len(done)
                wait_until = time.monotonic() + 60
                while len(done) == before:
                    assert time.monotonic() < wait_until
                    time.sleep(0.01)
                before = len(done)
                assert waiting, "the others have ended"
                assert count(server, single, OTHER_KEY) == 200
                assert len(done) - before <= 2, single
        finally:
            waiting.clear()
