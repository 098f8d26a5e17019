"""The pages of refused and missing URLs: each says why, whom to ask, and where to go on."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve, reverse

from catalog import access
from catalog.admin import cells, contacts, form_pages
from catalog.admin.actor import actor
from catalog.admin.pages import ReadOnlyAdmin
from catalog.models import Namespace, Table
from catalog.privileges import Privilege

_START = "/admin/"


def permission_denied(
    request: HttpRequest,
    exception: Exception | None = None,  # noqa: ARG001 -- Django passes it
) -> HttpResponse:
    """The page for a URL that the user may not open (403)."""
    target = _target(request)
    context: dict[str, Any] = {
        "title": "You may not open this page",
        "text": "Your account does not have the privileges that this page requires.",
    }
    if target is not None:
        context["target"] = str(target)
        context["target_url"] = cells.page_url(target)
        context["request_url"] = contacts.request_url(target)
    return _page(request, context, target, 403)


def page_not_found(
    request: HttpRequest,
    exception: Exception | None = None,  # noqa: ARG001 -- Django passes it
) -> HttpResponse:
    """The page for a URL that does not exist (404). Outside the admin, programs get an error as in the Iceberg protocol."""
    is_page = request.path_info.startswith(_START)
    if not is_page and "text/html" not in request.headers.get("Accept", ""):
        message = (
            f"There is no '{request.path_info[:200]}' on this server. The Lance and Iceberg protocols are at /v1, "
            "the management API is at /management/v1, and /docs describes them"
        )
        error = {"message": message, "type": "NotFoundException", "code": 404}
        return JsonResponse({"error": error}, status=404)
    text = "The address may be misspelled, or the page was removed."
    return _page(request, {"title": "This page does not exist", "text": text}, None, 404)


def csrf_failure(
    request: HttpRequest,
    reason: str = "",  # noqa: ARG001 -- Django passes it
) -> HttpResponse:
    """The page for a form without a valid CSRF token (403)."""
    return render(
        request, "admin/catalog/csrf.html", {"title": "The form was not sent"}, status=403
    )


def _page(
    request: HttpRequest, context: dict[str, Any], target: Namespace | Table | None, status: int
) -> HttpResponse:
    user = getattr(request, "user", None)
    is_staff = user is not None and user.is_active and user.is_staff
    if not is_staff or not request.path_info.startswith(_START):
        # Without the sidebar, which takes statements: anybody may request such a URL.
        context["url"] = reverse("admin:index")
        return render(request, "admin/catalog/plain_error.html", context, status=status)
    # Users who hold privileges only below a namespace do not see its owner.
    is_browsed = target is not None and access.holds(actor(request), Privilege.BROWSE, target)
    context["contacts"] = (
        contacts.of(target) if target is not None and is_browsed else contacts.administrators()
    )
    return form_pages.render(request, "admin/catalog/error.html", context, status)


def _target(request: HttpRequest) -> Namespace | Table | None:
    """The namespace or table of the requested page, if the user may see it."""
    try:
        match = resolve(request.path_info)
    except Resolver404:
        return None
    object_id = match.kwargs.get("object_id")
    user = getattr(request, "user", None)
    if object_id is None or user is None or not user.is_staff:
        return None
    for model in (Table, Namespace):
        if match.route.startswith(f"admin/{model._meta.app_label}/{model._meta.model_name}/"):
            page = admin.site.get_model_admin(model)
            if isinstance(page, ReadOnlyAdmin):
                actor(request)
                row = page.find(request, object_id)
                return row if isinstance(row, (Namespace, Table)) else None
    return None
