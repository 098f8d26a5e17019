"""Protection of namespaces and tables, and the retention and approval rules of a namespace."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from catalog.admin import cells, units
from catalog.admin.actor import actor
from catalog.admin.form_pages import refuse, sent
from catalog.admin.pages import ReadOnlyAdmin
from catalog.errors import CatalogError, InvalidInput, NamespaceNotFound, TableNotFound
from catalog.identifiers import label
from catalog.models import GuardedAction, Namespace, Table, TableState
from catalog.policies import Rule, Unit
from catalog.services.recovery import undrop
from catalog.services.recovery.undrop import NamespaceRules
from catalog.services.tables import trash

RETENTION = Rule(
    "retention",
    Unit.SECONDS,
    0,
    "Time for which dropped objects can be undropped.",
    low=0,
    high=trash.MAX_SECONDS,
)


_PROTECT, _REMOVE = "protect", "remove"


class ReasonForm(forms.Form):
    reason = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Shown to the approver if the action requires approval. Optional.",
    )


class ProtectionForm(forms.Form):
    """The confirmed change, which another user, or a second click, may have made meanwhile."""

    change = forms.ChoiceField(
        required=False,
        choices=[(_PROTECT, _PROTECT), (_REMOVE, _REMOVE)],
        widget=forms.HiddenInput(),
    )


class RemovalForm(ProtectionForm, ReasonForm):
    """The removal of a namespace's protection, which may require approval."""


class RulesForm(forms.Form):
    """Retention, and the actions that require approval."""

    retention = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Such as 14 days. 0 purges dropped objects at once. Empty to inherit.",
    )
    purge = forms.BooleanField(
        required=False,
        label=f"Require approval for {GuardedAction.PURGE.label}",
        widget=UnfoldBooleanSwitchWidget(),
    )
    drop_protected = forms.BooleanField(
        required=False,
        label=f"Require approval for {GuardedAction.DROP_PROTECTED.label}",
        widget=UnfoldBooleanSwitchWidget(),
    )
    reason = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="The reason, shown to the approver; optional. Removing an approval rule requires approval itself.",
    )

    def clean_retention(self) -> int | None:
        text = self.cleaned_data["retention"].strip()
        if not text:
            return None
        if text == "0":
            return 0
        try:
            return int(units.parse(RETENTION, text))
        except InvalidInput as error:
            raise forms.ValidationError(error.message) from error

    def actions(self) -> list[str]:
        return [action for action in GuardedAction.values if self.cleaned_data[action]]


def badge(row: Namespace | Table) -> SafeString:
    return cells.badge("protected", "success") if row.is_protected else cells.muted("no")


def protect(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace | Table) -> HttpResponseBase:
    """Show the form that protects a namespace or table, or removes its protection."""
    is_namespace = isinstance(row, Namespace)
    kind = "namespace" if isinstance(row, Namespace) else row.kind
    confirmed = request.POST.get("change")
    protects = confirmed == _PROTECT if confirmed in {_PROTECT, _REMOVE} else not row.is_protected
    form = RemovalForm if is_namespace and not protects else ProtectionForm

    def call(data: dict[str, Any]) -> HttpResponseBase:
        asking = actor(request, "catalog.change_table")
        if isinstance(row, Namespace):
            if row.dropped_at is not None:
                raise NamespaceNotFound(row.identifier)
            undrop.set_namespace_protection(
                actor=asking,
                namespace=row.identifier,
                is_protected=protects,
                reason=data.get("reason", ""),
            )
        else:
            if row.state == TableState.DROPPED:
                raise TableNotFound(row.identifier)
            undrop.set_table_protection(actor=asking, table=row.identifier, is_protected=protects)
        state = "now protected" if protects else "no longer protected"
        messages.success(request, f"{kind.capitalize()} '{row}' is {state}")
        return HttpResponseRedirect(cells.page_url(row))

    return page.ask(
        request,
        title=f"Protect {kind} '{row}'?" if protects else f"Remove protection of {kind} '{row}'?",
        text=f"A protected {kind} cannot be dropped or overwritten until the protection is removed."
        + (" Tables in it can be dropped." if is_namespace else "")
        if protects
        else f"Users who may manage the {kind} can then drop it.",
        submit="Protect" if protects else "Remove protection",
        danger=not protects,
        form=form(sent(request), initial={"change": _PROTECT if protects else _REMOVE}),
        call=call,
        original=row,
    )


def rules(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace) -> HttpResponseBase:
    """Show the form of the retention and approval rules of a namespace."""
    asking = actor(request, "catalog.change_table")
    try:
        if row.dropped_at is not None:
            raise NamespaceNotFound(row.identifier)
        current = undrop.rules_of(actor=asking, namespace=row.identifier)
    except CatalogError as error:
        refuse(request, error)
        return HttpResponseRedirect(cells.page_url(row))
    form = RulesForm(
        sent(request),
        initial={
            "retention": ""
            if current.namespace.retention_seconds is None
            else _span(current.namespace.retention_seconds),
            **{action: action in current.namespace.guarded for action in GuardedAction.values},
        },
    )

    def call(data: dict[str, Any]) -> HttpResponseBase:
        undrop.set_retention(actor=asking, namespace=row.identifier, seconds=data["retention"])
        undrop.set_approval_rule(
            actor=asking, namespace=row.identifier, actions=form.actions(), reason=data["reason"]
        )
        messages.success(request, f"The rules of namespace '{row}' were saved")
        return HttpResponseRedirect(cells.page_url(row))

    return page.ask(
        request,
        title=f"Retention and approvals of namespace '{row}'",
        text=f"Effective rules: {describe(current)}. Approval rules of namespaces above also apply here.",
        submit="Save",
        form=form,
        call=call,
        original=row,
    )


def describe(rules: NamespaceRules) -> str:
    """Effective rules of a namespace as text."""
    source = rules.rules.retention_source
    retention = _span(rules.rules.seconds) if rules.rules.seconds else "0"
    parts = [f"retention {retention} ({f'from {source}' if source else 'default'})"]
    parts += [
        f"approval for {action.label} (from {label(where)})"
        for action, where in rules.rules.guarded.items()
    ]
    return "; ".join(parts)


def _span(seconds: int) -> str:
    return units.show(RETENTION, seconds) if seconds else "0"
