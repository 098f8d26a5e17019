"""Functions that engines load: the list, the page of a function, and creating, editing and dropping one."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import TextFilter

from catalog import access
from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.audit import trail as audit_trail
from catalog.admin.form_pages import sent
from catalog.admin.iceberg.function_forms import AddForm, ChangeForm
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, Tab, button
from catalog.formats.iceberg import functions as format_
from catalog.identifiers import label, lookup, typed
from catalog.models import AuditEvent, Function, Namespace
from catalog.privileges import Privilege
from catalog.services.iceberg import functions
from catalog.services.iceberg.functions import Content


class NamespaceFilter(TextFilter):  # type: ignore[misc]
    title = "namespace"
    parameter_name = "namespace"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Function]) -> QuerySet[Function]:
        chosen = _word(self.value())
        if not chosen:
            return queryset
        return queryset.filter(namespace__digest=lookup(chosen))


class OwnerFilter(TextFilter):  # type: ignore[misc]
    title = "owner"
    parameter_name = "owner"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Function]) -> QuerySet[Function]:
        chosen = _word(self.value())
        return queryset.filter(owner=chosen) if chosen else queryset


@admin.register(Function)
class FunctionAdmin(ReadOnlyAdmin):
    list_display = ["name", "place", "signatures", "owned", "changed"]
    list_display_links = ["name"]
    list_filter = [NamespaceFilter, OwnerFilter]
    list_select_related = ["namespace"]
    search_fields = ["name"]
    search_help_text = "Part of the name"
    ordering = ["-pk"]
    page_related = ["namespace"]
    actions_detail = ["edit", "drop"]

    @admin.display(description="Namespace")
    def place(self, row: Function) -> SafeString:
        return cells.link(row.namespace)

    @admin.display(description="Signatures")
    def signatures(self, row: Function) -> SafeString:
        return cells.lines(
            [
                cells.code(signature(definition))
                for definition in row.metadata.get("definitions", ())[:3]
            ]
        )

    @admin.display(description="Owner")
    def owned(self, row: Function) -> SafeString:
        return cells.who(row.owner)

    @admin.display(description="Changed")
    def changed(self, row: Function) -> SafeString:
        return cells.when(row.updated_at)

    def visibility(self, principal: Principal) -> Q:
        return access.visible_contents(principal)

    def target(self, row: Function) -> Namespace:
        return row.namespace

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, Privilege.CREATE)

    def has_edit_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.CREATE, object_id)

    def has_drop_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.CREATE, object_id)

    # -- a function's page

    def page(self, request: HttpRequest, row: Function) -> Page:
        metadata = row.metadata
        if not access.holds(actor(request), Privilege.READ, row.namespace):
            return Page(facts=(("Name", cells.code(label(_identifier(row)))), ("Owner", row.owner)))
        return Page(
            facts=(
                ("Name", cells.code(label(_identifier(row)))),
                ("Namespace", cells.link(row.namespace)),
                ("Description", metadata.get("doc") or cells.NOTHING),
                ("Secure", "yes" if metadata.get("secure") else "no"),
                ("Properties", cells.mapping(metadata.get("properties") or {})),
                ("Owner", row.owner or cells.NOTHING),
                ("UUID", cells.code(metadata.get("function-uuid"))),
                ("Created", cells.when(row.created_at)),
                ("Changed", cells.when(row.updated_at)),
            ),
            tabs=(
                Tab("versions", "Versions", lambda: _versions(metadata)),
                Tab("history", "History", lambda: _history(metadata)),
                Tab("audit", "Audit events", lambda: _events(request, row)),
            ),
        )

    # -- actions

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        def create(data: dict[str, Any]) -> HttpResponseBase:
            row = functions.create_function(
                actor=actor(request),
                function=(*typed(data["namespace"]), data["name"]),
                content=_content(data),
            )
            messages.success(request, f"Function '{label(_identifier(row))}' was created")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title="Create a function",
            submit="Create",
            form=AddForm(sent(request), initial={"namespace": _parent_path(request)}),
            call=create,
            back=cells.list_url(Function),
        )

    @button("Edit", permission="edit", icon="edit")
    def edit(self, request: HttpRequest, row: Function) -> HttpResponseBase:
        def change(data: dict[str, Any]) -> HttpResponseBase:
            functions.update_function(
                actor=actor(request),
                function=_identifier(row),
                content=_content(data),
                seen_at=data["seen_at"],
            )
            messages.success(request, f"Function '{label(_identifier(row))}' was updated")
            return HttpResponseRedirect(cells.page_url(row))

        properties = row.metadata.get("properties") or {}
        initial = {
            "doc": row.metadata.get("doc", ""),
            "definitions": json.dumps(
                row.metadata.get("definitions", []), indent=2, ensure_ascii=False
            ),
            "secure": row.metadata.get("secure", False),
            "properties": "\n".join(f"{key}={value}" for key, value in properties.items()),
            "seen_at": row.updated_at.isoformat(),
        }
        return self.ask(
            request,
            title=f"Edit function '{label(_identifier(row))}'",
            text="Existing versions cannot be changed. Add a version and make it current.",
            submit="Save",
            form=ChangeForm(sent(request), initial=initial),
            call=change,
            original=row,
        )

    @button("Drop", permission="drop", icon="delete", danger=True)
    def drop(self, request: HttpRequest, row: Function) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            functions.drop_function(actor=actor(request), function=_identifier(row))
            messages.success(request, f"Function '{label(_identifier(row))}' was dropped")
            return HttpResponseRedirect(cells.list_url(Function))

        return self.ask(
            request,
            title=f"Drop function '{label(_identifier(row))}'?",
            text="Engines can no longer load the function. Its history is deleted.",
            submit="Drop",
            danger=True,
            call=call,
            original=row,
        )


def signature(definition: dict[str, Any]) -> str:
    """Signature of a definition: ``(x int, y list<int>) → string``."""
    parameters = ", ".join(
        f"{parameter.get('name', '')} {_type(parameter.get('type'))}"
        for parameter in definition.get("parameters") or ()
    )
    return f"({parameters}) → {_type(definition.get('return-type'))}"


def _type(type_: Any) -> str:
    return format_.definition_id([{"type": type_}])


def _identifier(row: Function) -> tuple[str, ...]:
    return (*row.namespace.path, row.name)


def _content(data: dict[str, Any]) -> Content:
    return Content(
        definitions=data["definitions"],
        doc=data["doc"],
        secure=data["secure"],
        properties=data["properties"],
    )


def _parent_path(request: HttpRequest) -> str:
    """Path of the namespace whose page links here; empty if there is none that the user may see."""
    parent = request.GET.get("parent", "")
    if not (parent.isascii() and parent.isdigit() and len(parent) < 19):
        return ""
    rows = Namespace.objects.live().filter(access.visible_namespaces(actor(request)))
    row = rows.exclude(parent=None).filter(pk=int(parent)).first()
    return "" if row is None else ".".join(row.path)


def _word(value: str | None) -> str:
    return (value or "").replace("\x00", "").strip()


def _versions(metadata: dict[str, Any]) -> Panel:
    rows: list[Sequence[object]] = []
    for definition in metadata.get("definitions") or ():
        current = definition.get("current-version-id")
        newest = sorted(
            definition.get("versions") or (), key=lambda item: item["version-id"], reverse=True
        )
        for version in newest:
            number = version["version-id"]
            rows.append(
                (
                    cells.code(signature(definition)),
                    cells.lines(
                        [
                            number,
                            *([cells.badge("current", "success")] if number == current else ()),
                        ]
                    ),
                    cells.lines(
                        cells.lines(
                            [
                                cells.muted(item.get("dialect")),
                                cells.expandable(str(item.get("sql"))),
                            ]
                        )
                        for item in version.get("representations") or ()
                    ),
                    "yes" if version.get("deterministic") else "no",
                    version.get("on-null-input", "call"),
                    _moment(version.get("timestamp-ms")),
                )
            )
    return Panel(
        columns=("Signature", "Version", "SQL", "Deterministic", "On null input", "Created"),
        rows=rows,
        empty="No definitions.",
    )


def _history(metadata: dict[str, Any]) -> Panel:
    return Panel(
        columns=("Time", "Current versions"),
        rows=[
            (
                _moment(entry.get("timestamp-ms")),
                cells.mapping(
                    {
                        item["definition-id"] or "()": item["version-id"]
                        for item in entry.get("definition-versions") or ()
                    }
                ),
            )
            for entry in reversed(metadata.get("definition-log") or ())
        ],
        empty="No changes.",
    )


def _events(request: HttpRequest, row: Function) -> Panel:
    rows = AuditEvent.objects.filter(
        table_uuid=None, action__startswith="function.", target=label(_identifier(row))
    ).filter(at__gte=row.created_at)  # earlier ones are of another function of this name
    return audit_trail.panel(request, rows)


def _moment(milliseconds: int | None) -> object:
    if milliseconds is None:
        return cells.NOTHING
    try:
        return cells.when(datetime.fromtimestamp(milliseconds / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
