"""Tables: the list, a table's page with its ledger, and dropping, deregistering, renaming one."""

import json
import uuid
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter, TextFilter
from unfold.widgets import UnfoldAdminTextInputWidget

from catalog import storage
from catalog.admin import audit, cells, jobs, transactions
from catalog.admin.actor import actor
from catalog.admin.pages import (
    PANEL_SIZE,
    Page,
    Panel,
    ReadOnlyAdmin,
    Tab,
    button,
    number,
    query,
    sent,
    word,
)
from catalog.errors import CatalogError, TableNotFound
from catalog.identifiers import DEFAULT_DELIMITER, check_name, digest, parse
from catalog.models import (
    AuditEvent,
    Branch,
    Table,
    TableFormat,
    TableState,
    TableVersion,
    Transaction,
)
from catalog.services.commit import Operation, commit
from catalog.services.operations import DeregisterTable, DropTable, RenameTable

_BRANCHES = 200  # offered to choose from
_EVENTS = 100  # events among which a page of transactions is looked for


class StateFilter(DropdownFilter):  # type: ignore[misc]
    title = "state"
    parameter_name = "state"
    all_option = ["", "Declared and live"]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*((state.value, state.label) for state in TableState), ("all", "All, also dropped")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Table]) -> QuerySet[Table]:
        chosen = self.value()
        if chosen == "all":
            return queryset
        if chosen in TableState.values:
            return queryset.filter(state=chosen)
        return queryset.exclude(state=TableState.DROPPED)


class NamespaceFilter(TextFilter):  # type: ignore[misc]
    title = "namespace, such as nyc.weather"
    parameter_name = "in"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Table]) -> QuerySet[Table]:
        chosen = (self.value() or "").strip()
        if not chosen:
            return queryset
        return queryset.filter(namespace__digest=digest(split(chosen)))


class RenameForm(forms.Form):
    namespace = forms.CharField(
        widget=UnfoldAdminTextInputWidget(),
        help_text=f"Names from the root down with {DEFAULT_DELIMITER} between them; "
        f"{DEFAULT_DELIMITER} alone is the root.",
    )
    name = forms.CharField(widget=UnfoldAdminTextInputWidget())

    def clean_namespace(self) -> tuple[str, ...]:
        try:
            return parse(self.cleaned_data["namespace"])
        except CatalogError as error:
            raise forms.ValidationError(str(error)) from error

    def clean_name(self) -> str:
        try:
            return check_name(self.cleaned_data["name"])
        except CatalogError as error:
            raise forms.ValidationError(str(error)) from error


@admin.register(Table)
class TableAdmin(ReadOnlyAdmin):
    list_display = ["table", "format", "state_badge", "where", "created"]
    list_display_links = ["table"]
    list_filter = [StateFilter, ("format", ChoicesDropdownFilter), NamespaceFilter]
    list_select_related = ["namespace"]
    search_fields = ["name", "location"]
    search_help_text = "A name, nyc.flights, or a location"
    ordering = ["-pk"]
    actions_detail = ["rename", "deregister", "drop"]
    page_related = ["namespace"]

    @admin.display(description="Table")
    def table(self, row: Table) -> str:
        return str(row)

    @admin.display(description="State")
    def state_badge(self, row: Table) -> SafeString:
        return cells.badge(row.state)

    @admin.display(description="Location")
    def where(self, row: Table) -> SafeString:
        return cells.code(row.location)

    @admin.display(description="Created")
    def created(self, row: Table) -> SafeString:
        return cells.moment(row.created_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Table], search_term: str
    ) -> tuple[QuerySet[Table], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if "/" in term:
            return queryset.filter(location__startswith=term.removeprefix("file://")), False
        if wanted := as_uuid(term):
            return queryset.filter(uuid=wanted), False
        parts = split(term)
        if len(parts) > 1:
            exact = queryset.filter(digest=digest(parts))
            if exact.exists():
                return exact, False
        return queryset.filter(name__icontains=term), False

    def has_drop_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, "delete")

    def has_rename_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, "change")

    def offers_actions(self, row: Table) -> bool:
        return row.state != TableState.DROPPED

    # -- a table's page

    def page(self, request: HttpRequest, row: Table) -> Page:
        facts: list[tuple[str, object]] = [
            ("Namespace", cells.link(row.namespace)),
            ("Format", row.format),
            ("State", cells.badge(row.state)),
            ("Location", cells.code(row.location)),
            ("Properties", cells.mapping(row.properties)),
            ("Managed versioning", "yes" if row.managed_versioning else "no"),
            ("Owner", row.owner or cells.NOTHING),
            ("UUID", cells.code(row.uuid)),
            ("Created", cells.moment(row.created_at)),
            ("Changed", cells.moment(row.updated_at)),
        ]
        if row.dropped_at is not None:
            facts.append(("Dropped", cells.moment(row.dropped_at)))
        opens = row.format == TableFormat.LANCE and row.state == TableState.LIVE
        return Page(
            facts=facts,
            tabs=(
                Tab("versions", "Versions", lambda: _versions(request, row)),
                Tab("branches", "Branches", lambda: _branches(request, row)),
                Tab("transactions", "Transactions", lambda: _transactions(request, row)),
                Tab("audit", "Audit events", lambda: _events(request, row)),
                Tab(
                    "jobs",
                    "Jobs",
                    lambda: jobs.panel(
                        row.jobs.select_related("table__namespace").order_by("-pk")[:PANEL_SIZE],
                        "No job was ever asked for.",
                    ),
                ),
            ),
            aside_template="admin/catalog/table_aside.html" if opens else "",
            aside={
                "server": request.build_absolute_uri("/").rstrip("/"),
                "table_id": json.dumps(row.identifier, ensure_ascii=False),
            },
            options=_branch_choice(request, row),
        )

    # -- what changes

    @button("Rename", permission="rename", icon="edit")
    def rename(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        row = self.find(request, object_id)
        if row is None:
            return self.missing(request, object_id)

        def call(data: dict[str, Any]) -> HttpResponseBase:
            new = (*data["namespace"], data["name"])
            self.apply(request, "change", row, RenameTable(table=row.identifier, new=new))
            messages.success(request, f"Table '{row}' is now '{'.'.join(new)}'")
            return HttpResponseRedirect(cells.page_url(row))

        initial = {
            "namespace": DEFAULT_DELIMITER.join(row.namespace.path) or DEFAULT_DELIMITER,
            "name": row.name,
        }
        return self.ask(
            request,
            title=f"Rename table '{row}'",
            text="Its data stays where it is.",
            submit="Rename",
            form=RenameForm(sent(request), initial=initial),
            call=call,
            back=cells.page_url(row),
            original=row,
        )

    @button("Deregister", permission="drop", icon="link_off")
    def deregister(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        row = self.find(request, object_id)
        if row is None:
            return self.missing(request, object_id)

        def call(_data: dict[str, Any]) -> HttpResponseBase:
            self.apply(request, "delete", row, DeregisterTable(table=row.identifier))
            messages.success(request, f"Table '{row}' was deregistered; its data stays")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Deregister table '{row}'?",
            text=f"The catalog forgets the table. Its data stays at {row.location}.",
            submit="Deregister",
            danger=True,
            call=call,
            back=cells.page_url(row),
            original=row,
        )

    @button("Drop", permission="drop", icon="delete", danger=True)
    def drop(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        row = self.find(request, object_id)
        if row is None:
            return self.missing(request, object_id)

        def call(_data: dict[str, Any]) -> HttpResponseBase:
            self.apply(request, "delete", row, DropTable(table=row.identifier))
            messages.success(request, f"Table '{row}' was dropped; a job removes its data")
            return HttpResponseRedirect(cells.page_url(row) + "?tab=jobs")

        return self.ask(
            request,
            title=f"Drop table '{row}'?",
            text=f"A job removes its data at {row.location}. Deregister it to keep the data.",
            submit="Drop",
            danger=True,
            call=call,
            back=cells.page_url(row),
            original=row,
        )

    def apply(self, request: HttpRequest, verb: str, row: Table, operation: Operation) -> None:
        if row.state == TableState.DROPPED:
            # Operations go by name, and another table may bear it now.
            raise TableNotFound(row.identifier)
        commit([operation], actor=actor(request, self.permission(verb)))


def split(text: str) -> tuple[str, ...]:
    """The parts of a name as people write it: with dots, or with the protocol's delimiter."""
    return tuple(text.split(DEFAULT_DELIMITER if DEFAULT_DELIMITER in text else "."))


def as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _branch_choice(request: HttpRequest, row: Table) -> dict[str, object]:
    if request.GET.get("tab", "versions") != "versions":
        return {}
    names = list(
        Branch.objects.filter(table=row).order_by("name").values_list("name", flat=True)[:_BRANCHES]
    )
    if not names:
        return {}
    chosen = word(request, "branch")
    return {
        "branches": [
            (name or "main", query(request, branch=name or None, before=None), name == chosen)
            for name in ["", *names]
        ]
    }


def _versions(request: HttpRequest, row: Table) -> Panel:
    before = number(request, "before")
    rows = TableVersion.objects.filter(table=row).on(word(request, "branch"))
    if before is not None:
        rows = rows.filter(version__lt=before)
    found = list(rows.select_related("transaction").order_by("-version")[: PANEL_SIZE + 1])
    inside = storage.store_path(row.location, "")
    return Panel(
        columns=("Version", "Committed", "By", "Manifest", "Size", "Transaction"),
        rows=[
            (
                _version(version),
                cells.moment(version.created_at),
                cells.who(version.transaction.actor if version.transaction else ""),
                cells.code(version.manifest_path.removeprefix(inside), version.manifest_path),
                cells.size(version.manifest_size),
                cells.link(version.transaction, cells.code(version.transaction_id)),
            )
            for version in found[:PANEL_SIZE]
        ],
        empty="No version is on this branch yet.",
        first=query(request, before=None) if before is not None else None,
        following=(
            query(request, before=found[PANEL_SIZE - 1].version)
            if len(found) > PANEL_SIZE
            else None
        ),
    )


def _version(version: TableVersion) -> object:
    if version.deleted_at is not None:
        return cells.lines([version.version, cells.muted("deleted")])
    if version.staged_path is not None:
        return cells.lines([version.version, cells.muted("manifest is being moved")])
    return cells.lines([version.version])


def _branches(request: HttpRequest, row: Table) -> Panel:
    after = word(request, "after")
    found = list(row.branches.filter(name__gt=after).order_by("name")[: PANEL_SIZE + 1])
    return Panel(
        columns=("Branch", "Created"),
        rows=[
            (
                cells.anchor(
                    query(request, tab="versions", branch=branch.name, after=None), branch
                ),
                cells.moment(branch.created_at),
            )
            for branch in found[:PANEL_SIZE]
        ],
        empty="There is only main.",
        first=query(request, after=None) if after else None,
        following=(
            query(request, after=found[PANEL_SIZE - 1].name) if len(found) > PANEL_SIZE else None
        ),
    )


def _transactions(request: HttpRequest, row: Table) -> Panel:
    """By way of the audit events: they alone are indexed by table."""
    before = number(request, "before")
    events = AuditEvent.objects.filter(table_uuid=row.uuid)
    if before is not None:
        events = events.filter(pk__lt=before)
    ids = list(events.order_by("-pk").values_list("pk", "transaction_id")[: _EVENTS + 1])
    wanted = {transaction for _, transaction in ids[:_EVENTS] if transaction}
    found = Transaction.objects.filter(pk__in=wanted).order_by("-pk")
    return transactions.panel(
        found,
        "No transaction touched it.",
        first=query(request, before=None) if before is not None else None,
        following=query(request, before=ids[_EVENTS - 1][0]) if len(ids) > _EVENTS else None,
    )


def _events(request: HttpRequest, row: Table) -> Panel:
    return audit.panel(request, AuditEvent.objects.filter(table_uuid=row.uuid))
