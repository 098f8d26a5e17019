"""/metrics: its size is bounded, and it has the state of the catalog."""

import re

import pytest
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest

from api import metrics, middleware
from api.iceberg import urls as iceberg_urls
from api.lance import urls as lance_urls
from catalog.models import DeliveryStatus, Job, TableHealth, Webhook, WebhookDelivery
from catalog.services.audit import chain
from monodon.client.operations import ManagementOperations
from tests.factories import make_namespace, make_root, make_table
from tests.sealing import seal_all

MAX_BYTES = 125_000


def value(name: str) -> float:
    text = Client().get("/metrics").content.decode()
    (line,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(line)


def test_the_metrics_of_all_operations_with_all_statuses_are_bounded():
    """Labels are operations and classes of statuses, never names, paths or versions."""
    operations = {"other", "NoRoute", "WrongMethod"}
    operations |= {operation.__name__ for operation in lance_urls.ROUTES.values()}
    for by_method in iceberg_urls.ROUTES.values():
        operations |= {operation.__name__ for operation in by_method.values()}
    operations |= {name for name in vars(ManagementOperations) if not name.startswith("_")}
    assert len(operations) > 170
    registry = CollectorRegistry()
    for metric in (
        middleware.REQUEST_SECONDS,
        middleware.OPERATION_SECONDS,
        middleware.REQUESTS,
    ):
        registry.register(metric)
    for operation in operations:
        middleware.OPERATION_SECONDS.labels(operation)
        for status in ("2xx", "3xx", "4xx", "5xx"):
            middleware.REQUESTS.labels(operation, status)
    for path in ("/v1/x", "/management/v1/x", "/admin/x", "/x"):
        middleware.REQUEST_SECONDS.labels(middleware._interface(path))
    size = len(generate_latest(registry))
    assert size < MAX_BYTES, f"{size} bytes"


@pytest.mark.django_db
def test_requests_add_no_series_for_names(client):
    make_root()
    client.get("/v1/namespace/a/describe")
    before = Client().get("/metrics").content.decode()
    for number in range(5):
        client.get(f"/v1/namespaces/n{number}/tables/t{number}", headers={"x-api-key": "wrong"})
        client.get(f"/unknown{number}")
    client.get("/management/v1/nothing")
    Client().get("/metrics")
    after = Client().get("/metrics").content.decode()
    assert "n3" not in after
    assert "unknown3" not in after
    assert "django_http" not in after
    assert after.count("\n") - before.count("\n") < 60


@pytest.mark.django_db
def test_the_health_of_tables():
    make_root()
    for name, score in (("a", 0), ("b", 19), ("c", 79), ("d", 80), ("e", 100)):
        table = make_table("ns", name)
        TableHealth.objects.create(table=table, score=50, statistics={}, is_newest=False)
        TableHealth.objects.create(table=table, score=score, statistics={})
    counts = [
        value(f'monodon_tables_by_health{{score="{r}"}}') for r in ("0-19", "60-79", "80-100")
    ]
    assert counts == [2, 1, 2]
    assert value('monodon_tables_by_health{score="20-39"}') == 0
    assert value("monodon_database_up") == 1


@pytest.mark.django_db
def test_the_backlog_of_webhooks():
    webhook = Webhook.objects.create(name="w", url="https://example.com", secret=b"x", xid="1")
    late = timezone.now() - timezone.timedelta(seconds=90)
    for number, status in enumerate([*["pending"] * 2, "dead", "delivered"]):
        WebhookDelivery.objects.create(
            webhook=webhook,
            event=number,
            event_at=late,
            due_at=late,
            status=DeliveryStatus(status),
            type="t",
            target="t",
        )
    assert value('monodon_webhook_deliveries{status="pending"}') == 2
    assert value('monodon_webhook_deliveries{status="dead"}') == 1
    assert 90 <= value("monodon_webhook_lag_seconds") < 1000


@pytest.mark.django_db(transaction=True)
def test_the_lag_of_the_audit_seal():
    make_root()
    seal_all()
    assert chain.lag_seconds() == 0
    make_namespace("ns")
    assert value("monodon_audit_seal_lag_seconds") > 0
    seal_all()
    metrics.forget()
    assert value("monodon_audit_seal_lag_seconds") == 0


@pytest.mark.django_db
def test_metrics_without_a_database(monkeypatch):
    def fail() -> None:
        raise DatabaseError("down")

    monkeypatch.setattr(metrics, "STATE", (fail,))
    monkeypatch.setattr(metrics.connection, "close", lambda: None)
    text = Client().get("/metrics").content.decode()
    assert "monodon_database_up 0.0\n" in text
    assert "monodon_commits_total" in text
    assert "monodon_audit_seal_lag" not in text


@pytest.mark.django_db
def test_figures_of_the_database_are_reused(django_assert_num_queries):
    Client().get("/metrics")
    with django_assert_num_queries(0):
        Client().get("/metrics")


def test_liveness_needs_no_database():
    """Without the mark django_db, a query would fail."""
    response = Client().get("/health/live")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.django_db
def test_kept_and_broken_plans_are_counted(warehouse):
    make_root()
    table = make_table("ws", "t")
    for is_plan_kept in (True, True, False):
        Job.objects.create(
            kind="compact",
            table=table,
            status="succeeded",
            finished_at=timezone.now(),
            result={"promise": {"kept": is_plan_kept}},
        )
    name = "monodon_maintenance_plans_last_day"
    assert value(f'{name}{{kind="compact",result="kept"}}') == 2
    assert value(f'{name}{{kind="compact",result="broken"}}') == 1


@pytest.mark.django_db
def test_tables_with_health_and_jobs_add_no_series():
    def add(number: int) -> None:
        table = make_table("ns", f"t{number}")
        TableHealth.objects.create(table=table, score=number % 101, statistics={})
        Job.objects.create(
            kind="compact", table=table, status="succeeded", finished_at=timezone.now()
        )

    def series() -> set[str]:
        metrics.forget()
        lines = Client().get("/metrics").content.decode().splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    make_root()
    add(0)
    series()  # the request itself is counted from the second one on
    before = series()
    for number in range(1, 300):
        add(number)
    assert series() == before
    assert value('monodon_tables_by_health{score="0-19"}') == 60
