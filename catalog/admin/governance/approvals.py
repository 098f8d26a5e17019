"""Approval requests: the list, and the buttons that decide them."""

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter
from unfold.widgets import UnfoldAdminTextInputWidget

from catalog import access
from catalog.access import Principal
from catalog.admin import cells, transaction_links
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.governance import impact
from catalog.admin.pages import Page, ReadOnlyAdmin, button
from catalog.models import ApprovalRequest, ApprovalStatus, Grant, Namespace, Table
from catalog.privileges import Privilege, essence
from catalog.services.access import grant_operations
from catalog.services.governance import access_requests, approvals
from catalog.services.recovery.purge_operations import PurgeNow
from catalog.services.tables.namespace_operations import DropNamespace
from catalog.writing_systems import labeled

_MAX_TABLES = 200
_COLOURS = {
    ApprovalStatus.PENDING: "warning",
    ApprovalStatus.DONE: "success",
    ApprovalStatus.REFUSED: "danger",
    ApprovalStatus.WITHDRAWN: "plain",
    ApprovalStatus.EXPIRED: "plain",
}


class WaitingFilter(DropdownFilter):  # type: ignore[misc]
    title = "decision"
    parameter_name = "waiting"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [("me", "My decision")]

    def queryset(
        self, request: HttpRequest, queryset: "QuerySet[ApprovalRequest]"
    ) -> "QuerySet[ApprovalRequest]":
        if self.value() != "me":
            return queryset
        return approvals.waiting_for(actor(request, "catalog.change_table")).order_by("-pk")


class DecisionForm(forms.Form):
    reason = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Shown to the requester. Optional.",
    )


class GrantForm(DecisionForm):
    days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=grant_operations.MAX_DAYS,
        widget=UnfoldAdminTextInputWidget(),
        label="Access ends after (days)",
        help_text="Default: as requested.",
    )
    field_order = ["days", "reason"]


def _is_for_access(row: ApprovalRequest) -> bool:
    return bool(row.operation.get("operation") == access_requests.GrantAccess.name)


def _operation(row: ApprovalRequest) -> list[tuple[str, object]]:
    if not _is_for_access(row):
        return [
            ("Operation", cells.mapping(row.operation)),
            ("Expected state", cells.mapping(row.expected)),
        ]
    days = row.operation["days"]
    privileges = Privilege(row.operation["privileges"])
    return [
        ("Privileges", ", ".join(essence(privileges))),
        ("For", "no end" if days is None else f"{days} days"),
    ]


def _impact(principal: Principal, row: ApprovalRequest) -> str:
    """Sentences about what depends on the tables that the request drops or purges; or empty."""
    operation = row.operation.get("operation")
    if operation == DropNamespace.name:
        namespace = Namespace.objects.named(tuple(row.operation["namespace"])).first()
        if namespace is None or not access.is_visible(principal, namespace):
            return ""
        return impact.of_namespace(principal, namespace)
    if operation != PurgeNow.name:
        return ""
    visible = Table.objects.filter(
        access.visible_tables(principal), trash__in=row.expected["items"]
    ).select_related("namespace")
    return impact.of_tables(principal, list(visible.order_by("pk")[:_MAX_TABLES]))


def _present(row: ApprovalRequest) -> str:
    """The grant of the requester on the object now, as a sentence."""
    rows = Grant.objects.valid().on(row.subject).filter(principal__name=row.requester)
    present = rows.first()
    if present is None:
        return f"'{row.requester}' has no grant here."
    end = (
        f"until {present.expires_at:%Y-%m-%d %H:%M} UTC" if present.expires_at else "without an end"
    )
    return f"'{row.requester}' is granted {', '.join(essence(present.privileges))} here, {end}."


@admin.register(ApprovalRequest)
class ApprovalAdmin(ReadOnlyAdmin):
    list_display = ["action_cell", "target", "requester_cell", "status_badge", "created", "expires"]
    list_display_links = ["action_cell"]
    list_filter = [WaitingFilter, ("status", ChoicesDropdownFilter)]
    list_title = "Approvals"
    search_fields = ["target", "requester"]
    search_help_text = "Target or requester"
    empty_text = "No approval requests. “Retention and approvals” on the page of a namespace sets which actions require approval."
    ordering = ["-pk"]
    actions_detail = ["approve", "refuse", "withdraw"]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_decide_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        row = None if object_id is None else self.find(request, object_id)
        if row is None or row.requester == self._name(request):
            return False
        return access.holds(actor(request), Privilege.MANAGE, row.subject)

    def has_withdraw_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        row = None if object_id is None else self.find(request, object_id)
        return row is not None and row.requester == self._name(request)

    def _name(self, request: HttpRequest) -> str:
        return actor(request, "catalog.change_table").name

    def get_queryset(self, request: HttpRequest) -> "QuerySet[ApprovalRequest]":
        return approvals.visible(actor(request, "catalog.change_table")).order_by("-pk")

    def find(self, request: HttpRequest, object_id: str) -> ApprovalRequest | None:
        if not (object_id.isascii() and object_id.isdigit() and len(object_id) < 19):
            return None
        return self.get_queryset(request).filter(pk=int(object_id)).first()

    @admin.display(description="Action")
    def action_cell(self, row: ApprovalRequest) -> str:
        return row.action

    @admin.display(description="Requested by")
    def requester_cell(self, row: ApprovalRequest) -> SafeString:
        return cells.who(row.requester)

    @admin.display(description="Status")
    def status_badge(self, row: ApprovalRequest) -> SafeString:
        status = ApprovalStatus.EXPIRED if row.is_expired else ApprovalStatus(row.status)
        return cells.badge(status, _COLOURS[status])

    @admin.display(description="Requested")
    def created(self, row: ApprovalRequest) -> SafeString:
        return cells.when(row.created_at)

    @admin.display(description="Expires")
    def expires(self, row: ApprovalRequest) -> SafeString:
        return cells.when(row.expires_at)

    def offers_actions(self, row: ApprovalRequest) -> bool:
        return row.status == ApprovalStatus.PENDING and not row.is_expired

    def page(self, request: HttpRequest, row: ApprovalRequest) -> Page:
        return Page(
            facts=(
                ("Action", row.action),
                ("Target", cells.code(row.target)),
                *self._subject(request, row),
                ("Requested by", cells.who(row.requester)),
                ("Reason", row.reason or cells.NOTHING),
                *_operation(row),
                *self._impact(request, row),
                ("Status", self.status_badge(row)),
                ("Decided by", cells.who(row.decided_by)),
                ("Decision reason", row.decision_reason or cells.NOTHING),
                ("Transaction", transaction_links.link(request, row.transaction)),
                ("Requested", cells.when(row.created_at)),
                ("Expires", cells.when(row.expires_at)),
                ("Decided", cells.when(row.decided_at)),
            )
        )

    def _impact(self, request: HttpRequest, row: ApprovalRequest) -> list[tuple[str, object]]:
        """While a request is pending: what depends on its target."""
        if row.status != ApprovalStatus.PENDING:
            return []
        text = _impact(actor(request), row)
        return [("Impact", text)] if text else []

    def _subject(self, request: HttpRequest, row: ApprovalRequest) -> list[tuple[str, object]]:
        if row.requester == self._name(request) and _is_for_access(row):
            return []  # the requester must not learn whether the object exists
        kind = "Namespace" if row.table is None else "Table"
        is_visible = access.is_visible(actor(request), row.subject)
        return [(kind, cells.link(row.subject))] if is_visible else []

    # -- actions

    @button("Approve", permission="decide", icon="check_circle")
    def approve(self, request: HttpRequest, row: ApprovalRequest) -> HttpResponseBase:
        if _is_for_access(row):
            return self._grant(request, row)
        return self._decide(
            request,
            row,
            "Approve",
            "The action runs at once with the privileges of the requester, if the target has not changed."
            + _impact(actor(request), row),
            lambda row, reason: approvals.approve(
                actor=actor(request, "catalog.change_table"), request=row.pk, reason=reason
            ),
        )

    @button("Refuse", permission="decide", icon="cancel", danger=True)
    def refuse(self, request: HttpRequest, row: ApprovalRequest) -> HttpResponseBase:
        return self._decide(
            request,
            row,
            "Refuse",
            "The requester sees the reason.",
            lambda row, reason: approvals.refuse(
                actor=actor(request, "catalog.change_table"), request=row.pk, reason=reason
            ),
        )

    @button("Withdraw", permission="withdraw", icon="undo")
    def withdraw(self, request: HttpRequest, row: ApprovalRequest) -> HttpResponseBase:
        return self._decide(
            request,
            row,
            "Withdraw",
            "",
            lambda row, _reason: approvals.withdraw(
                actor=actor(request, "catalog.change_table"), request=row.pk
            ),
            with_reason=False,
        )

    def _grant(self, request: HttpRequest, row: ApprovalRequest) -> HttpResponseBase:
        """Approve a request for access, and choose when the access ends."""

        def call(data: dict[str, Any]) -> HttpResponseBase:
            decided = approvals.approve(
                actor=actor(request), request=row.pk, reason=data["reason"], days=data["days"]
            )
            messages.success(request, f"Request {row.pk} is {decided.get_status_display().lower()}")
            return HttpResponseRedirect(cells.page_url(row))

        days = row.operation["days"]
        return self.ask(
            request,
            title=f"Approve: {row}, requested by {labeled(row.requester)}?",
            text=f"Reason: {row.reason.rstrip('.')}. {_present(row)} The requested privileges are added. You can"
            " only grant what you hold yourself.",
            submit="Approve",
            form=GrantForm(sent(request), initial={"days": days}),
            call=call,
            original=row,
        )

    def _decide(
        self,
        request: HttpRequest,
        row: ApprovalRequest,
        verb: str,
        text: str,
        decide: Callable[[ApprovalRequest, str], ApprovalRequest],
        *,
        with_reason: bool = True,
    ) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            decided = decide(row, data.get("reason", ""))
            messages.success(request, f"Request {row.pk} is {decided.get_status_display().lower()}")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"{verb}: {row}, requested by {labeled(row.requester)}?",
            text=text,
            submit=verb,
            danger=verb == "Approve",
            form=DecisionForm(sent(request)) if with_reason else None,
            call=call,
            original=row,
        )
