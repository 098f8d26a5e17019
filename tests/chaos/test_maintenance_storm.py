"""Scheduled maintenance of tables of both formats during writes, while its processes are killed.

Intervals are short: policies keep versions for seconds, leases expire soon, and there are no pauses after
failures. The minimum ages of orphans are those of production; the test sets back the times of files.
"""

import contextlib
import math
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import lance
import psutil
import pytest
from lance_namespace_urllib3_client import models as m

from server.processes import Child
from server.valkey import Valkey
from tests.chaos import upkeep_judgement as judgement
from tests.chaos.upkeep_writers import (
    OWN,
    SCHEMA,
    Rows,
    Task,
    WriterReport,
    stream,
    table_of,
    write,
)
from tests.clients import jars, pyice
from tests.clients import spark as spark_client
from tests.live import LiveServer

SPACE = "storm"
DAY = 86_400
KEEP_SECONDS = 20
LEASE_SECONDS = 20
POLICY = {
    "compaction": "on",
    "target_rows": 1024,
    "target_bytes": 1024**2,
    "min_small_files": 2,
    "deleted_ratio": 0.01,
    "cleanup": "on",
    "keep_for": 3600,  # the minimum; lower values are only possible in the database
    "keep_versions": 2,
    "orphans": "on",
    "orphan_age": DAY,
    "indexes": "on",
    "unindexed_rows": 1,
    "manifests": "on",
    "min_manifests": 4,
    "position_deletes": "on",
    "min_delete_files": 1,
    "statistics": "on",
    "max_jobs": 20,
}
ALL = {
    "lance": ("compact", "clean_up", "optimize_indexes", "remove_orphans"),
    "iceberg": ("compact", "clean_up", "remove_orphans"),
}
SPARK_CONF = (
    "spark.driver.memory=512m spark.sql.shuffle.partitions=2"
    " 'spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'"
)
_SET_POLICY = """
from catalog.models import MaintenancePolicy
from catalog.access import SYSTEM
from catalog.services.maintenance import policies
policies.set_namespace_policy(actor=SYSTEM, namespace=({space!r},), values={values!r})
row = MaintenancePolicy.objects.get()
row.values["keep_for"] = {keep_for}
row.save()
"""
# Tasks of beat, every few seconds instead of every minute; without `policies` no job is started.
_BEAT = """
import time
from django.db import connection
from catalog.services.engine import jobs
from catalog.services.lance.ledger import versions
from catalog.services.maintenance import measurements, scheduler
while True:
    for statement in {hurry!r}:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    if {policies}:
        measurements.measure_due()
        scheduler.start_due()
    jobs.send_waiting_jobs()
    versions.settle_pending()
    time.sleep({pause})
"""
_HURRY = (
    # A worker loses its job if it is silent for this time.
    f"""UPDATE catalog_job SET lease_until = now() WHERE status = 'running'
    AND lease_until < now() + interval '{120 - LEASE_SECONDS} s'""",
    """UPDATE catalog_job SET lease_until = now() + interval '2 s' WHERE status = 'queued'
    AND lease_until > now() + interval '2 s'""",
    # Jobs that have ended may be started again.
    """UPDATE catalog_job SET finished_at = finished_at - interval '2 h',
    created_at = created_at - interval '3 d' WHERE status IN ('succeeded', 'failed')
    AND finished_at BETWEEN now() - interval '1 h' AND now() - interval '20 s'""",
)
_NOTHING_TO_DO = "no snapshots to expire"  # the scheduler did it before
_FINAL = """
from catalog.access import SYSTEM
from catalog.services.maintenance import scheduler
for table in {tables!r}:
    scheduler.start(actor=SYSTEM, table=tuple(table), kind={kind!r})
"""


@dataclass(frozen=True)
class Size:
    """Extent of a storm."""

    lance: int
    iceberg: int
    seconds: float
    calm: tuple[float, float]
    """Seconds between two kills."""
    pause: float
    """Pause of a writer between two changes, in seconds."""
    kinds: frozenset[tuple[str, str]]
    """Kinds of maintenance, by format, that the scheduler must have started and that must have
    succeeded."""


class Upkeep:
    """A server whose worker, beat, drivers and broker may be killed one by one."""

    def __init__(
        self, directory: Path, java: str, conf: str = "", pause: float = 2.0, **settings: str
    ) -> None:
        """``conf`` is added to the settings of Spark, ``settings`` to those of the server; beat sends its
        tasks after each ``pause``."""
        self._sockets = Path(tempfile.mkdtemp(prefix="mnd-"))  # a short path, for a socket
        self.broker = Valkey(directory / "valkey", self._sockets, durable=False)
        self.broker.start()
        spark = {"JAVA_HOME": java, "MONODON_SPARK_CONF": SPARK_CONF + conf} if java else {}
        if java:
            spark["MONODON_SPARK_JARS"] = str(jars.iceberg_runtime())
        self.server = LiveServer(
            threads=16,
            REDIS_URL=self.broker.url,
            MONODON_WORKER_CONCURRENCY="2",
            **spark,
            **settings,
        )
        self.killed: Counter[str] = Counter()
        self._beat: Child | None = None
        self._policies = True
        self._pause = pause

    def close(self) -> None:
        if self._beat is not None:
            self._beat.kill_group()
            self._beat.wait(5)
            self._beat.drain()
        self.server.close()
        self.broker.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def start(self) -> None:
        self.server.start()
        self.server.start_worker()
        self.start_beat()

    def start_beat(self) -> None:
        code = _BEAT.format(hurry=_HURRY, policies=self._policies, pause=self._pause)
        environment = {**self.server._environment, "DJANGO_SETTINGS_MODULE": "config.settings"}
        code = f"import django\ndjango.setup()\n{code}"
        self._beat = self.server._child("beat", environment, ["-c", code])
        self._beat.start()

    def stop_policies(self) -> None:
        self.kill_beat()
        self._policies = False
        self.start_beat()

    def kill(self, dice: random.Random) -> None:
        match dice.choices(("worker", "beat", "driver", "broker"), (5, 1, 3, 1))[0]:
            case "worker":
                worker = self.server._worker
                assert worker is not None
                worker.kill_group()
                worker.wait(10)
                worker.drain()
                time.sleep(dice.uniform(0, 2))
                self.server.start_worker()
                self.killed["worker"] += 1
            case "beat":
                self.kill_beat()
                self.start_beat()
                self.killed["beat"] += 1
            case "broker":
                self.kill_broker()
                time.sleep(dice.uniform(0, 2))
                self.broker.start()
                self.killed["broker"] += 1
            case _:
                deadline = time.monotonic() + 10
                while not (drivers := self.server.drivers()) and time.monotonic() < deadline:
                    time.sleep(0.2)
                if drivers:
                    time.sleep(dice.uniform(0, 10))  # its start takes most of its run time
                    with contextlib.suppress(psutil.NoSuchProcess):
                        dice.choice(drivers).kill()
                        self.killed["driver"] += 1

    def kill_broker(self) -> None:
        assert self.broker._child is not None
        self.broker._child.kill_group()
        self.broker._child.wait(5)

    def kill_beat(self) -> None:
        assert self._beat is not None
        assert self._beat.running, self.server.log
        self._beat.kill_group()
        self._beat.wait(5)
        self._beat.drain()

    def wait_until_succeeded(self, kinds: frozenset[tuple[str, str]]) -> None:
        """Wait until the scheduler has run each kind of maintenance."""
        statement = (
            "SELECT DISTINCT t.format, j.kind FROM catalog_job j JOIN catalog_table t"
            " ON t.id = table_id WHERE j.status = 'succeeded' AND j.error = ''"
        )
        deadline = time.monotonic() + 1800
        while missing := kinds - {
            (row["format"], row["kind"]) for row in judgement.query(self.server, statement)
        }:
            assert self._beat is not None
            assert self._beat.running, self.server.log
            assert time.monotonic() < deadline, (missing, self.server.log)
            time.sleep(0.5)

    def wait_until_done(self, within: float = 600.0) -> None:
        """Wait until no job is active. Each must end by itself, whatever was killed."""
        deadline = time.monotonic() + within
        statement = "SELECT * FROM catalog_job WHERE status IN ('queued', 'running')"
        while unfinished := judgement.query(self.server, statement):
            assert self._beat is not None
            assert self._beat.running, self.server.log
            assert time.monotonic() < deadline, (unfinished, self.server.log)
            time.sleep(0.5)


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Java for Spark; empty if Spark cannot run."""
    if spark_client.missing():
        return ""
    return spark_client._java_home(tmp_path_factory.mktemp("java"))


@pytest.fixture
def upkeep(live_template: None, java: str, tmp_path: Path) -> Iterator[Upkeep]:
    started = Upkeep(tmp_path, java)
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.mark.xdist_group("spark maintenance")
@pytest.mark.timeout(1200)  # about two minutes, and several times that on a busy machine
@pytest.mark.chaos
def test_tables_are_maintained_in_a_storm(
    upkeep: Upkeep, java: str, seed: int, tmp_path: Path
) -> None:
    kinds = {("lance", kind) for kind in ALL["lance"]}
    kinds |= {("iceberg", "compact")} if java else set()
    size = Size(4, 1 if java else 0, 30, calm=(2, 8), pause=0.3, kinds=frozenset(kinds))
    _storm(upkeep, size, seed, tmp_path)


@pytest.mark.chaos
def test_twenty_tables_are_maintained_in_a_storm(
    upkeep: Upkeep, java: str, seed: int, rounds: int, tmp_path: Path
) -> None:
    """``rounds`` of 15 seconds."""
    formats = ("lance", "iceberg") if java else ("lance",)
    kinds = frozenset((format_, kind) for format_ in formats for kind in ALL[format_])
    size = Size(12, 8 if java else 0, 15.0 * rounds, calm=(10, 40), pause=2.0, kinds=kinds)
    _storm(upkeep, size, seed, tmp_path)


def _storm(upkeep: Upkeep, size: Size, seed: int, directory: Path) -> None:
    server, dice = upkeep.server, random.Random(seed)
    tables = _Tables(server, size)
    tasks = tables.tasks(directory / "stop", size.pause, seed)
    with _writing(tasks) as writers:
        _wait_until_all_write(tasks, writers)
        end = time.monotonic() + size.seconds
        while time.monotonic() < end:
            time.sleep(dice.uniform(*size.calm))
            upkeep.kill(dice)
            _raise_errors(writers)
    reports = [report for writer in writers for report in writer.result()]
    rows = judgement.expected([*reports, *tables.begun])
    upkeep.wait_until_succeeded(size.kinds)
    upkeep.stop_policies()
    upkeep.wait_until_done()
    _print_writers(upkeep, reports)
    _print_jobs(server)
    tables.are_right(rows)

    # Files of killed processes are removed once they are old.
    orphans = {name[-1]: len(files) for name, files in tables.orphans().items()}
    time.sleep(KEEP_SECONDS)
    _run_all(upkeep, "clean_up", tables.names)
    _age(server)
    _run_all(upkeep, "remove_orphans", tables.names)
    assert not any(tables.orphans().values()), tables.orphans()
    read = tables.are_right(rows)
    judgement.jobs_have_ended(server)
    commits = {file for name in tables.icebergs for file in judgement.commits_of_jobs(server, name)}
    audited = judgement.commits_are_audited(server, commits)
    print(f"orphans {orphans}; {read} versions read; {len(commits)} snapshots; {dict(audited)}")


class _Tables:
    """Tables with a row that no writer changes; Lance tables also have an index and an orphan
    file."""

    def __init__(self, server: LiveServer, size: Size) -> None:
        self._server = server
        self.lances = [(SPACE, f"lance{n}") for n in range(size.lance)]
        self.icebergs = [(SPACE, f"iceberg{n}") for n in range(size.iceberg)]
        self.names = [*self.lances, *self.icebergs]
        row = {10 * OWN: 0}
        self.begun = [WriterReport(name, row) for name in self.names]
        catalog = server.client()
        catalog.create_namespace(m.CreateNamespaceRequest(id=[SPACE]))
        for name in self.lances:
            catalog.create_table(m.CreateTableRequest(id=list(name)), stream(table_of(row)))
            dataset = lance.dataset(namespace_client=catalog, table_id=list(name))
            dataset.create_scalar_index("id", "BTREE")
            stray = Path(dataset.uri.removeprefix("file://")) / "data" / "stray.lance"
            stray.write_bytes(b"of a writer that died long ago")
            os.utime(stray, (time.time() - 3 * DAY,) * 2)
        for name in self.icebergs:
            table = pyice.connect(server.url, token=server.key).create_table(name, SCHEMA)
            table.append(table_of(row))
        server.manage(_SET_POLICY.format(space=SPACE, values=POLICY, keep_for=KEEP_SECONDS))
        with server.database() as connection:  # old enough to be searched for orphans
            connection.execute("UPDATE catalog_table SET created_at = created_at - interval '3 d'")

    def tasks(self, stop: Path, pause: float, seed: int) -> list[Task]:
        """Two writers of each table."""
        kinds = [(name, kind) for name in self.lances for kind in ("lance rest", "lance direct")]
        kinds += [(name, "iceberg") for name in self.icebergs for _ in range(2)]
        url, key = self._server.url, self._server.key
        return [
            Task(kind, url, key, name, number % 2, stop, pause, f"{seed} {number}")
            for number, (name, kind) in enumerate(kinds)
        ]

    def are_right(self, rows: Mapping[judgement.Name, Rows]) -> int:
        """Check every version of every table. Return the number of versions."""
        assert rows.keys() == set(self.names)
        return sum(
            judgement.lance_is_right(self._server, name, rows[name]) for name in self.lances
        ) + sum(
            judgement.iceberg_is_right(self._server, name, rows[name]) for name in self.icebergs
        )

    def orphans(self) -> dict[judgement.Name, set[str]]:
        orphans = {name: judgement.lance_orphans(self._server, name) for name in self.lances}
        iceberg = {name: judgement.iceberg_orphans(self._server, name) for name in self.icebergs}
        return orphans | iceberg


@contextlib.contextmanager
def _writing(tasks: Sequence[Task]) -> Iterator[list[Future[list[WriterReport]]]]:
    """Run writers in separate processes until the end of the block."""
    processes = min(4, len(tasks))
    share = math.ceil(len(tasks) / processes)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        writers = [
            pool.submit(write, tasks[begin : begin + share])
            for begin in range(0, len(tasks), share)
        ]
        try:
            yield writers
        finally:
            tasks[0].stop.touch()


def _wait_until_all_write(
    tasks: Sequence[Task], writers: Sequence[Future[list[WriterReport]]]
) -> None:
    """The start of their processes may take longer than a storm."""
    deadline = time.monotonic() + 300
    while missing := [task for task in tasks if not task.begun.exists()]:
        _raise_errors(writers)
        assert time.monotonic() < deadline, missing
        time.sleep(0.1)


def _raise_errors(writers: Sequence[Future[list[WriterReport]]]) -> None:
    for writer in writers:
        if writer.done():
            writer.result()


def _run_all(upkeep: Upkeep, kind: str, tables: Sequence[judgement.Name]) -> None:
    upkeep.server.manage(_FINAL.format(tables=list(tables), kind=kind))
    upkeep.wait_until_done()
    wrong = judgement.query(
        upkeep.server,
        "SELECT t.name, j.error FROM (SELECT DISTINCT ON (table_id) * FROM catalog_job"
        " WHERE kind = %s ORDER BY table_id, id DESC) j JOIN catalog_table t ON t.id = j.table_id"
        " WHERE status <> 'succeeded' OR error NOT IN ('', %s)",
        kind,
        _NOTHING_TO_DO,
    )
    assert not wrong, wrong


def _age(server: LiveServer) -> None:
    """Set the modification time of every file in the warehouse to an age that allows removal."""
    past = time.time() - 5 * DAY
    for path in server.warehouse.rglob("*"):
        if path.is_file():
            os.utime(path, (past, past))


def _print_writers(upkeep: Upkeep, reports: Sequence[WriterReport]) -> None:
    changes: Counter[str] = sum((report.changes for report in reports), Counter())
    print(f"kills {dict(upkeep.killed)}")
    print(f"told {dict(changes)}, {sum(report.refused for report in reports)} refused")
    print("unknown", Counter(text[:160] for report in reports for text in report.unknown))


def _print_jobs(server: LiveServer) -> None:
    statement = (
        "SELECT t.format, j.kind, j.status, count(*), max(attempts) FROM catalog_job j"
        " JOIN catalog_table t ON t.id = table_id GROUP BY 1, 2, 3"
    )
    print(f"jobs {sorted(tuple(row.values()) for row in judgement.query(server, statement))}")
    failed = "SELECT kind, error FROM catalog_job WHERE status = 'failed'"
    failures = Counter((r["kind"], r["error"][:300]) for r in judgement.query(server, failed))
    print("failed", failures)
