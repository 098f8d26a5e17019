"""Does size cost? Two catalogs in one PostgreSQL, of 10,000 and of 1,000,000 tables, measured in turns."""

import json
import os
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks import load, report, wrk
from benchmarks.compare import report_progress
from benchmarks.errors import BenchmarkError
from benchmarks.load import Size
from benchmarks.sides import SETTINGS, Monodon, Sample
from benchmarks.stack import Stack, running

SMALL = Size(namespaces=100, tables=100, versions=10)
LARGE = Size(namespaces=10_000, tables=100, versions=10)
OPERATIONS = ("describe", "list", "latest", "record")
GOAL = 1.5
BYTES_PER_VERSION = 2000
"""Disk to have free for each: rows, indexes, write-ahead log and sorts; about 700 were used."""


@dataclass(frozen=True)
class Catalog:
    name: str
    size: Size
    seconds: float
    megabytes: float
    server: Monodon


def scale(directory: Path | None, *, rounds: int, connections: int, large: Size = LARGE) -> bool:
    """True if every operation reaches the goal."""
    wrk.require()
    with running(directory) as stack:
        _require_space(stack.root, large)
        catalogs = [_catalog(stack, "small", SMALL), _catalog(stack, "large", large)]
        for catalog in catalogs:
            for operation in OPERATIONS:
                report_progress(f"warming up: {operation} on {catalog.size.all_tables:,} tables")
                catalog.server.measure(operation, connections=16, seconds=1)
        samples: dict[tuple[str, str], list[Sample]] = {}
        for number in range(rounds):
            report_progress(f"round {number + 1}/{rounds}")
            for operation in OPERATIONS:
                for catalog in catalogs:
                    sample = catalog.server.measure(operation, connections=connections, seconds=2)
                    samples.setdefault((operation, catalog.name), []).append(sample)
    return _show(catalogs, samples, connections)


def _catalog(stack: Stack, name: str, size: Size) -> Catalog:
    url = stack.postgres.url_of(name)
    with psycopg.connect(stack.postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    stack.bootstrap(url)
    report_progress(f"load: {size}")
    began = time.monotonic()
    load.seed(url, size, stack.warehouse)
    seconds = time.monotonic() - began
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    web, port = stack.start_web(url, settings=SETTINGS)
    server = Monodon(port, size, stack.root / "requests", web.pid, stack.postgres_pid)
    server.check()
    report_progress(f"took {seconds:.0f} s, {row[0] / 1e6:,.0f} MB")
    return Catalog(name, size, seconds, row[0] / 1e6, server)


def _require_space(directory: Path, size: Size) -> None:
    required, free = size.all_versions * BYTES_PER_VERSION, shutil.disk_usage(directory).free
    if free < required:
        raise BenchmarkError(
            f"This needs {required / 1e9:.0f} GB of free disk and {directory.parent} has "
            f"{free / 1e9:.0f} GB: name another place with --directory."
        )


def _show(
    catalogs: list[Catalog], samples: dict[tuple[str, str], list[Sample]], connections: int
) -> bool:
    small, large = catalogs
    print(f"\n{report.machine()}, {connections} connections")
    for catalog in catalogs:
        print(
            f"  {catalog.size.all_tables:>9,} tables, {catalog.size.all_versions:>10,} versions: "
            f"seeded in {catalog.seconds:.0f} s, {catalog.megabytes:,.0f} MB on disk"
        )
    rows, facts, reached = [], {}, True
    for operation in OPERATIONS:
        pair = samples[operation, small.name], samples[operation, large.name]
        p50 = [statistics.median(sample.p50_ms for sample in side) for side in pair]
        p99 = [statistics.median(sample.p99_ms for sample in side) for side in pair]
        ratio = statistics.median(b.p50_ms / a.p50_ms for a, b in zip(*pair, strict=True))
        reached = reached and ratio <= GOAL
        verdict = "reached" if ratio <= GOAL else "MISSED"
        rows.append(
            [operation, *(f"{value:.2f}" for value in (*p50, *p99)), f"{ratio:.2f}×", verdict]
        )
        facts[operation] = {"p50_ms": p50, "p99_ms": p99, "ratio": ratio}
    sizes = [f"{catalog.size.all_tables:,}" for catalog in catalogs]
    head = ["operation", *(f"p50 ms {s}" for s in sizes), *(f"p99 ms {s}" for s in sizes)]
    print("\n" + report.columns([*head, "ratio", f"goal ≤ {GOAL}"], rows, left_aligned={0}))
    report.RESULTS.mkdir(exist_ok=True)
    raw = {
        "machine": report.machine(),
        "connections": connections,
        "load_average": os.getloadavg(),
        "catalogs": [
            {"size": str(c.size), "seed_seconds": c.seconds, "megabytes": c.megabytes}
            for c in catalogs
        ],
        "operations": facts,
    }
    (report.RESULTS / "scale.json").write_text(json.dumps(raw, indent=1) + "\n")
    return reached
