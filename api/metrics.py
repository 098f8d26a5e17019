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

from api import background_metrics
from catalog.postgresql import limits
from catalog.services.audit import chain
from catalog.services.events import deliveries
from catalog.services.maintenance import measurements

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series of times for each counter
_SECONDS = 10.0
"""How long figures of the database are reused: several servers may scrape this one."""


def metrics(_: HttpRequest) -> HttpResponse:
    """Return the metrics of all web processes of this server, and those of the whole installation."""
    return HttpResponse(content(), content_type=CONTENT_TYPE_LATEST)


def content() -> bytes:
    processes = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        processes = CollectorRegistry()
        MultiProcessCollector(processes)  # type: ignore[no-untyped-call]
    state = CollectorRegistry()
    state.register(_state)
    text: bytes = generate_latest(processes) + generate_latest(state)
    return text + background_metrics.export()


class State(Collector):
    """Figures of the database. Without a database, there is only ``monodon_database_up``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: list[Metric] = []
        self._until = 0.0

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._figures = list(self._read())
                self._until = time.monotonic() + _SECONDS
            yield from self._figures

    def forget(self) -> None:
        """Read the figures again at the next request."""
        self._until = 0.0

    @staticmethod
    def _read() -> Iterator[Metric]:
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
        "Deliveries of webhooks that are pending, or were given up.",
        labels=["status"],
    )
    family.add_metric(["pending"], backlog.pending)
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


STATE = (
    _audit,
    _webhooks,
    _health,
    background_metrics.jobs,
    background_metrics.workers,
    background_metrics.queues,
)
"""Functions that read figures of the database and the broker."""
_state = State()
