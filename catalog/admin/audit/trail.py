"""Audit events: changes and refused requests. They are read-only."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.actor import actor, is_administrator
from catalog.admin.audit.filters import (
    ActionFilter,
    ActorFilter,
    BeforeFilter,
    DateFilter,
    InterfaceFilter,
    KeyFilter,
    OutcomeFilter,
    RequestFilter,
    TargetFilter,
    TransactionFilter,
    search,
)
from catalog.admin.form_pages import refuse
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin
from catalog.admin.paging import PANEL_SIZE, number, query, word
from catalog.errors import CatalogError
from catalog.models import AuditEvent, Table, Transaction
from catalog.models.audit import AuditSeal, Outcome
from catalog.services.audit import trail as audit_trail
from catalog.services.audit.names import visible_in, without_names

SEARCHED = 100_000
"""Number of the newest events that a search without an index scans."""
_DEEPEST = 4  # levels of JSON that are compared key by key
_LONGEST_NAME = 120


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = [
        "action_cell",
        "target",
        "actor",
        "interface",
        "outcome_badge",
        "moment",
        "request_cell",
    ]
    list_display_links = ["action_cell"]
    list_filter = [
        ActionFilter,
        OutcomeFilter,
        InterfaceFilter,
        ActorFilter,
        TargetFilter,
        KeyFilter,
        RequestFilter,
        TransactionFilter,
        ("at", DateFilter),
        BeforeFilter,
    ]
    list_select_related = False
    search_fields = ["target", "actor", "request_id"]
    search_help_text = "Table, UUID, actor, API key or request ID"
    ordering = ["-pk"]
    list_before_template = "admin/catalog/audit_lead.html"

    @admin.display(description="Action")
    def action_cell(self, row: AuditEvent) -> str:
        return row.action

    @admin.display(description="Time")
    def moment(self, row: AuditEvent) -> SafeString:
        return cells.when(row.at)

    @admin.display(description="Request ID")
    def request_cell(self, row: AuditEvent) -> SafeString:
        return cells.code(row.request_id[:8], row.request_id)

    @admin.display(description="Interface")
    def interface(self, row: AuditEvent) -> SafeString:
        return cells.muted(row.interface) if row.interface else cells.NOTHING

    @admin.display(description="Outcome")
    def outcome_badge(self, row: AuditEvent) -> SafeString:
        return _outcome(row)

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEvent]:
        criteria = search(request)
        if criteria is None:
            return AuditEvent.objects.none()
        rows = criteria.rows().order_by("-pk")
        before = number(request, "before")
        if before is not None:
            rows = rows.filter(pk__lt=before)
        # A date range limits the scan to its partitions. Otherwise only the newest events are scanned.
        if not (criteria.has_index or criteria.since):
            newest = before or (AuditEvent.objects.aggregate(top=Max("pk"))["top"] or 0) + 1
            rows = rows.filter(pk__gte=newest - SEARCHED)
            request.audit_floor = newest - SEARCHED  # type: ignore[attr-defined]
        return rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent], search_term: str
    ) -> tuple[QuerySet[AuditEvent], bool]:
        return queryset, False  # ``search`` reads the term

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        parameters = {name: request.GET[name] for name in request.GET if name not in {"p", "e"}}
        links = [
            (
                kind,
                f"{cells.list_url(AuditEvent)}export/?{urlencode(parameters | {'format': kind})}",
            )
            for kind in audit_trail.FORMATS
        ]
        context = {"exports": links, "further": _Further(request)}
        response: HttpResponseBase = super().changelist_view(
            request, (extra_context or {}) | context
        )
        return response

    # -- export

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.export_view)
        return [path("export/", view, name="catalog_auditevent_export"), *super().get_urls()]

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """All events that match the filters of the page, as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        criteria = search(request)
        if criteria is None:
            return HttpResponse(status=400)
        kind = word(request, "format")
        try:
            pieces = audit_trail.export(actor=actor(request), search=criteria, format=kind)
        except CatalogError as refused:
            refuse(request, refused)
            return HttpResponseRedirect(cells.list_url(AuditEvent))
        return StreamingHttpResponse(
            pieces,
            content_type=audit_trail.FORMATS[kind],
            headers={
                "Content-Disposition": "attachment;"
                f' filename="audit-{timezone.now():%Y%m%dT%H%M%SZ}.{kind}"'
            },
        )

    # -- one event

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
                ("Outcome", _outcome(row)),
                *((("Reason for refusal", row.error),) if row.error else ()),
                ("Actor", row.actor),
                ("API key", row.key or cells.NOTHING),
                ("Interface", row.get_interface_display() or cells.NOTHING),
                ("Time", cells.moment(row.at)),
                ("Transaction", cells.link(transaction)),
                ("Request ID", cells.code(row.request_id)),
                ("Context", cells.mapping(row.context or {})),
                ("Seal", _seal(row)),
            ),
            panels=(_changes(row),),
        )


class _Further:
    """Link to earlier events. Evaluated by the template, after the list is built."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def __bool__(self) -> bool:
        return getattr(self._request, "audit_floor", 0) > 1

    @property
    def floor(self) -> int:
        return int(getattr(self._request, "audit_floor", 0))

    @property
    def url(self) -> str:
        return query(self._request, before=self.floor, p=None)


def _outcome(row: AuditEvent) -> SafeString:
    if row.outcome == Outcome.REFUSED:
        return format_html(
            '<span title="{}">{}</span>', row.error, cells.badge("refused", "danger")
        )
    return cells.badge(row.outcome, "success")


def _seal(row: AuditEvent) -> SafeString:
    seal = AuditSeal.objects.filter(event_id=row.pk).first()
    if seal is None:
        return cells.muted("pending")
    return format_html("{} {}", seal.number, cells.exact(bytes(seal.hash).hex()))


def panel(
    request: HttpRequest,
    rows: QuerySet[AuditEvent],
    hide: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    *,
    table: Table | None = None,
) -> Panel:
    """A page of events, newest first; ``hide`` removes values that the user may not see.

    ``table`` is the table of the events. Former names of it, and names of others, are shown only if
    the user may browse their namespaces.
    """
    before = number(request, "before")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    events = list(rows.order_by("-pk")[: PANEL_SIZE + 1])
    opens = is_administrator(request)
    shown = None if table is None else visible_in(actor(request), events, str(table))
    return Panel(
        columns=("Action", "Target", "Actor", "Time", "Changes"),
        rows=[
            (
                cells.link(row, row.action) if opens else row.action,
                row.target if shown is None or row.target in shown else cells.NOTHING,
                cells.who(row.actor),
                cells.when(row.at),
                cells.mapping((hide or dict)(without_names(row.after or row.before or {}, shown))),
            )
            for row in events[:PANEL_SIZE]
        ],
        empty="No audit events.",
        first=query(request, before=None) if before is not None else None,
        following=(
            query(request, before=events[PANEL_SIZE - 1].pk) if len(events) > PANEL_SIZE else None
        ),
    )


def _changes(row: AuditEvent) -> Panel:
    """Values before and after, by key: changed keys first, then unchanged ones."""
    before, after = _flat(row.before or {}), _flat(row.after or {})
    changed, same = [], []
    for key in dict.fromkeys([*before, *after]):
        if key in before and key in after and before[key] == after[key]:
            same.append((cells.muted(key), cells.value(before[key]), cells.muted("unchanged")))
            continue
        changed.append(
            (
                key,
                _side("m-minus", "−", before[key]) if key in before else cells.NOTHING,
                _side("m-plus", "+", after[key]) if key in after else cells.NOTHING,
            )
        )
    return Panel(
        title="Changes",
        columns=("Key", "Before", "After"),
        rows=[*changed, *same],
        empty="The event has no details.",
    )


def _side(style: str, sign: str, value: Any) -> SafeString:
    text = cells.value(value) if value not in (None, "") else cells.muted("empty")
    return format_html('<span class="{}">{} {}</span>', style, sign, text)


def _flat(values: Mapping[str, Any], depth: int = 1) -> dict[str, Any]:
    """Flatten nested objects to dotted keys, so that they are compared key by key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = key[:_LONGEST_NAME]
        if isinstance(value, dict) and value and depth < _DEEPEST:
            flat |= {
                f"{name}.{inner_name}": inner_value
                for inner_name, inner_value in _flat(value, depth + 1).items()
            }
        else:
            flat[name] = value
    return flat
