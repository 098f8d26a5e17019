"""Suggestions for fields in which users type names of principals, namespaces or tables."""

import contextlib
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.autocomplete import AutocompleteJsonView
from django.core.exceptions import PermissionDenied
from django.db.models import Field, Q
from django.http import Http404, HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path

from catalog import access
from catalog.admin.actor import actor
from catalog.admin.paging import word
from catalog.errors import InvalidIdentifier
from catalog.identifiers import digest, spelled, typed
from catalog.models import Namespace, Principal, PrincipalKind, Table
from catalog.privileges import Privilege
from catalog.writing_systems import describe

_MOST = 12


def urls() -> list[URLPattern]:
    return [path("<slug:kind>/", admin.site.admin_view(_view), name="suggest")]


class _Autocompletion(AutocompleteJsonView):
    """Django's suggestions for fields of the models, which refuse other fields."""

    admin_site = admin.site

    def process_request(self, request: HttpRequest) -> tuple[Any, ...]:
        term, model_admin, field, to_field_name = super().process_request(request)
        # Of a reverse relation, Django would read limits that only fields have.
        if not isinstance(field, Field):
            raise PermissionDenied
        return term, model_admin, field, to_field_name


autocompletion = admin.site.admin_view(_Autocompletion.as_view())


def may_name_principals(request: HttpRequest) -> bool:
    """True for users who grant privileges or set owners somewhere, and so have to name principals."""
    principal = actor(request)
    return access.holds_somewhere(principal, Privilege.GRANT) or access.holds_somewhere(
        principal, Privilege.MANAGE
    )


def _view(request: HttpRequest, kind: str) -> HttpResponseBase:
    text = word(request, "q").strip()
    if kind in {"principals", "groups"}:
        if not may_name_principals(request):
            raise PermissionDenied
        names = _principals(text, kind == "groups")
    elif kind == "namespaces":
        names = _namespaces(request, text)
    elif kind == "objects":
        names = [*_namespaces(request, text), *_tables(request, text)]
    else:
        raise Http404
    notes = {name: f"{script} letters" for name in names if (script := describe(name))}
    return JsonResponse({"names": names[:_MOST], "notes": notes})


def _principals(text: str, only_groups: bool) -> list[str]:
    rows = Principal.objects.filter(is_active=True)
    if only_groups:
        rows = rows.filter(kind=PrincipalKind.GROUP)
    if text:
        # A name is suggested with and without the prefix of its kind.
        bare = Q(name__startswith=f"user:{text}") | Q(name__startswith=f"group:{text}")
        rows = rows.filter(Q(name__startswith=text) | bare)
    return list(rows.order_by("name").values_list("name", flat=True)[:_MOST])


def _split(text: str) -> tuple[tuple[str, ...], str]:
    """The namespace that is already typed, and the beginning of the next name."""
    for ending in ("x", 'x"'):  # a quote may be open
        with contextlib.suppress(InvalidIdentifier):
            *path, start = typed(text + ending)
            return tuple(path), start[:-1]
    return (), text


def _namespaces(request: HttpRequest, text: str) -> list[str]:
    above, start = _split(text)
    rows = Namespace.objects.live().filter(
        access.visible_namespaces(actor(request)), parent__digest=digest(above)
    )
    return [
        spelled(row.identifier)
        for row in rows.filter(name__startswith=start).order_by("name")[:_MOST]
    ]


def _tables(request: HttpRequest, text: str) -> list[str]:
    above, start = _split(text)
    rows = Table.objects.present().filter(
        access.visible_tables(actor(request)), namespace__digest=digest(above)
    )
    rows = rows.filter(name__startswith=start).select_related("namespace")
    return [spelled(row.identifier) for row in rows.order_by("name")[:_MOST]]
