"""Faults of operation make the expressions of their alerts true."""

import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import yaml
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
from tests.factories import make_table

pytestmark = pytest.mark.django_db
PROJECT = Path(__file__).resolve().parents[2]
RULES = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load(
        (PROJECT / "deploy" / "prometheus" / "monodon.rules.yml").read_text()
    )["groups"]
    for rule in group["rules"]
}
_EXPRESSION = re.compile(
    r"max(?: by \([\w, ]+\))? ?\((monodon_\w+)(?:\{(\w+)(=~|=)\"([\w|]+)\"\})?\) (==|>) ([\d.]+)"
)
_SAMPLE = re.compile(r"^(monodon_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def is_true(alert: str) -> bool:
    """Evaluate the expression of an alert, which compares the largest of some values with a number."""
    match = _EXPRESSION.fullmatch(RULES[alert])
    assert match is not None, RULES[alert]
    name, label, _, pattern, operator, number = match.groups()
    metrics.forget()
    values = []
    for sample, labels, value in _SAMPLE.findall(Client().get("/metrics").content.decode()):
        by_label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if sample == name and (label is None or re.fullmatch(pattern, by_label.get(label, ""))):
            values.append(float(value))
    if not values:
        return False
    return max(values) == float(number) if operator == "==" else max(values) > float(number)


def beats(name: str, role: ProcessRole) -> None:
    processes.report(Heartbeat(name=name, role=role, seen_at=Now(), started_at=Now()))


def make_job(**facts: Any) -> None:
    Job.objects.create(kind="compact", table=make_table("ws", f"t{Job.objects.count()}"), **facts)


def worker_gone(_: pytest.MonkeyPatch) -> None:
    old = Now() - timedelta(seconds=61)
    Heartbeat.objects.filter(role=ProcessRole.JOB_WORKER).update(seen_at=old)


def beat_gone(_: pytest.MonkeyPatch) -> None:
    processes.forget("beat@a")


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


def spark_fails(_: pytest.MonkeyPatch) -> None:
    for _number in range(6):
        make_job(status="failed", engine="spark", finished_at=timezone.now())


def disk_full(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=1000, used=950, free=50)
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: usage)


def seal_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """``test_metrics`` has a real lag; events cannot be made older."""
    monkeypatch.setattr(chain, "lag_seconds", lambda: 61.0)


def webhook_late(_: pytest.MonkeyPatch) -> None:
    webhook = Webhook.objects.create(name="w", url="https://example.com", secret=b"x", xid="1")
    late = timezone.now() - timedelta(seconds=700)
    WebhookDelivery.objects.create(
        webhook=webhook,
        event=1,
        event_at=late,
        due_at=late,
        status=DeliveryStatus.PENDING,
        type="t",
        target="t",
    )


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (worker_gone, "MonodonNoWorker"),
    (beat_gone, "MonodonNoBeat"),
    (beat_silent, "MonodonProcessSilent"),
    (broker_gone, "MonodonBrokerDown"),
    (queue_grows, "MonodonQueueGrows"),
    (job_waits, "MonodonJobsWait"),
    (job_stuck, "MonodonJobStuck"),
    (lease_lost, "MonodonJobsLost"),
    (spark_fails, "MonodonJobsFail"),
    (disk_full, "MonodonDiskFull"),
    (seal_lag, "MonodonAuditNotSealed"),
    (webhook_late, "MonodonWebhooksLate"),
]


@pytest.mark.parametrize(("inject", "alert"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_fault_makes_its_alert_true(monkeypatch, tmp_path, inject, alert):
    monkeypatch.setattr(settings, "MONODON_HOME", tmp_path)
    monkeypatch.setattr("celery.current_app.connection_for_read", lambda **_: _Broker(1000))
    plenty = SimpleNamespace(total=1000, used=100, free=900)
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: plenty)
    beats("jobs@a", ProcessRole.JOB_WORKER)
    beats("beat@a", ProcessRole.BEAT)
    make_job(status="running", started_at=Now(), lease_until=timezone.now() + timedelta(minutes=2))
    make_job(status="failed", engine="spark", finished_at=timezone.now())
    monkeypatch.setattr(chain, "lag_seconds", lambda: 0.0)
    assert not is_true(alert)
    inject(monkeypatch)
    assert is_true(alert)
