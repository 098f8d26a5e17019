"""A locked row blocks requests for its own table only."""

import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import urllib3

from tests.background import Background
from tests.factories import ICEBERG_SCHEMA
from tests.live import LiveServer
from tests.shares import nightly

pytestmark = pytest.mark.xdist_group("stuck rows")  # the server starts once
WRITERS = 32
_PAUSE = 0.5
"""Seconds between the requests of a writer, who would use the whole machine otherwise. The requests that
wait for the locked row occupy threads, however few others there are."""
_READING = 3.0


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(workers=2, threads=4) as server:
        status, answer = server.post("/v1/namespace/ns/create")
        assert status == 200, answer
        yield server


class Writers(Background):
    """Threads that repeat one request and count the answers."""

    def __init__(self, server: LiveServer, path: str, body: bytes) -> None:
        self._server, self._path, self._body = server, path, body
        self._http = urllib3.PoolManager(maxsize=WRITERS, retries=False)
        self.answers: Counter[tuple[int, bool]] = Counter()
        """Counts by status and by whether Retry-After was present."""
        super().__init__(WRITERS)

    def work(self, number: int) -> None:
        headers = {"x-api-key": self._server.key, "content-type": "application/json"}
        while not self._stop.is_set():
            answer = self._http.request(
                "POST", self._server.url + self._path, body=self._body, headers=headers, timeout=60
            )
            self.answers[answer.status, "retry-after" in answer.headers] += 1
            time.sleep(_PAUSE)


@pytest.mark.parametrize("format", ["lance", nightly("iceberg")])
def test_a_locked_row_does_not_block_reads_of_other_tables(server: LiveServer, format: str) -> None:
    stuck, free = f"stuck_{format}", f"free_{format}"
    for name in (stuck, free):
        if format == "lance":
            status, answer = server.post(f"/v1/table/ns${name}/declare")
            first = {"version": 1, "manifest_path": f"elsewhere/{name}.manifest"}
            status, answer = server.post(f"/v1/table/ns${name}/version/create", first)
        else:
            table = {"name": name, "schema": ICEBERG_SCHEMA}
            status, answer = server.post("/v1/namespaces/ns/tables", table)
        assert status == 200, answer
    if format == "lance":
        path, read = f"/v1/table/ns${stuck}/version/create", f"/v1/table/ns${free}/describe"
        body = b'{"version": 2, "manifest_path": "elsewhere/2.manifest"}'
    else:
        path, read = f"/v1/namespaces/ns/tables/{stuck}", f"/v1/table/ns${free}/exists"
        body = (
            b'{"requirements": [],'
            b' "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}'
        )
    expected = 200 if format == "lance" else 404  # the Lance protocol does not serve Iceberg tables
    slowest = 0.0
    with server.database() as holder, holder.transaction():
        holder.execute("SELECT FROM catalog_table WHERE name = %s FOR UPDATE", [stuck])
        with Writers(server, path, body) as writers:
            time.sleep(1.0)
            end = time.monotonic() + _READING
            while time.monotonic() < end:
                started = time.monotonic()
                status, _ = server.post(read)
                slowest = max(slowest, time.monotonic() - started)
                assert status == expected
                time.sleep(0.05)
    print(f"slowest read {slowest:.3f} s, {dict(writers.answers)}")
    assert slowest < 1.0
    # No answer reports an unreachable database, and every refusal has Retry-After.
    assert set(writers.answers) == {(503 if format == "lance" else 409, True)}
    with server.database() as connection:
        query = (
            "SELECT count(*) FROM catalog_tableversion v JOIN catalog_table t ON t.id = v.table_id"
        )
        assert connection.execute(f"{query} WHERE t.name = %s", [stuck]).fetchone() == (1,)
    # When the row is unlocked, requests for the table succeed.
    assert server.post(path, json.loads(body))[0] == 200


def test_two_locked_rows_do_not_block_reads_of_other_tables(server: LiveServer) -> None:
    """The threads that leave the first locked table are not replaced by those of the second."""
    assert server.post("/v1/table/ns$free/declare")[0] == 200
    names = ["first_locked", "second_locked"]
    for name in names:
        assert server.post(f"/v1/table/ns${name}/declare")[0] == 200
    slowest = 0.0
    with server.database() as holder, holder.transaction():
        holder.execute("SELECT FROM catalog_table WHERE name = ANY(%s) FOR UPDATE", [names])
        body = b'{"version": 1, "manifest_path": "elsewhere/1.manifest"}'
        first, second = (f"/v1/table/ns${name}/version/create" for name in names)
        with Writers(server, first, body) as some, Writers(server, second, body) as others:
            time.sleep(4.0)  # until the first requests have waited for the locks
            end = time.monotonic() + _READING
            while time.monotonic() < end:
                started = time.monotonic()
                assert server.post("/v1/table/ns$free/exists")[0] == 200
                slowest = max(slowest, time.monotonic() - started)
                time.sleep(0.05)
    print(f"slowest read {slowest:.3f} s, {dict(some.answers)}, {dict(others.answers)}")
    assert slowest < 1.5
    assert set(some.answers) == set(others.answers) == {(503, True)}
    assert server.post(first, json.loads(body))[0] == 200
    assert server.post(second, json.loads(body))[0] == 200
