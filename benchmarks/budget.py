"""What a request costs against a budget: CPU time, in multiples of a calibration loop, and counts."""

import importlib
import json
import os
import statistics
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg

from benchmarks import budget_counts, budget_grants, budget_operations
from benchmarks.budget_client import Client
from benchmarks.budget_counts import Counts
from benchmarks.budget_operations import OPERATIONS, Prepare, Request
from benchmarks.compare import report_progress
from benchmarks.report import columns
from benchmarks.stack import Stack, running

BUDGET = Path(__file__).with_name("budget.toml")
TOLERANCE = 1.15
"""An operation fails above its budget times this."""


@dataclass(frozen=True)
class Size:
    rounds: int
    requests: int
    """Requests per round and operation."""


QUICK = Size(rounds=5, requests=10)
FULL = Size(rounds=15, requests=20)


@dataclass
class Samples:
    """The rounds of one operation."""

    web_us: list[float] = field(default_factory=list)
    database_us: list[float] = field(default_factory=list)
    multiples: list[float] = field(default_factory=list)
    """CPU time of a request in calibration units of the same round."""

    @property
    def multiple(self) -> float:
        """The lower quartile of the rounds: other load only ever adds to the time of a request."""
        return statistics.quantiles(self.multiples, n=4)[0]


class Clock:
    """CPU time of this process and of the backend of its connection, in seconds."""

    def __init__(self, backend: int) -> None:
        self.backend = backend
        # The ID that clock_getcpuclockid returns on Linux: the CPU time of all threads of the process.
        self._clock = (~backend << 3) | 2

    def read(self) -> tuple[float, float]:
        return time.process_time(), time.clock_gettime(self._clock)


class Calibration:
    """A fixed piece of Python, JSON and PostgreSQL, as work per request: one unit."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self.clock = Clock(self._connection.info.backend_pid)
        self._document = {"names": [f"name-{n}" for n in range(50)], "map": {"a": 1.5, "b": None}}

    def run(self) -> None:
        total = 0
        for number in range(1000):
            total += number % 7
        for _ in range(2):
            json.loads(json.dumps(self._document))
        orjson.loads(orjson.dumps(self._document))
        for _ in range(3):
            self._connection.execute("SELECT 1").fetchone()


def measure(size: Size, directory: Path | None, only: Sequence[str] = ()) -> bool:
    """Measure the operations and print them; whether none exceeds its budget by more than 15 %."""
    budget = budget_of("operations")
    operations = {name: OPERATIONS[name] for name in only or OPERATIONS}
    with running(directory) as stack:
        report_progress("migrations")
        samples, unit_us = _measure(stack, operations, size)
    is_kept = True
    rows = []
    for name, sample in samples.items():
        allowed = budget.get(name)
        is_over = allowed is not None and sample.multiple > allowed * TOLERANCE
        is_kept &= not is_over
        rows.append(
            [
                name,
                "-" if allowed is None else f"{allowed:.2f}",
                f"{sample.multiple:.2f}",
                f"{statistics.quantiles(sample.web_us, n=4)[0]:,.0f}",
                f"{statistics.quantiles(sample.database_us, n=4)[0]:,.0f}",
                "OVER" if is_over else "",
            ]
        )
    head = ["operation", "budget", "measured", "web µs", "PostgreSQL µs", ""]
    print(columns(head, rows, left_aligned={0}))
    print(f"\nOne unit of the budget is the calibration loop: {unit_us:,.0f} µs of CPU here.")
    return is_kept


def count(directory: Path | None, only: Sequence[str] = ()) -> bool:
    """Count what the operations execute and print it; whether none exceeds its counts.

    An operation may make 15 % more calls of functions than its budget, and no further statement.
    """
    calls, statements = budget_of("calls"), budget_of("statements")
    operations = {name: OPERATIONS[name] for name in only or OPERATIONS}
    with running(directory) as stack:
        report_progress("migrations")
        client = _prepared(stack, operations)
        counts = {n: budget_counts.count(client, prepare) for n, prepare in operations.items()}
    over = {n for n, c in counts.items() if exceeds(c, calls.get(n), statements.get(n))}
    rows = [
        [
            name,
            f"{calls.get(name, '-')}",
            str(c.calls),
            f"{statements.get(name, '-')}",
            str(c.statements),
            "OVER" if name in over else "",
        ]
        for name, c in counts.items()
    ]
    print(columns(["operation", "calls", "now", "statements", "now", ""], rows, left_aligned={0}))
    return not over


def exceeds(counts: Counts, calls: float | None, statements: float | None) -> bool:
    """True if an operation exceeds its budget; None: it has no budget."""
    has_more_calls = calls is not None and counts.calls > round(calls * TOLERANCE, 6)
    return has_more_calls or (statements is not None and counts.statements > statements)


def budget_of(figure: str) -> dict[str, float]:
    """The budget of each operation: ``operations`` (CPU time), ``calls`` or ``statements``."""
    table: dict[str, float] = tomllib.loads(BUDGET.read_text())[figure]
    return table


def _prepared(stack: Stack, operations: dict[str, Prepare]) -> Client:
    """The application in this process, whose plans, caches and imports are warm."""
    url = stack.postgres.url
    stack.bootstrap(url)
    settings = {
        "MONODON_MANIFEST_PATHS": budget_operations.MANIFESTS,
        "MONODON_WEB_WORKERS": "1",
        "MONODON_LOG_LEVEL": "warning",  # a line for each refusal would hide the table
    }
    os.environ.update(stack.environment(url) | settings)
    client = Client()
    # A drop sends a message. Celery cannot be imported before Django has its settings.
    celery = importlib.import_module("tasks.celery").app
    celery.conf.broker_url = "memory://"
    report_progress("content")
    budget_operations.seed(client.send)
    budget_grants.create_principal()
    for prepare in operations.values():
        _send(client, prepare, 10)
    return client


def _measure(
    stack: Stack, operations: dict[str, Prepare], size: Size
) -> tuple[dict[str, Samples], float]:
    client, calibration = _prepared(stack, operations), Calibration(stack.postgres.url)
    clock = Clock(backend_pid())
    _use_one_processor(os.getpid(), clock.backend, calibration.clock.backend)
    samples = {name: Samples() for name in operations}
    units = []
    for number in range(size.rounds):
        report_progress(f"round {number + 1} of {size.rounds}")
        for name, prepare in operations.items():
            requests = prepare(client.send, size.requests)
            calls = [(client.environ(request), request) for request in requests]
            unit_us = sum(_timed(calibration.clock, 40, calibration.run)) / 40
            web_us, database_us = _timed(clock, 1, partial(_call, client, calls))
            sample = samples[name]
            sample.web_us.append(web_us / len(calls))
            sample.database_us.append(database_us / len(calls))
            unit_us = (unit_us + sum(_timed(calibration.clock, 40, calibration.run)) / 40) / 2
            sample.multiples.append((web_us + database_us) / len(calls) / unit_us)
            units.append(unit_us)
    return samples, statistics.median(units)


def _use_one_processor(*pids: int) -> None:
    """Run these processes on the same processor.

    A wake-up of a process on another processor takes as long as half of the calibration loop, and the kernel would place
    them sometimes together and sometimes apart.
    """
    processor = max(os.sched_getaffinity(0))
    for pid in pids:
        os.sched_setaffinity(pid, {processor})


def _timed(clock: Clock, times: int, work: Callable[[], None]) -> tuple[float, float]:
    """CPU time in µs of this process and of the backend."""
    web, database = clock.read()
    for _ in range(times):
        work()
    web_after, database_after = clock.read()
    return (web_after - web) * 1e6, (database_after - database) * 1e6


def _call(client: Client, calls: Sequence[tuple[dict[str, Any], Request]]) -> None:
    for environ, request in calls:
        client.call(environ, request)


def _send(client: Client, prepare: Prepare, count: int) -> None:
    for request in prepare(client.send, count):
        client.send(request)


def backend_pid() -> int:
    from django.db import connection

    connection.ensure_connection()
    return int(connection.connection.info.backend_pid)
