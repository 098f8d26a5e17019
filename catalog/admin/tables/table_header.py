"""The head of a table's page: what it is, its figures, and the groups of its tabs."""

from typing import Any

from django.db.models import OuterRef, Subquery

from catalog.admin import cells
from catalog.admin.governance.annotations import ShownAnnotations, labels
from catalog.admin.maintenance import health
from catalog.admin.pages import Group, Tile
from catalog.models import Table, TableHealth, TableKind, TableState, TableVersion

GROUPS = (
    Group("Data", ("preview", "sql", "files", "fragments", "lineage")),
    Group("Schema", ("schema", "indexes", "layout", "properties")),
    Group("History", ("snapshots", "history", "versions", "refs", "metadata", "transactions")),
    Group("Health", ("maintenance", "jobs", "statistics", "metrics")),
    Group("Access", ("access", "audit")),
)
"""Six tabs with the overview. Each section keeps its own key in the URL."""


def header(row: Table, shown: ShownAnnotations | None) -> list[object]:
    """The format, kind, state, protection and owner of a table, and its labels if they are loaded."""
    items: list[object] = [
        cells.badge(row.format, "info"),
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
    """The figures of the newest measurement, and the newest commit. One statement."""
    versions = (
        TableVersion.objects.filter(table=OuterRef("pk")).on("").visible().order_by("-version")
    )
    measured = TableHealth.objects.newest().filter(table=OuterRef("pk"))
    newest: Any = (
        Table.objects.filter(pk=row.pk)
        .values_list(
            Subquery(versions.values("created_at")[:1]),
            Subquery(versions.values("transaction__actor")[:1]),
            Subquery(measured.values("score")[:1]),
            Subquery(measured.values("statistics")[:1]),
            Subquery(measured.values("measured_at")[:1]),
        )
        .first()
    )
    committed_at, actor, score, statistics, measured_at = newest or (None,) * 5
    figures = statistics or {}
    is_measured = bool(figures) and "error" not in figures
    when = (
        cells.spaced(["measured", cells.when(measured_at)]) if is_measured else "not measured yet"
    )
    return [
        Tile("Rows", health.count(figures.get("rows")), when),
        Tile("Size", cells.size(figures.get("bytes")), when),
        Tile("Files", health.count(figures.get("files")), when),
        Tile(
            "Last commit",
            cells.when(committed_at),
            cells.spaced(["by", cells.who(actor)]) if actor else "",
        ),
        Tile("Health", score if is_measured else cells.NOTHING, when),
    ]
