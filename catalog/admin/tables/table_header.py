"""The head of a table's page: what it is, its figures, and the groups of its tabs."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.safestring import SafeString

from catalog.admin import cells, charts
from catalog.admin.governance.annotations import ShownAnnotations, labels
from catalog.admin.maintenance import health
from catalog.admin.pages import Group, Tile
from catalog.models import Table, TableHealth, TableKind, TableState, TableVersion
from catalog.services.tables import usage

_POINTS = 60  # measurements of a small chart
_DAYS = 30  # of commits and reads
_MAX_COMMITS = 500  # newest commits, counted by day

GROUPS = (
    Group("Data", ("preview", "profile", "sql", "files", "fragments", "lineage")),
    Group("Schema", ("schema", "indexes", "layout", "properties")),
    Group("History", ("snapshots", "history", "versions", "refs", "metadata", "transactions")),
    Group("Health", ("maintenance", "jobs", "statistics", "metrics")),
    Group("Access", ("access", "audit")),
)
"""Six tabs with the overview. Each section keeps its own key in the URL."""


def header(row: Table, shown: ShownAnnotations | None) -> list[object]:
    """The format, kind, state, protection and owner of a table, and its labels if they are loaded."""
    items: list[object] = [
        cells.badge(row.get_format_display(), "info"),
        row.kind if row.kind == TableKind.VIEW else "",
        cells.badge(row.state) if row.state != TableState.LIVE else "",
        cells.badge("protected", "success") if row.is_protected else "",
        cells.spaced([cells.muted("in"), cells.link(row.namespace)]),
        cells.spaced([cells.muted("owner"), cells.who(row.owner)]) if row.owner else "",
    ]
    if shown is not None and shown.facts.labels:
        items.append(labels(shown.facts.labels))
    return [item for item in items if item]


def tiles(row: Table) -> list[Tile]:
    """The figures of the newest measurement, the newest commit, and reads. Three statements."""
    series = list(
        TableHealth.objects.filter(table=row).order_by("-measured_at", "-pk")[:_POINTS][::-1]
    )
    measured = [point for point in series if "error" not in point.statistics]
    newest = series[-1] if series and series[-1] in measured else None
    figures = newest.statistics if newest is not None else {}
    measured_at = (
        cells.spaced(["measured", cells.when(newest.measured_at)]) if newest is not None else ""
    )
    missing = "" if newest is not None else "not measured yet"

    def course(title: str, name: str, shown: Callable[[Any], str]) -> SafeString:
        values = [value for p in measured if isinstance(value := p.statistics.get(name), int)]
        return _spark(title, values, shown)

    return [
        Tile("Rows", health.count(figures.get("rows")), missing, course("Rows", "rows", _number)),
        Tile("Size", cells.size(figures.get("bytes")), missing, course("Size", "bytes", _size)),
        Tile(
            "Files", health.count(figures.get("files")), missing, course("Files", "files", _number)
        ),
        _last_commit(row),
        Tile(
            "Health",
            newest.score if newest is not None else cells.NOTHING,
            measured_at or missing,
            _spark("Health", [point.score for point in measured], _number),
        ),
        _reads(row),
    ]


def _last_commit(row: Table) -> Tile:
    """The newest commit to main, and the commits of each day. One statement."""
    versions = (
        TableVersion.objects.filter(table=row)
        .on("")
        .visible()
        .order_by("-version")
        .values_list("created_at", "transaction__actor")[:_MAX_COMMITS]
    )
    commits: list[tuple[datetime, str | None]] = list(versions)
    committed_at, by = commits[0] if commits else (None, None)
    per_day = Counter(at.astimezone(UTC).date() for at, _ in commits)
    first = commits[-1][0].astimezone(UTC).date() if commits else None
    days = [day for day in _days() if first is not None and day >= first]
    return Tile(
        "Last commit",
        cells.when(committed_at),
        cells.spaced(["by", cells.who(by)]) if by else "",
        _spark("Commits per day", [per_day[day] for day in days], _number),
    )


def _reads(row: Table) -> Tile:
    """Reads of the last 30 days. One statement."""
    by_day = usage.reads_by_day(row, since=_days()[0])
    total = sum(by_day.values())
    return Tile(
        "Reads",
        f"{total:,}",
        f"in the last {_DAYS} days",
        _spark("Reads per day", [by_day.get(day, 0) for day in _days()], _number) if total else "",
    )


def _days() -> list[date]:
    today = timezone.now().astimezone(UTC).date()
    return [today - timedelta(days=offset) for offset in range(_DAYS - 1, -1, -1)]


def _spark(title: str, values: Sequence[int], shown: Callable[[Any], str]) -> SafeString:
    if len(values) < 2:
        return SafeString("")
    text = f"{title}: {shown(values[0])} at first, {shown(values[-1])} at last, at most {shown(max(values))}"
    return charts.sparkline(text, values)


def _number(value: int) -> str:
    return f"{value:,}"


def _size(value: int) -> str:
    return filesizeformat(value)
