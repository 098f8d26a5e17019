"""Metrics for Prometheus: those that the processes count, and the state of the catalog in the database."""

import os
import threading
import time
from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from api.metrics import background
from catalog.postgresql import limits
from catalog.services.audit import chain
from catalog.services.events import deliveries
from catalog.services.maintenance import measurements
from catalog.services.storage import profiles

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series of times for each counter
_SECONDS = 10.0
"""Seconds for which figures of the installation are reused: several servers may scrape this one."""


def metrics(_: HttpRequest) -> HttpResponse:
    """Return the metrics of all web processes of this server, and those of the whole installation."""
    return HttpResponse(content(), content_type=CONTENT_TYPE_LATEST)


def content() -> bytes:
    processes = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        processes = CollectorRegistry()
        MultiProcessCollector(processes)  # type: ignore[no-untyped-call]
    text: bytes = generate_latest(processes) + _installation.text()
    return text


class Installation:
    """Figures of the whole installation, read at most once in some seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = b""
        self._until = 0.0

    def text(self) -> bytes:
        with self._lock:
            if time.monotonic() >= self._until:
                registry = CollectorRegistry()
                registry.register(_State())
                self._text = generate_latest(registry)
                self._until = time.monotonic() + _SECONDS
            return self._text

    def forget(self) -> None:
        self._until = 0.0


class _State(Collector):
    """Figures of the database. Without a database, there is only ``monodon_database_up``."""

    def collect(self) -> Iterator[Metric]:
        figures: list[Metric] = []
        try:
            with limits.fail_fast():
                for family in STATE:
                    figures += family()
        except (DatabaseError, InterfaceError):
            connection.close()
            figures.clear()
        yield GaugeMetricFamily(
            "monodon_database_up",
            "1 if the database answers to the server.",
            value=float(bool(figures)),
        )
        yield from figures


def _audit() -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "monodon_audit_seal_lag_seconds",
        "Age of the oldest audit event that is not sealed; 0: all are sealed.",
        value=chain.lag_seconds(),
    )


def _webhooks() -> Iterator[Metric]:
    backlog = deliveries.backlog()
    family = GaugeMetricFamily(
        "monodon_webhook_deliveries",
        "Deliveries of webhooks that are pending, are pending after a failure, or were given up.",
        labels=["status"],
    )
    family.add_metric(["pending"], backlog.pending)
    family.add_metric(["failing"], backlog.failing)
    family.add_metric(["dead"], backlog.dead)
    yield family
    yield GaugeMetricFamily(
        "monodon_webhook_lag_seconds",
        "Time since the oldest pending delivery was due.",
        value=backlog.lag_seconds,
    )


def _health() -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "monodon_tables_by_health",
        "Measured tables by health: a score from 0 (maintenance needed) to 100.",
        labels=["score"],
    )
    for label, count in measurements.distribution().items():
        family.add_metric([label], count)
    yield family


def _storage() -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "monodon_storage_profiles_unreadable",
        "Storage profiles whose key this server cannot decrypt.",
        value=len(profiles.unreadable()),
    )


STATE = (
    _audit,
    _webhooks,
    _health,
    _storage,
    background.jobs,
    background.plans,
    background.workers,
    background.queues,
    background.disks,
)
"""Functions that read figures of the database and the broker."""
_installation = Installation()


def forget() -> None:
    """Read the figures of the installation again at the next request."""
    _installation.forget()
