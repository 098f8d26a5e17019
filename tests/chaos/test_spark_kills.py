"""The driver, an executor, the worker, beat and the broker are killed at each stage of a compaction on Spark.

A writer appends meanwhile. Drivers of two worker processes share a standalone cluster of two workers.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from tests.chaos import upkeep_judgement as judgement
from tests.chaos.test_maintenance_storm import Upkeep, java
from tests.chaos.upkeep_writers import OWN, SCHEMA, Rows, rows_of, table_of
from tests.clients import pyice
from tests.clients.test_iceberg_maintenance import JAVA_OPTIONS, Cluster

__all__ = ["java"]
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
SPACE = "spark"
STAGES = ("starting Spark", "planning", "rewriting", "committing")
VICTIMS = ("driver", "executor", "worker", "beat", "broker")
_FILES = 12
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


@pytest.fixture
def upkeep(live_template: None, java: str, cluster: Cluster, tmp_path: Path) -> Iterator[Upkeep]:
    executors = (
        " spark.driver.host=127.0.0.1 spark.driver.bindAddress=127.0.0.1"
        f" spark.executor.memory=512m 'spark.executor.extraJavaOptions={JAVA_OPTIONS}'"
    )
    started = Upkeep(
        tmp_path, java, conf=executors, SPARK_MASTER=cluster.url, MONODON_SPARK_CORES="1"
    )
    try:
        started.start()
        started.stop_policies()  # only the jobs of this test
        pyice.connect(started.server.url, token=started.server.key).create_namespace(SPACE)
        yield started
    finally:
        started.close()


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_compaction_on_spark_survives_deaths_at_each_stage(
    upkeep: Upkeep, cluster: Cluster, rounds: int, seed: int, victim: str
) -> None:
    """``rounds`` of each stage. A short stage may have ended when the signal arrives.

    Before the rewriting, a cold driver has no executors.
    """
    stages = STAGES[2:] if victim == "executor" else STAGES
    dice = random.Random(seed)
    reached: Counter[str] = Counter()
    for number, stage in enumerate(itertools.chain.from_iterable([stages] * rounds)):
        kill = _Kill(upkeep, cluster, victim, dice)
        reached[kill.run((SPACE, f"{victim}{number}"), stage)] += 1
        print(f"{victim}: {number + 1} kills: {dict(reached)}", flush=True)
    judgement.jobs_have_ended(upkeep.server)


def test_two_drivers_share_a_cluster(upkeep: Upkeep) -> None:
    """The jobs of two tables run at the same time, with an executor each."""
    jobs = {}
    for number in range(2):
        name = (SPACE, f"shared{number}")
        table = _create(upkeep, name, 4 * _FILES)
        jobs[_start(upkeep, name)] = table
    upkeep.wait_until_done(_WITHIN)
    rows = judgement.query(upkeep.server, "SELECT * FROM catalog_job ORDER BY id")
    assert [row["status"] for row in rows] == ["succeeded"] * 2, rows
    began = [row["started_at"] for row in rows]
    assert max(began) < min(row["finished_at"] for row in rows)
    events = judgement.query(
        upkeep.server, "SELECT message FROM catalog_jobevent WHERE message LIKE '%%runs as app-%%'"
    )
    assert len({row["message"] for row in events}) == 2


class _Kill:
    """Kill a process at a stage of a job, and judge the table and the job."""

    def __init__(self, upkeep: Upkeep, cluster: Cluster, victim: str, dice: random.Random) -> None:
        self._upkeep, self._server = upkeep, upkeep.server
        self._cluster = cluster
        self._victim = victim
        self._dice = dice

    def run(self, name: judgement.Name, stage: str) -> str:
        """Returns the stage that the job had reached when the process was killed."""
        if stage == STAGES[0]:
            _kill_all(self._drivers())  # otherwise a warm one takes the job
        table = _create(self._upkeep, name, _FILES)
        rows = rows_of(table.scan().to_arrow())
        with _Writing(table, rows), self._server.database() as connection:
            job = _start(self._upkeep, name)
            _wait_for(connection, job, stage)
            if stage == "rewriting":
                time.sleep(self._dice.uniform(0, 1))
            if (
                self._victim == "driver"
            ):  # Spark's start begins with the worker, then there is a JVM
                _wait_until(lambda: self._drivers() or _stage(connection, job) == "succeeded")
            processes = self._drivers()
            getattr(self, f"_kill_{self._victim}")()
            reached = _stage(connection, job)
            if self._victim == "worker":
                connection.execute(  # its worker is dead, so the lease need not run out
                    "UPDATE catalog_job SET lease_until = now() WHERE id = %s"
                    " AND status = 'running'",
                    [job],
                )
                _wait_until(lambda: not any(map(_runs, processes)))
                self._server.start_worker()
            self._upkeep.wait_until_done(_WITHIN)
        self._judge(name, rows, job, reached)
        return reached

    def _judge(self, name: judgement.Name, rows: Rows, job: int, reached: str) -> None:
        (row,) = judgement.query(self._server, "SELECT * FROM catalog_job WHERE id = %s", job)
        assert row["status"] == "succeeded", row
        is_repeated = self._victim == "worker" and reached != "succeeded"
        # A later driver may have sent its result before the signal.
        is_repeated |= self._victim == "driver" and reached in STAGES[:2]
        assert row["attempts"] >= 1 + is_repeated, row
        # Every snapshot can be read, so that no file of one was removed.
        judgement.iceberg_is_right(self._server, name, rows)
        table = pyice.connect(self._server.url, token=self._server.key).load_table(name)
        summaries = [snapshot.summary for snapshot in table.snapshots()]
        by_job = [summary for summary in summaries if summary and summary["monodon.job-id"]]
        rewritten = sum(int(summary["deleted-data-files"] or 0) for summary in by_job)
        # Each file was rewritten once; those of the writer perhaps not at all.
        assert rewritten >= _FILES
        written = sum(int(summary["added-data-files"] or 0) for summary in by_job)
        assert written <= len(by_job)

    def _drivers(self) -> list[psutil.Process]:
        worker = self._server._worker
        assert worker is not None
        descendants = psutil.Process(worker.pid).children(recursive=True)
        return [process for process in descendants if "java" in _name(process)]

    def _kill_driver(self) -> None:
        _kill_all(self._drivers())

    def _kill_executor(self) -> None:
        executors: list[psutil.Process] = []
        for process in self._cluster._all[1:]:
            executors += psutil.Process(process.pid).children(recursive=True)
        _kill_all(executors)

    def _kill_worker(self) -> None:
        self._server.kill_worker()
        self._server.wait_until_idle()  # statements that the database has received may take effect

    def _kill_beat(self) -> None:
        self._upkeep._kill_beat()
        self._upkeep.start_beat()

    def _kill_broker(self) -> None:
        broker = self._upkeep.broker
        assert broker._child is not None
        broker._child.kill_group()
        broker._child.wait(5)
        time.sleep(self._dice.uniform(0, 2))
        broker.start()


class _Writing:
    """Appends rows of its own to a table until the end of the block, and adds them to ``rows``."""

    def __init__(self, table: Table, rows: Rows) -> None:
        self._table, self._rows = table, rows
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._errors, self._errors

    def _run(self) -> None:
        try:
            for id_ in itertools.count(OWN):
                row = {id_: 1}
                while True:
                    with suppress(CommitFailedException):
                        self._table.refresh().append(table_of(row))
                        break
                self._rows |= row
                if self._stop.wait(1):
                    return
        except BaseException as error:  # noqa: BLE001 -- raised by the test's thread
            self._errors.append(error)


def _create(upkeep: Upkeep, name: judgement.Name, files: int) -> Table:
    catalog = pyice.connect(upkeep.server.url, token=upkeep.server.key)
    table = catalog.create_table(name, SCHEMA)
    for number in range(files):
        table.append(table_of({10 * number + n: number for n in range(10)}))
    return table


def _start(upkeep: Upkeep, name: judgement.Name) -> int:
    path = f"/management/v1/tables/{'$'.join(name)}/maintenance"
    status, job = upkeep.server.post(path, {"kind": "compact"})
    assert status == 202, job
    return int(job["id"])


def _wait_for(connection: psycopg.Connection, job: int, stage: str) -> None:
    """Wait until a job has reached a stage, or has ended."""
    later = {"succeeded", *STAGES[STAGES.index(stage) :]}
    _wait_until(lambda: _stage(connection, job) in later)


def _wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _stage(connection: psycopg.Connection, job: int) -> str:
    """The last stage of a job that runs, else its status."""
    row = connection.execute(
        "SELECT status, stages->-1->>'name' FROM catalog_job WHERE id = %s", [job]
    ).fetchone()
    assert row is not None
    status, stage = row
    return (stage or "started") if status == "running" else status


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
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
