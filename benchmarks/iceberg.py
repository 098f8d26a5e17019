"""The Iceberg protocol: Monodon, PostgreSQL with plain statements, and a server that parses, taking turns."""

import itertools
import json
import random
import time
from pathlib import Path

import psycopg

from benchmarks import iceberg_load, iceberg_naive, iceberg_other, processes, wrk
from benchmarks.compare import Outcome, Plan, report_progress, take_turns
from benchmarks.errors import BadAnswers
from benchmarks.iceberg_load import (
    COMMIT,
    CREATE,
    LARGE,
    MANY,
    ONE,
    SMALL,
    THOUSAND,
    Client,
    Tables,
)
from benchmarks.report import GOAL_CONNECTIONS, Goal
from benchmarks.sides import NUMBERS_PER_RUN, PostgreSQL, Side
from benchmarks.stack import running
from benchmarks.wrk import Run

OPERATIONS = {
    "config": "configuration",
    "load": "load table, 20 KB",
    "load-1m": "load table, 1 MB, gzip",
    "load-1m-plain": "load table, 1 MB, plain",
    "unchanged": "load table, 1 MB, unchanged (304)",
    "exists": "does a table exist",
    "namespace": "does a namespace exist",
    "list": "list of 100 tables",
    "commit": "commit, each to its own table",
    "commit-one": "commit, all to one table",
    "commit-1000": "commit, 1,000 snapshots",
    "create": "create a table",
}
NEW = "new"
"""The namespace of created tables."""
_READ = {
    "load": SMALL,
    "load-1m": LARGE,
    "load-1m-plain": LARGE,
    "unchanged": LARGE,
    "exists": SMALL,
}
_COMMITTED = {"commit": MANY, "commit-one": ONE, "commit-1000": THOUSAND}


class Monodon(Side):
    name, label = "monodon", "Monodon"

    def __init__(self, port: int, directory: Path, web: int, database: int) -> None:
        self._port = port
        self._directory = directory
        self._pids = [web, database]
        self._runs = itertools.count(1)

    def prepare(self, client: Client) -> None:
        """Write down the requests of each operation, once it is sure that they get what is measured.

        Raises BadAnswers.
        """
        self._directory.mkdir()
        _check(client)
        for operation, tables in _READ.items():
            paths = tables.paths()
            encoding = "identity" if operation == "load-1m-plain" else "gzip"
            tags = [""] * len(paths)
            if operation == "unchanged":
                tags = [client.call("GET", path)[0].headers["ETag"] for path in paths]
            method = "HEAD" if operation == "exists" else "GET"
            self._write(
                operation,
                [f"{method}\t{p}\t{encoding}\t{t}\t" for p, t in zip(paths, tags, strict=True)],
            )
        self._write("config", ["GET\t/v1/config\tgzip\t\t"])
        self._write("list", [f"GET\t/v1/namespaces/{SMALL.namespace}/tables\tgzip\t\t"])
        self._write("namespace", [f"HEAD\t/v1/namespaces/{SMALL.namespace}\tgzip\t\t"])
        self._write("create", [f"POST\t/v1/namespaces/{NEW}/tables\tgzip\t\t{CREATE}"])
        client.call("POST", "/v1/namespaces", {"namespace": [NEW]})
        for operation, tables in _COMMITTED.items():
            self._write(operation, [f"POST\t{path}\tgzip\t\t{COMMIT}" for path in tables.paths()])

    def _write(self, operation: str, lines: list[str]) -> None:
        random.Random(operation).shuffle(lines)
        (self._directory / operation).write_text("\n".join(lines) + "\n")

    def serves(self, operation: str) -> bool:
        return True

    def _run(self, operation: str, connections: int, seconds: int) -> Run:
        number = next(self._runs)
        return wrk.run(
            "requests",
            port=self._port,
            connections=connections,
            seconds=seconds,
            namespaces=1,
            tables=1,
            seed=number,
            base=number * NUMBERS_PER_RUN,
            requests=self._directory / operation,
        )

    def roots(self) -> list[int]:
        return self._pids


class Naive(Monodon):
    """The same requests to a server that parses and renders."""

    name, label = "naive", "parse and render"

    def serves(self, operation: str) -> bool:
        return operation in {"load-1m", "load-1m-plain"}


class Plain(PostgreSQL):
    """One select against a read; against a commit what swaps a pointer and keeps a ledger."""

    def serves(self, operation: str) -> bool:
        return operation in {"load", "exists", *_COMMITTED}

    def _script(self, operation: str) -> str:
        return "swap" if operation in _COMMITTED else "select"


def _check(client: Client) -> None:
    """Raises BadAnswers."""
    path = LARGE.paths()[0]
    answer, content = client.call("GET", path)
    again, _ = client.call("GET", path, **{"If-None-Match": answer.headers["ETag"]})
    snapshots = json.loads(content)["metadata"]["snapshots"]
    listed = json.loads(client.call("GET", f"/v1/namespaces/{SMALL.namespace}/tables")[1])
    if len(snapshots) != LARGE.snapshots or again.status != 304:
        raise BadAnswers(f"{path}: {len(snapshots)} snapshots, then {again.status} for 304")
    if len(listed["identifiers"]) != SMALL.count:
        raise BadAnswers(f"{len(listed['identifiers'])} tables are listed")


def measure(
    plan: Plan, directory: Path | None, against: iceberg_other.Address | None = None
) -> Outcome:
    """Measure the operations. ``against``: another catalog, which takes turns too."""
    wrk.require()
    began = time.monotonic()
    with running(directory) as stack:
        url = stack.postgres.url
        report_progress("migrations")
        stack.bootstrap(url)
        web, port = stack.start_web(url)
        client = iceberg_load.own_client(port)
        report_progress("load")
        sizes = iceberg_load.seed(client, stack.warehouse)
        naive, naive_port = stack.start_web(url, wsgi="benchmarks.iceberg_naive:application")
        _enter_text(url, client)
        requests = stack.root / "requests"
        ours = Monodon(port, requests, web.pid, stack.postgres_pid)
        ours.prepare(client)
        sides: list[Side] = [
            ours,
            Naive(naive_port, requests, naive.pid, stack.postgres_pid),
            Plain(stack, url, "simple"),
        ]
        if against is not None:
            report_progress(f"load of {against.url}")
            sides.append(iceberg_other.prepared(against, requests / "other"))
        outcome = Outcome(plan, {}, [], _described(sizes))
        report_progress("warming up")
        for operation in plan.operations:
            ours.measure(operation, connections=16, seconds=1)
        take_turns(outcome, sides)
        outcome.web_megabytes = processes.resident_megabytes(web.pid)
    outcome.seconds = time.monotonic() - began
    return outcome


def _enter_text(url: str, client: Client) -> None:
    """Give the naive server the metadata that ours has."""
    with psycopg.connect(url) as connection:
        connection.execute(iceberg_naive.PREPARE)
        for path in LARGE.paths():
            document = json.loads(client.call("GET", path)[1])
            text = json.dumps(document["metadata"], separators=(",", ":"))
            connection.execute(iceberg_naive.ENTER, [path, document["metadata-location"], text])


def _described(sizes: dict[str, int]) -> str:
    def description(tables: Tables) -> str:
        return f"{tables.count} tables of {tables.snapshots:,} snapshots, {sizes[tables.namespace] / 1000:,.0f} KB"

    return f"read {description(SMALL)}; {description(LARGE)}; committed to {description(MANY)}; {description(THOUSAND)}"


def goals(outcome: Outcome) -> list[Goal]:
    """Goals whose operations were measured."""
    if GOAL_CONNECTIONS not in outcome.plan.connections:
        return []

    def ratio(operation: str, other: str, other_operation: str = "") -> float | None:
        return outcome.ratio(operation, GOAL_CONNECTIONS, other, other_operation)

    cpu_us = outcome.median("commit-1000", "monodon", GOAL_CONNECTIONS, "cpu_us")
    result = [
        Goal("load table of 20 KB / pgbench select", 0.07, ratio("load", "pgbench-simple")),
        Goal(
            "unchanged (304) / load table of 1 MB, plain",
            5,
            ratio("unchanged", "monodon", "load-1m-plain"),
        ),
        Goal("load table of 1 MB, gzip / parse and render", 30, ratio("load-1m", "naive")),
        Goal(
            "does a namespace exist / does a table exist",
            0.8,
            ratio("namespace", "monodon", "exists"),
        ),
        Goal(
            "create a table / commit, each to its own table",
            0.5,
            ratio("create", "monodon", "commit"),
        ),
        Goal(
            "commits to one table / pgbench transaction",
            0.08,
            ratio("commit-one", "pgbench-simple"),
        ),
        Goal(
            "commit at 1,000 snapshots, ms of CPU",
            10,
            None if cpu_us is None else cpu_us / 1000,
            at_most=True,
        ),
    ]
    return [goal for goal in result if goal.measured is not None]
