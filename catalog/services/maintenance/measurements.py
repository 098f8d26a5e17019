"""x"""

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import BigIntegerField, Exists, F, OuterRef, Q, Subquery, Window
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, RowNumber, TruncHour
from django.utils import timezone

from catalog import access, planning
from catalog.access import On, Principal
from catalog.errors import (
    CatalogError,
    TableHasNoData,
    TableNotFound,
)
from catalog.identifiers import Identifier
from catalog.models import (
    Job,
    JobStatus,
    MaintenancePolicy,
    Table,
    TableFormat,
    TableHealth,
    TableKind,
    TableState,
    TableVersion,
)
from catalog.planning import Planned, Statistics
from catalog.policies import EffectivePolicy
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.maintenance import (
    iceberg_statistics,
    lance_actions,
    policies,
)
from catalog.services.maintenance.scheduler import MODES
from catalog.services.tables import tables

log = logging.getLogger(__name__)
_BATCH = 1000

_KEEP_HEALTH = timedelta(days=90)
_KEEP_EVERY = timedelta(days=2)
"""So long every measurement is kept, and then the last one of each hour."""
_MEASURE_AGAIN = timedelta(days=1)
_TRY_AGAIN = timedelta(hours=1)
"""When a table that could not be measured is looked at again."""
_AT_ONCE = 200
_SECONDS = 45.0
"""So long a round of measuring lasts at most; the next one begins a minute after it began."""
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Measurement:
    """How well a table is under its policy, and what there is to do."""

    table: Table
    policy: EffectivePolicy
    statistics: Statistics
    score: int
    planned: list[Planned]


def plan(*, actor: Principal, table: Identifier) -> Measurement:
    """Measure a table now and plan; nothing is kept. Raises TableNotFound, TableHasNoData.

    Needs READ or MAINTAIN.
    """
    if not access.holds(actor, Privilege.MAINTAIN, On.table(table)):
        access.require(actor, Privilege.READ, On.table(table))
    row = tables.find_any(actor=actor, table=table)
    measurement = _measure(row, policies.effective_policy(row))
    if measurement is None:
        raise TableHasNoData(table)
    return measurement


def measure(*, actor: Principal, table: Identifier) -> TableHealth:
    """Measure a table now and keep the figures. Raises TableNotFound, TableHasNoData."""
    access.require(actor, Privilege.MAINTAIN, On.table(table))
    now = timezone.now()
    health = _record(plan(actor=actor, table=table), now)
    if health is None:
        raise TableNotFound(table)
    return health


# --- by the clock: measuring -----------------------------------------------------------------------


def measure_due(limit: int = _AT_ONCE) -> int:
    """Measure tables that changed since they were measured, longest ago first; returns how many."""
    deadline = time.monotonic() + _SECONDS
    rows = list(_due_for_measuring()[:limit])
    effective = policies.effective_policies(rows)
    for count, row in enumerate(rows, 1):
        _measure_and_record(row, effective[row.pk])
        if time.monotonic() > deadline:
            return count
    return len(rows)


def delete_old_health() -> int:
    """Forget measurements older than 90 days, and thin those older than two; returns how many."""
    now = timezone.now()
    past = TableHealth.objects.filter(is_newest=False)
    deleted = past.filter(measured_at__lt=now - _KEEP_HEALTH).delete()[0]
    by_hour = past.filter(measured_at__lt=now - _KEEP_EVERY).annotate(
        place=Window(
            RowNumber(),
            partition_by=[F("table"), TruncHour("measured_at")],
            order_by=F("measured_at").desc(),
        )
    )
    thinned = list(by_hour.filter(place__gt=1).values_list("pk", flat=True))
    for begin in range(0, len(thinned), _BATCH):
        deleted += TableHealth.objects.filter(pk__in=thinned[begin : begin + _BATCH]).delete()[0]
    return deleted


def _due_for_measuring() -> Any:
    """Tables whose figures may be out of date, those measured longest ago first."""
    now = timezone.now()
    newest = TableHealth.objects.newest().filter(table=OuterRef("pk"))
    # By its number, because a version shows later than the moment that it bears.
    changed = TableVersion.objects.visible().on("").filter(table=OuterRef("pk"))
    maintained = Job.objects.filter(
        table=OuterRef("pk"),
        kind__in=list(MODES),
        status=JobStatus.SUCCEEDED,
        is_dry_run=False,
        finished_at__gt=OuterRef("measured_at"),
    )
    figures = newest.annotate(number=Cast(KT("statistics__version"), BigIntegerField()))
    return (
        Table.objects.filter(state=TableState.LIVE, kind=TableKind.TABLE)
        .annotate(
            measured_at=Subquery(newest.values("measured_at")[:1]),
            measured_version=Subquery(figures.values("number")[:1]),
        )
        .filter(
            Q(measured_at=None)
            | Q(measured_at__lt=now - _MEASURE_AGAIN)
            | Q(measured_version=None, measured_at__lt=now - _TRY_AGAIN)
            | Q(Exists(changed.filter(version__gt=OuterRef("measured_version"))))
            | Q(Exists(maintained))
            | _under_new_policies(now)
        )
        .select_related("namespace")
        .order_by(F("measured_at").asc(nulls_first=True), "pk")
    )


def _under_new_policies(now: datetime) -> Q:
    """Tables that were not measured since a policy that may be theirs was changed."""
    outdated = Q(pk__in=[])
    changed = MaintenancePolicy.objects.filter(updated_at__gt=now - _MEASURE_AGAIN)
    for policy in changed.select_related("namespace").order_by("-updated_at")[:_AT_ONCE]:
        if policy.namespace is None:
            governed = Q(pk=policy.table_id)
        else:
            governed = tables.at_or_below(policy.namespace.identifier)
        outdated |= Q(governed, measured_at__lt=policy.updated_at)
    return outdated


def _measure(row: Table, policy: EffectivePolicy) -> Measurement | None:
    measure = (
        lance_actions.measure if row.format == TableFormat.LANCE else iceberg_statistics.measure
    )
    statistics = measure(row, policy)
    if statistics is None:
        return None
    return Measurement(
        row,
        policy,
        statistics,
        planning.score(statistics, policy),
        planning.plan(statistics, policy),
    )


def _measure_and_record(row: Table, policy: EffectivePolicy) -> None:
    """A table that cannot be read must not keep the others waiting: it is told why."""
    now = timezone.now()
    try:
        measurement = _measure(row, policy)
    except CatalogError as refused:
        log.warning("Table %s cannot be measured: %s", row, refused)
        _record_nothing(row, now, refused.message)
    except Exception as error:  # a batch's outermost frame
        log.warning("Table %s cannot be measured", row, exc_info=True)
        _record_nothing(row, now, f"{type(error).__name__}: {error}")
    else:
        if measurement is None:
            _record_nothing(row, now)
        else:
            _record(measurement, now)


def _record(measurement: Measurement, now: datetime) -> TableHealth | None:
    return _keep(
        TableHealth(
            table=measurement.table,
            measured_at=now,
            score=measurement.score,
            statistics=measurement.statistics.as_json(),
            planned=[job.as_json() for job in measurement.planned],
            files_gone=sum(job.files_gone for job in measurement.planned),
            bytes_read=sum(job.bytes_read for job in measurement.planned),
        )
    )


def _record_nothing(row: Table, now: datetime, reason: str = "") -> None:
    """That a table was looked at: it has no data, or could not be measured for this reason."""
    statistics = {"error": reason[:_LONGEST_REASON].replace("\0", "")} if reason else {}
    _keep(
        TableHealth(
            table=row,
            measured_at=now,
            score=0 if reason else 100,
            statistics=statistics,
            planned=[],
        )
    )


def _keep(health: TableHealth) -> TableHealth | None:
    """Enter a measurement as the newest; None: the table was dropped meanwhile.

    ``measured_at`` is the moment before the table was read: what comes later is not in the figures.
    """
    with transaction.atomic():
        row = locks.lock_table_row(health.table_id)
        if row.state == TableState.DROPPED:
            return None
        TableHealth.objects.newest().filter(table=row).update(is_newest=False)
        health.save(force_insert=True)
    return health
