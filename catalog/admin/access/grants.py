"""Grants of namespaces and tables: direct grants, effective privileges with their sources, and a form
that confirms a loss of privileges."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from catalog import access
from catalog.access import On
from catalog.admin import cells
from catalog.admin.actor import actor, is_administrator
from catalog.admin.form_pages import digest_of, refuse, sent
from catalog.admin.pages import Panel, ReadOnlyAdmin, Tab
from catalog.admin.paging import PANEL_SIZE, query, word
from catalog.errors import CatalogError, NamespaceNotFound, TableNotFound
from catalog.models import Grant, Namespace, Principal, Table, TableState
from catalog.privileges import SINGLE, Privilege, closure, essence, parse
from catalog.services.access import grant_operations, grants, roles, withdrawal
from catalog.services.access.grant_reports import Holder, Loss
from catalog.services.audit.issued_credentials import remaining_access
from catalog.writing_systems import labeled

_MEANS = {
    Privilege.BROWSE: "see its name, annotations and owner",
    Privilege.READ: "read its location, schema and data",
    Privilege.WRITE: "commit changes",
    Privilege.CREATE: "create namespaces, tables and views in it",
    Privilege.MANAGE: "rename and drop it; set owner, properties, labels and protection",
    Privilege.MAINTAIN: "set maintenance policies and run maintenance jobs",
    Privilege.GRANT: "grant and revoke privileges",
}
_SHOWN = 20
"""The principals whose changes a preview or a warning shows. Each costs about ten statements."""
_ROLES = [
    ("", "No role"),
    *((role.key, f"{role.title}: {role.description}") for role in roles.ROLES),
]


class GrantForm(forms.Form):
    principal = forms.CharField(
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "principals"}),
        help_text="Name of a principal, such as etl, user:ada or group:analysts.",
    )
    privileges = forms.MultipleChoiceField(
        required=False,
        choices=[
            (privilege.word, f"{privilege.word}: {_MEANS[privilege]}") for privilege in SINGLE
        ],
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text="These privileges replace the current grant. Select none to revoke it.",
    )
    role = forms.ChoiceField(
        required=False,
        choices=_ROLES,
        widget=UnfoldAdminSelectWidget(choices=_ROLES),
        help_text="A set of privileges, in addition to those selected above.",
    )
    days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=grant_operations.MAX_DAYS,
        widget=UnfoldAdminTextInputWidget(),
        label="Ends after (days)",
        help_text="Empty: the grant does not end.",
    )
    confirmed = forms.CharField(required=False, widget=forms.HiddenInput())

    @property
    def chosen(self) -> Privilege:
        """The selected privileges, with those of the role."""
        role = roles.find_role(self.cleaned_data["role"])
        chosen = parse(self.cleaned_data["privileges"])
        return chosen if role is None else chosen | role.privileges


def tabs(request: HttpRequest, row: Namespace | Table) -> Sequence[Tab]:
    """The tab "Access", for users who hold the privilege to grant or manage."""
    if _is_dropped(row):
        return ()
    asking = actor(request)
    if not asking.holds_everywhere(Privilege.ALL):
        held = access.held_on(asking, row)
        if not held & (Privilege.GRANT | Privilege.MANAGE):
            return ()
    return (Tab("access", "Access", lambda: panels(request, row)),)


def panels(request: HttpRequest, row: Namespace | Table) -> list[Panel]:
    """Direct grants, and the effective privileges of all principals."""
    try:
        return [_granted(request, row), _explained(request, row)]
    except CatalogError as error:
        return [Panel((), (), error.message)]


def form(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace | Table) -> HttpResponseBase:
    """Set a grant. A loss of privileges has to be confirmed; only what the user saw is confirmed."""
    principal = word(request, "principal")
    chosen = essence(_present(row, principal)) if not word(request, "remove") else []
    initial = {"principal": principal, "privileges": chosen, "days": _days_left(row, principal)}
    filled = GrantForm(sent(request), initial=initial)
    text: SafeString | str = (
        "The grant applies here and to everything below, in addition to other grants of the principal."
    )
    if isinstance(row, Table):
        text = "The grant applies to this table only, in addition to other grants of the principal."
    needs_confirmation = False
    if filled.is_valid():
        data = filled.cleaned_data
        try:
            if _is_dropped(row):
                # Services look up by name, and another object may have the name now.
                missing = TableNotFound if isinstance(row, Table) else NamespaceNotFound
                raise missing(row.identifier)
            effect = _effect(request, row, filled)
            if "preview" in request.POST:
                return _form_page(page, request, row, filled, _preview(effect))
            unseen = (f"{effect.unseen} members", _words(effect.revoked))
            seen = digest_of([data["principal"], *map(str, effect.losses), *unseen])
            if not effect.needs_confirmation or data["confirmed"] == seen:
                return _set(request, row, filled)
            needs_confirmation = True
            remaining = remaining_access(data["principal"], row, actor=actor(request))
            text = format_html("{} {}", _warning(effect), remaining)
            confirmed_data = request.POST.copy()
            confirmed_data["confirmed"] = seen
            filled = GrantForm(confirmed_data)
        except CatalogError as error:
            refuse(request, error)
    return _form_page(page, request, row, filled, text, needs_confirmation=needs_confirmation)


def _form_page(
    page: ReadOnlyAdmin,
    request: HttpRequest,
    row: Namespace | Table,
    filled: GrantForm,
    text: SafeString | str,
    *,
    needs_confirmation: bool = False,
) -> HttpResponseBase:
    context = {
        "title": f"Grant privileges on '{row}'",
        "form": filled,
        "text": text,
        "submit_text": "Confirm" if needs_confirmation else "Grant",
        "has_preview": not needs_confirmation,
        "danger": needs_confirmation,
        "back": _back(row),
        "original": row,
    }
    return page.render(request, "admin/catalog/form.html", context)


def _set(request: HttpRequest, row: Namespace | Table, filled: GrantForm) -> HttpResponseBase:
    data = filled.cleaned_data
    change = grants.set_grant(
        actor=actor(request),
        on=_on(row),
        principal=data["principal"],
        privileges=filled.chosen,
        expires_at=_new_end(row, data["principal"], data["days"]),
    )
    granted_text = ", ".join(essence(change.privileges)) or "no privileges"
    remaining = f". {withdrawal.after_grant(actor(request), change)}"
    text = f"'{data['principal']}' is granted {granted_text} on '{row}'{remaining}"
    messages.success(request, text.removesuffix(". "))
    return HttpResponseRedirect(_back(row))


@dataclass(frozen=True)
class _Effect:
    """The effect of a grant on the first principals that it concerns, by name."""

    changes: list[Loss]
    """Of all these principals, also those without a change."""
    others: int
    """The number of further members of the group, whose privileges are not examined."""
    revoked: Privilege
    """The privileges of the present grant that end."""

    @property
    def losses(self) -> list[Loss]:
        return [loss for loss in self.changes if _loses(loss)]

    @property
    def unseen(self) -> int:
        """The number of members that may lose privileges without being examined."""
        return self.others if self.revoked else 0

    @property
    def needs_confirmation(self) -> bool:
        return bool(self.losses or self.unseen)


def _effect(request: HttpRequest, row: Namespace | Table, filled: GrantForm) -> _Effect:
    principal = filled.cleaned_data["principal"]
    changes, token = grants.what_if(
        actor=actor(request),
        on=_on(row),
        principal=principal,
        privileges=filled.chosen,
        limit=_SHOWN,
    )
    members = Principal.objects.filter(groups__name=principal)
    others = 0 if token is None else members.filter(name__gt=token).count()
    return _Effect(changes, others, _present(row, principal) & ~closure(filled.chosen))


def _loses(loss: Loss) -> bool:
    return bool(loss.lost or loss.namespaces or loss.tables)


def _preview(effect: _Effect) -> SafeString:
    """The effect of a grant before it is saved."""
    changed = [loss for loss in effect.changes if loss.before != loss.after or _loses(loss)]
    if not changed and not effect.others:
        return format_html(
            '<span role="status">{}</span>', "Nobody gains or loses a privilege here."
        )
    lines = format_html_join(
        "",
        "<li>{}: {} now, {} afterwards</li>",
        (
            (labeled(loss.principal.name), _words(loss.before), _words(loss.after))
            for loss in changed
        ),
    )
    others = ""
    if effect.others:
        others = (
            f"Of the group, the first {len(effect.changes)} members by name were examined."
            f" The grant changes for {cells.counted(effect.others, 'more member')} too."
        )
    return format_html(
        '<span role="status">Effect, not saved yet:</span><ul>{}</ul>{}', lines, others
    )


def _warning(effect: _Effect) -> SafeString:
    lines = format_html_join(
        "",
        "<li>{} loses {}</li>",
        ((labeled(loss.principal.name), _lost(loss)) for loss in effect.losses),
    )
    others = ""
    if effect.unseen:
        others = (
            f"{cells.counted(effect.unseen, 'more member')} of the group, whose other grants were not"
            f" examined, may lose {_words(effect.revoked)}."
        )
    return format_html("This change revokes privileges:<ul>{}</ul>{}", lines, others)


def _lost(loss: Loss) -> str:
    """The privileges that a principal loses here, and the objects that it no longer sees."""
    counts = [(loss.namespaces, "namespace"), (loss.tables, "table")]
    hidden = " and ".join(cells.counted(count, noun) for count, noun in counts if count)
    sight = f"sight of {hidden}" if hidden else ""
    return ", and ".join(filter(None, [", ".join(essence(loss.lost)), sight]))


# --- panels ----------------------------------------------------------------------------------------


def _granted(request: HttpRequest, row: Namespace | Table) -> Panel:
    asking = actor(request)
    after = word(request, "granted")
    granted_rows, token = grants.list_grants(
        actor=asking, on=_on(row), limit=PANEL_SIZE, page_token=after or None
    )
    may_grant = access.holds(asking, Privilege.GRANT, row)
    return Panel(
        title="Direct grants",
        columns=("Principal", "Privileges", "Granted by", "Granted at", "Ends", ""),
        rows=[
            (
                cells.who(grant.principal.name),
                _words(grant.privileges),
                cells.who(grant.granted_by),
                cells.when(grant.granted_at),
                cells.when(grant.expires_at) if grant.expires_at else "never",
                _links(row, grant) if may_grant else "",
            )
            for grant in granted_rows
        ],
        empty="No direct grants.",
        first=query(request, granted=None) if after else None,
        following=query(request, granted=token) if token else None,
    )


def _explained(request: HttpRequest, row: Namespace | Table) -> Panel:
    after = word(request, "holder")
    holders, token = grants.explain(
        actor=actor(request), on=_on(row), limit=PANEL_SIZE, page_token=after or None
    )
    return Panel(
        title="Effective privileges",
        columns=("Principal", "Privileges", "Sources", "API keys"),
        rows=[
            (_name(holder), _words(holder.held), _why(holder), _keys(holder)) for holder in holders
        ],
        empty="Only superusers have privileges here.",
        note=""
        if is_administrator(request)
        else "Privileges that others hold through groups are not listed with them, but with the groups.",
        first=query(request, holder=None) if after else None,
        following=query(request, holder=token) if token else None,
    )


def _name(holder: Holder) -> SafeString:
    shown = cells.who(holder.principal.name)
    return shown if holder.is_active else cells.spaced([shown, "(inactive)"])


def _why(holder: Holder) -> SafeString:
    return _lines([f"{source}: {_words(source.privileges)}" for source in holder.sources])


def _keys(holder: Holder) -> SafeString:
    return _lines([f"{key.name}: {_words(key.privileges)}" for key in holder.keys])


def _lines(lines: Sequence[str]) -> SafeString:
    return format_html_join(SafeString("<br>"), "{}", ((line,) for line in lines))


def _words(privileges: Privilege) -> str:
    return "all" if privileges == Privilege.ALL else ", ".join(essence(privileges)) or "none"


def _links(row: Namespace | Table, grant: Grant) -> SafeString:
    base = cells.page_url(row).removesuffix("change/") + "grant/"
    return format_html(
        '<a href="{0}?principal={1}">edit</a> · <a href="{0}?principal={1}&amp;remove=1">revoke</a>',
        base,
        grant.principal.name,
    )


def _present(row: Namespace | Table, principal: str) -> Privilege:
    principals = Principal.objects.filter(name=principal)
    grant = (
        Grant.objects.valid().on(row).filter(principal__in=principals).first()
        if principal
        else None
    )
    return Privilege(0) if grant is None else grant.privileges


def _present_end(row: Namespace | Table, principal: str) -> datetime | None:
    rows = Grant.objects.valid().on(row).filter(principal__name=principal, expires_at__isnull=False)
    return rows.values_list("expires_at", flat=True).first() if principal else None


def _days_left(row: Namespace | Table, principal: str) -> int | None:
    """Days until the end of the present grant, rounded up; None: it has no end."""
    end = _present_end(row, principal)
    return None if end is None else max((end - timezone.now()).days + 1, 1)


def _new_end(row: Namespace | Table, principal: str, days: int | None) -> datetime | None:
    """The end of a grant. With as many days as the form shows for the present end, that end stays."""
    if days is None:
        return None
    if days == _days_left(row, principal):
        return _present_end(row, principal)
    return timezone.now() + timedelta(days=days)


def _on(row: Namespace | Table) -> On:
    return On.table(row.identifier) if isinstance(row, Table) else On.namespace(row.identifier)


def _is_dropped(row: Namespace | Table) -> bool:
    if isinstance(row, Table):
        return row.state == TableState.DROPPED
    return row.dropped_at is not None


def _back(row: Namespace | Table) -> str:
    return cells.page_url(row) + "?tab=access"
