"""Webhooks: whom the catalog tells of its events, what they were told, and sending dead letters again."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
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
from catalog.admin.pages import OneFilter, Page, Panel, ReadOnlyAdmin, Tab, button, sent
from catalog.admin.paging import PANEL_SIZE, number, query
from catalog.errors import CatalogError
from catalog.identifiers import DEFAULT_DELIMITER, Identifier, parse
from catalog.models import DeliveryStatus, Webhook, WebhookDelivery
from catalog.privileges import Privilege
from catalog.services.events import webhooks

_COLOURS = {
    DeliveryStatus.PENDING: "info",
    DeliveryStatus.DELIVERED: "success",
    DeliveryStatus.DEAD: "danger",
}
_TYPES_HELP = "One per line: table.create, table.* for all of tables. Empty: every event."


class WebhookForm(forms.Form):
    """Where it is and what it wants."""

    url = forms.CharField(
        label="URL",
        widget=UnfoldAdminTextInputWidget(),
        help_text="Begins with https://. A receiver that has no public address must be named in "
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
        help_text=f"Only what happens in it and below: names from the root down with "
        f"{DEFAULT_DELIMITER} between them. Empty: everywhere.",
    )
    field_order = ["name", "url", "types", "namespace"]

    def clean_namespace(self) -> Identifier:
        text = self.cleaned_data["namespace"].strip()
        if not text:
            return ()
        try:
            return parse(text)
        except CatalogError as error:
            raise forms.ValidationError(str(error)) from error


class ChangeForm(WebhookForm):
    is_active = forms.BooleanField(
        required=False,
        label="Active: while it is not, what it would be told waits",
        widget=UnfoldBooleanSwitchWidget(),
    )


class DeadFilter(OneFilter):
    title = "dead letters"
    parameter_name = "dead"
    value_text = ("some", "Some")

    def condition(self) -> Q:
        return Q(has_dead=True)


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyAdmin):
    """For administrators, as the services of webhooks are."""

    list_display = ["name", "url_cell", "events", "where", "state", "letters"]
    list_display_links = ["name"]
    list_filter = [DeadFilter]
    list_select_related = ["namespace"]
    search_fields = ["name", "url"]
    search_help_text = "A name, or part of a URL"
    empty_text = (
        "No webhook is here yet. One is a URL that is told, signed, what happens in the catalog."
    )
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

    @admin.display(description="In")
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
                ("In", self.where(row)),
                ("State", _state(row)),
                ("Is at", cells.code(f"{row.xid}-{row.event}")),
                ("Created", cells.moment(row.created_at)),
                ("Created by", cells.who(row.created_by)),
            ),
            tabs=(
                Tab("deliveries", "Deliveries", lambda: _deliveries(request, row, "deliveries")),
                Tab("dead", "Dead letters", lambda: _deliveries(request, row, "dead")),
            ),
        )

    # -- what changes

    def add_view(
        self,
        request: HttpRequest,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        if not self.has_add_permission(request):
            raise PermissionDenied

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
            text="It is told what happens from now on.",
            submit="Create",
            form=CreateForm(sent(request)),
            call=create,
            back=cells.list_url(Webhook),
        )

    @button("Change", permission="manage", icon="edit")
    def edit(self, request: HttpRequest, row: Webhook) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            webhooks.update_webhook(
                actor=actor(request),
                name=row.name,
                changes=webhooks.Changes(
                    url=data["url"], types=data["types"], is_active=data["is_active"]
                ),
            )
            messages.success(request, f"Webhook '{row}' was changed")
            return HttpResponseRedirect(cells.page_url(row))

        initial = {"url": row.url, "types": "\n".join(row.types), "is_active": row.is_active}
        return self.ask(
            request,
            title=f"Change webhook '{row}'",
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
                messages.success(request, f"{count:,} dead letters of '{row}' are sent again")
            else:
                messages.info(request, f"Webhook '{row}' has no dead letter")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Send the dead letters of '{row}' again?",
            text="Each is tried as often as a new event."
            + ("" if row.is_active else " They wait until the webhook is active."),
            submit="Send again",
            call=call,
            back=cells.page_url(row) + "?tab=dead",
            original=row,
        )

    @button("New secret", permission="manage", icon="key")
    def rotate(self, request: HttpRequest, row: Webhook) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            secret = webhooks.rotate_secret(actor=actor(request), name=row.name)
            return self._show_secret(request, row, secret)

        return self.ask(
            request,
            title=f"Make a new signing secret for '{row}'?",
            text="What is sent from then on is signed with it; the old one is forgotten.",
            submit="Make it",
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
            text="What it was not told yet it is not told any more, and its dead letters are forgotten.",
            submit="Delete",
            danger=True,
            call=call,
            original=row,
        )

    def _show_secret(self, request: HttpRequest, row: Webhook, secret: str) -> HttpResponseBase:
        # In the answer itself, which nothing stores: a message would leave it in a cookie.
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
    return cells.badge("active", "success") if row.is_active else cells.badge("stopped", "warning")


def _deliveries(request: HttpRequest, row: Webhook, tab: str) -> Panel:
    """What it was told, the newest first. One statement."""
    rows = row.deliveries.order_by("-pk")
    if tab == "dead":
        rows = rows.filter(status=DeliveryStatus.DEAD)
    before = number(request, "before")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    deliveries = list(rows[: PANEL_SIZE + 1])
    page = deliveries[:PANEL_SIZE]
    return Panel(
        columns=("Event", "About", "Happened", "Status", "Attempts", "Next attempt", "Answer"),
        rows=[_delivery(delivery) for delivery in page],
        empty="There is no dead letter." if tab == "dead" else "It was told nothing yet.",
        first=query(request, before=None) if before is not None else None,
        following=(
            query(request, tab=tab, before=page[-1].pk) if len(deliveries) > PANEL_SIZE else None
        ),
        note="What was delivered is kept for a week, dead letters for three months.",
    )


def _delivery(delivery: WebhookDelivery) -> Sequence[object]:
    status = DeliveryStatus(delivery.status)
    is_waiting = status == DeliveryStatus.PENDING
    return (
        format_html("{}", delivery.type),
        cells.code(delivery.target),
        cells.moment(delivery.event_at),
        cells.badge(status.label, _COLOURS[status]),
        f"{delivery.attempts:,}",
        cells.moment(delivery.due_at) if is_waiting else cells.NOTHING,
        cells.expandable(delivery.answer),
    )
