"""Control tasks start within seconds while jobs occupy every slot of the worker."""

import itertools
import time
from collections.abc import Iterator

import lance
import psycopg
import pyarrow as pa
import pytest
from celery import Celery
from django.conf import settings
from lance_namespace_urllib3_client import models as m

from server import commands
from server.options import Options
from server.processes import Child
from tests.live import LiveServer, live_template

__all__ = ["live_template"]

_TABLES, _FRAGMENTS = 24, 20
_SLOTS = 2
_WITHIN = 5.0


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    """With a worker for jobs and one for tasks, as the supervisor starts them, and without beat."""
    with LiveServer(MONODON_WORKER_CONCURRENCY=str(_SLOTS)) as server:
        options = Options.from_environment(server._environment)
        workers = [
            server._child("jobs", server._environment, commands.job_worker(options)),
            server._child("tasks", server._environment, commands.task_worker(options)),
        ]
        try:
            for worker in workers:
                worker.start()
            yield server
        finally:
            for worker in workers:
                _end(worker)


def _end(worker: Child) -> None:
    worker.kill_group()
    worker.wait(10)
    worker.drain()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_control_tasks_do_not_wait_for_jobs(server: LiveServer) -> None:
    """A task seals an event of the audit trail while jobs run in all slots and others wait for them."""
    celery = Celery("probe", broker=settings.CELERY_BROKER_URL)
    queue = server._environment["MONODON_QUEUE"]
    with server.database() as connection:
        _seal(celery, queue, server, connection, "before")  # once the worker runs
        _start_jobs(server)
        delays = []
        for number in itertools.count():
            if not _jobs(connection, "queued"):
                break
            is_full = _jobs(connection, "running") == _SLOTS
            delay = _seal(celery, queue, server, connection, f"during{number}")
            if is_full:
                delays.append(delay)
        assert _jobs(connection, "failed") == 0
    print(f"{len(delays)} tasks waited for {max(delays):.2f} s at most")
    assert len(delays) >= 3
    assert max(delays) < _WITHIN


def _start_jobs(server: LiveServer) -> None:
    catalog = server.client()
    catalog.create_namespace(m.CreateNamespaceRequest(id=["jobs"]))
    for number in range(_TABLES):
        lance.write_dataset(
            pa.table({"id": range(10 * _FRAGMENTS)}),
            namespace_client=catalog,
            table_id=["jobs", f"t{number}"],
            mode="create",
            max_rows_per_file=10,
        )
    for number in range(_TABLES):
        status, job = server.post(
            f"/management/v1/tables/jobs$t{number}/maintenance", {"kind": "compact"}
        )
        assert status == 202, job


def _seal(
    celery: Celery, queue: str, server: LiveServer, connection: psycopg.Connection, name: str
) -> float:
    """The seconds until a task has sealed an event."""
    server.client().create_namespace(m.CreateNamespaceRequest(id=[name]))
    began = time.monotonic()
    celery.send_task("tasks.maintenance.seal_audit", queue=queue)
    statement = (
        "SELECT EXISTS (SELECT FROM catalog_auditseal s JOIN catalog_auditevent e"
        " ON e.id = s.event_id WHERE e.target = %s)"
    )
    while connection.execute(statement, [name]).fetchone() != (True,):
        assert time.monotonic() < began + 120, server.log
        time.sleep(0.01)
    return time.monotonic() - began


def _jobs(connection: psycopg.Connection, status: str) -> int:
    row = connection.execute(
        "SELECT count(*) FROM catalog_job WHERE status = %s", [status]
    ).fetchone()
    assert row is not None
    return int(row[0])
