"""LanceDB's remote client on a server, beside LanceDB on a local directory: searches and inserts.

Both sides have the same rows, the same index and eight threads of one process, which share the machine with the
server. They take turns, round by round.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import lancedb
import numpy as np
import psutil
import pyarrow as pa
from lancedb.index import IvfPq
from lancedb.table import Table

from benchmarks.compare import report_progress
from benchmarks.stack import API_KEY, running

CLIENTS = 8
DIMENSIONS = 128
INSERTED_ROWS = 1_000
GOALS = {"search": 0.7, "insert": 0.5}
"""The least rate of the remote side, as a part of the local rate."""
_Operation = Callable[[Table, int], object]
_numbers = itertools.count()
"""A new number for each operation: the server answers a repeated query from memory."""


@dataclass(frozen=True)
class Size:
    rows: int
    partitions: int
    rounds: int
    seconds: float


QUICK = Size(rows=20_000, partitions=32, rounds=3, seconds=2.0)
FULL = Size(rows=100_000, partitions=128, rounds=5, seconds=5.0)


@dataclass(frozen=True)
class Round:
    """The operations of one side in one round."""

    seconds: float
    latencies: list[float]
    cpu_seconds: float
    """CPU time of the client and, on the remote side, of the server with its database."""

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def cpu_ms(self) -> float:
        return self.cpu_seconds / len(self.latencies) * 1000


def measure(size: Size, directory: Path | None) -> bool:
    """Measure both sides; whether the goals are reached."""
    with running(directory) as stack:
        url = stack.postgres.url
        stack.bootstrap(url)
        # The index is built in the request, because no worker runs.
        child, port = stack.start_web(url, settings={"MONODON_INDEX_IN_REQUEST_ROWS": str(10**12)})
        catalog = lancedb.connect_catalog(f"http://127.0.0.1:{port}", api_key=API_KEY)
        sides = {
            "local": lancedb.connect(stack.root / "local"),
            "remote": catalog.create_database("bench"),
        }
        vectors = np.random.default_rng(1).random((size.rows, DIMENSIONS), dtype=np.float32)
        tables: dict[str, Table] = {}
        for name, db in sides.items():
            report_progress(f"{name}: {size.rows} rows and their index")
            tables[name] = db.create_table("vectors", _rows(vectors))
            index = IvfPq(num_partitions=size.partitions, num_sub_vectors=16)
            tables[name].create_index("vector", config=index)
        servers = [child.pid, stack.postgres_pid]

        def search(table: Table, number: int) -> object:
            return table.search(vectors[number % size.rows]).nprobes(10).limit(10).to_arrow()

        added = _rows(vectors[:INSERTED_ROWS])

        def insert(table: Table, _: int) -> object:
            return table.add(added)

        reached = [
            _compare("search", search, tables, servers, size),
            _compare(
                "insert",
                insert,
                {name: db.create_table("rows", added) for name, db in sides.items()},
                servers,
                size,
            ),
        ]
        return all(reached)


def _rows(vectors: np.ndarray) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS)
    return pa.table({"id": pa.array(range(len(vectors)), pa.int64()), "vector": column})


def _compare(
    name: str, operation: _Operation, tables: dict[str, Table], servers: list[int], size: Size
) -> bool:
    rounds: dict[str, list[Round]] = {side: [] for side in tables}
    for number in range(size.rounds + 1):  # the first warms up
        for side, table in tables.items():
            counted = _round(operation, table, servers if side == "remote" else [], size.seconds)
            if number:
                rounds[side].append(counted)
    for side, measured in rounds.items():
        latencies = sorted(latency for round_ in measured for latency in round_.latencies)
        print(
            f"{name:8}{side:8}{statistics.median(round_.rate for round_ in measured):10.1f} ops/s"
            f"  p50 {_percentile(latencies, 0.5):8.1f} ms  p99 {_percentile(latencies, 0.99):8.1f} ms"
            f"  {statistics.median(round_.cpu_ms for round_ in measured):8.2f} ms CPU"
        )
    ratio = statistics.median(
        remote.rate / local.rate
        for remote, local in zip(rounds["remote"], rounds["local"], strict=True)
    )
    goal = GOALS[name]
    print(f"{name:8}remote/local {ratio:.2f} (goal {goal}): {'ok' if ratio >= goal else 'MISSED'}")
    return ratio >= goal


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))] * 1000


def _round(operation: _Operation, table: Table, servers: list[int], seconds: float) -> Round:
    started = time.perf_counter()
    before = _cpu(servers)

    def client(_: int) -> list[float]:
        latencies = []
        while (begun := time.perf_counter()) < started + seconds:
            operation(table, next(_numbers))
            latencies.append(time.perf_counter() - begun)
        return latencies

    with ThreadPoolExecutor(CLIENTS) as threads:
        latencies = list(itertools.chain.from_iterable(threads.map(client, range(CLIENTS))))
    return Round(time.perf_counter() - started, latencies, _cpu(servers) - before)


def _cpu(servers: list[int]) -> float:
    """CPU time of this process, and of servers with their children."""
    processes = [psutil.Process()]
    for pid in servers:
        server = psutil.Process(pid)
        processes += [server, *server.children(recursive=True)]
    total = 0.0
    for process in processes:
        times = process.cpu_times()
        total += times.user + times.system
    return total
