"""Tables and views: the list, the page of one, and renaming, deregistering and dropping one."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from catalog import access
from catalog.access import Principal
from catalog.admin import cells, contacts, history_actions
from catalog.admin.access import grants
from catalog.admin.actor import actor, reads_everything
from catalog.admin.form_pages import sent
from catalog.admin.governance import annotated_pages, annotation_actions, impact
from catalog.admin.governance.annotation_actions import DESCRIBE_MENU
from catalog.admin.governance.annotations import for_page
from catalog.admin.iceberg import tabs as iceberg_tabs
from catalog.admin.lance import tabs as lance_tabs
from catalog.admin.lance.repair import RepairAction
from catalog.admin.maintenance import actions as maintenance_actions
from catalog.admin.maintenance import health as maintenance_health
from catalog.admin.maintenance.actions import MaintainActions
from catalog.admin.maintenance.policies import table_policy
from catalog.admin.pages import Page, ReadOnlyAdmin, Tab, button
from catalog.admin.paging import word
from catalog.admin.recovery import protection
from catalog.admin.tables import bulk, lineage, list_terms, table_header, table_list
from catalog.admin.tables.list_columns import TableColumns
from catalog.admin.tables.list_filters import (
    HealthFilter,
    LabelFilter,
    NamespaceFilter,
    OwnerFilter,
    StateFilter,
)
from catalog.errors import CatalogError, TableNotFound, ViewNotFound
from catalog.identifiers import DEFAULT_DELIMITER, Identifier, check_name, lookup, spelled, typed
from catalog.maintenance_actions import registered
from catalog.models import Table, TableFormat, TableKind, TableState, TrashItem
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.tables.table_operations import DeregisterTable, DropTable, RenameTable


class RenameForm(forms.Form):
    namespace = forms.CharField(
        widget=UnfoldAdminTextInputWidget(),
        help_text=f'Such as prod.sales. Put quotes around a name with a dot: prod."a.b". '
        f"{DEFAULT_DELIMITER} is the root.",
    )
    name = forms.CharField(widget=UnfoldAdminTextInputWidget())

    def clean_namespace(self) -> tuple[str, ...]:
        try:
            return typed(self.cleaned_data["namespace"])
        except CatalogError as error:
            raise forms.ValidationError(str(error)) from error

    def clean_name(self) -> str:
        try:
            return check_name(self.cleaned_data["name"])
        except CatalogError as error:
            raise forms.ValidationError(str(error)) from error


class PurgeForm(forms.Form):
    purge = forms.BooleanField(
        required=False,
        label="Also remove the data (metadata, manifests and data files), in a job",
        widget=UnfoldBooleanSwitchWidget(),
    )


@admin.register(Table)
class TableAdmin(TableColumns, MaintainActions, RepairAction, ReadOnlyAdmin):
    list_display_links = ["table"]
    list_filter = [
        StateFilter,
        ("format", ChoicesDropdownFilter),
        ("kind", ChoicesDropdownFilter),
        NamespaceFilter,
        OwnerFilter,
        HealthFilter,
        LabelFilter,
    ]
    list_before_template = "admin/catalog/table_list.html"
    list_select_related = ["namespace"]
    search_fields = ["name", "location"]
    search_help_text = "Name such as nyc.flights, or location"
    empty_text = "No tables or views. Clients create them; the overview shows an example."
    ordering = ["-pk"]
    page_related = ["namespace"]

    # Properties, because the maintenance actions may be registered after this class is defined.
    @property
    def actions(self) -> Sequence[Callable[..., Any]]:
        return [*bulk.ACTIONS, *maintenance_actions.bulk()]

    @property
    def actions_detail(self) -> Sequence[str | dict[str, Any]]:
        return [
            maintenance_actions.menu(registered()),
            DESCRIBE_MENU,
            "describe_column",
            "grant",
            "policy",
            "protect",
            "restore",
            "tag",
            "repair",
            "rename",
            "deregister",
            "drop",
        ]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Table], search_term: str
    ) -> tuple[QuerySet[Table], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if "/" in term and reads_everything(request):
            return queryset.filter(location__startswith=term.removeprefix("file://")), False
        if table_uuid := cells.as_uuid(term):
            return queryset.filter(uuid=table_uuid), False
        exact = queryset.filter(digest=lookup(term))
        if any(mark in term for mark in ".$") and exact.exists():
            return exact, False
        list_terms.set_searched_name(request, term)
        return queryset.filter(name__icontains=term), False

    def visibility(self, principal: Principal) -> Q:
        return access.visible_tables(principal)

    def target(self, row: Table) -> Table:
        return row

    def get_changelist(self, request: HttpRequest, **_: Any) -> type[table_list.TableList]:
        return table_list.TableList

    def get_list_display(self, request: HttpRequest) -> Sequence[str]:
        return table_list.columns(request)

    def get_sortable_by(self, request: HttpRequest) -> Sequence[str]:
        return table_list.sortable(request)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        if redirect := table_list.remembered(request):
            return redirect
        if table_list.is_export(request):
            if not self.has_view_permission(request):
                raise PermissionDenied
            with contextlib.suppress(IncorrectLookupParameters):  # Django's page reports them
                rows = cast(table_list.TableList, self.get_changelist_instance(request))
                return table_list.export(rows)
        return super().changelist_view(request, extra_context)

    def has_drop_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MANAGE, object_id)

    def has_rename_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MANAGE, object_id)

    def has_write_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.WRITE, object_id)

    def has_grant_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.GRANT, object_id)

    def offers_actions(self, row: Table) -> bool:
        return row.state != TableState.DROPPED

    def offered_actions(self, row: Table) -> Sequence[str | dict[str, Any]]:
        # A view has no data, so it cannot be maintained or deregistered.
        items = ["describe", "label", "protect", "rename", "drop"]
        if row.kind == TableKind.TABLE:
            of_lance = ["repair"] * (row.format == TableFormat.LANCE)
            more = ["policy", "protect", *of_lance, "rename", "deregister", "drop"]
            items = ["describe", "label", *more]
        # Maintenance is started on the tab "Health".
        return ["grant", {"title": "More", "icon": "more_horiz", "items": items}]

    # -- a table's page

    def page(self, request: HttpRequest, row: Table) -> Page:
        shared = (*lineage.tabs(request, row), *grants.tabs(request, row))
        if row.kind == TableKind.TABLE:
            health = Tab("maintenance", "Maintenance", lambda: maintenance_health.tab(request, row))
            shared = (health, *shared)
        reads = access.holds(actor(request), Privilege.READ, row)
        if not reads:
            page = _browsed(row)
        elif row.kind == TableKind.VIEW:
            page = iceberg_tabs.view_page(request, row)
        elif row.format == TableFormat.ICEBERG:
            page = iceberg_tabs.table_page(request, row)
        else:
            page = lance_tabs.table_page(request, row)
        page = replace(page, tabs=(*page.tabs, *shared), groups=table_header.GROUPS)
        tab = word(request, "tab")
        if tab != "schema" and annotated_pages.has_tab(page, tab):
            # This tab shows neither details nor schema.
            return replace(page, header=table_header.header(row, None))
        annotations = for_page(row)
        page = replace(page, header=table_header.header(row, annotations))
        if tab != "schema" and row.kind == TableKind.TABLE and reads:
            page = replace(page, tiles=table_header.tiles(row))
        edits = row.state != TableState.DROPPED
        edits = edits and access.holds(actor(request), Privilege.MANAGE, row)
        return annotated_pages.with_annotations(
            request, page, annotations, edits=row if edits else None
        )

    # -- actions

    @button("Grant", permission="grant", icon="key")
    def grant(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return grants.form(self, request, row)

    @button("Description and owner", permission="rename", icon="edit_note")
    def describe(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return annotation_actions.describe(self, request, row)

    @button("Column", permission="rename", icon="view_column")
    def describe_column(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return annotation_actions.describe_column(self, request, row)

    @button("Labels", permission="rename", icon="label")
    def label(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return annotation_actions.label(self, request, row)

    @button("Maintenance policy", permission="maintain", icon="tune")
    def policy(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return table_policy(self, request, row)

    @button("Protection", permission="rename", icon="shield")
    def protect(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return protection.protect(self, request, row)

    @button("Rename", permission="rename", icon="edit")
    def rename(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            new = (*data["namespace"], data["name"])
            _rename(self.actor(request, row), row, new)
            messages.success(request, f"{row.kind.capitalize()} '{row}' is now '{'.'.join(new)}'")
            return HttpResponseRedirect(cells.page_url(row))

        initial = {
            "namespace": spelled(row.namespace.path),
            "name": row.name,
        }
        return self.ask(
            request,
            title=f"Rename {row.kind} '{row}'",
            text="" if row.kind == TableKind.VIEW else "The data is not moved.",
            submit="Rename",
            form=RenameForm(sent(request), initial=initial),
            call=call,
            original=row,
        )

    @button("Restore", permission="write", icon="history")
    def restore(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return history_actions.restore(self, request, row, lambda: self.actor(request, row))

    @button("Tag", permission="write", icon="sell")
    def tag(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        return history_actions.tag(self, request, row, lambda: self.actor(request, row))

    @button("Deregister", permission="drop", icon="link_off")
    def deregister(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            _deregister(self.actor(request, row), row)
            messages.success(request, f"Table '{row}' was deregistered. Its data is kept.")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Deregister table '{row}'?",
            text=f"Removes the table from the catalog. Its data is kept at {row.location}."
            + impact.of_deregistration(actor(request), row),
            submit="Deregister",
            danger=True,
            call=call,
            original=row,
        )

    @button("Drop", permission="drop", icon="delete", danger=True)
    def drop(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        # Lance's DropTable removes the data; Iceberg's leaves the choice to who drops.
        has_choice = row.format == TableFormat.ICEBERG and row.kind == TableKind.TABLE

        def call(data: dict[str, Any]) -> HttpResponseBase:
            purge = data.get("purge", row.kind == TableKind.TABLE)
            _drop(self.actor(request, row), row, purge=purge)
            outcome = "; its data is removed when its retention ends" if purge else ""
            text = f"{row.kind.capitalize()} '{row}' was dropped{outcome}"
            item = TrashItem.objects.filter(table=row).first()
            if item is not None:
                url = cells.page_url(item).removesuffix("change/") + "undrop/"
                text = cells.spaced([f"{text}.", cells.anchor(url, "Undrop")])
            messages.success(request, text)
            return HttpResponseRedirect(cells.page_url(row) + ("?tab=jobs" if purge else ""))

        return self.ask(
            request,
            title=f"Drop {row.kind} '{row}'?",
            text=_drop_warning(row, has_choice) + impact.of_tables(actor(request), [row]),
            submit="Drop",
            danger=True,
            form=PurgeForm(sent(request)) if has_choice else None,
            call=call,
            original=row,
        )

    def actor(self, request: HttpRequest, row: Table) -> Principal:
        """The signed-in user as the actor. Raises TableNotFound or ViewNotFound for a dropped row."""
        if row.state == TableState.DROPPED:
            # Services look up by name, and another table may have the name now.
            missing = ViewNotFound if row.kind == TableKind.VIEW else TableNotFound
            raise missing(row.identifier)
        return actor(request)


def _browsed(row: Table) -> Page:
    """Page for users who may not read the table: no location, schema, properties or history."""
    is_dropped = row.state == TableState.DROPPED
    request = [] if is_dropped else [cells.anchor(contacts.request_url(row), "Request access")]
    facts: list[tuple[str, object]] = [
        ("Name", cells.code(str(row))),
        ("Namespace", cells.link(row.namespace)),
        ("Format", row.get_format_display()),
        ("Kind", row.kind),
        ("State", cells.badge(row.state)),
        ("Owner", row.owner or cells.NOTHING),
        ("Created", cells.when(row.created_at)),
        ("Access", cells.spaced([f"You may browse this {row.kind}, but not read it.", *request])),
    ]
    return Page(facts=facts)


def _rename(actor: Principal, row: Table, new: Identifier) -> None:
    if row.kind == TableKind.VIEW:
        iceberg_views.rename_view(actor=actor, view=row.identifier, new=new)
    elif row.format == TableFormat.ICEBERG:
        iceberg_tables.rename_table(actor=actor, table=row.identifier, new=new)
    else:
        commit([RenameTable(table=row.identifier, new=new)], actor=actor)


def _deregister(actor: Principal, row: Table) -> None:
    if row.format == TableFormat.ICEBERG:
        iceberg_tables.unregister_table(actor=actor, table=row.identifier)
    else:
        commit([DeregisterTable(table=row.identifier)], actor=actor)


def _drop(actor: Principal, row: Table, *, purge: bool) -> None:
    if row.kind == TableKind.VIEW:
        iceberg_views.drop_view(actor=actor, view=row.identifier)
    elif row.format == TableFormat.ICEBERG:
        iceberg_tables.drop_table(actor=actor, table=row.identifier, purge=purge)
    else:
        commit([DropTable(table=row.identifier, purge=purge)], actor=actor)


def _drop_warning(row: Table, has_choice: bool) -> str:
    if row.kind == TableKind.VIEW:
        return (
            "The view goes to the trash, and can be undropped until its retention ends."
            " The tables that it reads are kept."
        )
    if has_choice:
        return f"The data at {row.location} is kept, unless its removal is selected below."
    return (
        f"The table goes to the trash. When its retention ends, a job removes its data at {row.location}."
        " Deregister it to keep the data."
    )
