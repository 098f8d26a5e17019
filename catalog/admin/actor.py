"""The signed-in user as a principal.

A user sees and may do what the principal holds privileges for, as with an API key. Django's own
permissions do not apply to the catalog. Superusers hold all privileges.
"""

from dataclasses import replace
from typing import Protocol, cast

from django.db.models import Q
from django.http import HttpRequest

from catalog import access
from catalog.access import Principal
from catalog.models import Table
from catalog.privileges import Privilege
from catalog.services.tables import listing
from catalog.storage.outages import large_inputs

_ATTRIBUTE = "_monodon_principal"
_SOMEWHERE = "_monodon_holds_somewhere"
_VISIBILITY = "_monodon_visibility"
_FEW_TABLES = "_monodon_few_tables"
_FEW_WITH_DROPPED = "_monodon_few_tables_with_dropped"
_MOST_FEW = 20_000


def actor(request: HttpRequest, _permission: str = "") -> Principal:
    """The principal of the signed-in user, cached in the request.

    No statement for superusers, two for other users.
    """
    principal = getattr(request, _ATTRIBUTE, None)
    if principal is None:
        request_id = getattr(request, "request_id", "")
        principal = replace(access.of_user(request.user), request_id=request_id, interface="admin")
        setattr(request, _ATTRIBUTE, principal)
        large_inputs.attribute(principal.name)
    return cast(Principal, principal)


def holds_somewhere(request: HttpRequest, privilege: Privilege) -> bool:
    """True if the user holds the privilege on anything, cached in the request: each button of a list asks."""
    answers: dict[Privilege, bool] | None = getattr(request, _SOMEWHERE, None)
    if answers is None:
        answers = {}
        setattr(request, _SOMEWHERE, answers)
    if privilege not in answers:
        answers[privilege] = access.holds_somewhere(actor(request), privilege)
    return answers[privilege]


class _Limited(Protocol):
    """A page of the admin whose rows are limited to those that the user may browse."""

    def visibility(self, principal: Principal) -> Q | None: ...


def visibility(request: HttpRequest, page: _Limited) -> Q | None:
    """The page's condition for the user, cached in the request: each entry of the sidebar asks."""
    conditions: dict[type, Q | None] | None = getattr(request, _VISIBILITY, None)
    if conditions is None:
        conditions = {}
        setattr(request, _VISIBILITY, conditions)
    if type(page) not in conditions:
        conditions[type(page)] = page.visibility(actor(request))
    return conditions[type(page)]


def browsable_tables(request: HttpRequest) -> Q:
    """``access.visible_tables`` of rows with a ``table`` that is not dropped, faster if the user may browse few.

    Two statements at most in each request.
    """
    tables = few_tables(request)
    if tables is None:
        return access.visible_tables(actor(request), "table__")
    return Q(table__in=tables)


def few_tables(request: HttpRequest, *, with_dropped: bool = False) -> list[int] | None:
    """The tables that the user may browse, if they are few; cached in the request. Two statements at most."""
    name = _FEW_WITH_DROPPED if with_dropped else _FEW_TABLES
    if not hasattr(request, name):
        setattr(request, name, _few_tables(actor(request), with_dropped=with_dropped))
    return cast("list[int] | None", getattr(request, name))


def _few_tables(principal: Principal, *, with_dropped: bool) -> list[int] | None:
    candidates = access.few_visible_tables(principal, _MOST_FEW, with_dropped=with_dropped)
    if not candidates:
        return candidates
    rows = Table.objects.all() if with_dropped else Table.objects.present()
    visible = rows.filter(access.visible_tables(principal), listing.among(candidates))
    return list(visible.order_by().values_list("pk", flat=True))


def is_administrator(request: HttpRequest) -> bool:
    """True if the user holds all privileges everywhere."""
    user = request.user
    return user.is_active and user.is_staff and actor(request).holds_everywhere(Privilege.ALL)


def reads_everything(request: HttpRequest) -> bool:
    return actor(request).holds_everywhere(Privilege.READ)


class AdministratorsOnly:
    """Restricts pages of Django and its packages to administrators: users, groups, schedules."""

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
