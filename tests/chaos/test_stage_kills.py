"""The worker, beat and the broker are killed at each stage of a compaction, while a writer commits.

The next worker continues the job of a killed one. No row is lost, and every version can be read.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lance
import psycopg
import pytest
from lance_namespace_urllib3_client import models as m

from tests.chaos import upkeep_judgement as judgement
from tests.chaos.test_maintenance_storm import Upkeep
from tests.chaos.upkeep_writers import OWN, Rows, table_of
from tests.repeating import Repeating

SPACE = "stages"
STAGES = ("started", "planning", "rewriting")
"""In the worker, commits are a part of the rewriting."""
_FRAGMENTS, _ROWS = 40, 2000
_WITHIN = 600.0


@pytest.fixture
def upkeep(live_template: None, tmp_path: Path) -> Iterator[Upkeep]:
    started = Upkeep(tmp_path, java="")
    try:
        started.start()
        started.server.client().create_namespace(m.CreateNamespaceRequest(id=[SPACE]))
        yield started
    finally:
        started.close()


@pytest.mark.timeout(1200)  # about 20 s, and several times that on a busy machine
def test_a_compaction_survives_the_death_of_its_worker(upkeep: Upkeep, seed: int) -> None:
    _kill(upkeep, "worker", "rewriting", 0, random.Random(seed))


@pytest.mark.timeout(1200)
def test_a_worker_outlives_the_broker(upkeep: Upkeep, seed: int) -> None:
    """It finishes its job, connects to the next broker, and takes the next job."""
    worker = upkeep.server._worker
    assert worker is not None
    dice = random.Random(seed)
    for number in range(2):
        _kill(upkeep, "broker", "started", number, dice)
    assert upkeep.server._worker is worker
    assert worker.running, upkeep.server.log


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["worker", "beat", "broker"])
def test_a_compaction_survives_deaths_at_each_stage(
    upkeep: Upkeep, rounds: int, seed: int, victim: str
) -> None:
    """``rounds`` of each stage. A short stage may have ended when the signal arrives."""
    reached: Counter[str] = Counter()
    dice = random.Random(seed)
    for number, stage in enumerate(itertools.chain.from_iterable([STAGES] * rounds)):
        reached[_kill(upkeep, victim, stage, number, dice)] += 1
        print(f"{victim}: {number + 1} kills: {dict(reached)}", flush=True)


def _kill(upkeep: Upkeep, victim: str, stage: str, number: int, dice: random.Random) -> str:
    """Kill a process in a stage of a job; returns the stage that the job had reached."""
    server = upkeep.server
    name = (SPACE, f"t{number}")
    rows: Rows = dict.fromkeys(range(_FRAGMENTS * _ROWS), number)
    lance.write_dataset(
        table_of(rows),
        namespace_client=server.client(),
        table_id=list(name),
        mode="create",
        max_rows_per_file=_ROWS,
    )
    catalog = server.client()

    def append(id_: int) -> None:
        lance.write_dataset(
            table_of({id_: 1}), namespace_client=catalog, table_id=list(name), mode="append"
        )

    with (
        Repeating(append, first=OWN, pause=0.2) as writer,
        server.database() as connection,
    ):
        status, job = server.post(
            f"/management/v1/tables/{'$'.join(name)}/maintenance", {"kind": "compact"}
        )
        assert status == 202, job
        _wait_for(connection, job["id"], stage)
        if stage == "rewriting":
            time.sleep(dice.uniform(0, 0.2))
        reached = _replace(upkeep, victim, connection, job["id"], dice)
        upkeep.wait_until_done(_WITHIN)
    (row,) = judgement.query(server, "SELECT * FROM catalog_job WHERE id = %s", job["id"])
    assert row["status"] == "succeeded", row  # with a note if all groups were committed before
    is_repeated = victim == "worker" and reached != "succeeded"
    assert row["attempts"] >= 1 + is_repeated, (reached, row)
    _judge(upkeep, name, rows | dict.fromkeys(writer.ids, 1))
    return reached


def _replace(
    upkeep: Upkeep, victim: str, connection: psycopg.Connection, job: int, dice: random.Random
) -> str:
    """Kill a process and start it again; returns the stage that a job had reached in between."""
    server = upkeep.server
    match victim:
        case "worker":
            server.kill_worker()
            server.wait_until_idle()  # the database may have statements of the worker
            reached = _stage(connection, job)
            connection.execute(  # its worker is dead, so the lease need not run out
                "UPDATE catalog_job SET lease_until = now() WHERE id = %s AND status = 'running'",
                [job],
            )
            server.start_worker()
        case "beat":
            upkeep.kill_beat()
            reached = _stage(connection, job)
            upkeep.start_beat()
        case _:
            upkeep.kill_broker()
            reached = _stage(connection, job)
            time.sleep(dice.uniform(0, 2))
            upkeep.broker.start()
    return reached


def _judge(upkeep: Upkeep, name: judgement.Name, rows: Rows) -> None:
    """Assert that a table is compacted, has these rows, and that every version can be read."""
    catalog = upkeep.server.client()
    newest = lance.dataset(namespace_client=catalog, table_id=list(name))
    data = newest.to_table(columns=["id", "n"])
    ids = data["id"].to_pylist()
    assert len(ids) == len(set(ids))
    assert dict(zip(ids, data["n"].to_pylist(), strict=True)) == rows
    assert len(newest.get_fragments()) < _FRAGMENTS
    for version in judgement.lance_versions(upkeep.server, name):
        lance.dataset(namespace_client=catalog, table_id=list(name), version=version).validate()


def _wait_for(connection: psycopg.Connection, job: int, stage: str) -> None:
    """Wait until a job has reached a stage, or has ended."""
    goal = STAGES.index(stage)
    deadline = time.monotonic() + _WITHIN
    while True:
        reached = _stage(connection, job)
        if reached == "succeeded" or (reached in STAGES and STAGES.index(reached) >= goal):
            return
        assert time.monotonic() < deadline, reached


def _stage(connection: psycopg.Connection, job: int) -> str:
    """The last stage of a job that runs, else its status."""
    row = connection.execute(
        "SELECT status, stages->-1->>'name' FROM catalog_job WHERE id = %s", [job]
    ).fetchone()
    assert row is not None
    status, stage = row
    return (stage or "started") if status == "running" else status
