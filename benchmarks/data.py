"""Rows in and out: Monodon and Lance's reference server take turns with the same data."""

import itertools
import json
import random
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import lance
import numpy as np
import pyarrow as pa

from benchmarks import processes, wrk
from benchmarks.compare import Outcome, Plan, report_progress, take_turns
from benchmarks.errors import BadAnswers
from benchmarks.report import Goal
from benchmarks.sides import NUMBERS_PER_RUN, Sample, Side
from benchmarks.stack import API_KEY, Stack, running
from benchmarks.wrk import Run

OPERATIONS = {
    "insert-1": "insert 1 row",
    "insert-10k": "insert 10,000 rows",
    "insert-1m": "insert 1,000,000 rows",
    "filter": "query by a filter",
    "vector": "query by a vector",
    "vector-index": "query by a vector, IVF_PQ",
    "repeat": "one query of one version",
    "count": "count rows",
    "count-filter": "count rows by a filter",
}
CONNECTIONS = (1, 8)
GOAL, REPEAT_GOAL = 1.0, 2.0

NAMESPACE = "bench"
PLAIN, INDEXED = "plain", "indexed"
ROWS, DIMENSIONS = 100_000, 64
"""Rows and vector dimensions of the tables that are read."""
INSERTED_DIMENSIONS = 16
BATCH_ROWS = 65_536
GROUPS = 100
INSERTED = {"insert-1": 1, "insert-10k": 10_000, "insert-1m": 1_000_000}
VARIANTS = 200
"""Different requests of one operation."""
STREAM_TYPE = "application/vnd.apache.arrow.stream"
FILE_TYPE = "application/vnd.apache.arrow.file"


class DataServer(Side):
    """A server that takes and gives rows."""

    def __init__(
        self, port: int, scratch: Path, roots: list[int], *, name: str, label: str
    ) -> None:
        self.name, self.label = name, label
        self._port = port
        self._scratch = scratch / name
        self._pids = roots
        self._numbers = itertools.count(1)
        self._scratch.mkdir(parents=True)

    def serves(self, operation: str) -> bool:
        return True

    def roots(self) -> list[int]:
        return self._pids

    def _run(self, operation: str, connections: int, seconds: int) -> Run:
        number = next(self._numbers)
        facts: dict[str, Any] = {
            "port": self._port,
            "connections": connections,
            "seconds": seconds,
            "namespaces": 1,
            "tables": 1,
            "seed": number,
            "base": number * NUMBERS_PER_RUN,
        }
        if operation not in INSERTED:
            return wrk.run("requests", **facts, requests=self._scratch / operation)
        names = [f"{operation}-{number}-{connection}" for connection in range(connections)]
        locations = [self._new_table(name) for name in names]
        body = self._scratch / operation
        paths = [
            f"/v1/table/{NAMESPACE}%24{name}/insert?mode=append&delimiter=%24" for name in names
        ]
        Path(f"{body}.paths").write_text("\n".join(paths) + "\n")
        run = wrk.run("insert", **facts, requests=body, threads=connections)
        time.sleep(1.0 if operation == "insert-1m" else 0.3)  # for what wrk no longer waited for
        self._check_count(names, run.requests * INSERTED[operation] // self._parts(operation))
        if operation == "insert-1m":
            # Few files and many bytes. The others stay: ext4 takes its time to make files where
            # many were deleted a moment ago.
            for location in locations:
                shutil.rmtree(location, ignore_errors=True)
        return run

    def _check_count(self, names: list[str], least: int) -> None:
        """Check that acknowledged rows exist. Raises BadAnswers."""
        count = sum(
            json.loads(self.call(f"table/{NAMESPACE}%24{name}/count_rows", {})) for name in names
        )
        if count < least:
            raise BadAnswers(f"{self.label}: {count} rows of {least} are there")

    def _parts(self, operation: str) -> int:
        """Number of requests in which the rows are sent."""
        return 1

    def measure(self, operation: str, *, connections: int, seconds: int) -> Sample:
        sample = super().measure(operation, connections=connections, seconds=seconds)
        parts = self._parts(operation)
        if parts == 1:
            return sample
        return Sample(
            sample.operations_per_second / parts,
            sample.p50_ms * parts,
            sample.p99_ms * parts,
            sample.cpu_us * parts,
        )

    def _create(self, name: str, content: pa.Table) -> None:
        self.send(f"table/{NAMESPACE}%24{name}/create?mode=create", stream(content))

    def _new_table(self, name: str) -> Path:
        return self._location(
            self.send(f"table/{NAMESPACE}%24{name}/create?mode=create", stream(rows(1)))
        )

    @staticmethod
    def _location(answer: bytes) -> Path:
        return Path(unquote(urlsplit(json.loads(answer)["location"]).path))

    def fill(self) -> None:
        """Make the tables that are read, and write down the requests of each operation."""
        self.call(f"namespace/{NAMESPACE}/create", {"id": [NAMESPACE]})
        content = rows(ROWS, DIMENSIONS)
        for name in (PLAIN, INDEXED):
            self._create(name, content)
        self.call(
            f"table/{NAMESPACE}%24{INDEXED}/create_index",
            {
                "id": [NAMESPACE, INDEXED],
                "column": "v",
                "index_type": "IVF_PQ",
                "distance_type": "l2",
            },
        )
        path = f"table/{NAMESPACE}%24{INDEXED}/version/list?limit=1&descending=true"
        self._version = json.loads(self.call(path, {}))["versions"][0]["version"]
        for operation, count in INSERTED.items():
            batch = rows(count // self._parts(operation))
            (self._scratch / operation).write_bytes(stream(batch))
        for operation, bodies in requests(self._version).items():
            table = bodies[0]["id"][-1]
            call = "count_rows" if operation.startswith("count") else "query"
            path = f"/v1/table/{NAMESPACE}%24{table}/{call}?delimiter=%24"
            lines = [f"POST\t{path}\tidentity\t\t{json.dumps(body)}\n" for body in bodies]
            (self._scratch / operation).write_text("".join(lines))

    def answers(self) -> dict[str, Any]:
        """Check the initial answer of each read operation. Raises BadAnswers."""
        answers: dict[str, Any] = {}
        for operation, bodies in requests(self._version).items():
            table = bodies[0]["id"][-1]
            if operation.startswith("count"):
                answer = self.call(f"table/{NAMESPACE}%24{table}/count_rows", bodies[0])
                answers[operation] = json.loads(answer)
            else:
                answer = self.call(f"table/{NAMESPACE}%24{table}/query", bodies[0])
                content = pa.ipc.open_file(answer).read_all()
                answers[operation] = sorted(content["id"].to_pylist())
        return answers

    def call(self, path: str, body: object) -> bytes:
        return self.send(path, json.dumps(body).encode(), "application/json")

    def send(self, path: str, body: bytes, content_type: str = STREAM_TYPE) -> bytes:
        """Raises BadAnswers for anything but 200."""
        joint = "&" if "?" in path else "?"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/{path}{joint}delimiter=%24",
            data=body,
            headers={"Content-Type": content_type, "x-api-key": API_KEY},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            raise BadAnswers(f"{self.label}: {path}: {error.code} {error.read()!r}") from error


class Reference(DataServer):
    """The reference server. It accepts no body over 2 MB and creates no table without rows."""

    def _parts(self, operation: str) -> int:
        return 50 if operation == "insert-1m" else 1

    def _create(self, name: str, content: pa.Table) -> None:
        first = stream(content.slice(0, 1))
        answer = self.send(f"table/{NAMESPACE}%24{name}/create?mode=create", first)
        lance.write_dataset(content, str(self._location(answer)), mode="overwrite")


def rows(count: int, dimensions: int = INSERTED_DIMENSIONS) -> pa.Table:
    vectors = _vectors(np.random.default_rng(count), count, dimensions).reshape(-1)
    return pa.table(
        {
            "id": pa.array(np.arange(count), pa.int64()),
            "name": pa.array([f"name {number % 100}" for number in range(count)], pa.string()),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), dimensions),
        }
    )


def _vectors(chance: np.random.Generator, count: int, dimensions: int) -> Any:
    """Vectors in groups, as those of a model are: an index need not look at all of its partitions."""
    centres = np.random.default_rng(dimensions).normal(size=(GROUPS, dimensions)).astype("f4")
    noise = chance.normal(scale=0.25, size=(count, dimensions)).astype("f4")
    return centres[chance.integers(GROUPS, size=count)] + noise


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=BATCH_ROWS)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def requests(version: int) -> dict[str, list[dict[str, Any]]]:
    """The bodies of each read operation."""
    choose = random.Random(1)

    vectors = iter(_vectors(np.random.default_rng(1), 2 * VARIANTS + 1, DIMENSIONS).tolist())

    def query(table: str, **more: Any) -> dict[str, Any]:
        return {"id": [NAMESPACE, table], "k": 10, **more}

    def search(table: str, **more: Any) -> dict[str, Any]:
        return query(table, vector={"single_vector": next(vectors)}, vector_column="v", **more)

    starts = [choose.randrange(ROWS - 10) for _ in range(VARIANTS)]
    return {
        "filter": [
            query(PLAIN, vector={"single_vector": []}, filter=f"id >= {n} AND id < {n + 10}")
            for n in starts
        ],
        "vector": [search(PLAIN) for _ in range(VARIANTS)],
        "vector-index": [search(INDEXED) for _ in range(VARIANTS)],
        "repeat": [search(INDEXED, version=version)],
        "count": [{"id": [NAMESPACE, PLAIN]}],
        "count-filter": [{"id": [NAMESPACE, PLAIN], "predicate": f"id < {n}"} for n in starts],
    }


def suits(operation: str, connections: int) -> bool:
    return operation != "insert-1m" or connections == 1


def start(stack: Stack) -> tuple[DataServer, DataServer, int]:
    """Both servers with their content, and the web server's process."""
    url = stack.postgres.url
    report_progress("migrations")
    stack.bootstrap(url)
    report_progress("servers and their content")
    web, port = stack.start_web(url, settings={"MONODON_INDEX_IN_REQUEST_ROWS": "1000000000"})
    adapter, adapter_port, _ = stack.start_reference()
    scratch = stack.root / "requests"
    ours = DataServer(port, scratch, [web.pid, stack.postgres_pid], name="monodon", label="Monodon")
    reference = Reference(
        adapter_port, scratch, [adapter.pid], name="reference", label="RestAdapter"
    )
    for server in (ours, reference):
        server.fill()
    check(ours, reference)
    return ours, reference, web.pid


def check(ours: DataServer, reference: DataServer) -> None:
    """Check that both sides return the same answers where they compute the same. Raises
    BadAnswers."""
    actual, expected = ours.answers(), reference.answers()
    for operation, answer in actual.items():
        if operation in {"vector-index", "repeat"}:  # each trained its own index
            if len(answer) != len(expected[operation]):
                raise BadAnswers(f"{operation}: {answer} and {expected[operation]}")
        elif answer != expected[operation]:
            raise BadAnswers(f"{operation}: {answer} and {expected[operation]}")


def measure(plan: Plan, directory: Path | None) -> Outcome:
    wrk.require()
    began = time.monotonic()
    with running(directory) as stack:
        ours, reference, web = start(stack)
        described = (
            f"read {ROWS:,} rows × {DIMENSIONS} float32; inserted rows have {INSERTED_DIMENSIONS}, "
            f"{len(stream(rows(INSERTED['insert-1m']))) / 1e6:.0f} MB for a million"
        )
        outcome = Outcome(plan, {}, [], described)
        report_progress("warming up")
        for operation in plan.operations:
            ours.measure(operation, connections=8 if suits(operation, 8) else 1, seconds=1)
        take_turns(outcome, [ours, reference], suits)
        outcome.web_megabytes = processes.resident_megabytes(web)
    outcome.seconds = time.monotonic() - began
    return outcome


def goals(outcome: Outcome) -> list[Goal]:
    """Goals whose operations were measured."""
    goals_ = []
    for operation in outcome.plan.operations:
        for connections in outcome.plan.connections:
            ratio = outcome.ratio(operation, connections, "reference")
            if ratio is not None:
                text = f"{OPERATIONS[operation]}, {connections} connections / RestAdapter"
                goal = REPEAT_GOAL if operation == "repeat" else GOAL
                goals_.append(Goal(text, goal, ratio))
    return goals_
