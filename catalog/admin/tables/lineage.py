"""Lineage of a table or view: the graph of its sources and dependents, and the lag of materialized views."""

from collections.abc import Sequence

from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from catalog import access
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.lance import materialized_views
from catalog.admin.pages import Panel, Tab
from catalog.admin.paging import PANEL_SIZE, number, query
from catalog.admin.tables import column_lineage, lineage_graph
from catalog.models import MaterializedView, Table, TableFormat
from catalog.services.tables import lineage
from catalog.services.tables.lineage import Lineage

_HOPS = (1, lineage.DEFAULT_HOPS, 5, lineage.MAX_HOPS)
_MAX_ROWS = 200


def tabs(request: HttpRequest, row: Table) -> Sequence[Tab]:
    """The tab "Lineage"."""
    return (Tab("lineage", "Lineage", lambda: _panels(request, row)),)


def _panels(request: HttpRequest, row: Table) -> Sequence[Panel]:
    hops = number(request, "hops", lineage.DEFAULT_HOPS)
    if hops not in _HOPS:
        hops = lineage.DEFAULT_HOPS
    graph = lineage.around(actor=actor(request), row=row, hops=hops)
    panels = [_graph(request, row, graph, hops), *column_lineage.panels(request, row)]
    if row.format == TableFormat.LANCE:
        panels.append(_materialized_views(request, row))
    return panels


def _graph(request: HttpRequest, row: Table, graph: Lineage, hops: int) -> Panel:
    """The graph, and its edges as a list."""
    nodes = {node.table.pk: node for node in graph.nodes}
    rows = [
        (
            cells.anchor(lineage_graph.url_of(dependent), dependent.table),
            lineage_graph.RELATIONS[edge.kind],
            cells.anchor(lineage_graph.url_of(source), source.table),
            max(abs(source.distance), abs(dependent.distance)),
        )
        for edge in graph.edges
        for source, dependent in [(nodes[edge.source], nodes[edge.dependent])]
    ]
    rows.sort(key=lambda cells_: cells_[3])
    notes = [] if graph.is_complete else ["There are more objects than the graph may have."]
    if len(rows) > _MAX_ROWS:
        notes.append(f"The list has the first {_MAX_ROWS} of {len(rows):,} dependencies.")
    notes.append("Only objects that you may browse are shown.")
    return Panel(
        title="Lineage",
        columns=("Object", "Relation", "Source", "Steps"),
        rows=rows[:_MAX_ROWS],
        lead=format_html(
            "{}{}{}", _steps(request, hops), _remarks(row, graph), lineage_graph.graph(graph)
        ),
        empty="No sources or dependents that you may browse.",
        note=" ".join(notes),
    )


def _steps(request: HttpRequest, hops: int) -> SafeString:
    links = format_html_join(
        "",
        '<a class="m-link" href="{}"{}>{}</a>',
        (
            (
                query(request, tab="lineage", hops=count),
                format_html(' aria-current="{}"', "true") if count == hops else "",
                cells.counted(count, "step"),
            )
            for count in _HOPS
        ),
    )
    return format_html('<nav class="m-press m-steps" aria-label="Steps">{}</nav>', links)


def _remarks(row: Table, graph: Lineage) -> SafeString:
    """Why sources of a view may be missing. The names are text of clients."""
    problem = next((node.problem for node in graph.nodes if node.table.pk == row.pk), "")
    parts = [format_html('<p class="m-say m-bad">{}</p>', problem)] if problem else []
    if graph.unresolved:
        names = format_html_join(", ", "{}", ((cells.code(name),) for name in graph.unresolved))
        parts.append(
            format_html(
                '<p class="m-say">Named in the SQL, but not an object that you may browse: {}</p>',
                names,
            )
        )
    return format_html_join("", "{}", ((part,) for part in parts))


def _materialized_views(request: HttpRequest, row: Table) -> Panel:
    """Materialized views and sources that the user may browse. Two statements."""
    principal = actor(request)
    after = number(request, "after", 0)
    condition = Q(table=row) & access.visible_tables(principal, "source__") | Q(
        source=row
    ) & access.visible_tables(principal, "table__")
    views = (
        MaterializedView.objects.with_lag()
        .filter(condition, pk__gt=after)
        .select_related("table__namespace", "source__namespace")
        .order_by("pk")[: PANEL_SIZE + 1]
    )
    rows = list(views)
    page = rows[:PANEL_SIZE]
    # The versions of a source are its history, which requires READ.
    tables = {pk for view in page for pk in (view.table_id, view.source_id)}
    readable = access.readable_tables(principal, tables)
    return Panel(
        title="Materialized views",
        columns=("Relation", "Table", "Source version", "Lag", "Query"),
        rows=[
            (
                "is a view of" if view.pk == row.pk else "is read by",
                materialized_views.named(view.source if view.pk == row.pk else view.table),
                f"{view.source_version:,}"
                if view.source_version is not None and view.table_id in readable
                else cells.NOTHING,
                materialized_views.lag(view) if view.source_id in readable else cells.NOTHING,
                cells.link(view, "Materialized view"),
            )
            for view in page
        ],
        empty="No materialized view reads this table, and it is not a materialized view.",
        first=query(request, after=None) if after else None,
        following=(
            query(request, tab="lineage", after=page[-1].pk) if len(rows) > PANEL_SIZE else None
        ),
    )
