"""Table health: cells of the list, and the tab "Maintenance" of a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from catalog import maintenance_actions, read_costs
from catalog.admin import cells, growth, score_charts
from catalog.admin.actor import browsable_tables
from catalog.admin.maintenance import index_panels, jobs, layout_panels
from catalog.admin.maintenance import policies as maintenance_policies
from catalog.admin.maintenance.actions import may_maintain, press_bar
from catalog.admin.pages import Panel
from catalog.admin.paging import PANEL_SIZE
from catalog.models import Job, Table, TableFormat, TableHealth, TableState
from catalog.planning import Statistics
from catalog.policies import EffectivePolicy
from catalog.services.maintenance import policies
from catalog.services.maintenance.layouts import suggestions
from catalog.services.maintenance.plans import retention

_POINTS = 200  # measurements of a chart
_EMPTY = "The table has no data."
NOT_MEASURED = (
    "The table has not been measured yet. Select “Measure”, or wait for the scheduler, which measures "
    "changed tables in batches."
)
_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("rows", "Rows", ""),
    ("deleted_rows", "Deleted rows", "deleted_ratio"),
    ("files", "Files", ""),
    ("small_files", "Small files", "small_ratio"),
    ("bytes", "Size", ""),
    ("unsorted_files", "Unsorted files", "sort_order"),
    ("rewrite_files", "Files to compact", ""),
    ("rewritten_files", "Files after compaction", ""),
    ("rewrite_bytes", "Bytes to rewrite", ""),
    ("versions", "Versions", "keep_versions"),
    ("old_versions", "Expired versions", "keep_for"),
    ("metadata_bytes", "Metadata size", ""),
    ("reads_per_day", "Reads a day", ""),
    ("indexes", "Indexes", ""),
    ("manifests", "Manifests", "min_manifests"),
    ("rewritten_manifests", "Manifests after a rewrite", ""),
    ("delete_files", "Position delete files", "min_delete_files"),
    ("rewritten_delete_files", "Delete files after a rewrite", ""),
    ("equality_delete_files", "Equality delete files", "min_delete_files"),
    ("equality_deletes", "Equality delete keys", "deleted_ratio"),
    ("deletion_vectors", "Deletion vectors", ""),
    *(
        (f"dangling_{kind}", f"Dangling {text}", "")
        for kind, text in (
            ("position_deletes", "position delete files"),
            ("equality_deletes", "equality delete files"),
            ("vectors", "deletion vectors"),
        )
    ),
)
_ONLY: Mapping[str, frozenset[str]] = {
    "lance": frozenset(
        {
            *("manifests", "rewritten_manifests", "delete_files", "rewritten_delete_files"),
            *("equality_delete_files", "equality_deletes", "deletion_vectors"),
            *("dangling_position_deletes", "dangling_equality_deletes", "dangling_vectors"),
        }
    ),
    "iceberg": frozenset({"indexes"}),
}
"""Figures that do not apply to a format."""


def score(row: TableHealth) -> SafeString:
    if is_measured(row):
        return score_charts.score(row.score)
    return cells.badge("unknown", "danger") if row.statistics else cells.badge("no data")


def is_measured(row: TableHealth) -> bool:
    return bool(row.statistics) and "error" not in row.statistics


def waiting(row: TableHealth) -> SafeString:
    """Planned jobs, each with its mode and reason."""
    if not is_measured(row):
        return cells.muted(_fault(row))
    if not row.planned:
        return cells.badge("none", "success")
    return cells.lines(
        cells.spaced([_mode(job), title(job), cells.muted(job.get("reason", ""))])
        for job in row.planned
    )


def title(planned: Mapping[str, Any]) -> str:
    kind = planned.get("kind", "")
    action = maintenance_actions.find(kind)
    return str(kind) if action is None else action.title


def count(value: object) -> object:
    return f"{value:,}" if isinstance(value, int | float) else cells.value(value)


def figure(name: str, value: object) -> object:
    """A figure of a table or job. Bytes are shown as a size."""
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
        _health(request, row, series, holding),
        *([_costs(newest)] if newest is not None and is_measured(newest) else []),
        *([_plan(newest, holding)] if newest is not None and is_measured(newest) else []),
        *_suggested_order(request, row, newest),
        *([] if newest is None else index_panels.panels(newest)),
        *(layout_panels.panels(request, row, newest) if newest and is_measured(newest) else []),
        _last_jobs(request, row),
        *([_figures(row, newest)] if newest is not None and is_measured(newest) else []),
        *([_retention(row, holding)] if newest is not None and is_measured(newest) else []),
        maintenance_policies.panel(holding, links, row.format),
    ]


def _health(
    request: HttpRequest, row: Table, series: Sequence[TableHealth], policy: EffectivePolicy
) -> Panel:
    newest = series[-1] if series else None
    measured = [(point.measured_at, point.score) for point in series if is_measured(point)]
    lead: list[object] = [press_bar(request, row, policy)]
    if newest is not None:
        when = cells.spaced([cells.muted("measured"), cells.when(newest.measured_at)])
        lead.append(format_html('<p class="m-say">{} {}</p>', score(newest), when))
    if len(measured) > 1:
        lead.append(score_charts.scores(measured))
        lead.append(_amounts(series))
    return Panel(
        title="Health",
        columns=(),
        rows=[],
        empty="" if measured and newest and is_measured(newest) else _why_empty(row, newest),
        lead=format_html("{}" * len(lead), *lead),
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


def _figures(row: Table, newest: TableHealth) -> Panel:
    return Panel(
        title="Measured figures",
        columns=("Figure", "Value"),
        rows=_lines(row, newest.statistics),
        empty="",
        note=f"Measured at version {newest.statistics.get('version', '?')} of the table.",
        is_folded=True,
    )


def _lines(row: Table, statistics: Mapping[str, Any]) -> list[tuple[object, object]]:
    absent = _ONLY[row.format]
    rows: list[tuple[object, object]] = [
        (text, _rows(statistics) if name == "rows" else figure(name, statistics[name]))
        for name, text, _ in _FIGURES
        if name in statistics and name not in absent
    ]
    for index in statistics.get("stale_indexes") or []:
        behind = f"Unindexed rows of '{cells.clipped(str(index.get('name')))}'"
        rows.append((behind, count(index.get("unindexed_rows"))))
    return rows


def _rows(statistics: Mapping[str, Any]) -> object:
    """The number of rows; a range if equality deletes apply, whose effect only a scan can count."""
    least, most = statistics.get("min_rows"), statistics["rows"]
    if least is None:
        return count(most)
    return f"{count(least)} to {count(most)}: equality deletes are counted only by reading the data"


def _why_empty(row: Table, newest: TableHealth | None) -> str:
    if row.state == TableState.DECLARED:
        return "The table is declared and has no data yet."
    if row.state == TableState.DROPPED:
        return "The table was dropped."
    return NOT_MEASURED if newest is None else _fault(newest)


def _fault(row: TableHealth) -> str:
    reason = cells.clipped(str(row.statistics.get("error", "")))
    return f"The table could not be measured: {reason}" if reason else _EMPTY


def _costs(newest: TableHealth) -> Panel:
    reads = newest.statistics.get("reads_per_day")
    use = (
        "It is not known yet how often the table is read."
        if reads is None
        else f"{cells.counted(reads, 'read')} a day in the last week. Points of a table with fewer than"
        f" {read_costs.FULL_READS} count less."
    )
    return Panel(
        title="Cost of reading",
        columns=("Reason", "Points", "Cost of a read"),
        rows=[
            (cost.get("reason", ""), cost.get("points", ""), cells.size(cost.get("bytes", 0)))
            for cost in newest.statistics.get("costs") or []
        ],
        empty="Maintenance would not make reads cheaper.",
        note=f"{use} A request costs as much as reading {read_costs.REQUEST // read_costs.MIB} MiB.",
    )


def _plan(newest: TableHealth, policy: EffectivePolicy) -> Panel:
    """Plan of the current policy, computed as the scheduler does: a policy change applies at once."""
    planned = [
        job.as_json()
        for job in maintenance_actions.plan(Statistics.from_json(newest.statistics), policy)
    ]
    return Panel(
        title="Planned maintenance",
        columns=(
            *("Job", "Mode", "Reason", "Files to remove", "Bytes to free", "Bytes to rewrite"),
            "Runs in",
        ),
        rows=[
            (
                title(job),
                _mode(job),
                job.get("reason", ""),
                _amount(job, count(job.get("files_gone", 0))),
                _amount(job, cells.size(job.get("bytes_gone") or None)),
                cells.size(job.get("bytes_read", 0)),
                "Spark" if job.get("is_for_spark") else "worker",
            )
            for job in planned
        ],
        empty="No maintenance is needed.",
        note="The scheduler starts jobs with mode “on” within the policy's time window. Jobs with mode "
        "“dry run” are only listed here."
        if planned
        else "",
    )


def _suggested_order(request: HttpRequest, row: Table, newest: TableHealth | None) -> list[Panel]:
    """A sort order for an Iceberg table, if reported scans suggest one."""
    if row.format != TableFormat.ICEBERG or newest is None or not may_maintain(request, row):
        return []
    suggestion = suggestions.suggest(row, int(newest.statistics.get("files", 0)))
    if suggestion is None:
        return []
    filtered = ", ".join(
        f"{column} ({number:,})" for column, number in sorted(suggestion.filtered.items())
    )
    return [
        Panel(
            title="Suggested sort order",
            columns=("Strategy", "Columns", "Scans that filter by", "Files skipped", "Expected"),
            rows=[
                (
                    str(suggestion.layout.strategy),
                    cells.code(suggestion.layout.text),
                    filtered,
                    f"{suggestion.skipped:.0%}",
                    f"at least {suggestion.expected:.0%}",
                )
            ],
            empty="",
            note=f"From the last {suggestion.scans:,} scans that engines have reported. Set strategy and"
            " sort order in the policy to apply it.",
        )
    ]


def _retention(row: Table, policy: EffectivePolicy) -> Panel:
    versions = retention.explain(row, policy, PANEL_SIZE)
    return Panel(
        title="Retention",
        columns=("Version", "Branch", "Stays because"),
        rows=[
            (
                version.version,
                version.branch or cells.NOTHING,
                cells.lines(version.reasons)
                if version.reasons
                else cells.badge("expires", "plain"),
            )
            for version in versions
        ],
        empty="The table has no versions.",
        is_folded=True,
        note=f"The newest {cells.counted(len(versions), 'version')}. A clean-up removes those that expire, unless"
        " other tables refer to their files.",
    )


def _amount(planned: Mapping[str, Any], amount: object) -> object:
    return cells.spaced(["about", amount]) if planned.get("is_estimate") else amount


def _mode(planned: Mapping[str, Any]) -> SafeString:
    mode = str(planned.get("mode", ""))
    return cells.badge(mode.replace("_", " "), "success" if mode == "on" else "plain")


def _last_jobs(request: HttpRequest, row: Table) -> Panel:
    rows = Job.objects.filter(table=row, kind__in=maintenance_actions.keys())
    return jobs.panel(
        request,
        rows.select_related("table__namespace").order_by("-pk")[: PANEL_SIZE // 2],
        "No maintenance jobs. Start a dry run to see what a job would do.",
        title="Recent maintenance jobs",
    )


def unhealthy(request: HttpRequest, limit: int) -> Panel:
    """Panel of the overview: the visible tables with the lowest health."""
    rows = (
        TableHealth.objects.newest()
        .exclude(table__state=TableState.DROPPED)
        .filter(browsable_tables(request), score__lt=100)
        .select_related("table__namespace")
        .order_by("score", "table")[:limit]
    )
    return Panel(
        title="Tables with the lowest health",
        columns=("Table", "Health", "Planned maintenance", "Files to remove"),
        rows=[
            (
                cells.anchor(table_url(row.table), row.table),
                score(row),
                waiting(row),
                count(row.files_gone),
            )
            for row in rows
        ],
        empty="No measured table needs maintenance.",
    )


def table_url(row: Table) -> str:
    return cells.page_url(row) + "?tab=maintenance"
