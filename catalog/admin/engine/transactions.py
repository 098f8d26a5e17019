"""Transactions: the list, and the operations and jobs of one."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet, Subquery, UUIDField, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from catalog import access
from catalog.access import Principal
from catalog.admin import cells, transaction_links
from catalog.admin.actor import actor
from catalog.admin.maintenance import jobs
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin
from catalog.identifiers import digest
from catalog.models import Table, Transaction
from catalog.services.engine.transactions import visible_operations

SEARCHED = 100_000
"""Number of the newest transactions that a search without an index scans."""
_OPERATIONS = 200  # shown of one transaction
_SUMMARY = 3


@admin.register(Transaction)
class TransactionAdmin(ReadOnlyAdmin):
    list_display = ["number", "operations_cell", "status_badge", "actor", "created"]
    list_display_links = ["number"]
    list_filter = [("status", ChoicesDropdownFilter)]
    list_select_related = False
    search_fields = ["id", "actor", "request_id"]
    search_help_text = "ID, actor or request ID"
    ordering = ["-pk"]
    empty_text = "No transactions."

    @admin.display(description="Transaction")
    def number(self, row: Transaction) -> SafeString:
        return cells.code(row.pk)

    @admin.display(description="Operations")
    def operations_cell(self, row: Transaction) -> SafeString:
        # The list has only transactions of the user, unless the user may browse everything.
        return summary(row.operations)

    @admin.display(description="Status")
    def status_badge(self, row: Transaction) -> SafeString:
        return cells.badge(row.status)

    @admin.display(description="Time")
    def created(self, row: Transaction) -> SafeString:
        return cells.when(row.created_at)

    def visibility(self, principal: Principal) -> Q:
        return transaction_links.visibility(principal)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Transaction]:
        rows: QuerySet[Transaction] = super().get_queryset(request)
        if set(request.GET) <= {"p"}:
            return rows
        oldest = Transaction.objects.order_by("-pk").values("pk")[SEARCHED : SEARCHED + 1]
        least = Value(uuid.UUID(int=0), output_field=UUIDField())
        return rows.filter(pk__gte=Coalesce(Subquery(oldest), least))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Transaction], search_term: str
    ) -> tuple[QuerySet[Transaction], bool]:
        term = search_term.strip()
        try:
            rows = Transaction.objects.filter(pk=uuid.UUID(term)).order_by("-pk")
            return self.only_visible(request, rows), False
        except ValueError:
            pass
        if not term:
            return queryset, False
        return queryset.filter(actor=term) | queryset.filter(request_id=term), False

    def page(self, request: HttpRequest, row: Transaction) -> Page:
        return Page(
            facts=(
                ("Status", cells.badge(row.status)),
                ("Actor", row.actor or cells.NOTHING),
                ("Request ID", cells.code(row.request_id)),
                ("Time", cells.when(row.created_at)),
                ("Properties", cells.mapping(row.properties)),
            ),
            panels=(
                _operations(request, row),
                jobs.panel(
                    request,
                    row.jobs.filter(access.visible_tables(actor(request), "table__"))
                    .select_related("table__namespace")
                    .order_by("pk")[:_OPERATIONS],
                    "No jobs.",
                    title="Jobs",
                ),
            ),
        )


def summary(operations: Sequence[Mapping[str, Any]]) -> SafeString:
    """The first operations, one in a line."""
    lines: list[object] = [
        cells.lines([f"{operation.get('operation', '?')} {operation.get('target', '')}"])
        for operation in operations[:_SUMMARY]
    ]
    more = len(operations) - _SUMMARY
    if more > 0:
        lines.append(cells.muted(f"and {more:,} more"))
    return cells.lines(lines)


def panel(
    request: HttpRequest,
    rows: Iterable[Transaction],
    empty: str,
    *,
    title: str = "",
    first: str | None = None,
    following: str | None = None,
) -> Panel:
    """The transactions as a panel, without the operations on objects that the user may not browse."""
    rows = list(rows)
    operations = visible_operations(actor(request), rows)
    return Panel(
        title=title,
        columns=("Transaction", "Operations", "Status", "Actor", "Time"),
        rows=[
            (
                transaction_links.link(request, row),
                summary(operations[row.pk]),
                cells.badge(row.status),
                cells.who(row.actor),
                cells.when(row.created_at),
            )
            for row in rows
        ],
        empty=empty,
        first=first,
        following=following,
    )


def _operations(request: HttpRequest, row: Transaction) -> Panel:
    operations: list[dict[str, Any]] = row.operations[:_OPERATIONS]
    # A target is a name, not a reference. It links to the visible table that has this name now.
    paths = {
        str(operation.get("target", "")): digest(str(operation.get("target", "")).split("."))
        for operation in operations
    }
    tables = {
        table.digest: table
        for table in Table.objects.present().filter(
            access.visible_tables(actor(request)), digest__in=set(paths.values())
        )
    }
    more = len(row.operations) - len(operations)
    return Panel(
        title="Operations",
        columns=("#", "Operation", "Target", "Changes"),
        rows=[
            (
                index,
                operation.get("operation", "?"),
                _target(
                    str(operation.get("target", "")),
                    tables.get(paths[str(operation.get("target", ""))]),
                ),
                cells.mapping(
                    {k: v for k, v in operation.items() if k not in {"operation", "target"}}
                ),
            )
            for index, operation in enumerate(operations, 1)
        ],
        empty="No operations.",
        note=f"and {more:,} more" if more > 0 else "",
    )


def _target(name: str, table: Table | None) -> object:
    return name if table is None else cells.anchor(cells.page_url(table), name)
