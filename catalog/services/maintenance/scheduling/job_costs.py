"""What past jobs cost, and what the jobs of a policy have spent of their budget."""

from datetime import datetime

from django.db import connection

from catalog.models import Job, JobStatus
from catalog.scheduling.costs import SCALE, CostModel, Kind, Sums
from catalog.scheduling.limits import Amount

_PAST_JOBS = 2000
_PAST_SQL = """
    SELECT kind, format, engine, sum(w), sum(w * x), sum(w * y), sum(w * x * x), sum(w * x * y)
    FROM (
        SELECT *, (1 + x) ^ -2 AS w FROM (
            SELECT j.kind, t.format, j.engine, j.planned_bytes / %s::float AS x,
                EXTRACT(EPOCH FROM j.finished_at - j.started_at)::float AS y
            FROM catalog_job j JOIN catalog_table t ON t.id = j.table_id
            WHERE j.status = %s AND j.finished_at IS NOT NULL AND j.planned_bytes IS NOT NULL
            ORDER BY j.finished_at DESC LIMIT %s
        ) recent
    ) weighted
    GROUP BY kind, format, engine
"""
_ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)


def load() -> CostModel:
    """The costs of the last successful jobs that the scheduler started. One statement."""
    with connection.cursor() as cursor:
        cursor.execute(_PAST_SQL, [SCALE, str(JobStatus.SUCCEEDED), _PAST_JOBS])
        return CostModel({Kind(*columns[:3]): Sums(*columns[3:]) for columns in cursor.fetchall()})


def spent(limit_key: str, since: datetime, *, now: datetime, costs: CostModel) -> Amount:
    """What the jobs under a limit have cost since a moment. One statement.

    A job that has not ended counts with its expected cost, or, if it runs, with the time since it began
    if that is more. A job counts in the window in which it began.
    """
    rows = Job.objects.filter(limit_key=limit_key)
    rows = rows.filter(finished_at__gt=since) | rows.filter(status__in=_ACTIVE)
    total = Amount()
    columns = ("kind", "table__format", "status", "started_at", "finished_at", "planned_bytes")
    for kind, table_format, status, started, ended, size in rows.values_list(*columns).iterator():
        # A queued job may have begun an attempt that failed, and waits now.
        began = None if status == JobStatus.QUEUED else started
        if began is not None and began < since:
            continue
        seconds = 0.0 if began is None else ((ended or now) - began).total_seconds()
        if ended is None:
            seconds = max(seconds, costs.seconds(Kind(kind, table_format), size or 0))
        total += Amount(seconds, size or 0)
    return total
