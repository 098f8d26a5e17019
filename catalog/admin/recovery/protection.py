"""The buttons of a namespace's and a table's page that protect it, and the rules of a namespace."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from catalog.admin import cells, units
from catalog.admin.actor import actor
from catalog.admin.pages import ReadOnlyAdmin, refuse, sent
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
    "How long what is dropped can be brought back.",
    low=0,
    high=trash.MAX_SECONDS,
)


class ReasonForm(forms.Form):
    reason = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Read by whoever has to approve it, where that takes a second person.",
    )


class RulesForm(forms.Form):
    """Retention, and what needs a second person."""

    retention = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Such as 14 days; 0: what is dropped is purged at once; empty: inherited.",
    )
    purge = forms.BooleanField(
        required=False,
        label=f"A second person approves: {GuardedAction.PURGE.label}",
        widget=UnfoldBooleanSwitchWidget(),
    )
    drop_protected = forms.BooleanField(
        required=False,
        label=f"A second person approves: {GuardedAction.DROP_PROTECTED.label}",
        widget=UnfoldBooleanSwitchWidget(),
    )
    reason = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text="To ask for fewer approvals needs one by itself: why?",
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
    """Ask, and protect a namespace or table, or take its protection off."""
    is_namespace = isinstance(row, Namespace)
    kind = "namespace" if isinstance(row, Namespace) else row.kind
    wanted = not row.is_protected

    def call(data: dict[str, Any]) -> HttpResponseBase:
        asking = actor(request, "catalog.change_table")
        if isinstance(row, Namespace):
            if row.dropped_at is not None:
                raise NamespaceNotFound(row.identifier)
            undrop.set_namespace_protection(
                actor=asking,
                namespace=row.identifier,
                is_protected=wanted,
                reason=data.get("reason", ""),
            )
        else:
            if row.state == TableState.DROPPED:
                raise TableNotFound(row.identifier)
            undrop.set_table_protection(actor=asking, table=row.identifier, is_protected=wanted)
        state = "protected now" if wanted else "not protected any more"
        messages.success(request, f"{kind.capitalize()} '{row}' is {state}")
        return HttpResponseRedirect(cells.page_url(row))

    return page.ask(
        request,
        title=f"Protect {kind} '{row}'?" if wanted else f"Take the protection off {kind} '{row}'?",
        text="Nobody drops or overwrites it, whatever they may do, until the protection is taken off."
        + (" Single tables in it may be dropped." if is_namespace else "")
        if wanted
        else "Whoever may manage it can drop it then.",
        submit="Protect" if wanted else "Take the protection off",
        danger=not wanted,
        form=ReasonForm(sent(request)) if is_namespace and not wanted else None,
        call=call,
        original=row,
    )


def rules(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace) -> HttpResponseBase:
    """The form of a namespace's retention, and of what needs a second person."""
    asking = actor(request, "catalog.change_table")
    try:
        if row.dropped_at is not None:
            raise NamespaceNotFound(row.identifier)
        found = undrop.rules_of(actor=asking, namespace=row.identifier)
    except CatalogError as error:
        refuse(request, error)
        return HttpResponseRedirect(cells.page_url(row))
    form = RulesForm(
        sent(request),
        initial={
            "retention": ""
            if found.namespace.retention_seconds is None
            else _span(found.namespace.retention_seconds),
            **{action: action in found.namespace.guarded for action in GuardedAction.values},
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
        text=f"Now: {told(found)}. What namespaces above say of approvals holds here too.",
        submit="Save",
        form=form,
        call=call,
        original=row,
    )


def told(found: NamespaceRules) -> str:
    """What holds in a namespace, in words."""
    source = found.rules.retention_source
    kept = _span(found.rules.seconds) if found.rules.seconds else "not at all"
    parts = [f"what is dropped stays {kept} ({f'as {source} says' if source else 'the default'})"]
    parts += [
        f"{action.label} needs a second person (as {label(where)} says)"
        for action, where in found.rules.guarded.items()
    ]
    return "; ".join(parts)


def _span(seconds: int) -> str:
    return units.show(RETENTION, seconds) if seconds else "0"
