"""Webhooks: receivers of events, their deliveries, and the replay of dead letters."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.filters import SingleChoiceFilter
from catalog.admin.form_pages import sent
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, Tab, button
from catalog.admin.paging import PANEL_SIZE, number, query
from catalog.errors import CatalogError
from catalog.identifiers import Identifier, typed
from catalog.models import DeliveryStatus, Webhook, WebhookDelivery
from catalog.privileges import Privilege
from catalog.services.events import webhooks

_COLOURS = {
    DeliveryStatus.PENDING: "info",
    DeliveryStatus.DELIVERED: "success",
    DeliveryStatus.DEAD: "danger",
}
_TYPES_HELP = "Event types, one per line, such as table.create, or table.* for all events of tables. Default: all."


class WebhookForm(forms.Form):
    """URL and event types of a webhook."""

    url = forms.CharField(
        label="URL",
        widget=UnfoldAdminTextInputWidget(),
        help_text="An https:// URL. A host without a public address must be listed in "
        "MONODON_WEBHOOK_HOSTS.",
    )
    types = forms.CharField(
        required=False,
        label="Events",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
        help_text=_TYPES_HELP,
    )

    def clean_types(self) -> list[str]:
        text: str = self.cleaned_data["types"]
        return text.split()


class CreateForm(WebhookForm):
    name = forms.CharField(max_length=100, widget=UnfoldAdminTextInputWidget())
    namespace = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Namespace whose events are sent, with everything below it, such as nyc.weather. "
        "Default: all namespaces.",
    )
    field_order = ["name", "url", "types", "namespace"]

    def clean_namespace(self) -> Identifier:
        text = self.cleaned_data["namespace"].strip()
        if not text:
            return ()
        try:
            return typed(text)
        except CatalogError as error:
            raise forms.ValidationError(str(error)) from error


class ChangeForm(WebhookForm):
    is_active = forms.BooleanField(
        required=False,
        label="Active: events for an inactive webhook wait",
        widget=UnfoldBooleanSwitchWidget(),
    )


class DeadFilter(SingleChoiceFilter):
    title = "dead letters"
    parameter_name = "dead"
    value_text = ("some", "Some")

    def condition(self) -> Q:
        return Q(has_dead=True)


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyAdmin):
    """Only for administrators, as are the services."""

    list_display = ["name", "url_cell", "events", "where", "state", "letters"]
    list_display_links = ["name"]
    list_filter = [DeadFilter]
    list_select_related = ["namespace"]
    search_fields = ["name", "url"]
    search_help_text = "Name, or part of a URL"
    empty_text = "No webhooks. A webhook sends signed events of the catalog to a URL."
    ordering = ["name"]
    actions_detail = ["replay", "edit", "rotate", "remove"]
    page_related = ["namespace"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, Privilege.ALL)

    def has_manage_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.ALL)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Webhook]":
        dead = WebhookDelivery.objects.filter(webhook=OuterRef("pk"), status=DeliveryStatus.DEAD)
        rows: QuerySet[Webhook] = super().get_queryset(request)
        return rows.annotate(has_dead=Exists(dead))

    @admin.display(description="URL")
    def url_cell(self, row: Webhook) -> SafeString:
        return cells.code(row.url)

    @admin.display(description="Events")
    def events(self, row: Webhook) -> str:
        return ", ".join(row.types) or "all"

    @admin.display(description="Namespace")
    def where(self, row: Webhook) -> SafeString | str:
        return cells.link(row.namespace) if row.namespace else "everywhere"

    @admin.display(description="State")
    def state(self, row: Webhook) -> SafeString:
        return _state(row)

    @admin.display(description="Dead letters")
    def letters(self, row: Any) -> SafeString:
        return cells.badge("some", "danger") if row.has_dead else cells.NOTHING

    def page(self, request: HttpRequest, row: Webhook) -> Page:
        return Page(
            facts=(
                ("Name", row.name),
                ("URL", cells.exact(row.url)),
                ("Events", self.events(row)),
                ("Namespace", self.where(row)),
                ("State", _state(row)),
                ("Position", cells.code(f"{row.xid}-{row.event}")),
                ("Created", cells.when(row.created_at)),
                ("Created by", cells.who(row.created_by)),
            ),
            tabs=(
                Tab("deliveries", "Deliveries", lambda: _deliveries(request, row, "deliveries")),
                Tab("dead", "Dead letters", lambda: _deliveries(request, row, "dead")),
            ),
        )

    # -- actions

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        def create(data: dict[str, Any]) -> HttpResponseBase:
            row, secret = webhooks.create_webhook(
                actor=actor(request),
                name=data["name"],
                url=data["url"],
                types=data["types"],
                namespace=data["namespace"],
            )
            return self._show_secret(request, row, secret)

        return self.ask(
            request,
            title="Create a webhook",
            text="The webhook receives events that are committed after its creation.",
            submit="Create",
            form=CreateForm(sent(request)),
            call=create,
            back=cells.list_url(Webhook),
        )

    @button("Edit", permission="manage", icon="edit")
    def edit(self, request: HttpRequest, row: Webhook) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            webhooks.update_webhook(
                actor=actor(request),
                name=row.name,
                changes=webhooks.Changes(
                    url=data["url"], types=data["types"], is_active=data["is_active"]
                ),
            )
            messages.success(request, f"Webhook '{row}' was updated")
            return HttpResponseRedirect(cells.page_url(row))

        initial = {"url": row.url, "types": "\n".join(row.types), "is_active": row.is_active}
        return self.ask(
            request,
            title=f"Edit webhook '{row}'",
            submit="Save",
            form=ChangeForm(sent(request), initial=initial),
            call=call,
            original=row,
        )

    @button("Replay dead letters", permission="manage", icon="replay")
    def replay(self, request: HttpRequest, row: Webhook) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            count = webhooks.replay(actor=actor(request), name=row.name)
            if count:
                messages.success(
                    request,
                    f"{cells.counted(count, 'dead letter')} of webhook '{row}'"
                    f" {'was' if count == 1 else 'were'} queued for replay",
                )
            else:
                messages.info(request, f"Webhook '{row}' has no dead letters")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Replay the dead letters of webhook '{row}'?",
            text="Each dead letter gets as many delivery attempts as a new event."
            + ("" if row.is_active else " They wait until the webhook is activated."),
            submit="Replay",
            call=call,
            back=cells.page_url(row) + "?tab=dead",
            original=row,
        )

    @button("Rotate secret", permission="manage", icon="key")
    def rotate(self, request: HttpRequest, row: Webhook) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            secret = webhooks.rotate_secret(actor=actor(request), name=row.name)
            return self._show_secret(request, row, secret)

        return self.ask(
            request,
            title=f"Rotate the signing secret of webhook '{row}'?",
            text="All later requests are signed with the new secret. The old secret is deleted.",
            submit="Rotate",
            danger=True,
            call=call,
            original=row,
        )

    @button("Delete", permission="manage", icon="delete", danger=True)
    def remove(self, request: HttpRequest, row: Webhook) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            webhooks.delete_webhook(actor=actor(request), name=row.name)
            messages.success(request, f"Webhook '{row}' was deleted")
            return HttpResponseRedirect(cells.list_url(Webhook))

        return self.ask(
            request,
            title=f"Delete webhook '{row}'?",
            text="Pending events are not delivered. Deliveries and dead letters are deleted.",
            submit="Delete",
            danger=True,
            call=call,
            original=row,
        )

    def _show_secret(self, request: HttpRequest, row: Webhook, secret: str) -> HttpResponseBase:
        # In the response itself, which is not stored: a message would leave the secret in a cookie.
        return self.render(
            request,
            "admin/catalog/webhook_secret.html",
            {
                "title": f"Webhook '{row}'",
                "secret": secret,
                "original": row,
                "original_url": cells.page_url(row),
            },
        )


def _state(row: Webhook) -> SafeString:
    return cells.badge("active", "success") if row.is_active else cells.badge("inactive", "warning")


def _deliveries(request: HttpRequest, row: Webhook, tab: str) -> Panel:
    """Deliveries, newest first. One statement."""
    rows = row.deliveries.order_by("-pk")
    if tab == "dead":
        rows = rows.filter(status=DeliveryStatus.DEAD)
    before = number(request, "before")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    deliveries = list(rows[: PANEL_SIZE + 1])
    page = deliveries[:PANEL_SIZE]
    return Panel(
        columns=("Event", "Target", "Time", "Status", "Attempts", "Next attempt", "Response"),
        rows=[_delivery(delivery) for delivery in page],
        empty="No dead letters." if tab == "dead" else "No deliveries.",
        first=query(request, before=None) if before is not None else None,
        following=(
            query(request, tab=tab, before=page[-1].pk) if len(deliveries) > PANEL_SIZE else None
        ),
        note="Deliveries are kept for a week, dead letters for three months.",
    )


def _delivery(delivery: WebhookDelivery) -> Sequence[object]:
    status = DeliveryStatus(delivery.status)
    is_waiting = status == DeliveryStatus.PENDING
    return (
        format_html("{}", delivery.type),
        cells.code(delivery.target),
        cells.when(delivery.event_at),
        cells.badge(status.label, _COLOURS[status]),
        f"{delivery.attempts:,}",
        cells.when(delivery.due_at) if is_waiting else cells.NOTHING,
        cells.expandable(delivery.answer),
    )
