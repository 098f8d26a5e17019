"""Principals: users, groups and service accounts. Create, edit, activate and deactivate them."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from catalog.admin import cells
from catalog.admin.access import api_keys
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, button
from catalog.admin.paging import PANEL_SIZE
from catalog.models import Principal, PrincipalKind, PrincipalLevel
from catalog.privileges import Privilege
from catalog.services.access import principals
from catalog.services.audit.issued_credentials import remaining_access
from catalog.writing_systems import describe, labeled

_KINDS = [
    (PrincipalKind.SERVICE, "service account"),
    (PrincipalKind.GROUP, "group"),
    (PrincipalKind.USER, "user authenticated by an issuer, without a local account"),
]


def _text(*, required: bool = False, **options: Any) -> forms.CharField:
    return forms.CharField(required=required, widget=UnfoldAdminTextInputWidget(), **options)


def _choice(choices: Any, **options: Any) -> forms.ChoiceField:
    return forms.ChoiceField(
        choices=choices, widget=UnfoldAdminSelectWidget(choices=choices), **options
    )


class ChangeForm(forms.Form):
    level = _choice(
        PrincipalLevel.choices, help_text="Privileges on the whole catalog, in addition to grants."
    )
    description = _text()
    issuer = _text(
        help_text="URL of the OpenID Connect issuer that authenticates the principal. Empty for none."
    )
    subject = _text(
        help_text="Subject of the principal in tokens of the issuer; for a group, its name in the groups claim."
    )


class CreateForm(ChangeForm):
    kind = _choice(_KINDS)
    name = _text(
        required=True,
        max_length=principals.LONGEST_NAME,
        help_text="Such as etl, without the prefix of users and groups. The name cannot be changed.",
    )
    field_order = ["kind", "name", "level", "description", "issuer", "subject"]


class GroupForm(forms.Form):
    group = forms.CharField(
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "groups"}),
        help_text="Name of the group, such as group:analysts.",
    )


@admin.register(Principal)
class PrincipalAdmin(ReadOnlyAdmin):
    list_display = ["called", "kind_of", "level_of", "state", "about"]
    list_display_links = ["called"]
    list_select_related = ("user",)
    list_filter = ["kind", "level", "is_active"]
    search_fields = ["name", "description", "subject"]
    search_help_text = "Name, description or subject"
    ordering = ["name"]
    page_related = ("user",)
    actions_detail = ["edit", "join", "leave", "deactivate", "activate"]

    @admin.display(description="Name")
    def called(self, row: Principal) -> str:
        return row.name

    @admin.display(description="Kind")
    def kind_of(self, row: Principal) -> str:
        return str(row.get_kind_display())

    @admin.display(description="Access level")
    def level_of(self, row: Principal) -> str:
        return _level(row)

    @admin.display(description="State")
    def state(self, row: Principal) -> SafeString:
        return state(row)

    @admin.display(description="Description")
    def about(self, row: Principal) -> str:
        return row.description

    def has_add_permission(self, request: HttpRequest) -> bool:
        return actor(request, self.permission("add")).holds_everywhere(Privilege.ALL)

    def has_administer_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return actor(request, self.permission("change")).holds_everywhere(Privilege.ALL)

    def offered_actions(self, row: Principal) -> Sequence[str | dict[str, Any]]:
        actions = ["edit"]
        if row.kind != PrincipalKind.GROUP:
            actions += ["join", "leave"]
        return [*actions, "deactivate" if row.is_active else "activate"]

    def page(self, request: HttpRequest, row: Principal) -> Page:
        return Page(
            facts=(
                ("Name", cells.exact(row.name)),
                *((("Letters", script),) if (script := describe(row.name)) else ()),
                ("Kind", row.get_kind_display()),
                ("Access level", _level(row)),
                ("State", state(row)),
                ("Description", row.description or cells.NOTHING),
                ("User", cells.link(row.user)),
                ("Issuer", cells.code(row.issuer)),
                ("Subject", cells.code(labeled(row.subject))),
                ("Created", cells.when(row.created_at)),
                ("Created by", cells.who(row.created_by)),
            ),
            panels=[_members(row)]
            if row.kind == PrincipalKind.GROUP
            else [_groups(row), _keys(row)],
        )

    # -- actions

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        def create(data: dict[str, Any]) -> HttpResponseBase:
            kind = PrincipalKind(data["kind"])
            row = principals.create_principal(
                actor=actor(request, self.permission("add")),
                name=principals.PREFIXES[kind] + data["name"].strip(),
                kind=kind,
                **_fields(data),
            )
            messages.success(request, f"Principal '{row}' was created")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title="Create a principal",
            submit="Create",
            form=CreateForm(sent(request)),
            call=create,
            back=cells.list_url(Principal),
        )

    @button("Edit", permission="administer", icon="edit")
    def edit(self, request: HttpRequest, row: Principal) -> HttpResponseBase:
        names = ("level", "description", "issuer", "subject")
        form = ChangeForm(sent(request), initial={name: getattr(row, name) for name in names})
        return self._do(request, row, f"Edit '{row}'", "Save", form=form, update=_fields)

    @button("Deactivate", permission="administer", icon="block", danger=True)
    def deactivate(self, request: HttpRequest, row: Principal) -> HttpResponseBase:
        return self._do(
            request,
            row,
            f"Deactivate '{row}'?",
            "Deactivate",
            text="The principal and its API keys lose access on all servers within five seconds."
            f" {remaining_access(row.name, actor=actor(request))}",
            danger=True,
            update=lambda _: {"is_active": False},
        )

    @button("Activate", permission="administer", icon="check_circle")
    def activate(self, request: HttpRequest, row: Principal) -> HttpResponseBase:
        return self._do(
            request,
            row,
            f"Activate '{row}'?",
            "Activate",
            text="Its valid API keys, grants and group memberships apply again.",
            update=lambda _: {"is_active": True},
        )

    @button("Add to group", permission="administer", icon="group_add")
    def join(self, request: HttpRequest, row: Principal) -> HttpResponseBase:
        return self._membership(request, row, "Add", principals.add_member)

    @button("Remove from group", permission="administer", icon="group_remove")
    def leave(self, request: HttpRequest, row: Principal) -> HttpResponseBase:
        return self._membership(request, row, "Remove", principals.remove_member)

    def _membership(
        self, request: HttpRequest, row: Principal, submit: str, change: Any
    ) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            change(
                actor=actor(request, self.permission("change")),
                group=data["group"].strip(),
                member=row.name,
            )
            messages.success(request, f"Groups of '{row}' were updated")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Groups of '{row}'",
            submit=submit,
            form=GroupForm(sent(request)),
            call=call,
            original=row,
        )

    def _do(
        self,
        request: HttpRequest,
        row: Principal,
        title: str,
        submit: str,
        *,
        update: Any,
        form: forms.Form | None = None,
        text: str = "",
        danger: bool = False,
    ) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            principal = actor(request, self.permission("change"))
            principals.update_principal(actor=principal, name=row.name, **update(data))
            messages.success(request, f"Principal '{row}' was updated")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=title,
            text=text,
            submit=submit,
            form=form,
            danger=danger,
            call=call,
            original=row,
        )


def state(row: Principal) -> SafeString:
    if row.is_active:
        return cells.badge("active", "success")
    return cells.badge("inactive", "danger")


def _level(row: Principal) -> str:
    if row.user is not None and row.user.is_superuser:
        return "all privileges (superuser)"
    return str(row.get_level_display())


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "level": PrincipalLevel(data["level"]),
        "description": data["description"],
        "issuer": data["issuer"].strip(),
        "subject": data["subject"].strip(),
    }


def _groups(row: Principal) -> Panel:
    return Panel(
        title="Groups",
        columns=("Group", "Access level", "State"),
        rows=[
            (cells.link(group), group.get_level_display(), state(group))
            for group in row.groups.order_by("name")[:PANEL_SIZE]
        ],
        empty="Not a member of any group.",
    )


def _members(row: Principal) -> Panel:
    members = list(row.members.order_by("name")[: PANEL_SIZE + 1])
    return Panel(
        title="Members",
        columns=("Member", "Kind", "State"),
        rows=[
            (cells.link(member), member.get_kind_display(), state(member))
            for member in members[:PANEL_SIZE]
        ],
        empty="No members.",
        note=f"The first {PANEL_SIZE} by name." if len(members) > PANEL_SIZE else "",
    )


def _keys(row: Principal) -> Panel:
    keys = list(row.keys.order_by("-pk")[: PANEL_SIZE + 1])
    return Panel(
        title="API keys",
        columns=("Key", "Prefix", "State", "Expires", "Last used"),
        rows=[
            (
                cells.link(key),
                cells.code(key.prefix + "…"),
                api_keys.state(key),
                cells.when(key.expires_at) if key.expires_at else "never",
                cells.when(key.last_used_at),
            )
            for key in keys[:PANEL_SIZE]
        ],
        empty="No API keys.",
        note=f"The newest {PANEL_SIZE}." if len(keys) > PANEL_SIZE else "",
    )
