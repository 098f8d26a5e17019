"""Users: Django's pages in the style of the admin.

Each user is also a principal. ``catalog.services.access.users`` applies its rules to changes.
"""

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from catalog.admin.actor import AdministratorsOnly, actor
from catalog.admin.form_pages import refuse
from catalog.admin.paging import InfinitePaginator
from catalog.errors import CatalogError
from catalog.services.access import users


class CreateForm(UserCreationForm):  # type: ignore[misc]
    def clean_username(self) -> str:
        username: str = super().clean_username()
        try:
            users.check_new_name(username)
        except CatalogError as error:
            raise forms.ValidationError(
                " ".join(filter(None, (f"{error.message}.", error.detail)))
            ) from None
        return username


admin.site.unregister(User)
admin.site.unregister(Group)  # principals have groups


@admin.register(User)
class UserAdmin(AdministratorsOnly, DjangoUserAdmin, ModelAdmin):  # type: ignore[misc, type-arg]
    form = UserChangeForm
    add_form = CreateForm
    change_password_form = AdminPasswordChangeForm
    show_full_result_count = False
    paginator = InfinitePaginator
    list_filter = ("is_staff", "is_superuser", "is_active")
    # Without Django's groups and permissions: the catalog evaluates neither. Principals have groups and grants.
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        (
            "Access",
            {
                "fields": ("is_active", "is_staff", "is_superuser"),
                "description": "A superuser holds all privileges. Others hold what their principal and its"
                " groups are granted.",
            },
        ),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """User names are read-only: they appear in the audit trail, as owners and in grants."""
        dates = ["last_login", "date_joined"]
        return [*super().get_readonly_fields(request, obj), *(["username", *dates] if obj else [])]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Whether a filter is allowed: not by the password, nor by a NUL, which PostgreSQL does not accept."""
        return "\x00" not in value and bool(super().lookup_allowed(lookup, value, request))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """No extra permission is required to delete the principal's keys and grants."""
        deleted, counts, _, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected

    # Django runs each of these in a transaction, so a refusal rolls back everything.

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return self._as_actor(request, super().changeform_view, object_id, form_url, extra_context)

    def user_change_password(
        self,
        request: HttpRequest,
        id: str,
        form_url: str = "",
    ) -> HttpResponse:
        return self._as_actor(request, super().user_change_password, id, form_url)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self._as_actor(request, super().delete_view, object_id, extra_context)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self._as_actor(request, super().changelist_view, extra_context)

    def _as_actor(self, request: HttpRequest, view: Any, *args: Any) -> HttpResponse:
        """Record the signed-in user as the actor. A CatalogError becomes a message."""
        try:
            with users.acting_as(actor(request, "auth.change_user")):
                answer: HttpResponse = view(request, *args)
                return answer
        except CatalogError as error:
            refuse(request, error)
            return HttpResponseRedirect(request.get_full_path())


@require_http_methods(["GET", "HEAD", "POST"])
def change_password(request: HttpRequest) -> HttpResponse:
    """Django's page on which users change their own password, recorded with the user as the actor."""
    if not admin.site.has_permission(request):
        return redirect_to_login(request.get_full_path(), reverse("admin:login"))
    with users.acting_as(actor(request)):
        answer: HttpResponse = admin.site.password_change(request)
        return answer
