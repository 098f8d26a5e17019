"""Lineage of a table: the materialized views that read it, and the source that it reads."""

from collections.abc import Sequence

from django.db.models import Q
from django.http import HttpRequest

from catalog import access
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.lance import materialized_views
from catalog.admin.pages import Panel, Tab
from catalog.admin.paging import PANEL_SIZE, number, query
from catalog.models import MaterializedView, Table, TableFormat


def tabs(request: HttpRequest, row: Table) -> Sequence[Tab]:
    """The tab "Lineage", only for Lance tables: the SQL of Iceberg views may be in any dialect."""
    if row.format != TableFormat.LANCE:
        return ()
    return (Tab("lineage", "Lineage", lambda: _panel(request, row)),)


def _panel(request: HttpRequest, row: Table) -> Panel:
    """Materialized views and sources that the user may browse. One statement."""
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
    return Panel(
        columns=("Relation", "Table", "Source version", "Lag", "Query"),
        rows=[
            (
                "is a view of" if view.pk == row.pk else "is read by",
                materialized_views.named(view.source if view.pk == row.pk else view.table),
                cells.NOTHING if view.source_version is None else f"{view.source_version:,}",
                materialized_views.lag(view),
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
