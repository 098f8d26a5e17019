"""List of table health, lowest first, with planned maintenance and its effect."""

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter, TextFilter

from catalog import access, maintenance_actions
from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.maintenance import health
from catalog.admin.maintenance.actions import bulk
from catalog.admin.pages import ReadOnlyAdmin
from catalog.admin.score_charts import FAIR, GOOD
from catalog.identifiers import lookup
from catalog.models import Namespace, Table, TableFormat, TableHealth, TableState
from catalog.privileges import Privilege
from catalog.services.tables.tables import at_or_below


class ScoreFilter(DropdownFilter):  # type: ignore[misc]
    title = "health"
    parameter_name = "score"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [
            ("poor", f"Below {FAIR}"),
            ("fair", f"{FAIR} to {GOOD - 1}"),
            ("good", f"{GOOD} or more"),
            ("unknown", "Not measurable"),
        ]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[TableHealth]
    ) -> QuerySet[TableHealth]:
        chosen = self.value()
        unknown = Q(statistics__has_key="error")
        if chosen == "unknown":
            return queryset.filter(unknown)
        bounds = {"poor": (0, FAIR), "fair": (FAIR, GOOD), "good": (GOOD, 101)}.get(chosen or "")
        if bounds is None:
            return queryset
        rows = queryset.filter(score__gte=bounds[0], score__lt=bounds[1])
        return rows.exclude(unknown) if chosen == "poor" else rows


class FormatFilter(DropdownFilter):  # type: ignore[misc]
    title = "format"
    parameter_name = "format"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return TableFormat.choices

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[TableHealth]
    ) -> QuerySet[TableHealth]:
        if self.value() not in TableFormat.values:
            return queryset
        return queryset.filter(table__format=self.value())


def _planned_actions() -> dict[str, str]:
    """Titles of the actions planned from figures. Others are started by time or manually."""
    return {
        action.key: action.title
        for action in maintenance_actions.registered()
        if action.plan is not None
    }


class WorkFilter(DropdownFilter):  # type: ignore[misc]
    title = "planned maintenance"
    parameter_name = "work"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [("any", "Any"), *_planned_actions().items()]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[TableHealth]
    ) -> QuerySet[TableHealth]:
        chosen = self.value()
        if chosen == "any":
            return queryset.exclude(planned=[])
        if chosen in _planned_actions():
            return queryset.filter(planned__contains=[{"kind": chosen}])
        return queryset


class BelowFilter(TextFilter):  # type: ignore[misc]
    title = "namespace, including contents"
    parameter_name = "in"

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[TableHealth]
    ) -> QuerySet[TableHealth]:
        chosen = (self.value() or "").replace("\x00", "").strip()
        if not chosen:
            return queryset
        row = Namespace.objects.filter(digest=lookup(chosen)).first()
        if row is None:
            return queryset.none()
        return queryset.filter(at_or_below(row.identifier, "table__namespace__path"))


@admin.register(TableHealth)
class TableHealthAdmin(ReadOnlyAdmin):
    list_display = ["table_link", "format", "health", "work", "gone", "cost", "size", "measured"]
    list_display_links = None
    list_filter = [ScoreFilter, WorkFilter, FormatFilter, BelowFilter]
    list_select_related = ["table__namespace"]
    search_fields = ["table__name"]
    search_help_text = "Name, or full name such as nyc.flights"
    ordering = ["score", "table"]
    page_related = ["table"]
    list_before_template = "admin/catalog/maintenance_lead.html"
    empty_text = (
        "No table has been measured yet. The scheduler measures changed tables in batches while it and a worker"
        " run. “Measure” on the page of a table measures the table at once."
    )

    @property
    def actions(self) -> Sequence[Callable[..., None]]:
        # The maintenance actions may be registered after this class is defined.
        return bulk()

    def get_queryset(self, request: HttpRequest) -> QuerySet[TableHealth]:
        rows = TableHealth.objects.newest().exclude(table__state=TableState.DROPPED)
        return self.only_visible(request, rows)

    def visibility(self, principal: Principal) -> Q:
        return access.visible_tables(principal, "table__")

    def target(self, row: TableHealth) -> Table:
        return row.table

    def has_maintain_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MAINTAIN, object_id)

    @admin.display(description="Table")
    def table_link(self, row: TableHealth) -> SafeString:
        return cells.anchor(health.table_url(row.table), row.table)

    @admin.display(description="Format")
    def format(self, row: TableHealth) -> str:
        return row.table.get_format_display()

    @admin.display(description="Health")
    def health(self, row: TableHealth) -> SafeString:
        return health.score(row)

    @admin.display(description="Planned maintenance")
    def work(self, row: TableHealth) -> SafeString:
        return health.waiting(row)

    @admin.display(description="Files to remove")
    def gone(self, row: TableHealth) -> object:
        return health.count(row.files_gone) if row.files_gone else cells.NOTHING

    @admin.display(description="Bytes to rewrite")
    def cost(self, row: TableHealth) -> SafeString:
        return cells.size(row.bytes_read or None)

    @admin.display(description="Size")
    def size(self, row: TableHealth) -> object:
        return health.figure("bytes", row.statistics.get("bytes"))

    @admin.display(description="Measured")
    def measured(self, row: TableHealth) -> SafeString:
        return cells.when(row.measured_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[TableHealth], search_term: str
    ) -> tuple[QuerySet[TableHealth], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        exact = queryset.filter(table__digest=lookup(term))
        if any(mark in term for mark in ".$") and exact.exists():
            return exact, False
        return queryset.filter(table__name__icontains=term), False

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Redirect to the page of the table, which shows the measurement."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = self.find(request, object_id)
        if row is None:
            return self.missing(request, object_id)
        return HttpResponseRedirect(health.table_url(row.table))
