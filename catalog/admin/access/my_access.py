"""The page "My access and keys" of each user: own keys, own privileges with their sources, requests."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog.access import On
from catalog.admin import cells, form_pages
from catalog.admin.access import api_keys as key_pages
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.pages import Panel
from catalog.admin.paging import PANEL_SIZE, word
from catalog.identifiers import typed
from catalog.models import ApiKey, ApprovalRequest, Grant, Namespace, Table
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege, essence
from catalog.services.access import api_keys, roles
from catalog.services.governance import access_requests, approvals

_OWNED = 25
_LIFETIMES = [("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year")]
_REQUEST_LIFETIMES = [*_LIFETIMES, ("", "No end")]


def _roles() -> list[tuple[str, str]]:
    return [(role.key, f"{role.title}: {role.description}") for role in roles.ROLES]


def _select(choices: list[tuple[str, str]], **options: Any) -> forms.ChoiceField:
    return forms.ChoiceField(
        choices=choices, widget=UnfoldAdminSelectWidget(choices=choices), **options
    )


class KeyForm(forms.Form):
    name = forms.CharField(
        max_length=100,
        label="Purpose",
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
        help_text="The program that uses the key, such as nightly-report. The audit trail shows it."
        " No other key may have the same purpose.",
    )
    scope = _select(
        _roles(),
        initial=roles.BROWSER.key,
        help_text="The most that the key permits. It never permits more than you may do yourself.",
    )
    namespace = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "namespaces"}),
        help_text="The namespace to which the key is limited, with everything below it, such as nyc.weather.",
    )
    everywhere = forms.BooleanField(
        required=False,
        label="Not limited to a namespace",
        widget=UnfoldBooleanSwitchWidget(),
    )
    days = _select(_LIFETIMES, initial="90", label="Expires after")

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        if bool(data.get("namespace")) == bool(data.get("everywhere")):
            self.add_error(
                "namespace", "Enter a namespace, or select “Not limited to a namespace”."
            )
        return data


class RequestForm(forms.Form):
    on = forms.CharField(
        label="Namespace or table",
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "objects"}),
        help_text="Its full name, such as nyc.flights.",
    )
    kind = _select([("table", "Table or view"), ("namespace", "Namespace")])
    role = _select(_roles(), initial="reader", label="Access")
    days = _select(_REQUEST_LIFETIMES, initial="90", required=False, label="For")
    reason = forms.CharField(
        max_length=access_requests.MAX_REASON,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="What you need the access for. The people who decide read it.",
    )


_View = Callable[..., HttpResponseBase]


def urls() -> list[URLPattern]:
    def of(view: _View) -> Any:
        return admin.site.admin_view(view)

    return [
        path("", of(_page), name="my-access"),
        path("keys/add/", of(_create_key), name="my-access-key"),
        path("keys/<int:key>/rotate/", of(_rotate_key), name="my-access-rotate"),
        path("keys/<int:key>/revoke/", of(_revoke_key), name="my-access-revoke"),
        path("request/", of(_request), name="my-access-request"),
    ]


# --- the page ----------------------------------------------------------------------------------


def _page(request: HttpRequest) -> HttpResponseBase:
    context = {
        "title": "My access and keys",
        "account": actor(request).name,
        "panels": [_keys(request), _sources(request), _owned(request), _requests(request)],
        "waiting": cells.bounded(
            len(approvals.waiting_for(actor(request)).order_by("-pk")[: PANEL_SIZE + 1]), PANEL_SIZE
        ),
        "waiting_url": cells.list_url(ApprovalRequest, "waiting=me"),
    }
    return form_pages.render(request, "admin/catalog/my_access.html", context)


def _own_keys(request: HttpRequest) -> Any:
    rows = ApiKey.objects.filter(principal__name=actor(request).name)
    return rows.select_related("principal", "namespace", "replaced_by")


def _keys(request: HttpRequest) -> Panel:
    rows = list(_own_keys(request).order_by("-pk")[: PANEL_SIZE + 1])
    return Panel(
        title="My keys",
        columns=(
            "Purpose",
            "Begins with",
            "Scope",
            "Namespace",
            "State",
            "Expires",
            "Last used",
            "",
        ),
        rows=[
            (
                row.name,
                cells.code(row.prefix + "…"),
                _scope(row),
                row.namespace or "everywhere",
                key_pages.state(row),
                cells.when(row.expires_at) if row.expires_at else "never",
                cells.when(row.last_used_at),
                _key_links(row),
            )
            for row in rows[:PANEL_SIZE]
        ],
        empty="No keys. A program needs a key to use the catalog as you. Create one for each program.",
        note=f"The newest {PANEL_SIZE}." if len(rows) > PANEL_SIZE else "",
    )


def _scope(row: ApiKey) -> str:
    if row.scopes is None:
        return "everything I may do"
    return roles.name_of(row.ceiling) or ", ".join(essence(row.ceiling))


def _key_links(row: ApiKey) -> SafeString | str:
    has_ended = row.expires_at is not None and row.expires_at <= timezone.now()
    if row.revoked_at is not None or has_ended:
        return ""
    revoke = cells.anchor(reverse("my-access-revoke", args=[row.pk]), "Revoke")
    if row.replaced_by_id is not None:
        return revoke
    return cells.spaced(
        [cells.anchor(reverse("my-access-rotate", args=[row.pk]), "Rotate"), revoke]
    )


def _sources(request: HttpRequest) -> Panel:
    """Where the user's privileges come from: the level, groups and grants."""
    principal = actor(request)
    rows: list[tuple[object, ...]] = []
    # The principal of a superuser is not looked up for the request, so its row is found by name.
    own = Q(pk__in=principal.ids) | Q(name=principal.name)
    holders = list(PrincipalRow.objects.filter(own).select_related("user").order_by("name"))
    for holder in holders:
        through = "" if holder.name == principal.name else holder.name
        if holder.user is not None and holder.user.is_superuser:
            rows.append(("the whole catalog", "everything", "superuser", through, "never"))
        elif holder.level != "granted":
            rows.append(
                ("the whole catalog", holder.get_level_display(), "level", through, "never")
            )
    grants = (
        Grant.objects.valid()
        .filter(principal__in=holders)
        .select_related("principal", "namespace", "table__namespace")
        .order_by("-pk")[: PANEL_SIZE + 1]
    )
    listed = list(grants)
    for grant in listed[:PANEL_SIZE]:
        through = "" if grant.principal.name == principal.name else grant.principal.name
        by = f"granted by {grant.granted_by}" if grant.granted_by else "granted"
        privileges = roles.name_of(grant.privileges) or ", ".join(essence(grant.privileges))
        end = cells.when(grant.expires_at) if grant.expires_at else "never"
        rows.append((_object(grant.target), privileges, by, through, end))
    return Panel(
        title="What I may do, and why",
        columns=("On", "Privileges", "Because", "Through group", "Expires"),
        rows=rows,
        empty="Nothing has been granted to you. Request access to a namespace or table that you need.",
        note=f"The newest {PANEL_SIZE} grants." if len(listed) > PANEL_SIZE else "",
    )


def _object(target: Namespace | Table) -> SafeString | str:
    if isinstance(target, Namespace) and target.parent_id is None:
        return "the whole catalog"
    return cells.link(target)


def _owned(request: HttpRequest) -> Panel:
    principal = actor(request)
    names = {principal.name, *principal.names}
    spaces = list(Namespace.objects.live().filter(owner__in=names).order_by("-pk")[:_OWNED])
    tables = list(
        Table.objects.present()
        .filter(owner__in=names)
        .select_related("namespace")
        .order_by("-pk")[:_OWNED]
    )
    rows: list[Namespace | Table] = [*spaces, *tables]
    return Panel(
        title="What I own",
        columns=("Name", "Kind", "Owner"),
        rows=[
            (cells.link(row), row.kind if isinstance(row, Table) else "namespace", row.owner)
            for row in rows
        ],
        empty="You own nothing. Whoever creates a namespace or table owns it, and may do everything with it.",
        note=f"The newest {_OWNED} of each kind." if _OWNED in {len(spaces), len(tables)} else "",
    )


def _requests(request: HttpRequest) -> Panel:
    rows = ApprovalRequest.objects.filter(
        requester=actor(request).name, operation__operation=access_requests.GrantAccess.name
    )
    return Panel(
        title="My requests for access",
        columns=("Request", "On", "Status", "Requested", "Decided by", "Answer"),
        rows=[
            (
                cells.link(row, row.action.removesuffix(" on")),
                row.target,
                cells.badge("expired" if row.is_expired else row.status),
                cells.when(row.created_at),
                cells.who(row.decided_by),
                row.decision_reason or cells.NOTHING,
            )
            for row in rows.order_by("-pk")[:PANEL_SIZE]
        ],
        empty="No requests. A request goes to the owner of the object and to everybody who manages it.",
    )


# --- keys --------------------------------------------------------------------------------------


def _create_key(request: HttpRequest) -> HttpResponseBase:
    principal = actor(request)

    def create(data: dict[str, Any]) -> HttpResponseBase:
        role = roles.find_role(data["scope"])
        row, key = api_keys.add_key(
            actor=principal,
            principal=principal.name,
            name=data["name"],
            scopes=essence(role.privileges) if role else None,
            namespace=typed(data["namespace"]) if data["namespace"] else None,
            expires_at=timezone.now() + timedelta(days=int(data["days"])),
        )
        return _show(request, row, key)

    return form_pages.ask(
        request,
        title="Create a key",
        submit="Create",
        text="With the key, a program uses the catalog as you, within the limits that you set here.",
        form=KeyForm(sent(request)),
        call=create,
        back=reverse("my-access"),
    )


def _rotate_key(request: HttpRequest, key: int) -> HttpResponseBase:
    row = _own_key(request, key)

    def call(data: dict[str, Any]) -> HttpResponseBase:
        overlap = timedelta(hours=data["hours"])
        new, secret = api_keys.rotate(actor=actor(request), key=row, overlap=overlap)
        return _show(request, new, secret)

    return form_pages.ask(
        request,
        title=f"Rotate key '{row}'",
        text="A new key with the same access replaces this one. It is shown once.",
        submit="Rotate",
        form=key_pages.RotateForm(sent(request)),
        call=call,
        back=reverse("my-access"),
    )


def _revoke_key(request: HttpRequest, key: int) -> HttpResponseBase:
    row = _own_key(request, key)

    def call(_data: dict[str, Any]) -> HttpResponseBase:
        api_keys.revoke_api_key(actor=actor(request), key=row)
        messages.success(request, f"Key '{row}' was revoked")
        return HttpResponseRedirect(reverse("my-access"))

    return form_pages.ask(
        request,
        title=f"Revoke key '{row}'?",
        text="All servers reject the key within five seconds. This cannot be undone.",
        submit="Revoke",
        danger=True,
        call=call,
        back=reverse("my-access"),
    )


def _own_key(request: HttpRequest, key: int) -> ApiKey:
    row: ApiKey | None = _own_keys(request).filter(pk=min(key, 2**63 - 1)).first()
    if row is None:
        raise Http404
    return row


def _show(request: HttpRequest, row: ApiKey, key: str) -> HttpResponse:
    # In the response itself, which is not stored: a message would leave the key in a cookie.
    context = {"title": f"Key '{row.name}'", "key": key, "back": reverse("my-access")}
    return form_pages.render(request, "admin/catalog/api_key.html", context)


# --- requests ----------------------------------------------------------------------------------


def _request(request: HttpRequest) -> HttpResponseBase:
    def call(data: dict[str, Any]) -> HttpResponseBase:
        name = typed(data["on"])
        role = roles.find_role(data["role"])
        row = access_requests.request_access(
            actor=actor(request),
            on=On.table(name) if data["kind"] == "table" else On.namespace(name),
            privileges=role.privileges if role else Privilege(0),
            reason=data["reason"],
            days=int(data["days"]) if data["days"] else None,
        )
        messages.success(request, f"Access to '{row.target}' was requested")
        return HttpResponseRedirect(reverse("my-access"))

    on = word(request, "on")
    kind = "namespace" if word(request, "kind") == "namespace" else "table"
    return form_pages.ask(
        request,
        title="Request access",
        text="The request goes to the owner of the object and to everybody who manages it. Another person"
        " than you decides it.",
        submit="Request access",
        form=RequestForm(sent(request), initial={"on": on, "kind": kind}),
        call=call,
        back=reverse("my-access"),
    )
