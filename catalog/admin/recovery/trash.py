"""The trash: dropped objects, and undropping, keeping and purging one."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import TextFilter
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from catalog import access
from catalog.admin import cells, transaction_links
from catalog.admin.actor import actor
from catalog.admin.filters import SingleChoiceFilter
from catalog.admin.form_pages import sent
from catalog.admin.pages import Page, ReadOnlyAdmin, button
from catalog.admin.recovery.protection import ReasonForm
from catalog.errors import CatalogError, InvalidIdentifier
from catalog.identifiers import Identifier, spelled, typed
from catalog.models import TrashItem, TrashState
from catalog.services.recovery import undrop as recovery_undrop

_PURGED_SOON = timedelta(days=2)
_COLOURS = {
    TrashState.KEPT: "info",
    TrashState.WAITING: "warning",
    TrashState.PURGING: "danger",
    TrashState.FAILED: "danger",
}


class NamespaceFilter(TextFilter):  # type: ignore[misc]
    title = "namespace, such as nyc.weather"
    parameter_name = "in"

    def queryset(
        self, request: HttpRequest, queryset: "QuerySet[TrashItem]"
    ) -> "QuerySet[TrashItem]":
        chosen = (self.value() or "").strip().replace("\x00", "")
        if not chosen:
            return queryset
        try:
            path = list(typed(chosen))
        except InvalidIdentifier:
            return queryset.none()
        below = f"path__0_{len(path)}"
        return queryset.filter(
            Q(**{f"namespace__{below}": path}) | Q(**{f"table__namespace__{below}": path})
        )


class DroppedByFilter(TextFilter):  # type: ignore[misc]
    title = "principal, such as user:ada"
    parameter_name = "by"

    def queryset(
        self, request: HttpRequest, queryset: "QuerySet[TrashItem]"
    ) -> "QuerySet[TrashItem]":
        chosen = (self.value() or "").strip().replace("\x00", "")
        return queryset.filter(dropped_by=chosen) if chosen else queryset


class PurgedFilter(SingleChoiceFilter):
    title = "time of the purge"
    parameter_name = "purged"
    value_text = ("soon", "Within two days")

    def condition(self) -> Q:
        return purged_soon()


def purged_soon() -> Q:
    """Items that are purged within two days."""
    now = timezone.now()
    return Q(purge_at__gt=now, purge_at__lt=now + _PURGED_SOON)


class UndropForm(forms.Form):
    name = forms.CharField(
        widget=UnfoldAdminTextInputWidget(),
        help_text="Such as prod.sales.orders. Enter another name if the name is in use.",
    )
    with_parents = forms.BooleanField(
        required=False,
        label="Also undrop dropped parent namespaces",
        widget=UnfoldBooleanSwitchWidget(),
    )

    def clean_name(self) -> Identifier:
        try:
            return typed(self.cleaned_data["name"])
        except CatalogError as error:
            raise forms.ValidationError(str(error)) from error


class UndropNamespaceForm(UndropForm):
    without_purged = forms.BooleanField(
        required=False,
        label="Skip tables that are already purged",
        widget=UnfoldBooleanSwitchWidget(),
    )


@admin.register(TrashItem)
class TrashAdmin(ReadOnlyAdmin):
    list_display = ["what", "kind_cell", "state_badge", "by", "dropped", "purged", "size_cell"]
    list_display_links = ["what"]
    list_filter = [NamespaceFilter, DroppedByFilter, PurgedFilter]
    search_fields = ["table__name", "namespace__name"]
    search_help_text = "Name of a table or namespace"
    empty_text = "The trash is empty. Dropped objects are kept here until their retention ends."
    ordering = ["-pk"]
    actions_detail = ["undrop", "keep", "purge"]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_manage_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.has_view_permission(request)  # the service decides

    def get_queryset(self, request: HttpRequest) -> "QuerySet[TrashItem]":
        return recovery_undrop.visible(actor(request, "catalog.change_table")).order_by("-pk")

    def find(self, request: HttpRequest, object_id: str) -> TrashItem | None:
        if not (object_id.isascii() and object_id.isdigit() and len(object_id) < 19):
            return None
        return self.get_queryset(request).filter(pk=int(object_id)).first()

    @admin.display(description="Name")
    def what(self, row: TrashItem) -> str:
        return str(row)

    @admin.display(description="Kind")
    def kind_cell(self, row: TrashItem) -> str:
        return row.kind

    @admin.display(description="State")
    def state_badge(self, row: TrashItem) -> SafeString:
        return cells.badge(row.state, _COLOURS[row.state])

    @admin.display(description="Dropped by")
    def by(self, row: TrashItem) -> SafeString:
        return cells.who(row.dropped_by)

    @admin.display(description="Dropped")
    def dropped(self, row: TrashItem) -> SafeString:
        return cells.when(row.dropped_at)

    @admin.display(description="Purged at")
    def purged(self, row: TrashItem) -> SafeString:
        return cells.when(row.purge_at) if row.purge_at else cells.muted("not automatically")

    @admin.display(description="Size")
    def size_cell(self, row: TrashItem) -> SafeString:
        return cells.size(cast(Any, row).size)

    def offers_actions(self, row: TrashItem) -> bool:
        return bool(self.offered_actions(row))

    def offered_actions(self, row: TrashItem) -> Sequence[str]:
        if row.purge_begun_at is not None:
            return ["purge"] if row.state == TrashState.FAILED else []
        return ["undrop", "purge"] if row.purge_at is None else ["undrop", "keep", "purge"]

    def page(self, request: HttpRequest, row: TrashItem) -> Page:
        facts: list[tuple[str, object]] = [
            ("Name", cells.code(str(row))),
            ("Kind", row.kind),
            ("State", self.state_badge(row)),
            ("Dropped by", cells.who(row.dropped_by)),
            ("Dropped", cells.when(row.dropped_at)),
            ("Purged at", self.purged(row)),
            ("Job", cells.link(row.job)),
            ("Transaction", transaction_links.link(request, row.transaction)),
            ("Object", cells.link(row.target)),
        ]
        if row.table is not None:
            if access.readable_tables(actor(request), [row.table.pk]):
                facts.append(("Location", cells.code(row.table.location)))
            facts.append(("Size", self.size_cell(row)))
        else:
            asking = actor(request, "catalog.change_table")
            _, spaces, tables = recovery_undrop.count_contents(actor=asking, item=row.pk)
            of_tables = f"{tables:,} {'table or view' if tables == 1 else 'tables and views'}"
            facts.append(("Contents", f"{cells.counted(spaces - 1, 'namespace')}, {of_tables}"))
        return Page(facts=facts)

    # -- actions

    @button("Undrop", permission="manage", icon="restore_from_trash")
    def undrop(self, request: HttpRequest, row: TrashItem) -> HttpResponseBase:
        name = row.target.identifier
        kind = UndropForm if row.table is not None else UndropNamespaceForm

        def call(data: dict[str, Any]) -> HttpResponseBase:
            back = recovery_undrop.undrop(
                actor=actor(request, "catalog.change_table"),
                item=row.pk,
                new=None if data["name"] == name else data["name"],
                with_parents=data["with_parents"],
                without_purged=data.get("without_purged", False),
            )
            messages.success(request, f"{row.kind.capitalize()} '{back}' was undropped")
            return HttpResponseRedirect(cells.page_url(back))

        return self.ask(
            request,
            title=f"Undrop {row.kind} '{row}'?",
            text="Restores the object with its grants, tags, versions and history."
            if row.table is not None
            else "Restores the namespace with everything that was dropped with it.",
            submit="Undrop",
            form=kind(sent(request), initial={"name": spelled(name)}),
            call=call,
            original=row,
        )

    @button("Keep", permission="manage", icon="pan_tool")
    def keep(self, request: HttpRequest, row: TrashItem) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            recovery_undrop.stop_purge(actor=actor(request, "catalog.change_table"), item=row.pk)
            messages.success(request, f"'{row}' is kept until it is purged manually")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Keep {row.kind} '{row}'?",
            text="Stops the automatic purge. The item stays in the trash until it is purged manually.",
            submit="Keep",
            call=call,
            original=row,
        )

    @button("Purge", permission="manage", icon="delete_forever", danger=True)
    def purge(self, request: HttpRequest, row: TrashItem) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            recovery_undrop.purge_now(
                actor=actor(request, "catalog.change_table"),
                item=row.pk,
                reason=data["reason"],
            )
            messages.success(
                request, f"The purge of '{row}' is scheduled. Until it starts, “Keep” stops it."
            )
            return HttpResponseRedirect(cells.list_url(TrashItem))

        return self.ask(
            request,
            title=f"Purge {row.kind} '{row}'?",
            text="Permanently removes the data, after a short delay during which the purge can be stopped."
            if row.table is not None
            else "Permanently removes everything that was dropped with the namespace, after a short "
            "delay during which the purge can be stopped.",
            submit="Purge",
            danger=True,
            form=ReasonForm(sent(request)),
            call=call,
            original=row,
        )
