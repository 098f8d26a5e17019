"""What maintenance came to in the last 30 days, for the first page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db import connection
from django.utils.safestring import SafeString

from catalog.admin import cells, maintenance_charts
from catalog.admin.maintenance_charts import Day
from catalog.models import Job, JobStatus
from catalog.services import upkeep

DAYS = 30
LOOKED_AT = 20_000
"""So many of the jobs that ended last are looked at, however many there were."""

# The same figures as job_control.summarize, by day, and at a bounded cost. Those of jobs that removed something: Lance's tell files and bytes, Iceberg's what its
# procedures counted.
_MONTH = """
    WITH ended AS MATERIALIZED (
        SELECT kind, status, is_dry_run, finished_at, result
        FROM catalog_job WHERE finished_at >= %(since)s ORDER BY finished_at DESC LIMIT %(limit)s
    ), told AS (
        SELECT (finished_at AT TIME ZONE 'UTC')::date AS day,
            CASE WHEN status = 'succeeded' AND is_dry_run THEN 'dry_run' ELSE status END AS outcome,
            status = 'succeeded' AND NOT is_dry_run AS counts, kind, result
        FROM ended WHERE kind = ANY(%(kinds)s)
    ), figures AS (
        SELECT day, outcome, removed.files, removed.bytes, merged.files AS merged
        FROM told
        LEFT JOIN LATERAL (
            SELECT sum(value::numeric) FILTER (
                    WHERE key = 'files' OR key = 'orphan_files_count' OR starts_with(key, 'deleted_')
                ) AS files,
                sum(value::numeric) FILTER (WHERE key IN ('bytes', 'orphan_bytes')) AS bytes
            FROM jsonb_each(
                CASE jsonb_typeof(result) WHEN 'object' THEN
                    CASE jsonb_typeof(result->'done') WHEN 'object' THEN result->'done'
                        ELSE result END
                END
            ) WHERE jsonb_typeof(value) = 'number'
        ) removed ON counts AND kind IN ('clean_up', 'remove_orphans')
        LEFT JOIN LATERAL (
            SELECT (result#>>'{before,files}')::numeric - (result#>>'{after,files}')::numeric AS files
            WHERE jsonb_typeof(result#>'{before,files}') = 'number'
                AND jsonb_typeof(result#>'{after,files}') = 'number'
        ) merged ON counts AND kind = 'compact'
    )
    SELECT day, outcome, count(*), COALESCE(sum(files), 0)::bigint, COALESCE(sum(bytes), 0)::bigint,
        COALESCE(sum(GREATEST(merged, 0)), 0)::bigint
    FROM figures GROUP BY day, outcome
    UNION ALL
    SELECT min(finished_at AT TIME ZONE 'UTC')::date, 'looked at', count(*), 0, 0, 0 FROM ended
    UNION ALL
    SELECT NULL, 'active', count(*), 0, 0, 0 FROM (
        SELECT FROM catalog_job WHERE status IN ('queued', 'running') AND kind = ANY(%(kinds)s)
        LIMIT %(limit)s
    ) active
"""


@dataclass(frozen=True)
class Month:
    """The figures, the chart, and from when on they are whole."""

    figures: Sequence[tuple[str, object]]
    chart: SafeString
    is_empty: bool
    note: str
    jobs_url: str
    failed_url: str


def month() -> Month:
    """One statement of bounded cost."""
    today = datetime.now(UTC).date()
    first = today - timedelta(days=DAYS - 1)
    with connection.cursor() as cursor:
        cursor.execute(
            _MONTH,
            {
                "limit": LOOKED_AT,
                "kinds": [kind.value for kind in upkeep.MODES],
                "since": datetime(first.year, first.month, first.day, tzinfo=UTC),
            },
        )
        rows = cursor.fetchall()
    by_day: dict[date, dict[str, int]] = {}
    oldest, seen, active = None, 0, 0
    totals = {"jobs": 0, "files": 0, "bytes": 0, "merged": 0}
    for day, outcome, count, files, size, merged in rows:
        if outcome == "looked at":
            oldest, seen = day, count
            continue
        if outcome == "active":
            active = count
            continue
        by_day.setdefault(day, {})[outcome] = count
        totals["jobs"] += count
        totals["files"] += files
        totals["bytes"] += size
        totals["merged"] += merged
    days = [
        Day(day, by_day.get(day, {})) for day in (first + timedelta(days=n) for n in range(DAYS))
    ]
    ended = {
        name: sum(day.jobs.get(name, 0) for day in days) for name in maintenance_charts.RESULTS
    }
    is_cut = seen >= LOOKED_AT
    return Month(
        figures=(
            ("bytes reclaimed", cells.size(totals["bytes"])),
            ("files removed", f"{totals['files']:,}"),
            ("small files merged", f"{totals['merged']:,}"),
            ("jobs succeeded", f"{ended['succeeded']:,}"),
            ("failed", f"{ended['failed']:,}"),
            ("running or waiting now", cells.bounded(active, LOOKED_AT - 1)),
        ),
        chart=maintenance_charts.days(days),
        is_empty=not totals["jobs"] and not active,
        note=f"Of the last {LOOKED_AT:,} jobs that ended; they reach back to {oldest}."
        if is_cut
        else "",
        jobs_url=cells.list_url(Job, "since=month"),
        failed_url=cells.list_url(Job, f"since=month&status__exact={JobStatus.FAILED.value}"),
    )
