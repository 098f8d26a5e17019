"""Measurements of tables: figures, a score, and the maintenance that they require.

Measuring reads metadata only. A measurement is recorded as a TableHealth row.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import BigIntegerField, Count, Exists, F, OuterRef, Q, Subquery, Window
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Least, RowNumber, TruncHour
from django.utils import timezone

from catalog import access, maintenance_actions, read_costs
from catalog.access import On, Principal
from catalog.errors import (
    CatalogError,
    TableHasNoData,
    TableNotFound,
)
from catalog.identifiers import Identifier, label
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
from catalog.planning import Planned, Statistics, bounded
from catalog.policies import EffectivePolicy
from catalog.privileges import Privilege
from catalog.read_costs import Cost
from catalog.scheduling.rounds import measured_turn
from catalog.scheduling.turns import Turn
from catalog.services.engine import audit_records, locks
from catalog.services.maintenance import (
    iceberg_statistics,
    lance_actions,
    policies,
)
from catalog.services.maintenance.plans import retention
from catalog.services.maintenance.plans.retention import Retention
from catalog.services.maintenance.scheduling import candidates, job_costs
from catalog.services.tables import summaries, tables, terms, usage

log = logging.getLogger(__name__)
_BATCH = 1000

_KEEP_HEALTH = timedelta(days=90)
_KEEP_EVERY = timedelta(days=2)
"""Age up to which every measurement is kept; after that, only the last one of each hour."""
_MEASURE_AGAIN = timedelta(days=1)
_RETRY_FAILED_AFTER = timedelta(hours=1)
"""Interval between two attempts to measure a table that could not be measured."""
_AT_ONCE = 2000
_MAX_POLICIES = 200
"""Changed policies whose tables are measured again at once; other tables follow within a day."""
_SECONDS = 45.0
"""Maximum duration of a pass in seconds; the next pass starts a minute after this one started."""
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Measurement:
    """Score of a table under its policy, with the figures and the planned maintenance."""

    table: Table
    policy: EffectivePolicy
    statistics: Statistics
    score: int
    costs: tuple[Cost, ...]
    """What the table lost points for, the most expensive first."""
    planned: list[Planned]
    retention: list[Retention] = field(default_factory=list)
    """Why each version stays. Only in plans that are requested."""


def distribution() -> dict[str, int]:
    """The number of measured tables in each range of 20 points: ``0-19`` to ``80-100``. One statement."""
    rows = (
        TableHealth.objects.filter(is_newest=True)
        .exclude(table__state=TableState.DROPPED)
        .annotate(step=Least(F("score") / 20, 4))
        .values_list("step")
        .annotate(count=Count("pk"))
        .order_by("step")
    )
    counts = dict(rows)
    labels = [f"{20 * step}-{20 * step + 19}" for step in range(4)] + ["80-100"]
    return {label: counts.get(step, 0) for step, label in enumerate(labels)}


def plan(*, actor: Principal, table: Identifier) -> Measurement:
    """Measure a table now and plan its maintenance, without recording the measurement.

    Requires READ or MAINTAIN. Raises TableNotFound, TableHasNoData.
    """
    if not access.holds(actor, Privilege.MAINTAIN, On.table(table)):
        access.require(actor, Privilege.READ, On.table(table))
    row = tables.find_any(actor=actor, table=table)
    measurement = _measure(row, policies.effective_policy(row))
    if measurement is None:
        raise TableHasNoData(table)
    return replace(measurement, retention=retention.explain(row, measurement.policy))


def measure(*, actor: Principal, table: Identifier) -> TableHealth:
    """Measure a table now and record the measurement. Raises TableNotFound, TableHasNoData."""
    access.require(actor, Privilege.MAINTAIN, On.table(table))
    now = timezone.now()
    planned = plan(actor=actor, table=table)
    waiting = _Waiting([planned.table])
    with transaction.atomic():
        health = _record(planned, now, waiting)
        if health is None:
            raise TableNotFound(table)
        audit_records.record(actor, "table.measure", label(table), table=health.table)
    return health


# --- periodic measuring -------------------------------------------------------------------------------


def measure_due(limit: int = _AT_ONCE) -> int:
    """Measure changed tables, the least recently measured first; returns their number."""
    deadline = time.monotonic() + _SECONDS
    rows = list(_due_for_measuring()[:limit])
    if not rows:
        return 0
    effective = policies.effective_policies(rows)
    waiting = _Waiting(rows)
    for count, row in enumerate(rows, 1):
        _measure_and_record(row, effective[row.pk], waiting)
        if time.monotonic() > deadline:
            return count
    return len(rows)


def delete_old_health() -> int:
    """Delete measurements older than 90 days, and thin those older than two; returns the number."""
    now = timezone.now()
    usage.delete_old()
    past = TableHealth.objects.filter(is_newest=False)
    deleted = past.filter(measured_at__lt=now - _KEEP_HEALTH).delete()[0]
    by_hour = past.filter(measured_at__lt=now - _KEEP_EVERY).annotate(
        number=Window(
            RowNumber(),
            partition_by=[F("table"), TruncHour("measured_at")],
            order_by=F("measured_at").desc(),
        )
    )
    thinned = list(by_hour.filter(number__gt=1).values_list("pk", flat=True))
    for begin in range(0, len(thinned), _BATCH):
        deleted += TableHealth.objects.filter(pk__in=thinned[begin : begin + _BATCH]).delete()[0]
    return deleted


def _due_for_measuring() -> Any:
    """Tables whose figures may be out of date, the least recently measured first."""
    now = timezone.now()
    newest = TableHealth.objects.newest().filter(table=OuterRef("pk"))
    # By number, because a version becomes visible later than its timestamp says.
    changed = TableVersion.objects.visible().on("").filter(table=OuterRef("pk"))
    maintained = Job.objects.filter(
        Q(is_dry_run=False) | Q(kind="remove_orphans"),
        table=OuterRef("pk"),
        kind__in=maintenance_actions.keys(),
        status=JobStatus.SUCCEEDED,
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
            | Q(measured_version=None, measured_at__lt=now - _RETRY_FAILED_AFTER)
            | Q(Exists(changed.filter(version__gt=OuterRef("measured_version"))))
            | Q(Exists(maintained))
            | _under_new_policies(now)
        )
        .select_related("namespace")
        .order_by(F("measured_at").asc(nulls_first=True), "pk")
    )


def _under_new_policies(now: datetime) -> Q:
    """Tables not measured since a policy that may apply to them was changed."""
    outdated = Q(pk__in=[])
    changed = MaintenancePolicy.objects.filter(updated_at__gt=now - _MEASURE_AGAIN)
    for policy in changed.select_related("namespace").order_by("-updated_at")[:_MAX_POLICIES]:
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
    orphan_files, orphan_bytes = _listed_orphans(row)
    statistics = replace(
        statistics,
        reads_per_day=usage.reads_per_day(row),
        orphan_files=orphan_files,
        orphan_bytes=orphan_bytes,
    )
    health = read_costs.assess(statistics, policy)
    return Measurement(
        row,
        policy,
        statistics,
        health.score,
        health.costs,
        maintenance_actions.plan(statistics, policy),
    )


def _listed_orphans(row: Table) -> tuple[int, int]:
    """Files and bytes of the orphans that the last job listed, if it was a dry run."""
    succeeded = Job.objects.filter(table=row, kind="remove_orphans", status=JobStatus.SUCCEEDED)
    last = succeeded.order_by("-pk").values_list("is_dry_run", "result").first()
    if last is None or not last[0]:
        return 0, 0
    result = last[1] or {}
    listed = result.get("planned") or {}
    before = result.get("before") or {}
    return (
        int(listed.get("orphan_files_count", before.get("orphans", 0))),
        int(listed.get("orphan_bytes", before.get("bytes", 0))),
    )


class _Waiting:
    """How long tables have waited for jobs, and what these cost, to determine their turns."""

    def __init__(self, rows: Sequence[Table]) -> None:
        """Three statements."""
        self._runs = candidates.last_runs([row.pk for row in rows])
        newest = TableHealth.objects.newest().filter(table__in=rows)
        self._due_since = dict(newest.values_list("table", "due_since"))
        self._costs = job_costs.load()

    def turn(self, measurement: Measurement, now: datetime) -> Turn:
        row = measurement.table
        return measured_turn(
            statistics=measurement.statistics,
            policy=measurement.policy,
            saved=[cost.bytes for cost in measurement.costs],
            planned=measurement.planned,
            last_runs=self._runs[row.pk],
            created_at=row.created_at,
            was_due_since=self._due_since.get(row.pk),
            costs=self._costs,
            now=now,
        )


def _measure_and_record(row: Table, policy: EffectivePolicy, waiting: _Waiting) -> None:
    """Measure a table and record the result, or the error, so that other tables do not wait."""
    now = timezone.now()
    try:
        measurement = _measure(row, policy)
        if measurement is None:
            _record_nothing(row, now)
        else:
            _record(measurement, now, waiting)
    except CatalogError as refused:
        log.warning("Table %s cannot be measured: %s", row, refused)
        _record_nothing(row, now, refused.message)
    except Exception as error:  # a batch's outermost frame
        log.warning("Table %s cannot be measured", row, exc_info=True)
        _record_nothing(row, now, f"{type(error).__name__}: {error}")


def _record(measurement: Measurement, now: datetime, waiting: _Waiting) -> TableHealth | None:
    turn = waiting.turn(measurement, now)
    return _insert(
        TableHealth(
            table=measurement.table,
            measured_at=now,
            namespace=candidates.top_namespace(measurement.table),
            due_since=turn.due_since,
            turn=turn.at,
            score=measurement.score,
            statistics={
                **measurement.statistics.as_json(),
                "costs": [cost.as_json() for cost in measurement.costs],
            },
            planned=[job.as_json() for job in measurement.planned],
            files_gone=bounded(sum(job.files_gone for job in measurement.planned)),
            bytes_read=bounded(sum(job.bytes_read for job in measurement.planned)),
        )
    )


def _record_nothing(row: Table, now: datetime, reason: str = "") -> None:
    """Record that a table has no data, or could not be measured for the given reason."""
    statistics = {"error": reason[:_LONGEST_REASON].replace("\0", "")} if reason else {}
    _insert(
        TableHealth(
            table=row,
            measured_at=now,
            namespace=candidates.top_namespace(row),
            score=0 if reason else 100,
            statistics=statistics,
            planned=[],
        )
    )


def _insert(health: TableHealth) -> TableHealth | None:
    """Insert a measurement as the newest one; returns None if the table was dropped meanwhile.

    ``measured_at`` is the moment before the table was read, so the figures lack later changes.
    """
    with transaction.atomic():
        row = locks.lock_table_row(health.table_id)
        if row.state == TableState.DROPPED:
            return None
        TableHealth.objects.newest().filter(table=row).update(is_newest=False)
        health.save(force_insert=True)
        summaries.record_measurement(row.pk, health.score, health.statistics)
        terms.record_measurement(row.pk, health.score, health.statistics)
    return health
