"""The driver, an executor, the worker, beat and the broker are killed at each stage of jobs on Spark.

A job suffers a kill at each of its stages, while a writer appends. Then the files that the killed attempts left
are removed as orphans, during which the same process is killed again. One server and one standalone cluster of
two workers serve all rounds.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
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
from tests.clients.test_iceberg_maintenance import JAVA_OPTIONS, Cluster
from tests.repeating import Repeating

__all__ = ["java"]
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
SPACE = "spark"
STAGES = ("starting Spark", "planning", "rewriting", "committing")
VICTIMS = ("driver", "executor", "worker", "beat", "broker")
_END_ATTEMPTS = {"driver", "worker"}
_FILES = 6
_WITHIN = 600.0


@pytest.fixture(scope="module")
def cluster(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not java:
        pytest.skip("Spark cannot run")
    started = Cluster(java, tmp_path_factory.mktemp("cluster"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def upkeep(
    live_template: None, java: str, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upkeep]:
    executors = (
        " spark.driver.host=127.0.0.1 spark.driver.bindAddress=127.0.0.1"
        f" spark.executor.memory=512m 'spark.executor.extraJavaOptions={JAVA_OPTIONS}'"
    )
    started = Upkeep(
        tmp_path_factory.mktemp("upkeep"),
        java,
        conf=executors,
        SPARK_MASTER=cluster.url,
        MONODON_SPARK_CORES="1",
        MONODON_LOCK_SECONDS="120",  # of the commits that wait for a kill
    )
    try:
        started.start()
        started.stop_policies()  # only the jobs of these tests
        pyice.connect(started.server.url, token=started.server.key).create_namespace(SPACE)
        yield started
    finally:
        started.close()


@pytest.mark.parametrize("victim", VICTIMS)
def test_jobs_on_spark_survive_deaths_at_each_stage(
    upkeep: Upkeep, cluster: Cluster, rounds: int, seed: int, victim: str
) -> None:
    """Before the rewriting, a driver that starts has no executors."""
    stages = STAGES[2:] if victim == "executor" else STAGES
    dice = random.Random(seed)
    reached: Counter[str] = Counter()
    for number in range(rounds):
        kills = _Kills(upkeep, cluster, victim, dice, (SPACE, f"{victim}{number}"))
        reached += kills.run(stages)
        print(f"KILLS {victim} {dict(reached)}; {number + 1} tables right", flush=True)
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

    def expire(self) -> None:
        self._connection.execute(
            "UPDATE catalog_job SET lease_until = now() WHERE id = %s AND status = 'running'",
            [self._pk],
        )


class _Kills:
    """Kill a process at each stage of the jobs of a table, and judge the table and the jobs."""

    def __init__(
        self,
        upkeep: Upkeep,
        cluster: Cluster,
        victim: str,
        dice: random.Random,
        name: judgement.Name,
    ) -> None:
        self._upkeep, self._server = upkeep, upkeep.server
        self._cluster = cluster
        self._victim, self._dice = victim, dice
        self._name = name

    def run(self, stages: tuple[str, ...]) -> Counter[str]:
        """Returns the number of kills by the stage that the job had reached."""
        _kill_all(self._server.drivers())  # otherwise a warm one takes the job
        table = _create(self._upkeep, self._name, _FILES)
        rows = rows_of(table.scan().to_arrow())
        with (
            Repeating(lambda id_: _append(table, {id_: 1}), first=OWN, pause=4.0) as writer,
            self._server.database() as connection,
        ):
            job = _Followed(connection, _start(self._upkeep, self._name, "compact"))
            reached = self._compact(job, stages, writer)
            self._upkeep.wait_until_done(_WITHIN)
            self._judge_job(job)
            with writer.turn:
                _age(self._server)
                orphans = judgement.iceberg_orphans(self._server, self._name)
            job = _Followed(connection, _start(self._upkeep, self._name, "remove_orphans"))
            reached["removing orphans"] += self._remove(job)
            self._upkeep.wait_until_done(_WITHIN)
            self._judge_job(job)
        assert not [path for path in orphans if Path(path).exists()]
        self._judge_table(rows | dict.fromkeys(writer.ids, 1))
        return reached

    def _compact(self, job: _Followed, stages: tuple[str, ...], writer: Repeating) -> Counter[str]:
        reached: Counter[str] = Counter()
        with ExitStack() as delay:
            is_delayed = False
            for stage in stages:
                if stage in STAGES[2:] and not is_delayed:
                    self._stop_executors_until(lambda: job.has_reached("rewriting"))
                    delay.enter_context(self._commits_wait(writer))
                    is_delayed = True
                    self._signal_executors(signal.SIGCONT)
                _wait_until(lambda stage=stage: job.has_reached(stage))
                if job.status == "succeeded":  # a commit arrived in spite of the kill
                    break
                if stage == "rewriting":
                    time.sleep(self._dice.uniform(0, 1))
                drivers, attempt = self._server.drivers(), job.attempt
                self._kill()
                reached[job.read().stage] += 1
                if self._victim in _END_ATTEMPTS:
                    delay.close()  # a commit of the killed attempt may succeed now
                    is_delayed = False
                self._restore(job)
                if self._victim in _END_ATTEMPTS:
                    _wait_until(lambda attempt=attempt: job.read().attempt > attempt)
                    assert not [driver for driver in drivers if _runs(driver)]
        return reached

    def _remove(self, job: _Followed) -> int:
        """Kill the process once. Returns 0 if the job had ended before."""
        _wait_until(lambda: job.has_reached("planning"))
        time.sleep(self._dice.uniform(0, 1))
        self._kill()
        is_running = job.read().status != "succeeded"
        self._restore(job)
        return int(is_running)

    def _kill(self) -> None:
        match self._victim:
            case "driver":
                # Spark's start begins with the worker, then there is a process, then its JVM.
                _wait_until(self._server.drivers)
                is_java = self._dice.random() < 0.5
                drivers = self._server.drivers()
                chosen = [process for process in drivers if ("java" in _name(process)) == is_java]
                _kill_all(chosen or drivers)
            case "executor":
                self._signal_executors(signal.SIGKILL)
            case "worker":
                self._server.kill_worker()
            case "beat":
                self._upkeep.kill_beat()
            case "broker":
                self._upkeep.kill_broker()

    def _restore(self, job: _Followed) -> None:
        match self._victim:
            case "worker":
                self._server.wait_until_idle()  # the database may have statements of the worker
                job.expire()  # its worker is dead, so the lease need not run out
                self._server.start_worker()
            case "beat":
                self._upkeep.start_beat()
            case "broker":
                time.sleep(self._dice.uniform(0, 2))
                self._upkeep.broker.start()

    @contextmanager
    def _commits_wait(self, writer: Repeating) -> Iterator[None]:
        """Commits to the table wait until the end of the block. The server has received them."""
        with writer.turn, psycopg.connect(self._server.database_url) as connection:
            connection.execute(
                "SELECT FROM catalog_table WHERE name = %s FOR NO KEY UPDATE", [self._name[-1]]
            )
            yield

    def _judge_job(self, job: _Followed) -> None:
        assert job.read().status == "succeeded", self._server.log

    def _judge_table(self, rows: Rows) -> None:
        # Every snapshot can be read, so no file of one was removed.
        judgement.iceberg_is_right(self._server, self._name, rows)
        judgement.iceberg_orphans(self._server, self._name)  # all files exist
        table = pyice.connect(self._server.url, token=self._server.key).load_table(self._name)
        summaries = [snapshot.summary for snapshot in table.snapshots()]
        by_job = [summary for summary in summaries if summary and summary["monodon.job-id"]]
        rewritten = sum(int(summary["deleted-data-files"] or 0) for summary in by_job)
        # Each file was rewritten once; those of the writer perhaps not at all.
        assert rewritten >= _FILES
        written = sum(int(summary["added-data-files"] or 0) for summary in by_job)
        assert written <= len(by_job)

    def _stop_executors_until(self, condition: Callable[[], object]) -> None:
        """Stop executors as soon as they start, so that the rewriting does not end before a kill."""

        def stop_and_check() -> object:
            self._signal_executors(signal.SIGSTOP)
            return condition()

        _wait_until(stop_and_check)

    def _signal_executors(self, number: signal.Signals) -> None:
        executors: list[psutil.Process] = []
        for process in self._cluster._all[1:]:
            executors += psutil.Process(process.pid).children(recursive=True)
        _signal_all(executors, number)


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


def _wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
