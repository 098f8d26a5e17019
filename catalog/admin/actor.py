"""Who is signed in: what they see and may press is what their principal holds, as with any key.

Django's own permissions say nothing about the catalog. Superusers hold everything.
"""

from dataclasses import replace
from typing import cast

from django.http import HttpRequest

from catalog import access
from catalog.access import Principal
from catalog.privileges import Privilege

_ATTRIBUTE = "_monodon_principal"


def actor(request: HttpRequest, _permission: str = "") -> Principal:
    """The signed-in user as a principal. For superusers nothing is asked of the database, for
    others two statements, once for a request."""
    principal = getattr(request, _ATTRIBUTE, None)
    if principal is None:
        request_id = getattr(request, "request_id", "")
        principal = replace(access.of_user(request.user), request_id=request_id, door="admin")
        setattr(request, _ATTRIBUTE, principal)
    return cast(Principal, principal)


def is_administrator(request: HttpRequest) -> bool:
    """Whether they may see and change what concerns the whole installation."""
    user = request.user
    return user.is_active and user.is_staff and actor(request).holds_everywhere(Privilege.ALL)


def reads_everything(request: HttpRequest) -> bool:
    return actor(request).holds_everywhere(Privilege.READ)


class AdministratorsOnly:
    """For pages of Django and its packages: users, groups, schedules."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_administrator(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return is_administrator(request)

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return is_administrator(request)

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return is_administrator(request)

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return is_administrator(request)
