"""Many small tables under one policy: how many a worker compacts per minute, and how long control tasks wait.

The processes are those of ``make up``: web server, worker, task worker, beat and broker. The tables of a format
get a policy that enables compaction and has defaults otherwise. Meanwhile, an expired record is stored and the
task that deletes such records is sent, again and again: the time until the record is gone is the delay of control
tasks.
"""

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa
import urllib3
from celery import Celery
from lance.namespace import RestNamespace
from pyiceberg.catalog.rest import RestCatalog

from benchmarks import processes, report
from benchmarks.compare import report_progress
from benchmarks.errors import BenchmarkError
from benchmarks.maintenance import LOOPBACK, iceberg_runtime
from benchmarks.stack import API_KEY, Stack, running
from server import commands
from server.options import PROJECT, Options
from server.processes import Child
from server.valkey import Valkey

FILES = {"lance": 10, "iceberg": 8}
ROWS = {"lance": 64, "iceberg": 2}
"""Rows per file."""
GOALS = {"lance": 100, "iceberg": 30}
"""Tables per minute."""
ALL = {"lance": 7000, "iceberg": 3000}
"""Tables of the extrapolation."""
MOST_DELAY = 5.0
_PROBE_SECONDS = 0.5
_PATIENCE = 3600.0
_EXPIRED_RECORD = """
    INSERT INTO catalog_idempotencyrecord (key, actor, fingerprint, headers, created_at)
    VALUES (gen_random_uuid(), 'probe', '', '{}', now() - interval '30 d') RETURNING id
"""


@dataclass(frozen=True)
class Size:
    tables: dict[str, int]
    """Tables by format."""


FULL = Size({"lance": 700, "iceberg": 300})
QUICK = Size({"lance": 100, "iceberg": 30})


@dataclass(frozen=True)
class Throughput:
    """The jobs of a format, from the start of the first one to the end of the last one."""

    tables: int
    seconds: float
    warm_per_minute: float
    """Tables per minute after the first quarter of them, when the drivers of Spark run."""
    before: float
    """Seconds from the policy to the first job: the scheduler and the measurements run every minute."""
    cpu: float
    """Seconds of CPU of the worker, with its drivers."""
    delays: list[float] = field(repr=False)
    """Seconds that control tasks waited which were sent between the first job and the last one."""

    @property
    def per_minute(self) -> float:
        return 60 * self.tables / self.seconds


def measure(size: Size, directory: Path | None) -> None:
    """Print the figures and keep them in ``results``. Raises BenchmarkError."""
    if size.tables.get("iceberg") and not iceberg_runtime():
        raise BenchmarkError("Set MONODON_SPARK_JARS to the path of Iceberg's runtime")
    with running(directory) as stack, _installation(stack) as installation:
        throughput = {
            format_: installation.keep_up(format_, number)
            for format_, number in size.tables.items()
            if number
        }
    _show(throughput)


@dataclass(frozen=True)
class _Installation:
    stack: Stack
    url: str
    broker: str
    queue: str
    worker: Child

    def keep_up(self, format_: str, number: int) -> Throughput:
        """Make tables, enable their compaction, and wait until each is compacted."""
        report_progress(f"{number} tables: {format_}")
        self._request("POST", f"/v1/namespace/{format_}/create", {})
        make = _make_lance if format_ == "lance" else _make_iceberg
        make(self.url, format_, number)
        cpu = self._cpu()
        began = time.time()
        self._request(
            "PUT", f"/management/v1/namespaces/{format_}/policy", {"values": {"compaction": "on"}}
        )
        with self._probes() as probes, self._database() as connection:
            deadline = time.monotonic() + _PATIENCE
            while (compacted := self._compacted(connection, format_)) < number:
                if time.monotonic() > deadline:
                    raise BenchmarkError(f"{compacted} of {number} tables were compacted")
                time.sleep(0.5)
            cpu = self._cpu() - cpu
            first, ends = self._times(connection, format_)
        last, quarter = ends[-1], number // 4
        return Throughput(
            number,
            last - first,
            60 * (number - quarter) / (last - ends[quarter - 1]),
            first - began,
            cpu,
            [delay for sent, delay in probes if first <= sent <= last],
        )

    def _compacted(self, connection: psycopg.Connection, format_: str) -> int:
        row = connection.execute(
            "SELECT count(DISTINCT table_id) FILTER (WHERE j.status = 'succeeded'),"
            " count(*) FILTER (WHERE j.status = 'failed'), max(j.error)"
            " FROM catalog_job j JOIN catalog_table t ON t.id = table_id"
            " WHERE j.kind = 'compact' AND t.format = %s",
            [format_],
        ).fetchone()
        compacted, failed, error = row or (0, 0, "")
        if failed:
            raise BenchmarkError(f"{failed} jobs failed: {error}")
        return int(compacted)

    def _times(self, connection: psycopg.Connection, format_: str) -> tuple[float, list[float]]:
        """When the first job began, and when each job ended, in seconds since 1970."""
        rows = connection.execute(
            "SELECT extract(epoch FROM started_at)::float, extract(epoch FROM finished_at)::float"
            " FROM catalog_job j JOIN catalog_table t ON t.id = table_id"
            " WHERE j.kind = 'compact' AND j.status = 'succeeded' AND t.format = %s",
            [format_],
        ).fetchall()
        return min(row[0] for row in rows), sorted(row[1] for row in rows)

    @contextmanager
    def _probes(self) -> Iterator[list[tuple[float, float]]]:
        """Measure until the end of the block when control tasks were sent, and their delays."""
        probes: list[tuple[float, float]] = []
        ended = threading.Event()
        thread = threading.Thread(target=self._probe, args=(ended, probes))
        thread.start()
        try:
            yield probes
        finally:
            ended.set()
            thread.join()

    def _probe(self, ended: threading.Event, probes: list[tuple[float, float]]) -> None:
        app = Celery("probe", broker=self.broker)
        with self._database() as connection:
            while not ended.wait(_PROBE_SECONDS):
                record = connection.execute(_EXPIRED_RECORD).fetchone()
                sent, began = time.time(), time.monotonic()
                app.send_task(
                    "tasks.maintenance.delete_expired_idempotency_records", queue=self.queue
                )
                while connection.execute(
                    "SELECT FROM catalog_idempotencyrecord WHERE id = %s", record
                ).fetchone():
                    time.sleep(0.01)
                probes.append((sent, time.monotonic() - began))

    def _database(self) -> psycopg.Connection:
        return psycopg.connect(self.stack.postgres.url, autocommit=True)

    def _request(self, method: str, path: str, body: dict[str, Any]) -> None:
        answer = urllib3.request(method, self.url + path, json=body, headers={"x-api-key": API_KEY})
        if answer.status >= 300:
            raise BenchmarkError(f"{method} {path}: {answer.data.decode()}")

    def _cpu(self) -> float:
        return processes.cpu_seconds([self.worker.pid])


@contextmanager
def _installation(stack: Stack) -> Iterator[_Installation]:
    """The processes that the supervisor starts, without the supervisor."""
    database = stack.postgres.url
    stack.bootstrap(database)
    broker = Valkey(stack.root / "valkey", stack.home.socket_dir())
    broker.start()
    children: list[Child] = []
    try:
        settings = {"REDIS_URL": broker.url, "MONODON_WEB_THREADS": "4"}
        _, port = stack.start_web(database, settings=settings)
        url = f"http://127.0.0.1:{port}"
        environment = stack.environment(database) | {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "REDIS_URL": broker.url,
            "MONODON_URL": url,
            "MONODON_SPARK_CONF": LOOPBACK,
            "MONODON_SPARK_JARS": iceberg_runtime(),
            "MONODON_LOG_LEVEL": "warning",
        }
        options = Options.from_environment(environment)

        def start(name: str, arguments: Sequence[str]) -> Child:
            child = Child(
                name,
                [sys.executable, *arguments],
                sink=stack.keep,
                environment=environment,
                directory=PROJECT,
            )
            children.append(child)
            child.start()
            return child

        worker = start("worker", commands.job_worker(options))
        start("tasks", commands.task_worker(options))
        start("beat", commands.BEAT)
        broker_url = f"redis+socket://{broker.url.removeprefix('unix://')}"
        yield _Installation(stack, url, broker_url, options.queue, worker)
    finally:
        for child in reversed(children):
            child.kill_group()
            child.wait(5.0)
            child.drain()
        broker.stop()


# --- tables --------------------------------------------------------------------------------------


def _make_lance(server: str, namespace: str, number: int) -> None:
    catalog = RestNamespace(uri=server, **{"header.x-api-key": API_KEY})
    rows = pa.table({"id": range(FILES["lance"] * ROWS["lance"])})
    for index in range(number):
        lance.write_dataset(
            rows,
            namespace_client=catalog,
            table_id=[namespace, f"t{index}"],
            mode="create",
            max_rows_per_file=ROWS["lance"],
        )


def _make_iceberg(server: str, namespace: str, number: int) -> None:
    catalog = RestCatalog("bench", uri=server, token=API_KEY)
    rows = pa.table({"id": range(ROWS["iceberg"])})
    for index in range(number):
        table = catalog.create_table((namespace, f"t{index}"), rows.schema)
        with table.transaction() as transaction:
            for _ in range(FILES["iceberg"]):
                transaction.append(rows)


# --- figures -------------------------------------------------------------------------------------


def _show(throughput: dict[str, Throughput]) -> None:
    print(f"\n{report.machine()}, load {os.getloadavg()[0]:.1f}")
    head = [
        "tables",
        "number",
        "per minute",
        "warm",
        "goal",
        "CPU s each",
        "first after s",
        "longest delay s",
    ]
    rows, facts = [], {}
    for format_, figures in throughput.items():
        facts[format_] = {
            "tables": figures.tables,
            "per_minute": figures.per_minute,
            "warm_per_minute": figures.warm_per_minute,
            "cpu_seconds_each": figures.cpu / figures.tables,
            "seconds_to_first_job": figures.before,
            "control_delays": figures.delays,
        }
        rows.append(
            [
                format_,
                str(figures.tables),
                f"{figures.per_minute:.0f}",
                f"{figures.warm_per_minute:.0f}",
                f"{GOALS[format_]}",
                f"{figures.cpu / figures.tables:.2f}",
                f"{figures.before:.0f}",
                f"{max(figures.delays, default=math.nan):.2f} of {len(figures.delays)}",
            ]
        )
    print("\n" + report.columns(head, rows, left_aligned={0}))
    if throughput.keys() == ALL.keys():
        hours = sum(ALL[name] / figures.per_minute for name, figures in throughput.items()) / 60
        numbers = " and ".join(f"{number:,} {name}" for name, number in ALL.items())
        print(f"\nAt these rates, {numbers} tables take {hours:.1f} h.")
    print(f"Goal for control tasks: {MOST_DELAY:.0f} s.")
    report.RESULTS.mkdir(exist_ok=True)
    raw = {"machine": report.machine(), "load_average": os.getloadavg(), "upkeep": facts}
    (report.RESULTS / "upkeep.json").write_text(json.dumps(raw, indent=1) + "\n")
