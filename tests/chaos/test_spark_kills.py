"""The driver, an executor, the worker, beat and the broker are killed at each stage of jobs on Spark.

The jobs of two tables suffer kills at each of their stages, while a writer appends. Then the files that the killed
attempts left are removed as orphans, during which the same processes are killed again. One server and one standalone
cluster of two workers serve all rounds. A kill of a driver or of a worker costs a start of Spark; the others share
tables, whose jobs continue in the same attempt.
"""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil
import psycopg
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from tests.chaos import upkeep_judgement as judgement
from tests.chaos.test_maintenance_storm import Upkeep, _age, java
from tests.chaos.upkeep_writers import OWN, SCHEMA, Rows, rows_of, table_of
from tests.clients import pyice
from tests.clients import spark as spark_client
from tests.clients.test_iceberg_maintenance import Cluster, local
from tests.repeating import Repeating

__all__ = ["java"]
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
SPACE = "spark"
STAGES = ("starting Spark", "planning", "rewriting", "committing")
VICTIMS = (("driver",), ("worker",), ("beat", "broker", "executor"))
"""Processes that are killed during the same jobs."""
_END_ATTEMPTS = {"driver", "worker"}
_DO_NOT_REWRITE = {"beat", "broker"}
_TABLES = 2
"""Tables whose jobs run at the same time: one for each process of the worker."""
_FILES = 6
_WITHIN = 600.0


@pytest.fixture(scope="module")
def java_options(java: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which JVMs start faster, since most of them are killed soon."""
    if not java:
        pytest.skip("Spark cannot run")
    archive = spark_client.archive(java, tmp_path_factory.mktemp("archive"))
    return {"JDK_JAVA_OPTIONS": f"-XX:SharedArchiveFile={archive}"}


@pytest.fixture(scope="module")
def cluster(
    java: str, java_options: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    started = Cluster(java, tmp_path_factory.mktemp("cluster"), **java_options)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def upkeep(
    live_template: None,
    java: str,
    java_options: dict[str, str],
    cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Upkeep]:
    executors = (
        " spark.driver.host=127.0.0.1 spark.driver.bindAddress=127.0.0.1"
        f" spark.executor.memory=512m 'spark.executor.extraJavaOptions={spark_client.JAVA_OPTIONS}'"
    )
    started = Upkeep(
        tmp_path_factory.mktemp("upkeep"),
        java,
        conf=executors,
        pause=0.5,
        SPARK_MASTER=cluster.url,
        MONODON_SPARK_CORES="1",
        MONODON_LOCK_SECONDS="120",  # of the commits that wait for a kill
        **java_options,
    )
    try:
        started.start()
        started.stop_policies()  # only the jobs of these tests
        pyice.connect(started.server.url, token=started.server.key).create_namespace(SPACE)
        yield started
    finally:
        started.close()


def test_jobs_on_spark_survive_deaths_at_each_stage(
    upkeep: Upkeep, cluster: Cluster, rounds: int, seed: int
) -> None:
    """Each round has tables for each group of processes, so that an interrupted run shows all of them."""
    dice = random.Random(seed)
    reached: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    for number in range(rounds):
        for victims in VICTIMS:
            names = [(SPACE, f"{victims[0]}{number}n{n}") for n in range(_TABLES)]
            reached += _Kills(upkeep, cluster, victims, dice, names).run()
            tables = _TABLES * (number * len(VICTIMS) + VICTIMS.index(victims) + 1)
            _report(reached, tables, began)
    judgement.jobs_have_ended(upkeep.server)


def test_two_drivers_share_a_cluster(upkeep: Upkeep) -> None:
    """The jobs of two tables run at the same time, with an executor each."""
    jobs = []
    for number in range(2):
        name = (SPACE, f"shared{number}")
        _create(upkeep, name, 4 * _FILES)
        jobs.append(_start(upkeep, name, "compact"))
    upkeep.wait_until_done(_WITHIN)
    rows = judgement.query(upkeep.server, "SELECT * FROM catalog_job WHERE id = ANY(%s)", jobs)
    assert [row["status"] for row in rows] == ["succeeded"] * 2, rows
    began = [row["started_at"] for row in rows]
    assert max(began) < min(row["finished_at"] for row in rows)
    events = judgement.query(
        upkeep.server,
        "SELECT message FROM catalog_jobevent WHERE message LIKE '%%runs as app-%%' AND job_id = ANY(%s)",
        jobs,
    )
    assert len({row["message"] for row in events}) == 2


class _Followed:
    """A job, as the database has it."""

    def __init__(self, connection: psycopg.Connection, pk: int) -> None:
        self._connection, self._pk = connection, pk
        self.attempt, self.status, self.stage = 0, "", ""

    def read(self) -> Self:
        row = self._connection.execute(
            "SELECT attempts, status, stages->-1->>'name' FROM catalog_job WHERE id = %s",
            [self._pk],
        ).fetchone()
        assert row is not None
        self.attempt, self.status, stage = row
        self.stage = stage or self.status
        return self

    def has_reached(self, stage: str) -> bool:
        """True if this attempt has reached a stage, or if the job has ended."""
        self.read()
        later = STAGES[STAGES.index(stage) :]
        return self.status == "succeeded" or (self.status == "running" and self.stage in later)

    def has_ended(self, attempt: int) -> bool:
        """True if a later attempt has begun, or if the job has ended."""
        return self.read().attempt > attempt or self.status == "succeeded"

    def expire(self) -> None:
        self._connection.execute(
            "UPDATE catalog_job SET lease_until = now() WHERE id = %s AND status = 'running'",
            [self._pk],
        )


class _Kills:
    """Kill processes at each stage of the jobs of some tables, and judge the tables and the jobs."""

    def __init__(
        self,
        upkeep: Upkeep,
        cluster: Cluster,
        victims: tuple[str, ...],
        dice: random.Random,
        names: Sequence[judgement.Name],
    ) -> None:
        self._upkeep, self._server = upkeep, upkeep.server
        self._cluster = cluster
        self._victims, self._dice = victims, dice
        self._names = names
        self._jobs: list[_Followed] = []
        self._reached: Counter[tuple[str, str]] = Counter()

    def run(self) -> Counter[tuple[str, str]]:
        """Returns the number of kills by process and by the stage that a job had reached."""
        _kill_all(self._server.drivers())  # otherwise a warm one takes the job
        tables = [_create(self._upkeep, name, _FILES) for name in self._names]
        rows = rows_of(tables[0].scan().to_arrow())

        def append(id_: int) -> None:
            for table in tables:
                _append(table, {id_: 1})

        with (
            Repeating(append, first=OWN, pause=4.0) as writer,
            self._server.database() as connection,
        ):
            self._start_jobs(connection, "compact")
            self._compact(writer)
            is_one_attempt = all(job.attempt == 1 for job in self._jobs)
            assert is_one_attempt or _END_ATTEMPTS.intersection(self._victims)
            for victim in self._victims:
                self._remove_orphans(victim, connection, tables, writer)
        for name in self._names:
            self._judge_table(name, rows | dict.fromkeys(writer.ids, 1))
        return self._reached

    def _start_jobs(self, connection: psycopg.Connection, kind: str) -> None:
        pks = [_start(self._upkeep, name, kind) for name in self._names]
        self._jobs = [_Followed(connection, pk) for pk in pks]

    def _compact(self, writer: Repeating) -> None:
        with ExitStack() as delay:
            is_delayed = False
            for stage in STAGES:
                if stage in STAGES[2:] and not is_delayed:
                    self._stop_executors_until("rewriting")
                    delay.enter_context(self._commits_wait(writer))
                    is_delayed = True
                if stage == "committing":
                    self._signal_executors(signal.SIGCONT)
                    _wait_until(lambda: self._have_reached("committing"))
                else:
                    self._stop_executors_until(stage)
                for victim in self._victims:
                    if victim == "executor" and stage not in STAGES[2:]:
                        continue  # a driver that starts has no executors
                    if stage == "rewriting" and victim not in _DO_NOT_REWRITE:
                        self._signal_executors(signal.SIGCONT)
                        time.sleep(self._dice.uniform(0, 1))
                    if victim in _END_ATTEMPTS:
                        self._end_attempts(victim, delay)
                        is_delayed = False
                    else:
                        self._kill(victim)
                        self._restore(victim)
        self._wait_until_succeeded()

    def _end_attempts(self, victim: str, delay: ExitStack) -> None:
        drivers = self._server.drivers()
        attempts = [(job, job.read().attempt) for job in self._jobs]
        self._kill(victim)
        delay.close()  # a commit of the killed attempt may succeed now
        self._restore(victim)
        for job, attempt in attempts:
            _wait_until(lambda job=job, attempt=attempt: job.has_ended(attempt))
        assert not [driver for driver in drivers if _runs(driver)]

    def _remove_orphans(
        self,
        victim: str,
        connection: psycopg.Connection,
        tables: Sequence[Table],
        writer: Repeating,
    ) -> None:
        """Kill the process while jobs remove the files of killed attempts, and one more."""
        for table in tables:
            file = next(iter(table.refresh().scan().plan_files())).file.file_path
            local(file).with_name(f"stray-{victim}.parquet").write_bytes(b"of a dead writer")
        with writer.turn:
            _age(self._server)
            orphans = [judgement.iceberg_orphans(self._server, name) for name in self._names]
        assert all(orphans)
        self._start_jobs(connection, "remove_orphans")
        _wait_until(lambda: self._have_reached("planning"))
        time.sleep(self._dice.uniform(0, 1))
        self._kill(victim, "removing orphans")
        self._restore(victim)
        self._wait_until_succeeded()
        assert not [path for paths in orphans for path in paths if Path(path).exists()]

    def _have_reached(self, stage: str) -> bool:
        return all(job.has_reached(stage) for job in self._jobs)

    def _running(self) -> list[_Followed]:
        return [job for job in self._jobs if job.read().status == "running"]

    def _wait_until_succeeded(self) -> None:
        self._upkeep.wait_until_done(_WITHIN)
        assert {job.read().status for job in self._jobs} == {"succeeded"}, self._server.log

    def _kill(self, victim: str, stage: str = "") -> None:
        """Kill it, and count the kill for each job that is running then."""
        match victim:
            case "driver":
                # Spark's start begins with the worker, then there is a process, then its JVM.
                _wait_until(lambda: len(self._drivers()) >= len(self._running()))
                for group in self._drivers():
                    is_java = self._dice.random() < 0.5
                    chosen = [process for process in group if ("java" in _name(process)) == is_java]
                    _kill_all(chosen or group)
            case "executor":
                _wait_until(lambda: len(self._executors()) >= len(self._running()))
                self._signal_executors(signal.SIGKILL)
            case "worker":
                self._server.kill_worker()
            case "beat":
                self._upkeep.kill_beat()
            case "broker":
                self._upkeep.kill_broker()
        for job in self._running():
            self._reached[victim, stage or job.stage] += 1

    def _drivers(self) -> list[list[psutil.Process]]:
        """The processes of each driver."""
        groups: defaultdict[int, list[psutil.Process]] = defaultdict(list)
        for process in self._server.drivers():
            with suppress(ProcessLookupError):
                groups[os.getpgid(process.pid)].append(process)
        return list(groups.values())

    def _restore(self, victim: str) -> None:
        match victim:
            case "worker":
                self._server.wait_until_idle()  # the database may have statements of the worker
                for job in self._jobs:
                    job.expire()  # its worker is dead, so the lease need not run out
                self._server.start_worker()
            case "beat":
                self._upkeep.start_beat()
            case "broker":
                time.sleep(self._dice.uniform(0, 2))
                self._upkeep.broker.start()

    @contextmanager
    def _commits_wait(self, writer: Repeating) -> Iterator[None]:
        """Commits to the tables wait until the end of the block. The server has received them."""
        names = [name[-1] for name in self._names]
        with writer.turn, psycopg.connect(self._server.database_url) as connection:
            connection.execute(
                "SELECT FROM catalog_table WHERE name = ANY(%s) FOR NO KEY UPDATE", [names]
            )
            yield

    def _judge_table(self, name: judgement.Name, rows: Rows) -> None:
        # Every snapshot can be read, so no file of one was removed.
        judgement.iceberg_is_right(self._server, name, rows)
        judgement.iceberg_orphans(self._server, name)  # all files exist
        table = pyice.connect(self._server.url, token=self._server.key).load_table(name)
        summaries = [snapshot.summary for snapshot in table.snapshots()]
        by_job = [summary for summary in summaries if summary and summary["monodon.job-id"]]
        rewritten = sum(int(summary["deleted-data-files"] or 0) for summary in by_job)
        # Each file was rewritten once; those of the writer perhaps not at all.
        assert rewritten >= _FILES
        written = sum(int(summary["added-data-files"] or 0) for summary in by_job)
        assert written <= len(by_job)

    def _stop_executors_until(self, stage: str) -> None:
        """Stop executors as soon as they start, so that no job gets further than the others."""

        def stop_and_check() -> object:
            self._signal_executors(signal.SIGSTOP)
            return self._have_reached(stage)

        _wait_until(stop_and_check, pause=0.1)  # a look at all processes is expensive

    def _signal_executors(self, number: signal.Signals) -> None:
        _signal_all(self._executors(), number)

    def _executors(self) -> list[psutil.Process]:
        executors: list[psutil.Process] = []
        for process in self._cluster._all[1:]:
            executors += psutil.Process(process.pid).children(recursive=True)
        return executors


def _create(upkeep: Upkeep, name: judgement.Name, files: int) -> Table:
    catalog = pyice.connect(upkeep.server.url, token=upkeep.server.key)
    table = catalog.create_table(name, SCHEMA)
    for number in range(files):
        table.append(table_of({10 * number + n: number for n in range(10)}))
    return table


def _append(table: Table, row: Rows) -> None:
    while True:
        with suppress(CommitFailedException):
            table.refresh().append(table_of(row))
            return


def _start(upkeep: Upkeep, name: judgement.Name, kind: str) -> int:
    path = f"/management/v1/tables/{'$'.join(name)}/maintenance"
    status, job = upkeep.server.post(path, {"kind": kind})
    assert status == 202, job
    return int(job["id"])


def _report(reached: Counter[tuple[str, str]], tables: int, began: float) -> None:
    seconds = (time.monotonic() - began) / max(reached.total(), 1)
    kills = ", ".join(
        f"{victim} {stage} {number}" for (victim, stage), number in sorted(reached.items())
    )
    print(
        f"KILLS {reached.total()}, {seconds:.1f} s each; {tables} tables right, no live file deleted,"
        f" no job run twice at once; load {os.getloadavg()[0]:.1f}; {kills}",
        flush=True,
    )


def _wait_until(condition: Callable[[], object], pause: float = 0.02) -> None:
    deadline = time.monotonic() + _WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill_all(processes: list[psutil.Process]) -> None:
    _signal_all(processes, signal.SIGKILL)


def _signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
