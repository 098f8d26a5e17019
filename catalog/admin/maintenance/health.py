"""How well a table is: the cells of the list, and the tab of a table's page."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from catalog import planning
from catalog.admin import cells, growth, score_charts
from catalog.admin.maintenance import jobs
from catalog.admin.maintenance import policies as maintenance_policies
from catalog.admin.maintenance.actions import TITLES, press_bar
from catalog.admin.pages import Panel
from catalog.admin.paging import PANEL_SIZE
from catalog.models import Job, JobKind, Table, TableHealth, TableState
from catalog.policies import EffectivePolicy
from catalog.services.maintenance import policies
from catalog.services.maintenance import scheduler as maintenance_scheduler

_POINTS = 200  # measurements of a chart
_EMPTY = "It has no data."
NOT_MEASURED = (
    "It was not measured yet. Press “Measure now”, or wait: the scheduler measures tables that changed, "
    "a batch at a time."
)
_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("rows", "Rows", ""),
    ("deleted_rows", "Deleted rows", "deleted_ratio"),
    ("files", "Files", ""),
    ("small_files", "Small files", "small_ratio"),
    ("bytes", "Size", ""),
    ("rewrite_files", "Files that compaction would rewrite", ""),
    ("rewritten_files", "Files that it would make of them", ""),
    ("rewrite_bytes", "Bytes that it would read and write", ""),
    ("versions", "Versions", "keep_versions"),
    ("old_versions", "Versions that the policy keeps no longer", "keep_for"),
    ("metadata_bytes", "Size of the metadata", ""),
    ("indexes", "Indexes", ""),
    ("manifests", "Manifests", "min_manifests"),
    ("rewritten_manifests", "Manifests that rewriting would leave", ""),
    ("delete_files", "Position delete files", "min_delete_files"),
    ("rewritten_delete_files", "Delete files that rewriting would leave", ""),
    ("equality_delete_files", "Equality delete files", "min_delete_files"),
    ("equality_deletes", "Keys that they delete by", "deleted_ratio"),
)
_ONLY: Mapping[str, frozenset[str]] = {
    "lance": frozenset(
        {
            *("manifests", "rewritten_manifests", "delete_files", "rewritten_delete_files"),
            *("equality_delete_files", "equality_deletes"),
        }
    ),
    "iceberg": frozenset({"indexes"}),
}
"""Figures that tables of a format do not have."""


def score(row: TableHealth) -> SafeString:
    if is_measured(row):
        return score_charts.score(row.score)
    return cells.badge("unknown", "danger") if row.statistics else cells.badge("no data")


def is_measured(row: TableHealth) -> bool:
    return bool(row.statistics) and "error" not in row.statistics


def waiting(row: TableHealth) -> SafeString:
    """What is planned, each with its reason and whether the policy has it done."""
    if not is_measured(row):
        return cells.muted(_fault(row))
    if not row.planned:
        return cells.badge("nothing", "success")
    return cells.lines(
        cells.spaced([_mode(job), title(job), cells.muted(job.get("reason", ""))])
        for job in row.planned
    )


def title(planned: Mapping[str, Any]) -> str:
    kind = planned.get("kind", "")
    return TITLES[JobKind(kind)] if kind in TITLES else str(kind)


def count(value: object) -> object:
    return f"{value:,}" if isinstance(value, int | float) else cells.value(value)


def figure(name: str, value: object) -> object:
    """A figure of a table or a job; those of bytes as a size."""
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in name:
        return cells.size(value)
    return count(value)


# --- a table's tab -----------------------------------------------------------------------------


def tab(request: HttpRequest, row: Table) -> list[Panel]:
    series = list(
        TableHealth.objects.filter(table=row).order_by("-measured_at", "-pk")[:_POINTS][::-1]
    )
    newest = series[-1] if series else None
    holding = policies.effective_policy(row)
    links = maintenance_policies.sources(row.namespace.identifier, row)
    return [
        _health(request, row, series),
        *([_plan(newest, holding)] if newest is not None and is_measured(newest) else []),
        _last_jobs(row),
        maintenance_policies.panel(holding, links, row.format),
    ]


def _health(request: HttpRequest, row: Table, series: Sequence[TableHealth]) -> Panel:
    newest = series[-1] if series else None
    measured = [(point.measured_at, point.score) for point in series if is_measured(point)]
    lead: list[object] = [press_bar(request, row)]
    if newest is not None:
        when = cells.spaced([cells.muted("measured"), cells.moment(newest.measured_at)])
        lead.append(format_html('<p class="m-say">{} {}</p>', score(newest), when))
    if measured:
        lead.append(score_charts.scores(measured))
        lead.append(_amounts(series))
    return Panel(
        title="Health",
        columns=("Figure", "Value"),
        rows=_figures(row, newest.statistics) if newest and is_measured(newest) else [],
        empty=_why_empty(row, newest),
        lead=format_html("{}" * len(lead), *lead),
        note=f"Version {newest.statistics.get('version', '?')} of the table was measured."
        if newest and is_measured(newest)
        else "",
    )


def _amounts(series: Sequence[TableHealth]) -> SafeString:
    amounts = growth.of_table(
        [
            (point.measured_at, point.statistics["rows"], point.statistics["bytes"])
            for point in series
            if is_measured(point)
        ]
    )
    return format_html(
        '<div class="m-cards m-charts">{}</div>',
        format_html_join(
            "",
            '<div>{}<p class="m-pad m-muted">{}: <b>{}</b>, {}</p></div>',
            ((amount.chart, amount.title, amount.now, amount.change) for amount in amounts),
        ),
    )


def _figures(row: Table, statistics: Mapping[str, Any]) -> list[tuple[object, object]]:
    absent = _ONLY[row.format]
    rows: list[tuple[object, object]] = [
        (text, figure(name, statistics[name]))
        for name, text, _ in _FIGURES
        if name in statistics and name not in absent
    ]
    for index in statistics.get("stale_indexes") or []:
        behind = f"Rows that index '{cells.clipped(str(index.get('name')))}' does not know"
        rows.append((behind, count(index.get("unindexed_rows"))))
    return rows


def _why_empty(row: Table, newest: TableHealth | None) -> str:
    if row.state == TableState.DECLARED:
        return "The table is declared, and nothing was written to it yet: there is nothing to do."
    if row.state == TableState.DROPPED:
        return "The table was dropped."
    return NOT_MEASURED if newest is None else _fault(newest)


def _fault(row: TableHealth) -> str:
    reason = cells.clipped(str(row.statistics.get("error", "")))
    return f"It could not be measured: {reason}" if reason else _EMPTY


def _plan(newest: TableHealth, policy: EffectivePolicy) -> Panel:
    """Worked out anew, as the scheduler does it: a policy that was changed holds at once."""
    planned = [
        job.as_json()
        for job in planning.plan(planning.Statistics.from_json(newest.statistics), policy)
    ]
    return Panel(
        title="What there is to do",
        columns=("Job", "The policy says", "Why", "Files gone", "Bytes to rewrite", "Done by"),
        rows=[
            (
                title(job),
                _mode(job),
                job.get("reason", ""),
                count(job.get("files_gone", 0)),
                cells.size(job.get("bytes_read", 0)),
                "Spark" if job.get("is_for_spark") else "the worker",
            )
            for job in planned
        ],
        empty="Nothing: the table is as its policy wants it.",
        note="What is switched on is started by the scheduler, within the policy's window. What is a "
        "dry run is only shown here."
        if planned
        else "",
    )


def _mode(planned: Mapping[str, Any]) -> SafeString:
    mode = str(planned.get("mode", ""))
    return cells.badge(mode.replace("_", " "), "success" if mode == "on" else "plain")


def _last_jobs(row: Table) -> Panel:
    rows = Job.objects.filter(table=row, kind__in=list(maintenance_scheduler.MODES))
    return jobs.panel(
        rows.select_related("table__namespace").order_by("-pk")[: PANEL_SIZE // 2],
        "No maintenance was ever asked for. Press a dry run to see what a job would do.",
        title="Last maintenance jobs",
    )


def unhealthy(visible: Q, limit: int) -> Panel:
    """Of the tables that may be browsed those that need work most, for the first page."""
    rows = (
        TableHealth.objects.newest()
        .exclude(table__state=TableState.DROPPED)
        .filter(visible, score__lt=100)
        .select_related("table__namespace")
        .order_by("score", "table")[:limit]
    )
    return Panel(
        title="Tables that need work most",
        columns=("Table", "Health", "What there is to do", "Files gone"),
        rows=[
            (
                cells.anchor(table_url(row.table), row.table),
                score(row),
                waiting(row),
                count(row.files_gone),
            )
            for row in rows
        ],
        empty="No table that was measured needs work.",
    )


def table_url(row: Table) -> str:
    return cells.page_url(row) + "?tab=maintenance"
