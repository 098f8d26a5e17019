"""The requests of the benchmarks are accepted by the product: a benchmark that is refused measures nothing.

Every operation of the sets ``compare``, ``iceberg``, ``data`` and ``batches`` is executed on a small catalog.
"""

import http.client
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import batches, compare, data, iceberg, iceberg_load, load, sides, wrk
from benchmarks.errors import BadAnswers
from benchmarks.load import Size
from benchmarks.stack import API_KEY, Stack
from benchmarks.wrk import Run
from server.processes import Child

pytestmark = pytest.mark.xdist_group("benchmarks")  # the server starts once

SIZE = Size(namespaces=2, tables=100, versions=3)
SETTINGS = {
    "MONODON_WEB_WORKERS": "1",
    "MONODON_MANIFEST_PATHS": f"{sides.SETTINGS['MONODON_MANIFEST_PATHS']},{batches.MANIFESTS}",
    "MONODON_INDEX_IN_REQUEST_ROWS": "1000000000",
}


class Server:
    """A web server whose catalog has the content of ``compare``."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.url = stack.postgres.url
        stack.bootstrap(self.url)
        load.seed(self.url, SIZE, stack.warehouse)
        child: Child
        child, self.port = stack.start_web(self.url, settings=SETTINGS)
        self.pid = child.pid


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Stack(tmp_path_factory.mktemp("benchmarks")) as stack:
        yield Server(stack)


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the first request of a file once. The scripts of the other operations run for a second."""
    run = wrk.run

    def once(script: str, *, port: int, requests: Path | None = None, **facts: Any) -> Run:
        if script != "requests" or requests is None:
            return run(script, port=port, requests=requests, **facts)
        method, path, encoding, tag, body = (
            requests.read_text().partition("\n")[0].replace("@", str(facts["base"])).split("\t")
        )
        headers = {"x-api-key": API_KEY, "Accept-Encoding": encoding, "If-None-Match": tag}
        headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        used = {name: value for name, value in headers.items() if value}
        connection.request(method, path, body or None, used)
        with connection.getresponse() as answer:
            content = answer.read()
        connection.close()
        if answer.status >= 400:
            raise BadAnswers(f"{requests.name}: {answer.status} {content!r}")
        return Run(1, 1.0, 1.0, 1.0)

    monkeypatch.setattr(wrk, "run", once)


def require_wrk() -> None:
    if shutil.which("wrk") is None and "MONODON_REQUIRE_WRK" not in os.environ:
        pytest.skip("wrk is not installed")


def measure(side: sides.Side, operations: Any) -> None:
    """Raises BadAnswers if a request is refused."""
    for operation in operations:
        if side.serves(operation):
            sample = side.measure(operation, connections=1, seconds=1)
            assert sample.operations_per_second > 0


def test_compare(server: Server):
    require_wrk()
    scratch = server.stack.root / "compare"
    ours = sides.Monodon(server.port, SIZE, scratch, server.pid, server.stack.postgres_pid)
    ours.check()
    ours.stage_in(server.url, "ns0001")
    measure(ours, compare.OPERATIONS)
    measure(ours, ["create", "record"])  # their versions are others than before
    measure(sides.PostgreSQL(server.stack, server.url, "simple"), compare.OPERATIONS)


def test_iceberg(server: Server, monkeypatch: pytest.MonkeyPatch):
    small = {
        tables.namespace: replace(tables, count=2, snapshots=min(tables.snapshots, 20))
        for tables in iceberg_load.ALL
    }
    monkeypatch.setattr(iceberg_load, "ALL", tuple(small.values()))
    for name in ("SMALL", "LARGE"):
        monkeypatch.setattr(iceberg, name, small[name.lower()])
    for tables_of in (iceberg._READ, iceberg._COMMITTED):
        for operation, tables in tables_of.items():
            monkeypatch.setitem(tables_of, operation, small[tables.namespace])
    client = iceberg_load.own_client(server.port)
    iceberg_load.seed(client, server.stack.warehouse)
    pids = server.pid, server.stack.postgres_pid
    ours = iceberg.Monodon(server.port, server.stack.root / "iceberg", *pids)
    ours.prepare(client)
    measure(ours, iceberg.OPERATIONS)
    measure(iceberg.Plain(server.stack, server.url, "simple"), ["load", "commit"])


def test_data(server: Server, monkeypatch: pytest.MonkeyPatch):
    require_wrk()
    monkeypatch.setattr(data, "ROWS", 1_000)
    monkeypatch.setattr(data, "INSERTED", {"insert-1": 1, "insert-10k": 100, "insert-1m": 1_000})
    pids = [server.pid, server.stack.postgres_pid]
    scratch = server.stack.root / "data"
    ours = data.DataServer(server.port, scratch, pids, name="monodon", label="Monodon")
    ours.fill()
    answers = ours.answers()
    assert (answers["count"], len(answers["vector"])) == (1_000, 10)
    measure(ours, data.OPERATIONS)


def test_batches(server: Server):
    sender = batches._Batches(server.port, server.pid)
    sender.send("namespace", 1, route="/v1/namespace/bench/create", body={"mode": "exist_ok"})
    figures = batches._measure(sender, batches.Size(tables=3, versions=30))
    assert len(figures) == 10
