"""The readiness check names each component that is not ready."""

import re
import socket
import time
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from celery import Celery
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from kombu.exceptions import OperationalError

from api import health, metrics
from catalog.models import Heartbeat, Job, ProcessRole
from catalog.services.engine import processes
from tests.factories import make_table

pytestmark = pytest.mark.django_db
LAST = (
    "catalog",
    max(name for app, name in MigrationLoader(None).graph.nodes if app == "catalog"),
)


def migrations() -> str:
    answer: str = Client().get("/health/ready").json()["checks"]["migrations"]
    return answer


def test_a_ready_server_reports_all_checks():
    response = Client().get("/health/ready")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ok",
        "checks": {"database": "ok", "migrations": "ok", "draining": "ok"},
        "background": {
            "broker": "ok",
            **dict.fromkeys(("worker", "tasks", "beat"), "no heartbeat within 60 s"),
        },
    }


def test_a_server_without_a_broker_is_ready(monkeypatch):
    """Requests do not need it: a broker that restarts must not make all servers unavailable."""

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OperationalError

    monkeypatch.setattr("celery.current_app.connection_for_write", fail)
    response = Client().get("/health/ready")
    assert response.status_code == 200
    assert response.json()["background"]["broker"] == "the broker does not answer"


def test_a_broker_that_hangs_does_not_delay_the_answer(settings):
    """A probe of Kubernetes gives up after a few seconds, although requests need no broker."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        hanging = Celery("hanging", broker=url, set_as_current=False)
        with mock.patch.object(health, "current_app", hanging):
            start = time.monotonic()
            response = Client().get("/health/ready")
    assert response.status_code == 200
    assert response.json()["background"]["broker"] == "the broker does not answer"
    assert time.monotonic() - start < 3  # five seconds with the options for messages


def test_a_server_that_is_about_to_stop_is_not_ready(settings, tmp_path):
    settings.MONODON_DRAIN_FILE = str(tmp_path / "draining")
    assert Client().get("/health/ready").status_code == 200
    (tmp_path / "draining").touch()
    response = Client().get("/health/ready")
    assert response.status_code == 503
    assert response.json()["checks"]["draining"] == "the server is about to stop"
    assert Client().get("/health/live").status_code == 200


def test_running_workers_and_beat_are_reported_and_missing_ones_do_not_matter():
    report("jobs@a", ProcessRole.JOB_WORKER)
    report("beat@a", ProcessRole.BEAT)
    response = Client().get("/health/ready")
    assert response.status_code == 200
    assert response.json()["background"] == {
        "broker": "ok",
        "worker": "ok",
        "tasks": "no heartbeat within 60 s",
        "beat": "ok",
    }
    Heartbeat.objects.filter(role="beat").update(seen_at=Now() - timedelta(seconds=61))
    background = Client().get("/health/ready").json()["background"]
    assert background["beat"] == "no heartbeat within 60 s"
    processes.forget("jobs@a")
    assert Client().get("/health/ready").json()["background"]["worker"] != "ok"


def report(name: str, role: ProcessRole, **facts: Any) -> None:
    processes.report(Heartbeat(name=name, role=role, seen_at=Now(), started_at=Now(), **facts))


def test_metrics_have_jobs_processes_and_queues():
    table = make_table("ws", "t")
    now = timezone.now()
    for number, (status, engine) in enumerate([("queued", ""), ("succeeded", "spark")]):
        Job.objects.create(
            kind="compact",
            table=table,
            status=status,
            engine=engine,
            engine_profile="default" if engine else "",
            created_at=now - timedelta(seconds=100),
            finished_at=now if number else None,
        )
    report("jobs@a", ProcessRole.JOB_WORKER)
    metrics.forget()
    text = Client().get("/metrics").content.decode()
    values = dict(re.findall(r"^(monodon_\S+) (\S+)$", text, re.MULTILINE))
    assert values['monodon_jobs{engine="",kind="compact",profile="",status="queued"}'] == "1.0"
    labels = 'engine="spark",kind="compact",profile="default",status="succeeded"'
    ended = f"monodon_jobs_ended_last_hour{{{labels}}}"
    assert values[ended] == "1.0"
    assert 100 <= float(values["monodon_jobs_oldest_due_seconds"]) < 1000
    assert values['monodon_processes{role="jobs"}'] == "1.0"
    assert values['monodon_processes{role="beat"}'] == "0.0"
    assert float(values['monodon_process_silence_seconds{role="jobs"}']) < 60
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    assert f'monodon_queue_messages{{queue="{queue}.jobs"}}' in values


def test_the_check_of_migrations_takes_one_query_and_no_file(monkeypatch):
    assert migrations() == "ok"
    monkeypatch.setattr(health, "MigrationLoader", None)
    with CaptureQueriesContext(connection) as captured:
        assert migrations() == "ok"
    statements = [query["sql"] for query in captured.captured_queries]
    assert [sql for sql in statements if "django_migrations" in sql] == [statements[1]]
    # The first checks the connection to the database, the last reads the heartbeats.
    assert len(statements) == 3


def test_a_missing_migration_is_named_until_it_is_applied():
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(*LAST)
    response = Client().get("/health/ready")
    assert response.status_code == 503
    assert response.json()["checks"]["migrations"] == (
        f"migrations are not applied up to {'.'.join(LAST)}: run manage.py bootstrap"
    )
    recorder.record_applied(*LAST)
    assert migrations() == "ok"


def test_a_database_of_newer_code_is_ready():
    """During a rolling update, servers of the old release continue."""
    MigrationRecorder(connection).record_applied("catalog", "9999_future")
    assert migrations() == "ok"


@pytest.mark.django_db(transaction=True)
def test_a_database_without_migrations_is_not_ready():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_migrations RENAME TO elsewhere")
    try:
        status = migrations()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO django_migrations")
    assert status.startswith("migrations are not applied up to ")
    assert ".".join(LAST) in status
    assert migrations() == "ok"


def test_an_unreachable_database_is_reported_without_details(monkeypatch):
    monkeypatch.setattr(
        health,
        "MigrationRecorder",
        lambda connection: type("R", (), {"migration_qs": _Unreachable()}),
    )
    monkeypatch.setattr(connection, "close", lambda: None)
    assert migrations() == "the database 'default' cannot be read"


class _Unreachable:
    def values_list(self, *names: str):
        return self

    def __iter__(self):
        raise DatabaseError("connection refused: host=secret")
