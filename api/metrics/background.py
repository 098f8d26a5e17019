"""Metrics of jobs, workers and beat, read from the database, and of queues, read from the broker."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from celery import current_app
from django.conf import settings
from django.db.models import Count, ExpressionWrapper, F, FloatField, Max
from django.db.models.functions import Extract, Now
from django.utils import timezone
from kombu.exceptions import OperationalError
from prometheus_client.core import GaugeMetricFamily, Metric

from catalog.models import Heartbeat
from catalog.services.engine import processes
from catalog.services.maintenance import job_control
from catalog.services.maintenance.engine_profiles import engines
from catalog.services.maintenance.job_control import Tally

_MAX_JUDGED = 20_000
"""The newest jobs whose plans are counted."""


def jobs() -> Iterator[Metric]:
    labels = ["kind", "status", "engine", "profile"]
    active = GaugeMetricFamily("monodon_jobs", "Queued and running jobs.", labels=labels)
    for values, number in job_control.count_active().items():
        active.add_metric(values, number)
    yield active
    ended = GaugeMetricFamily(
        "monodon_jobs_ended_last_hour",
        "Jobs that ended within the last hour.",
        labels=labels,
    )
    for values, number in job_control.count_ended().items():
        ended.add_metric(values, number)
    yield ended
    yield GaugeMetricFamily(
        "monodon_jobs_oldest_due_seconds",
        "Time for which the oldest job that is due has waited for a worker.",
        value=job_control.oldest_due_seconds(),
    )
    yield GaugeMetricFamily(
        "monodon_jobs_longest_running_seconds",
        "Time for which the oldest running job has run.",
        value=job_control.longest_running_seconds(),
    )
    yield GaugeMetricFamily(
        "monodon_jobs_longest_silence_seconds",
        "Time since the worker of a running job renewed its lease, of the job with the longest one.",
        value=job_control.longest_silence_seconds(),
    )
    yield GaugeMetricFamily(
        "monodon_jobs_lost",
        "Running jobs without a lease, because their workers are gone and no other has taken over.",
        value=job_control.count_lost(),
    )


def plans() -> Iterator[Metric]:
    activity = job_control.count_activity(
        since=timezone.now() - timedelta(days=1), limit=_MAX_JUDGED
    )
    totals: dict[str, Tally] = defaultdict(Tally)
    for (_, kind), tally in activity.tallies.items():
        totals[kind].add(tally)
    family = GaugeMetricFamily(
        "monodon_maintenance_plans_last_day",
        "Maintenance jobs of the last day whose files and bytes were within 10 % of the plan, or not.",
        labels=["kind", "result"],
    )
    for kind, tally in sorted(totals.items()):
        family.add_metric([kind, "kept"], tally.plans_kept)
        family.add_metric([kind, "broken"], tally.plans_broken)
    yield family


def workers() -> Iterator[Metric]:
    running = GaugeMetricFamily(
        "monodon_processes",
        f"Workers and beat with a heartbeat within {processes.ALIVE.seconds} s.",
        labels=["role"],
    )
    counts = dict(processes.alive().values_list("role").annotate(number=Count("pk")))
    for role in ("jobs", "tasks", "worker", "beat"):
        running.add_metric([role], counts.get(role, 0))
    yield running
    silence = GaugeMetricFamily(
        "monodon_process_silence_seconds",
        "Time since the last heartbeat of the process of a role that was seen last.",
        labels=["role"],
    )
    age = ExpressionWrapper(Extract(Now() - F("last"), "epoch"), output_field=FloatField())
    rows = Heartbeat.objects.values("role").annotate(last=Max("seen_at")).annotate(age=age)
    for row in rows:
        silence.add_metric([row["role"]], row["age"])
    yield silence
    yield GaugeMetricFamily(
        "monodon_iceberg_maintenance_unavailable",
        "1 if there are Iceberg tables, and no running worker can maintain them.",
        value=float(engines.cannot_maintain_iceberg()),
    )


def queues() -> Iterator[Metric]:
    lengths = GaugeMetricFamily(
        "monodon_queue_messages", "Messages that wait in a queue of the broker.", labels=["queue"]
    )
    is_up = 0
    try:
        with current_app.connection_for_read(connect_timeout=2) as broker:
            broker.ensure_connection(max_retries=0, timeout=2)
            client = broker.default_channel.client
            for queue in settings.CELERY_TASK_QUEUES:
                lengths.add_metric([queue], client.llen(queue))
        is_up = 1
    except (OperationalError, OSError):
        pass
    yield GaugeMetricFamily("monodon_broker_up", "1 if the broker answers.", value=is_up)
    if is_up:
        yield lengths


def disks() -> Iterator[Metric]:
    """The file systems of local directories that fill up."""
    used = GaugeMetricFamily(
        "monodon_disk_used_ratio",
        "Used share of the file system of a local directory.",
        labels=["directory"],
    )
    directories = {"home": str(settings.MONODON_HOME), "warehouse": settings.MONODON_WAREHOUSE}
    for name, directory in directories.items():
        if "://" not in directory and Path(directory).is_dir():
            usage = shutil.disk_usage(directory)
            used.add_metric([name], 1 - usage.free / usage.total if usage.total else 0.0)
    yield used
