"""The storage of a namespace: which profile is in effect, and binding another."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget

from catalog.admin import cells
from catalog.admin.actor import actor, is_administrator
from catalog.admin.form_pages import sent
from catalog.admin.pages import ReadOnlyAdmin
from catalog.errors import NamespaceNotFound
from catalog.models import Namespace, StorageProfile
from catalog.services.storage import profile_bindings

_INHERIT = ""


class BindForm(forms.Form):
    def __init__(self, *args: Any, bound: str, **options: Any) -> None:
        super().__init__(*args, **options)
        choices = [(_INHERIT, "Inherit from the namespace above")]
        choices += [
            (name, f"{name}: {roots[0]}")
            for name, roots in StorageProfile.objects.order_by("name").values_list("name", "roots")
        ]
        self.fields["profile"] = forms.ChoiceField(
            required=False,
            initial=bound,
            choices=choices,
            widget=UnfoldAdminSelectWidget(choices=choices),
            help_text="New tables without a location are placed below the first root of the profile. Existing"
            " tables stay where they are.",
        )


def fact(request: HttpRequest, row: Namespace) -> SafeString | str:
    """The profile in effect, and the namespace that it is inherited from. For readers of the namespace."""
    storage = profile_bindings.storage_of(actor=actor(request), namespace=row.identifier)
    if storage.profile is None:
        return "local warehouse"
    name: object = storage.profile
    if is_administrator(request) and storage.bound is not None:
        name = cells.link(storage.bound.storage_profile)
    if not storage.is_inherited:
        return cells.spaced([name, cells.muted("bound here")])
    return cells.spaced([name, cells.muted("inherited from"), cells.link(storage.bound)])


def bind(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace) -> HttpResponseBase:
    """Show the form that binds a namespace to a profile, or lets it inherit its storage."""
    profile = row.storage_profile

    def call(data: dict[str, Any]) -> HttpResponseBase:
        if row.dropped_at is not None:
            raise NamespaceNotFound(row.identifier)
        if data["profile"] == _INHERIT:
            profile_bindings.unbind_namespace(actor=actor(request), namespace=row.identifier)
            messages.success(request, f"Namespace '{row}' inherits its storage")
        else:
            profile_bindings.bind_namespace(
                actor=actor(request), namespace=row.identifier, profile=data["profile"]
            )
            messages.success(
                request, f"Namespace '{row}' is bound to storage profile '{data['profile']}'"
            )
        return HttpResponseRedirect(cells.page_url(row))

    return page.ask(
        request,
        title=f"Storage of namespace '{row}'",
        submit="Save",
        form=BindForm(sent(request), bound=profile.name if profile is not None else _INHERIT),
        call=call,
        original=row,
    )
