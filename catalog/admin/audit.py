"""Audit events: who changed what. Nobody edits or deletes them."""

from typing import Any

from django.contrib import admin
from django.db.models import BigIntegerField, F, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter, TextFilter

from catalog.admin import cells
from catalog.admin.pages import PANEL_SIZE, Page, Panel, ReadOnlyAdmin, number, query
from catalog.models import AuditEvent, Table, Transaction
from catalog.services.commit import Operation

SEARCHED = 100_000
"""How many of the newest events are looked through where no index leads."""
_OTHER_ACTIONS = (
    *("api_key.create", "api_key.revoke", "transaction.alter"),
    *("function.create", "function.update", "function.drop"),
)


def actions(of: type[Operation] = Operation) -> set[str]:
    """What events may be called: every operation that the catalog knows."""
    own = {of.action} if hasattr(of, "action") else set()
    return own.union(*(actions(kind) for kind in of.__subclasses__()))


class ActionFilter(DropdownFilter):  # type: ignore[misc]
    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted(actions().union(_OTHER_ACTIONS))]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent]
    ) -> QuerySet[AuditEvent]:
        return queryset.filter(action=self.value()) if self.value() else queryset


class ActorFilter(TextFilter):  # type: ignore[misc]
    title = "actor"
    parameter_name = "actor"

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent]
    ) -> QuerySet[AuditEvent]:
        wanted = (self.value() or "").replace("\x00", "").strip()
        return queryset.filter(actor=wanted) if wanted else queryset


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ["what", "target", "actor", "moment", "asked"]
    list_display_links = ["what"]
    list_filter = [ActionFilter, ActorFilter]
    list_select_related = False
    search_fields = ["target", "actor", "request_id"]
    search_help_text = "nyc.flights, a UUID, an actor or a request id"
    ordering = ["-pk"]

    @admin.display(description="Action")
    def what(self, row: AuditEvent) -> str:
        return row.action

    @admin.display(description="At")
    def moment(self, row: AuditEvent) -> SafeString:
        return cells.moment(row.at)

    @admin.display(description="Request")
    def asked(self, row: AuditEvent) -> SafeString:
        return cells.code(row.request_id)

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEvent]:
        rows: QuerySet[AuditEvent] = super().get_queryset(request)
        if set(request.GET) <= {"p"}:
            return rows
        newest = AuditEvent.objects.order_by("-pk").values("pk")[:1]
        none = Value(0, output_field=BigIntegerField())
        return rows.alias(newest=Coalesce(Subquery(newest), none)).filter(
            pk__gt=F("newest") - SEARCHED
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent], search_term: str
    ) -> tuple[QuerySet[AuditEvent], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        from catalog.admin.tables import as_uuid

        uuids = [found] if (found := as_uuid(term)) else []
        # All events of a table, however old, if the term is the name of one.
        uuids += Table.objects.named(tuple(term.split("."))).values_list("uuid", flat=True)
        if uuids:
            return AuditEvent.objects.filter(table_uuid__in=uuids).order_by("-pk"), False
        return queryset.filter(
            Q(target__icontains=term) | Q(actor=term) | Q(request_id=term)
        ), False

    def page(self, request: HttpRequest, row: AuditEvent) -> Page:
        table = (
            Table.objects.select_related("namespace").filter(uuid=row.table_uuid).first()
            if row.table_uuid
            else None
        )
        transaction = (
            Transaction.objects.filter(pk=row.transaction_id).first()
            if row.transaction_id
            else None
        )
        return Page(
            facts=(
                ("Action", row.action),
                ("Target", row.target),
                ("Table", cells.link(table)),
                ("Actor", row.actor),
                ("At", cells.moment(row.at)),
                ("Transaction", cells.link(transaction)),
                ("Request", cells.code(row.request_id)),
                ("Context", cells.mapping(row.context or {})),
            ),
            panels=(_changes(row),),
        )


def panel(request: HttpRequest, rows: QuerySet[AuditEvent]) -> Panel:
    """A page of events, newest first."""
    before = number(request, "before")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: PANEL_SIZE + 1])
    return Panel(
        columns=("Action", "Target", "Actor", "At", "What changed"),
        rows=[
            (
                cells.link(row, row.action),
                row.target,
                cells.who(row.actor),
                cells.moment(row.at),
                cells.mapping(row.after or row.before or {}),
            )
            for row in found[:PANEL_SIZE]
        ],
        empty="Nothing happened to it yet.",
        first=query(request, before=None) if before is not None else None,
        following=(
            query(request, before=found[PANEL_SIZE - 1].pk) if len(found) > PANEL_SIZE else None
        ),
    )


def _changes(row: AuditEvent) -> Panel:
    before, after = row.before or {}, row.after or {}
    return Panel(
        title="What changed",
        columns=("", "Before", "After"),
        rows=[
            (key, cells.value(before.get(key)), cells.value(after.get(key)))
            for key in dict.fromkeys([*before, *after])
        ],
        empty="The event has no details.",
    )
