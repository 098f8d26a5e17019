"""Materialized views: the list, the page of a view, and the button that refreshes it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.contrib import admin, messages
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter

from catalog import access
from catalog.access import Principal
from catalog.access.job_details import WITHHELD
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.audit import trail as audit_trail
from catalog.admin.maintenance import jobs
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, Tab, button
from catalog.admin.paging import PANEL_SIZE
from catalog.formats import view_queries
from catalog.models import AuditEvent, MaterializedView, Table, TableState
from catalog.models.materialized_views import MaterializedViewQuerySet
from catalog.privileges import Privilege
from catalog.services.lance.materialized_views import refreshes
from catalog.services.lance.materialized_views.refreshes import Refresh

_QUERY_LENGTH = 20_000
_HIDDEN = "a table that is not visible to you"


class ConditionFilter(DropdownFilter):  # type: ignore[misc]
    title = "condition"
    parameter_name = "condition"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [
            ("behind", "Behind its source"),
            ("failed", "Failed"),
            ("auto", "Refreshed automatically"),
        ]

    def queryset(
        self, request: HttpRequest, queryset: MaterializedViewQuerySet
    ) -> "QuerySet[MaterializedView]":
        if self.value() == "behind":
            behind = queryset.behind()
            sources = set(behind.order_by().values_list("source", flat=True))
            return behind.filter(source__in=access.readable_tables(actor(request), sources))
        if self.value() == "failed":
            return queryset.exclude(failed_at=None)
        return queryset.filter(auto_refresh=True) if self.value() == "auto" else queryset


@admin.register(MaterializedView)
class MaterializedViewAdmin(ReadOnlyAdmin):
    list_display = ["view", "source_link", "lag_cell", "refresh_mode", "refreshed", "problem"]
    list_display_links = ["view"]
    list_filter = [ConditionFilter]
    list_select_related = ["table__namespace", "source__namespace"]
    search_help_text = "Name of a view or of its source"
    empty_text = "No materialized views. Clients create them from a query on a Lance table, and jobs refresh them."
    ordering = ["-pk"]
    actions_detail = ["refresh"]
    page_related = ["table__namespace", "source__namespace"]

    def get_queryset(self, request: HttpRequest) -> "QuerySet[MaterializedView]":
        sources = Table.objects.filter(access.visible_tables(actor(request)), pk=OuterRef("source"))
        rows = MaterializedView.objects.with_lag().annotate(source_is_visible=Exists(sources))
        return self.only_visible(request, rows)

    def get_search_fields(self, request: HttpRequest) -> Sequence[str]:
        """Exclude the source unless the user may browse everything: a match would reveal its name."""
        if actor(request).holds_everywhere(Privilege.BROWSE):
            return ["table__name", "source__name"]
        return ["table__name"]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list; errors only of views that the user may read, and the lag behind sources that it may read."""
        changes = super().get_changelist_instance(request)
        changes.result_list = list(changes.result_list)
        tables = {pk for row in changes.result_list for pk in (row.table_id, row.source_id)}
        readable = access.readable_tables(actor(request), tables)
        for row in changes.result_list:
            row.source_is_readable = row.source_id in readable
            if row.error and row.table_id not in readable:
                row.error = WITHHELD
        return changes

    @admin.display(description="View")
    def view(self, row: MaterializedView) -> str:
        return str(row)

    @admin.display(description="Source")
    def source_link(self, row: Any) -> SafeString:
        return named(row.source) if row.source_is_visible else cells.muted(_HIDDEN)

    @admin.display(description="Behind")
    def lag_cell(self, row: Any) -> SafeString:
        return lag(row) if row.source_is_readable else cells.NOTHING

    @admin.display(description="Refresh")
    def refresh_mode(self, row: MaterializedView) -> str:
        return _refresh_mode(row)

    @admin.display(description="Refreshed")
    def refreshed(self, row: MaterializedView) -> SafeString:
        return cells.when(row.refreshed_at)

    @admin.display(description="Error")
    def problem(self, row: MaterializedView) -> SafeString:
        return cells.code(row.error)

    def visibility(self, principal: Principal) -> Q:
        return access.visible_tables(principal, "table__")

    def target(self, row: MaterializedView) -> Table:
        return row.table

    def has_refresh_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.WRITE, object_id)

    def page(self, request: HttpRequest, row: MaterializedView) -> Page:
        if not access.holds(actor(request), Privilege.READ, row.table):
            return Page(facts=(("View", cells.link(row.table)),))
        query = view_queries.from_json(row.definition)
        with_lag = MaterializedView.objects.with_lag().get(pk=row.pk)
        is_visible = access.holds(actor(request), Privilege.BROWSE, row.source)
        is_readable = access.holds(actor(request), Privilege.READ, row.source)
        if not is_visible:
            query = replace(query, source=(_HIDDEN,))
        return Page(
            facts=(
                ("View", cells.link(row.table)),
                ("Source", named(row.source) if is_visible else cells.muted(_HIDDEN)),
                ("Query", cells.source(query.to_sql(), _QUERY_LENGTH)),
                *((("Original query", cells.expandable(row.source_query)),) if is_visible else ()),
                ("Source version", _shown_version(row)),
                ("Behind", lag(with_lag) if is_readable else cells.NOTHING),
                ("Refresh", _refresh_mode(row)),
                ("Refreshed", cells.when(row.refreshed_at)),
                ("Failed", cells.when(row.failed_at)),
                ("Error", cells.value(row.error)),
                ("Owner", row.table.owner or cells.NOTHING),
                ("Created", cells.when(row.created_at)),
            ),
            tabs=(
                Tab("jobs", "Refreshes", lambda: _jobs(request, row)),
                Tab("audit", "Audit events", lambda: _events(request, row)),
            ),
        )

    @button("Refresh", permission="refresh", icon="refresh")
    def refresh(self, request: HttpRequest, row: MaterializedView) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            refreshes.start_refresh(
                actor=actor(request),
                table=row.table.identifier,
                refresh=Refresh(),
            )
            messages.success(request, f"Job to refresh view '{row}' was started")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Refresh view '{row}'?",
            text="A job adds the new rows of the source. If the source has changes other than appends, "
            "the job rewrites all rows of the view.",
            submit="Refresh",
            call=call,
            original=row,
        )


def named(row: Table) -> SafeString:
    """Link to a table, with a badge if it was dropped."""
    link = cells.link(row)
    if row.state != TableState.DROPPED:
        return link
    return cells.spaced([link, cells.badge(TableState.DROPPED)])


def _shown_version(row: MaterializedView) -> object:
    pinned = row.definition.get("version")
    version: object = cells.NOTHING if row.source_version is None else row.source_version
    return (
        version if pinned is None else cells.spaced([version, cells.muted(f"pinned to {pinned}")])
    )


def _refresh_mode(row: MaterializedView) -> str:
    return "automatic, when the source changes" if row.auto_refresh else "manual"


def lag(row: Any) -> SafeString:
    """Lag of an annotated row: the number of versions, and the time since when."""
    if row.definition.get("version") is not None and row.source_version is not None:
        return cells.NOTHING
    if not row.behind:
        return cells.badge("up to date", "success")
    count = f"{row.behind:,} {'version' if row.behind == 1 else 'versions'}"
    since = cells.spaced([cells.muted("since"), cells.when(row.behind_since)])
    return cells.lines([cells.badge(count, "warning"), since])


def _jobs(request: HttpRequest, row: MaterializedView) -> Panel:
    return jobs.panel(
        request,
        row.table.jobs.select_related("table__namespace").order_by("-pk")[:PANEL_SIZE],
        "No refreshes.",
    )


def _events(request: HttpRequest, row: MaterializedView) -> Panel:
    return audit_trail.panel(
        request, AuditEvent.objects.filter(table_uuid=row.table.uuid), table=row.table
    )
