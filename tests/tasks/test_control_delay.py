"""Control tasks start within seconds while jobs occupy every slot of the worker."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lance
import psycopg
import pyarrow as pa
import pytest
from celery import Celery
from django.conf import settings
from lance_namespace_urllib3_client import models as m

from server import commands
from server.options import Options
from tests.live import LiveServer, live_template

__all__ = ["live_template"]

_TABLES, _FRAGMENTS = 24, 20
_SLOTS = 2
_WITHIN = 5.0


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    """Without beat and workers."""
    with LiveServer(MONODON_WORKER_CONCURRENCY=str(_SLOTS)) as server:
        yield server


@contextmanager
def _worker(
    server: LiveServer, name: str, command: Callable[[Options], list[str]]
) -> Iterator[None]:
    """A worker, as the supervisor starts it."""
    options = Options.from_environment(server._environment)
    worker = server._child(name, server._environment, command(options))
    try:
        worker.start()
        yield
    finally:
        worker.kill_group()
        worker.wait(10)
        worker.drain()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_control_tasks_do_not_wait_for_jobs(server: LiveServer) -> None:
    """A task deletes an expired record while jobs run in all slots and others wait for them."""
    celery = Celery("probe", broker=settings.CELERY_BROKER_URL)
    with server.database() as connection, _worker(server, "tasks", commands.task_worker):
        _delay(celery, server, connection)  # once the worker runs
        _start_jobs(server)
        delays = []
        # Later than the jobs, so that all of them wait when it begins.
        with _worker(server, "jobs", commands.job_worker):
            while _jobs(connection, "queued"):
                is_full = _jobs(connection, "running") == _SLOTS
                delay = _delay(celery, server, connection)
                if is_full:
                    delays.append(delay)
        assert _jobs(connection, "failed") == 0
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


def _delay(celery: Celery, server: LiveServer, connection: psycopg.Connection) -> float:
    """The seconds until a task has deleted an expired record."""
    record = connection.execute(
        "INSERT INTO catalog_idempotencyrecord (key, actor, fingerprint, headers, created_at)"
        " VALUES (gen_random_uuid(), 'probe', '', '{}', now() - interval '30 d') RETURNING id"
    ).fetchone()
    began = time.monotonic()
    celery.send_task(
        "tasks.maintenance.delete_expired_idempotency_records",
        queue=server._environment["MONODON_QUEUE"],
    )
    statement = "SELECT FROM catalog_idempotencyrecord WHERE id = %s"
    while connection.execute(statement, record).fetchone():
        assert time.monotonic() < began + 120, server.log
        time.sleep(0.01)
    return time.monotonic() - began


def _jobs(connection: psycopg.Connection, status: str) -> int:
    row = connection.execute(
        "SELECT count(*) FROM catalog_job WHERE status = %s", [status]
    ).fetchone()
    assert row is not None
    return int(row[0])
