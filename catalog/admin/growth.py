"""Growth of the catalog: rows and bytes from measurements, tables and versions by creation date.

Measurements are kept for 90 days, so no chart covers a longer period.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db import connection
from django.db.models import BigIntegerField, F
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.safestring import SafeString

from catalog import access
from catalog.admin import charts
from catalog.admin.actor import actor, browsable_tables
from catalog.admin.paging import number, query
from catalog.models import Table, TableHealth, TableState, TableSummary

PERIODS = (30, 90)
MAX_ROWS = 20_000
"""Maximum number of tables or versions that a chart of additions reads."""
LARGEST = 1_000
"""Maximum number of tables in the charts of rows and bytes; the largest are used."""
_STEPS = 30

# For each table and point of the chart, the last measurement before the point; if none is stored, the
# first after it, because a table that has not changed for long has only its newest measurement. Sums are
# bounded: writers of files choose the figures.
_COURSE = """
    SELECT point.at,
        GREATEST(
            LEAST(sum(COALESCE((measured.statistics ->> 'rows')::bigint, 0)), 9223372036854775807), 0
        )::bigint,
        GREATEST(
            LEAST(sum(COALESCE((measured.statistics ->> 'bytes')::bigint, 0)), 9223372036854775807), 0
        )::bigint
    FROM unnest(%(points)s::timestamptz[]) AS point (at)
    JOIN catalog_table t ON t.id = ANY (%(tables)s) AND t.created_at <= point.at
        AND (t.dropped_at IS NULL OR t.dropped_at > point.at)
    CROSS JOIN LATERAL (
        (SELECT statistics FROM catalog_tablehealth
         WHERE table_id = t.id AND measured_at <= point.at AND statistics ? 'rows'
         ORDER BY measured_at DESC LIMIT 1)
        UNION ALL
        (SELECT statistics FROM catalog_tablehealth
         WHERE table_id = t.id AND measured_at > point.at AND statistics ? 'rows'
         ORDER BY measured_at LIMIT 1)
        LIMIT 1
    ) measured
    GROUP BY point.at
"""
_ADDITIONS = """
    SELECT what, day, count(*) FROM (
        (SELECT 'tables' AS what, (created_at AT TIME ZONE 'UTC')::date AS day
         FROM catalog_table ORDER BY id DESC LIMIT %(limit)s)
        UNION ALL
        (SELECT 'versions', (created_at AT TIME ZONE 'UTC')::date
         FROM catalog_tableversion ORDER BY id DESC LIMIT %(limit)s)
    ) newest GROUP BY what, day
"""


@dataclass(frozen=True)
class Amount:
    """A chart, the current amount, and its change since the first point."""

    title: str
    chart: SafeString
    now: str
    change: str


@dataclass(frozen=True)
class Growth:
    amounts: tuple[Amount, ...]
    """Empty if no table was measured."""
    note: str
    periods: tuple[tuple[int, str, bool], ...]
    """Days, URL, and whether the period is the selected one."""


@dataclass(frozen=True)
class Additions:
    """Tables and versions created on each of the last days."""

    tables: SafeString
    versions: SafeString
    made: str
    written: str


def days(request: HttpRequest) -> int:
    """The requested period in days; the shortest by default."""
    chosen = number(request, "days")
    return chosen if chosen in PERIODS else PERIODS[0]


def growth(request: HttpRequest) -> Growth:
    """Rows and bytes, over time, of the tables that the user may browse. Four statements at most."""
    chosen = days(request)
    now = timezone.now()
    step = timedelta(days=chosen) / _STEPS
    points = [now - step * index for index in range(_STEPS, -1, -1)]
    largest = _largest(request, points[0])
    by_point = _course(points, largest[:LARGEST])
    series = [(point, *by_point.get(point, (0, 0))) for point in points]
    return Growth(
        amounts=(
            _rows([(at, rows) for at, rows, _ in series]),
            _bytes([(at, size) for at, _, size in series]),
        )
        if by_point
        else (),
        note=f"Shows the {LARGEST:,} largest tables." if len(largest) > LARGEST else "",
        periods=tuple(
            (
                period,
                query(request, days=None if period == PERIODS[0] else period),
                period == chosen,
            )
            for period in PERIODS
        ),
    )


def of_table(measured: list[tuple[datetime, int, int]]) -> tuple[Amount, Amount]:
    """Charts of one table, from the times of its measurements with rows and bytes, oldest first."""
    return (
        _rows([(at, rows) for at, rows, _ in measured]),
        _bytes([(at, size) for at, _, size in measured]),
    )


def additions(period: int) -> Additions:
    """Tables and versions created by day, including those dropped since. One statement."""
    with connection.cursor() as cursor:
        cursor.execute(_ADDITIONS, {"limit": MAX_ROWS})
        rows: list[tuple[str, date, int]] = cursor.fetchall()
    today = datetime.now(UTC).date()
    dates = [today - timedelta(days=offset) for offset in range(period - 1, -1, -1)]
    by_day = {(name, day): count for name, day, count in rows}
    series = {
        name: [by_day.get((name, day), 0) for day in dates] for name in ("tables", "versions")
    }
    totals = {
        name: f"{'≥ ' if sum(n for w, _, n in rows if w == name) >= MAX_ROWS else ''}{sum(counts):,}"
        for name, counts in series.items()
    }
    return Additions(
        charts.bars("Tables created by day", dates, series["tables"]),
        charts.bars("Versions written by day", dates, series["versions"]),
        totals["tables"],
        totals["versions"],
    )


def _largest(request: HttpRequest, since: datetime) -> list[int]:
    """The largest tables, first, including tables dropped since then; one more than ``LARGEST`` at most.

    Of the dropped tables, the last ``LARGEST`` are considered.
    """
    sizes = list(
        TableSummary.objects.filter(browsable_tables(request))
        .order_by(F("bytes").desc(nulls_last=True), "-table")
        .values_list("bytes", "table")[: LARGEST + 1]
    )
    dropped = Table.objects.filter(state=TableState.DROPPED, dropped_at__gt=since)
    sizes += (
        TableHealth.objects.newest()
        .filter(
            access.visible_tables(actor(request), "table__"),
            table__in=dropped.order_by("-dropped_at").values("pk")[:LARGEST],
        )
        .annotate(bytes=Cast(KT("statistics__bytes"), BigIntegerField()))
        .values_list("bytes", "table")
    )
    # A failed measurement has no figures here; the chart uses an earlier one.
    ordered = sorted(((size or 0, table) for size, table in sizes), reverse=True)
    return [table for _, table in ordered[: LARGEST + 1]]


def _course(points: list[datetime], tables: list[int]) -> dict[datetime, tuple[int, int]]:
    with connection.cursor() as cursor:
        cursor.execute(_COURSE, {"points": points, "tables": tables})
        return {at: (rows or 0, size or 0) for at, rows, size in cursor.fetchall()}


def _rows(points: list[tuple[datetime, int]]) -> Amount:
    return _amount("Rows", points, lambda count: f"{count:,}")


def _bytes(points: list[tuple[datetime, int]]) -> Amount:
    return _amount("Bytes", points, filesizeformat)


def _amount(title: str, points: list[tuple[datetime, int]], shown: Callable[[int], str]) -> Amount:
    (since, before), (_, now) = points[0], points[-1]
    sign = "+" if now > before else "−"
    change = f"{sign}{shown(abs(now - before))}" if now != before else "no change"
    return Amount(
        title, charts.course(title, points, shown), shown(now), f"{change} since {since:%d %b}"
    )
