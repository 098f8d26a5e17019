"""Time per operation of batches over HTTP, for batches that succeed and batches that fail at their
end."""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.budget_operations import MANIFESTS
from benchmarks.compare import report_progress
from benchmarks.errors import BadAnswers
from benchmarks.stack import API_KEY, running

Operation = dict[str, Any]
ROUTE = "/v1/table/batch-commit"
GOAL_MS, GOAL_RATIO, GOAL_SECONDS = 1.0, 1.5, 10.0


@dataclass(frozen=True)
class Size:
    tables: int
    versions: int
    """Versions per table, in one batch."""


QUICK = Size(tables=200, versions=2_000)
FULL = Size(tables=1_000, versions=10_000)


@dataclass(frozen=True)
class Figure:
    name: str
    operations: int
    seconds: float
    cpu_seconds: float
    """CPU time of the web process."""

    @property
    def each_ms(self) -> float:
        return self.seconds / self.operations * 1000


def measure(size: Size, directory: Path | None) -> bool:
    """Send batches of each kind; whether the goals are reached."""
    with running(directory) as stack:
        url = stack.postgres.url
        stack.bootstrap(url)
        settings = {"MONODON_WEB_WORKERS": "1", "MONODON_MANIFEST_PATHS": MANIFESTS}
        child, port = stack.start_web(url, settings=settings)
        batches = _Batches(port, child.pid)
        batches.send("namespace", 1, route="/v1/namespace/bench/create", body={})
        return _show(size, _measure(batches, size))


def _measure(batches: "_Batches", size: Size) -> list[tuple[Figure, Figure]]:
    """Pairs: a batch that fails at its last operation, and the same without that."""

    def pair(name: str, build: Callable[[int], list[Operation]]) -> tuple[Figure, Figure]:
        operations = [operation for n in range(size.tables) for operation in build(n)]
        failing = batches.commit(name, [*operations, _deregister("missing")], status=404)
        return failing, batches.commit(name, operations)

    pairs = [
        pair("declare", lambda n: [_declare(_name(n))]),
        pair("declare at a location", lambda n: [_declare(f"own-{n}", f"own/{n}")]),
        pair(
            "declare at one with version",
            lambda n: [_declare(f"more-{n}", f"more/{n}"), _create(f"more-{n}", 1)],
        ),
        pair("first version", lambda n: [_create(_name(n), 1)]),
        pair("versions", lambda n: [_create(_name(n), 2), _create(_name(n), 3)]),
        pair("delete", lambda n: [_delete(_name(n), 1)]),
        pair("delete and deregister", lambda n: [_delete(_name(n), 2), _deregister(_name(n))]),
        pair("declare with version", lambda n: [_declare(_name(n)), _create(_name(n), 1)]),
        pair("replace", lambda n: [_deregister(_name(n)), _declare(_name(n))]),
    ]
    # With the failing operation, as many as a batch may have.
    versions = [_create(_name(0), n) for n in range(10, 9 + size.versions)]
    batches.commit("one version", [_create(_name(0), 9)])
    failing = batches.commit("versions of one table", [*versions, _create(_name(0), 9)], status=409)
    return [*pairs, (failing, batches.commit("versions of one table", versions))]


class _Batches:
    def __init__(self, port: int, pid: int) -> None:
        self._port, self._web = port, psutil.Process(pid)

    def commit(self, name: str, operations: list[Operation], *, status: int = 200) -> Figure:
        body = {"operations": operations}
        return self.send(name, len(operations), route=ROUTE, body=body, status=status)

    def send(
        self, name: str, count: int, *, route: str, body: dict[str, Any], status: int = 200
    ) -> Figure:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        headers = {"x-api-key": API_KEY, "content-type": "application/json"}
        content = json.dumps(body).encode()
        cpu, began = self._cpu(), time.perf_counter()
        connection.request("POST", route, content, headers)
        answer = connection.getresponse()
        text = answer.read()
        seconds = time.perf_counter() - began
        connection.close()
        if answer.status != status:
            raise BadAnswers(f"{name}: {answer.status} instead of {status}: {text[:300]!r}")
        return Figure(name, count, seconds, self._cpu() - cpu)

    def _cpu(self) -> float:
        processes = [self._web, *self._web.children(recursive=True)]
        return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _show(size: Size, pairs: list[tuple[Figure, Figure]]) -> bool:
    is_reached = True
    for failing, succeeding in pairs:
        ratio = failing.seconds / succeeding.seconds
        report_progress(
            f"{succeeding.name:27} {succeeding.operations:6,} operations"
            f" {succeeding.seconds:7.2f} s {succeeding.each_ms:6.2f} ms each"
            f" ({succeeding.cpu_seconds / succeeding.operations * 1000:.2f} ms of the web process);"
            f" failing {ratio:.2f} times as long"
        )
        is_reached &= succeeding.each_ms <= GOAL_MS and ratio <= GOAL_RATIO
    whole = pairs[-1][1].seconds
    report_progress(f"{size.versions:,} versions in one batch: {whole:.1f} s")
    return is_reached and whole < GOAL_SECONDS


def _name(number: int) -> str:
    return f"t{number:05d}"


def _declare(name: str, location: str | None = None) -> Operation:
    table = {"id": ["bench", name]}
    return {"declare_table": table if location is None else {**table, "location": location}}


def _create(name: str, version: int) -> Operation:
    path = f"{MANIFESTS}{name}/{version}.manifest"
    entry = {"id": ["bench", name], "version": version, "manifest_path": path}
    return {"create_table_version": entry}


def _delete(name: str, version: int) -> Operation:
    ranges = [{"start_version": version, "end_version": version + 1}]
    return {"delete_table_versions": {"id": ["bench", name], "ranges": ranges}}


def _deregister(name: str) -> Operation:
    return {"deregister_table": {"id": ["bench", name]}}
