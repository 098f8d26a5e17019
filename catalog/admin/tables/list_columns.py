"""The columns of the list of tables, from subqueries that run for the rows of one page only."""

from typing import Any

from django.contrib import admin
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.maintenance import health
from catalog.admin.score_charts import score as score_bar
from catalog.models import LabelAssignment, Table, TableHealth, TableKind, TableState, TableVersion

_LABELS = 4


class TableColumns:
    """Columns of the table admin."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Table]:
        rows: QuerySet[Table] = super().get_queryset(request)  # type: ignore[misc]
        versions = TableVersion.objects.filter(table=OuterRef("pk")).on("").visible()
        newest = versions.order_by("-version")
        measured = TableHealth.objects.newest().filter(table=OuterRef("pk"))
        assigned = LabelAssignment.objects.filter(table=OuterRef("pk"), column="")
        keys = assigned.order_by("definition__key").values("definition__key")
        return rows.annotate(
            committed_at=Subquery(newest.values("created_at")[:1]),
            committed_by=Subquery(newest.values("transaction__actor")[:1]),
            measured_score=Subquery(measured.values("score")[:1]),
            measured=Subquery(measured.values("statistics")[:1]),
            label_keys=ArraySubquery(keys[: _LABELS + 1]),
        )

    @admin.display(description="Table")
    def table(self, row: Table) -> str:
        return str(row)

    @admin.display(description="Kind")
    def kind_of(self, row: Table) -> SafeString | str:
        name = row.format if row.kind == TableKind.TABLE else f"{row.format} {row.kind}"
        if row.state == TableState.LIVE:
            return name
        return cells.spaced([name, cells.badge(row.state)])

    @admin.display(description="Rows")
    def rows_of(self, row: Any) -> object:
        return health.count((row.measured or {}).get("rows"))

    @admin.display(description="Size")
    def size_of(self, row: Any) -> SafeString:
        return cells.size((row.measured or {}).get("bytes"))

    @admin.display(description="Last commit")
    def committed(self, row: Any) -> SafeString:
        by = [cells.muted("by"), cells.who(row.committed_by)] if row.committed_by else []
        return cells.spaced([cells.when(row.committed_at), *by])

    @admin.display(description="Owner")
    def owned_by(self, row: Table) -> SafeString:
        return cells.who(row.owner)

    @admin.display(description="Health")
    def health_of(self, row: Any) -> SafeString:
        is_measured = bool(row.measured) and "error" not in row.measured
        return score_bar(row.measured_score) if is_measured else cells.NOTHING

    @admin.display(description="Labels")
    def labels_of(self, row: Any) -> SafeString:
        badges = [cells.badge(key, "plain") for key in row.label_keys[:_LABELS]]
        return cells.spaced([*badges, "…"] if row.label_keys[_LABELS:] else badges) or cells.NOTHING
