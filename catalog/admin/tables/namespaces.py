"""Namespaces: the page of a namespace, and creating and dropping one."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Q, When
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from unfold.widgets import (
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog import access
from catalog.access import Principal
from catalog.admin import cells, contacts
from catalog.admin.access import grants
from catalog.admin.actor import actor, is_administrator
from catalog.admin.audit import history
from catalog.admin.audit import trail as audit_trail
from catalog.admin.form_pages import sent
from catalog.admin.governance import annotated_pages, annotation_actions, impact
from catalog.admin.governance.annotation_actions import DESCRIBE_MENU
from catalog.admin.governance.annotations import for_page
from catalog.admin.maintenance.policies import namespace_policy, namespace_tab
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, Tab, button
from catalog.admin.paging import COUNT_LIMIT, PANEL_SIZE, number, query, word
from catalog.admin.recovery import protection
from catalog.admin.storage import namespace_storage
from catalog.admin.tables import list_columns, namespace_tree
from catalog.errors import NamespaceNotFound
from catalog.models import AuditEvent, Namespace, Table
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.storage import namespace_locations
from catalog.services.tables.namespace_operations import CreateNamespace, DropNamespace


class CreateForm(forms.Form):
    name = forms.CharField(widget=UnfoldAdminTextInputWidget())
    properties = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
        help_text="One key=value pair per line. Optional.",
    )

    def clean_properties(self) -> dict[str, str]:
        properties = {}
        for line in self.cleaned_data["properties"].splitlines():
            if not line.strip():
                continue
            key, sign, text = line.partition("=")
            if not sign or not key.strip():
                raise forms.ValidationError(f"'{line}' does not have the form key=value.")
            properties[key.strip()] = text.strip()
        return properties


class DropForm(forms.Form):
    cascade = forms.BooleanField(
        required=False,
        label="Cascade: also drop all namespaces, tables and views in it",
        widget=UnfoldBooleanSwitchWidget(),
    )


@admin.register(Namespace)
class NamespaceAdmin(ReadOnlyAdmin):
    actions_detail = [DESCRIBE_MENU, "grant", "policy", "rules", "storage", "protect", "drop"]
    search_fields = ["name"]
    page_related = ["parent", "storage_profile"]

    def get_urls(self) -> list[URLPattern]:
        return [*history.urls(self), *super().get_urls()]

    def visibility(self, principal: Principal) -> Q:
        return access.visible_namespaces(principal)

    def target(self, row: Namespace) -> Namespace:
        return row

    def has_add_permission(self, request: HttpRequest) -> bool:
        parent = number(request, "parent")
        return self.may(request, Privilege.CREATE, None if parent is None else str(parent))

    def has_drop_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MANAGE, object_id)

    def offers_actions(self, row: Namespace) -> bool:
        return row.dropped_at is None

    def has_policy_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MAINTAIN, object_id)

    def has_protect_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MANAGE, object_id)

    def has_grant_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.GRANT, object_id)

    def has_storage_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return is_administrator(request)

    def offered_actions(self, row: Namespace) -> Sequence[str | dict[str, Any]]:
        items = ["describe", "label", "policy", "rules", "storage"]
        if row.parent_id is not None:
            items += ["protect", "drop"]
        return ["grant", {"title": "More", "icon": "more_horiz", "items": items}]

    # -- the list

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return namespace_tree.view(self, request)

    # -- a namespace's page

    def page(self, request: HttpRequest, row: Namespace) -> Page:
        if not access.holds(actor(request), Privilege.BROWSE, row):
            return _traversable_page(request, row)
        facts: list[tuple[str, object]] = [
            ("Path", cells.code(str(row))),
            ("Parent", cells.link(row.parent)),
            ("Owner", row.owner or cells.NOTHING),
            ("Protected", protection.badge(row)),
            (
                "Properties",
                cells.mapping(namespace_locations.visible_properties(actor(request), row)),
            ),
            ("Created", cells.when(row.created_at)),
            ("Updated", cells.when(row.updated_at)),
        ]
        is_overview = not word(request, "tab")
        if (
            is_overview
            and row.dropped_at is None
            and access.holds(actor(request), Privilege.READ, row)
        ):
            facts.insert(4, ("Storage", namespace_storage.fact(request, row)))
        if row.dropped_at is not None:
            facts.append(("Dropped", cells.when(row.dropped_at)))
        page = Page(
            facts=facts,
            tabs=(
                Tab("tables", "Tables and views", lambda: _tables(request, row)),
                Tab("namespaces", "Namespaces", lambda: _children(request, row)),
                Tab("maintenance", "Maintenance", lambda: namespace_tab(request, row)),
                *grants.tabs(request, row),
                Tab("audit", "Audit events", lambda: _events(request, row)),
            ),
            aside_template="admin/catalog/namespace_aside.html",
            aside={
                "tree_url": cells.list_url(Namespace, f"parent={row.pk}"),
                "add_url": (
                    cells.list_url(Namespace).rstrip("/") + f"/add/?parent={row.pk}"
                    if namespace_tree.may_create_in(request, row)
                    else None
                ),
                "is_dropped": row.dropped_at is not None,
            },
        )
        if annotated_pages.has_tab(page, word(request, "tab")):
            return page
        edits = row.dropped_at is None and access.holds(actor(request), Privilege.MANAGE, row)
        return annotated_pages.with_annotations(
            request, page, for_page(row), edits=row if edits else None
        )

    # -- actions

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        parent = namespace_tree.parent_of(self, request)
        if parent is None:
            return self.missing(request, request.GET["parent"])

        def create(data: dict[str, Any]) -> HttpResponseBase:
            operation = CreateNamespace(
                namespace=(*parent.identifier, data["name"]), properties=data["properties"]
            )
            result = commit([operation], actor=actor(request))
            row = cast(Namespace, result.results[0])
            messages.success(request, f"Namespace '{row}' was created")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Create a namespace in {parent}",
            submit="Create",
            form=CreateForm(sent(request)),
            call=create,
            back=cells.list_url(Namespace, f"parent={parent.pk}"),
        )

    @button("Grant", permission="grant", icon="key")
    def grant(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        return grants.form(self, request, row)

    @button("Description and owner", permission="protect", icon="edit_note")
    def describe(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        return annotation_actions.describe(self, request, row)

    @button("Labels", permission="protect", icon="label")
    def label(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        return annotation_actions.label(self, request, row)

    @button("Maintenance policy", permission="policy", icon="tune")
    def policy(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        return namespace_policy(self, request, row)

    @button("Retention and approvals", permission="protect", icon="auto_delete")
    def rules(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        return protection.rules(self, request, row)

    @button("Storage", permission="storage", icon="storage")
    def storage(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        return namespace_storage.bind(self, request, row)

    @button("Protection", permission="protect", icon="shield")
    def protect(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        return protection.protect(self, request, row)

    @button("Drop", permission="drop", icon="delete", danger=True)
    def drop(self, request: HttpRequest, row: Namespace) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            if row.dropped_at is not None:
                # The operation looks up by name, and another namespace may have the name now.
                raise NamespaceNotFound(row.path)
            operation = DropNamespace(namespace=row.identifier, cascade=data["cascade"])
            commit([operation], actor=actor(request))
            messages.success(request, f"Namespace '{row}' was dropped")
            return HttpResponseRedirect(cells.list_url(Namespace, f"parent={row.parent_id}"))

        return self.ask(
            request,
            title=f"Drop namespace '{row}'?",
            text="A namespace with contents is only dropped with “Cascade”. Dropped objects go to the trash, "
            "and can be undropped until their retention ends."
            + impact.of_namespace(actor(request), row),
            submit="Drop",
            danger=True,
            form=DropForm(sent(request)),
            call=call,
            original=row,
        )


def _traversable_page(request: HttpRequest, row: Namespace) -> Page:
    """Page of a namespace that is visible only because objects below it are: its name and contents."""
    is_live = row.dropped_at is None
    return Page(
        facts=[
            ("Path", cells.code(str(row))),
            ("Parent", cells.link(row.parent)),
            (
                "Access",
                cells.spaced(
                    [
                        "You see only those objects in this namespace that you may browse.",
                        *([cells.anchor(contacts.request_url(row), "Request access")] * is_live),
                    ]
                ),
            ),
        ],
        tabs=(
            Tab("tables", "Tables and views", lambda: _tables(request, row)),
            Tab("namespaces", "Namespaces", lambda: _children(request, row)),
        ),
    )


def _children(request: HttpRequest, row: Namespace) -> Panel:
    after = word(request, "after")
    principal = actor(request)
    inside = Namespace.objects.live().filter(parent=row, name__gt=after)
    visible = inside.filter(access.visible_namespaces(principal))
    # Of a namespace that the user may only traverse, only the name and the contents are shown.
    may_browse = Q(pk__isnull=False) & access.visible_contents(principal, "")
    browsed = Case(When(may_browse, then=True), default=False)
    children: list[Any] = list(
        namespace_tree.counted(request, visible.annotate(is_browsed=browsed)).order_by("name")[
            : PANEL_SIZE + 1
        ]
    )
    return Panel(
        columns=("Name", "Namespaces", "Tables and views", "Owner", "Created"),
        rows=[
            (
                cells.link(child, child.name),
                cells.bounded(child.namespace_count, COUNT_LIMIT),
                cells.bounded(child.table_count, COUNT_LIMIT),
                cells.who(child.owner) if child.is_browsed else cells.NOTHING,
                cells.when(child.created_at) if child.is_browsed else cells.NOTHING,
            )
            for child in children[:PANEL_SIZE]
        ],
        empty="No namespaces.",
        first=query(request, after=None) if after else None,
        following=(
            query(request, tab="namespaces", after=children[PANEL_SIZE - 1].name)
            if len(children) > PANEL_SIZE
            else None
        ),
    )


def _tables(request: HttpRequest, row: Namespace) -> Panel:
    after = word(request, "after")
    principal = actor(request)
    visible = Table.objects.present().filter(
        access.visible_tables(principal), namespace=row, name__gt=after
    )
    tables: list[Any] = list(
        list_columns.with_figures(visible.select_related("namespace")).order_by("name")[
            : PANEL_SIZE + 1
        ]
    )
    readable = access.readable_tables(principal, [table.pk for table in tables])
    return Panel(
        columns=("Name", "Kind", "Rows", "Size", "Last commit", "Owner", "Health"),
        rows=[
            (
                cells.link(table, table.name),
                list_columns.kind(table),
                list_columns.rows_of(table),
                list_columns.size(table),
                list_columns.last_commit(table) if table.pk in readable else cells.NOTHING,
                cells.who(table.owner),
                list_columns.score(table),
            )
            for table in tables[:PANEL_SIZE]
        ],
        empty="No tables or views in this namespace. Clients create them.",
        first=query(request, after=None) if after else None,
        following=(
            query(request, tab="tables", after=tables[PANEL_SIZE - 1].name)
            if len(tables) > PANEL_SIZE
            else None
        ),
    )


def _events(request: HttpRequest, row: Namespace) -> Panel:
    # Events of tables have a UUID; excluding them makes the query use the index of the audit trail.
    # Earlier events are of another namespace of this name, and so are those since its successor.
    rows = AuditEvent.objects.filter(
        table_uuid=None, action__startswith="namespace.", target=str(row), at__gte=row.created_at
    )
    if row.dropped_at is not None:
        later = Namespace.objects.filter(digest=row.digest, created_at__gt=row.created_at)
        successor = later.order_by("created_at").first()
        rows = rows if successor is None else rows.filter(at__lt=successor.created_at)
    is_readable = access.holds(actor(request), Privilege.READ, row)
    return audit_trail.panel(request, rows, hide=None if is_readable else _without_location)


def _without_location(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an event for users without READ on the namespace."""
    return {
        name: namespace_locations.without_location(value) if name == "properties" else value
        for name, value in facts.items()
    }
