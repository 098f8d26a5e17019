"""API keys: create, rotate and revoke. A new key is shown once."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.filters import SingleChoiceFilter
from catalog.admin.form_pages import sent
from catalog.admin.pages import Page, ReadOnlyAdmin, button
from catalog.identifiers import typed
from catalog.models import ApiKey, PrincipalLevel
from catalog.privileges import SINGLE, Privilege, words
from catalog.services.access import api_keys, key_rules
from catalog.services.access.api_keys import revoke_api_key
from catalog.services.audit.issued_credentials import remaining_access

_EXPIRES_SOON = timedelta(days=14)


def _moment_widget() -> Any:
    widget = UnfoldAdminTextInputWidget()
    widget.input_type = "datetime-local"
    return widget


class CreateForm(forms.Form):
    name = forms.CharField(
        max_length=100,
        widget=UnfoldAdminTextInputWidget(),
        help_text="The user or program of the key. The audit trail shows it.",
    )
    access = forms.ChoiceField(
        choices=PrincipalLevel.choices,
        initial=PrincipalLevel.GRANTED,
        required=False,
        widget=UnfoldAdminSelectWidget(choices=PrincipalLevel.choices),
        help_text="Access of the new service account. With 'only what is granted', the key has no access"
        " until its principal is granted privileges on a namespace or table.",
    )
    principal = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "principals"}),
        help_text="Owner of the key, such as etl or user:ada. By default, a new service account with"
        " the name of the key and the access above.",
    )
    scopes = forms.MultipleChoiceField(
        required=False,
        choices=[(privilege.word, privilege.word) for privilege in SINGLE],
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text="Privileges that the key is limited to. By default, all privileges of its principal.",
    )
    namespace = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "namespaces"}),
        help_text="Namespace that the key is limited to, with everything below it, such as nyc.weather."
        " By default, the key is valid everywhere.",
    )
    expires = forms.DateTimeField(
        required=False,
        widget=_moment_widget(),
        help_text=f"Time in UTC. Default: in {key_rules.DEFAULT_LIFETIME.days} days.",
    )
    never_expires = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget(),
        help_text="The key is valid until it is revoked.",
    )

    def clean_expires(self) -> datetime | None:
        expires: datetime | None = self.cleaned_data["expires"]
        if expires is not None and expires <= timezone.now():
            raise forms.ValidationError(
                "The time of expiry is in the past. Enter a time in the future."
            )
        return expires

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        if data.get("never_expires") and data.get("expires"):
            self.add_error("never_expires", "'Expires' is set too. Clear one of the two fields.")
        return data


class RotateForm(forms.Form):
    hours = forms.FloatField(
        min_value=0,
        max_value=api_keys.MAX_OVERLAP / timedelta(hours=1),
        initial=24,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Hours for which the old key remains valid. Default: 24. With 0, it expires at once.",
    )


class ExpiryFilter(SingleChoiceFilter):
    title = "expires"
    parameter_name = "expires"
    value_text = ("soon", "Within two weeks")

    def condition(self) -> Q:
        return expiring()


def expiring() -> Q:
    """Valid keys that expire within two weeks and have no replacement."""
    now = timezone.now()
    return Q(
        revoked_at=None, replaced_by=None, expires_at__gt=now, expires_at__lt=now + _EXPIRES_SOON
    )


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ["name", "whose", "begins", "access_level", "state", "expires", "used"]
    list_display_links = ["name"]
    list_filter = [ExpiryFilter]
    list_select_related = ("principal",)
    search_fields = ["name", "prefix"]
    empty_text = "No API keys. Programs authenticate to the catalog with an API key."
    ordering = ["-pk"]
    page_related = ("principal", "namespace", "replaced_by")
    actions_detail = ["rotate", "revoke"]

    @admin.display(description="Principal")
    def whose(self, row: ApiKey) -> SafeString:
        return cells.link(row.principal)

    @admin.display(description="Prefix")
    def begins(self, row: ApiKey) -> SafeString:
        return cells.code(row.prefix + "…")

    @admin.display(description="Access")
    def access_level(self, row: ApiKey) -> str:
        return row.principal.get_level_display()

    @admin.display(description="State")
    def state(self, row: ApiKey) -> SafeString:
        return state(row)

    @admin.display(description="Expires")
    def expires(self, row: ApiKey) -> object:
        return cells.when(row.expires_at) if row.expires_at else "never"

    @admin.display(description="Last used")
    def used(self, row: ApiKey) -> SafeString:
        return cells.when(row.last_used_at)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, Privilege.ALL)

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.ALL)

    def offers_actions(self, row: ApiKey) -> bool:
        return row.revoked_at is None

    def page(self, request: HttpRequest, row: ApiKey) -> Page:
        return Page(
            facts=(
                ("Name", row.name),
                ("Prefix", cells.code(row.prefix + "…")),
                ("Principal", cells.link(row.principal)),
                ("Access", row.principal.get_level_display()),
                ("Scopes", "all" if row.scopes is None else ", ".join(words(row.ceiling))),
                ("Namespace", cells.link(row.namespace) if row.namespace else "everywhere"),
                ("State", state(row)),
                ("Replaced by", cells.link(row.replaced_by)),
                ("Created", cells.when(row.created_at)),
                ("Created by", cells.who(row.created_by)),
                ("Expires", cells.when(row.expires_at) if row.expires_at else "never"),
                ("Revoked", cells.when(row.revoked_at)),
                ("Last used", cells.when(row.last_used_at)),
            )
        )

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        def create(data: dict[str, Any]) -> HttpResponseBase:
            row, key = _create(actor(request), data)
            return self._show(request, row, key)

        return self.ask(
            request,
            title="Create an API key",
            submit="Create",
            form=CreateForm(sent(request)),
            call=create,
            back=cells.list_url(ApiKey),
        )

    def _show(self, request: HttpRequest, row: ApiKey, key: str) -> HttpResponseBase:
        # In the response itself, which is not stored: a message would leave the key in a cookie.
        return self.render(
            request,
            "admin/catalog/api_key.html",
            {"title": f"API key '{row.name}'", "key": key, "original": row},
        )

    @button("Rotate", permission="revoke", icon="autorenew")
    def rotate(self, request: HttpRequest, row: ApiKey) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            new, key = api_keys.rotate(
                actor=actor(request),
                key=row,
                overlap=timedelta(hours=data["hours"]),
            )
            return self._show(request, new, key)

        return self.ask(
            request,
            title=f"Rotate API key '{row}'",
            text="A new key with the same access replaces this one. It is shown once.",
            submit="Rotate",
            form=RotateForm(sent(request)),
            call=call,
            original=row,
        )

    @button("Revoke", permission="revoke", icon="block", danger=True)
    def revoke(self, request: HttpRequest, row: ApiKey) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            revoke_api_key(actor=actor(request), key=row)
            remaining = remaining_access(row.principal.name, actor=actor(request))
            messages.success(request, f"API key '{row}' was revoked. {remaining}".rstrip(". "))
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Revoke API key '{row}'?",
            text="All servers reject the key within five seconds. This cannot be undone.",
            submit="Revoke",
            danger=True,
            call=call,
            original=row,
        )


def state(row: ApiKey) -> SafeString:
    if row.revoked_at is not None:
        return cells.badge("revoked", "danger")
    if row.expires_at is not None and row.expires_at <= timezone.now():
        return cells.badge("expired", "warning")
    return cells.badge("active", "success")


def _create(actor: Principal, data: dict[str, Any]) -> tuple[ApiKey, str]:
    return api_keys.create_for(
        actor=actor,
        name=data["name"],
        principal=data["principal"].strip() or None,
        level=PrincipalLevel(data["access"] or PrincipalLevel.GRANTED),
        scopes=data["scopes"] or None,
        namespace=typed(data["namespace"]) if data["namespace"] else None,
        expires_at=data["expires"],
        never_expires=data["never_expires"],
    )
