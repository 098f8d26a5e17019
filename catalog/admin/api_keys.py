"""API keys: making one, which is shown once, and revoking it. Nothing else can be done to a key."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import Page, ReadOnlyAdmin, button, sent
from catalog.models import ApiKey, PrincipalLevel
from catalog.services.api_keys import create_api_key, revoke_api_key


def _moment_widget() -> Any:
    widget = UnfoldAdminTextInputWidget()
    widget.input_type = "datetime-local"
    return widget


class CreateForm(forms.Form):
    name = forms.CharField(
        max_length=100,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Who or what uses it; shown in the audit trail.",
    )
    access = forms.ChoiceField(
        choices=PrincipalLevel.choices,
        initial=PrincipalLevel.READ,
        widget=UnfoldAdminSelectWidget(choices=PrincipalLevel.choices),
    )
    expires = forms.DateTimeField(
        required=False, widget=_moment_widget(), help_text="In UTC. Empty: never."
    )

    def clean_expires(self) -> datetime | None:
        expires: datetime | None = self.cleaned_data["expires"]
        if expires is not None and expires <= timezone.now():
            raise forms.ValidationError("This time is over: the key could never be used.")
        return expires


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ["name", "begins", "access_level", "state", "created", "expires", "used"]
    list_display_links = ["name"]
    list_select_related = ("principal",)
    search_fields = ["name", "prefix"]
    ordering = ["-pk"]
    actions_detail = ["revoke"]

    @admin.display(description="Begins with")
    def begins(self, row: ApiKey) -> SafeString:
        return cells.code(row.prefix + "…")

    @admin.display(description="Access")
    def access_level(self, row: ApiKey) -> str:
        return row.principal.get_level_display()

    @admin.display(description="State")
    def state(self, row: ApiKey) -> SafeString:
        return state(row)

    @admin.display(description="Created")
    def created(self, row: ApiKey) -> SafeString:
        return cells.moment(row.created_at)

    @admin.display(description="Expires")
    def expires(self, row: ApiKey) -> object:
        return cells.moment(row.expires_at) if row.expires_at else "never"

    @admin.display(description="Last used")
    def used(self, row: ApiKey) -> SafeString:
        return cells.moment(row.last_used_at)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "add")

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, "delete")

    def offers_actions(self, row: ApiKey) -> bool:
        return row.revoked_at is None

    def page(self, request: HttpRequest, row: ApiKey) -> Page:
        return Page(
            facts=(
                ("Name", row.name),
                ("Begins with", cells.code(row.prefix + "…")),
                ("Access", row.principal.get_level_display()),
                ("State", state(row)),
                ("Created", cells.moment(row.created_at)),
                ("Expires", cells.moment(row.expires_at) if row.expires_at else "never"),
                ("Revoked", cells.moment(row.revoked_at)),
                ("Last used", cells.moment(row.last_used_at)),
            )
        )

    def add_view(
        self,
        request: HttpRequest,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        if not self.has_add_permission(request):
            raise PermissionDenied

        def create(data: dict[str, Any]) -> HttpResponseBase:
            row, key = create_api_key(
                actor=actor(request, self.permission("add")),
                name=data["name"],
                level=PrincipalLevel(data["access"]),
                expires_at=data["expires"],
            )
            # In the answer itself, which nothing stores: a message would leave it in a cookie.
            return self.render(
                request,
                "admin/catalog/api_key.html",
                {"title": f"API key '{row.name}'", "key": key, "original": row},
            )

        return self.ask(
            request,
            title="Create an API key",
            submit="Create",
            form=CreateForm(sent(request)),
            call=create,
            back=cells.list_url(ApiKey),
        )

    @button("Revoke", permission="revoke", icon="block", danger=True)
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        row = self.find(request, object_id)
        if row is None:
            return self.missing(request, object_id)

        def call(_data: dict[str, Any]) -> HttpResponseBase:
            revoke_api_key(actor=actor(request, self.permission("delete")), key=row)
            messages.success(request, f"API key '{row}' was revoked")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Revoke API key '{row}'?",
            text="Every server stops accepting it within five seconds, for good.",
            submit="Revoke",
            danger=True,
            call=call,
            back=cells.page_url(row),
            original=row,
        )


def state(row: ApiKey) -> SafeString:
    if row.revoked_at is not None:
        return cells.badge("revoked", "danger")
    if row.expires_at is not None and row.expires_at <= timezone.now():
        return cells.badge("expired", "warning")
    return cells.badge("active", "success")
