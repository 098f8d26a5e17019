"""Faults of operation make the expressions of their alerts true, ten of them within a minute."""

import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from kombu.exceptions import OperationalError

from api import metrics
from catalog.models import (
    DeliveryStatus,
    Heartbeat,
    Job,
    ProcessRole,
    Webhook,
    WebhookDelivery,
)
from catalog.services.audit import chain
from catalog.services.engine import processes
from tests.alerts import EVALUATION, RULES, SCRAPE, Scrapes, conditions
from tests.factories import make_iceberg_table, make_table

pytestmark = pytest.mark.django_db


def is_true(alert: str) -> bool:
    """Evaluate the expression of an alert with the values of this moment, also for its windows."""
    metrics.forget()
    scrapes = Scrapes()
    scrapes.add(Client().get("/metrics").content.decode())
    return scrapes.is_true(alert)


def beats(name: str, role: ProcessRole) -> None:
    processes.report(Heartbeat(name=name, role=role, seen_at=Now(), started_at=Now()))


def make_job(**facts: Any) -> None:
    Job.objects.create(kind="compact", table=make_table("ws", f"t{Job.objects.count()}"), **facts)


def worker_gone(_: pytest.MonkeyPatch) -> None:
    old = Now() - timedelta(seconds=61)
    Heartbeat.objects.filter(role=ProcessRole.JOB_WORKER).update(seen_at=old)


def beat_gone(_: pytest.MonkeyPatch) -> None:
    processes.forget("beat@a")


def worker_killed(_: pytest.MonkeyPatch) -> None:
    silence(ProcessRole.JOB_WORKER)


def tasks_killed(_: pytest.MonkeyPatch) -> None:
    silence(ProcessRole.TASK_WORKER)


def beat_killed(_: pytest.MonkeyPatch) -> None:
    silence(ProcessRole.BEAT)


def silence(role: ProcessRole) -> None:
    Heartbeat.objects.filter(role=role).update(seen_at=Now() - timedelta(seconds=26))


def beat_silent(_: pytest.MonkeyPatch) -> None:
    Heartbeat.objects.filter(role="beat").update(seen_at=Now() - timedelta(seconds=301))


def broker_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise OperationalError

    monkeypatch.setattr("celery.current_app.connection_for_read", fail)


class _Broker:
    """A broker with this many messages in each queue."""

    def __init__(self, messages: int) -> None:
        client = SimpleNamespace(llen=lambda _queue: messages)
        self.default_channel = SimpleNamespace(client=client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ensure_connection(self, **_: object) -> None:
        pass


def queue_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.connection_for_read", lambda **_: _Broker(1001))


def job_waits(_: pytest.MonkeyPatch) -> None:
    make_job(status="queued", created_at=timezone.now() - timedelta(seconds=901))


def job_stuck(_: pytest.MonkeyPatch) -> None:
    lease = timezone.now() + timedelta(minutes=2)
    make_job(status="running", started_at=timezone.now() - timedelta(hours=7), lease_until=lease)


def lease_lost(_: pytest.MonkeyPatch) -> None:
    make_job(
        status="running",
        started_at=timezone.now(),
        lease_until=timezone.now() - timedelta(seconds=1),
    )


def job_silent(_: pytest.MonkeyPatch) -> None:
    """A worker renews the lease of two minutes every two seconds."""
    lease = timezone.now() + timedelta(seconds=120 - 26)
    make_job(status="running", started_at=timezone.now(), lease_until=lease)


def spark_without_runtime(_: pytest.MonkeyPatch) -> None:
    make_iceberg_table("ws", "orders")
    Heartbeat.objects.update(missing_for_iceberg="Spark has no Iceberg runtime")


def spark_fails(_: pytest.MonkeyPatch) -> None:
    for _number in range(6):
        make_job(status="failed", engine="spark", finished_at=timezone.now())


def disk_full(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=1000, used=950, free=50)
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: usage)


def seal_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """``test_metrics`` has a real lag; events cannot be made older."""
    monkeypatch.setattr(chain, "lag_seconds", lambda: 61.0)


def seal_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "lag_seconds", lambda: 26.0)


def webhook_late(_: pytest.MonkeyPatch) -> None:
    make_delivery(due_at=timezone.now() - timedelta(seconds=700))


def webhook_dead(_: pytest.MonkeyPatch) -> None:
    """The next attempt of a delivery that failed is due later, so it is not late."""
    later = timezone.now() + timedelta(seconds=5)
    make_delivery(due_at=later, attempts=1, answer="ConnectionRefusedError")


def make_delivery(*, is_active: bool = True, **facts: Any) -> None:
    number = Webhook.objects.count()
    webhook = Webhook.objects.create(
        name=f"w{number}", url="https://example.com", secret=b"x", xid="1", is_active=is_active
    )
    WebhookDelivery.objects.create(
        webhook=webhook,
        event=1,
        event_at=timezone.now(),
        status=DeliveryStatus.PENDING,
        type="t",
        target="t",
        **facts,
    )


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (worker_gone, "MonodonNoWorker"),
    (worker_killed, "MonodonNoWorker"),
    (tasks_killed, "MonodonNoTasks"),
    (beat_gone, "MonodonNoBeat"),
    (beat_killed, "MonodonNoBeat"),
    (beat_silent, "MonodonProcessSilent"),
    (broker_gone, "MonodonBrokerDown"),
    (queue_grows, "MonodonQueueGrows"),
    (queue_grows, "MonodonQueueBlocked"),
    (job_waits, "MonodonJobsWait"),
    (job_stuck, "MonodonJobStuck"),
    (job_silent, "MonodonJobSilent"),
    (lease_lost, "MonodonJobSilent"),
    (lease_lost, "MonodonJobsLost"),
    (spark_without_runtime, "MonodonNoSpark"),
    (spark_fails, "MonodonJobsFail"),
    (disk_full, "MonodonDiskFull"),
    (seal_late, "MonodonAuditSealLate"),
    (seal_lag, "MonodonAuditNotSealed"),
    (webhook_dead, "MonodonWebhooksFail"),
    (webhook_late, "MonodonWebhooksLate"),
]


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "MONODON_HOME", tmp_path)
    monkeypatch.setattr("celery.current_app.connection_for_read", lambda **_: _Broker(1000))
    plenty = SimpleNamespace(total=1000, used=100, free=900)
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: plenty)
    beats("jobs@a", ProcessRole.JOB_WORKER)
    beats("tasks@a", ProcessRole.TASK_WORKER)
    beats("beat@a", ProcessRole.BEAT)
    make_job(status="running", started_at=Now(), lease_until=timezone.now() + timedelta(minutes=2))
    make_job(status="failed", engine="spark", finished_at=timezone.now())
    make_delivery(due_at=timezone.now(), attempts=1)
    monkeypatch.setattr(chain, "lag_seconds", lambda: 0.0)


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("inject", "alert"), FAULTS, ids=[f"{fault.__name__}-{alert[7:]}" for fault, alert in FAULTS]
)
def test_a_fault_makes_its_alert_true(monkeypatch, inject, alert):
    assert not is_true(alert)
    inject(monkeypatch)
    assert is_true(alert)


@pytest.mark.usefixtures("healthy")
def test_workers_without_spark_are_no_fault_without_iceberg_tables():
    Heartbeat.objects.update(missing_for_iceberg="Spark needs Java 17 to 23")
    assert not is_true("MonodonNoSpark")


@pytest.mark.usefixtures("healthy")
def test_deliveries_of_stopped_webhooks_are_no_fault():
    late = timezone.now() - timedelta(seconds=700)
    make_delivery(is_active=False, due_at=late, attempts=1, answer="410 Gone")
    assert not is_true("MonodonWebhooksFail")
    assert not is_true("MonodonWebhooksLate")


FAST = {
    "MonodonNoWorker": 0.0,
    "MonodonNoTasks": 0.0,
    "MonodonNoBeat": 0.0,
    "MonodonBrokerDown": 2.0,  # the time within which it has to answer
    "MonodonQueueGrows": 0.0,
    "MonodonJobSilent": 2.0,  # between two renewals
    "MonodonJobStuck": 0.0,
    "MonodonNoSpark": processes.SECONDS,
    "MonodonDiskFull": 0.0,
    "MonodonAuditSealLate": 0.0,
    "MonodonWebhooksFail": 2.0,  # between two rounds of deliveries
}
"""Alerts, and the seconds until the state that the metric describes reflects their faults."""


@pytest.mark.parametrize("alert", FAST)
def test_an_alert_fires_within_a_minute(alert):
    """The figures of a scrape are up to some seconds old. A stuck job counts from its limit on."""
    age = metrics._SECONDS
    for condition in conditions(alert):
        window = float(condition["window"] or 0)
        is_age = condition["metric"].endswith("_seconds") and alert != "MonodonJobStuck"
        threshold = float(condition["number"]) if is_age else 0.0
        pause = float(RULES[alert].get("for", "0s").removesuffix("s"))
        assert FAST[alert] + threshold + age + SCRAPE + window + pause + EVALUATION < 60


def test_windows_cover_several_scrapes():
    for alert in RULES:
        for window in re.findall(r"_over_time\(.*?\[(\d+)s\]", RULES[alert]["expr"]):
            assert int(window) >= 2 * SCRAPE, alert
