"""Pages of the admin outside a model, and pages with one form that calls a service."""

import hashlib
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse

from catalog.admin import breadcrumbs
from catalog.errors import CatalogError


def sent(request: HttpRequest) -> QueryDict | None:
    """The submitted form data; None for a GET request."""
    return request.POST if request.method == "POST" else None


def digest_of(texts: Iterable[str]) -> str:
    """A digest of the texts of a page, which the form repeats: only what the user saw is confirmed."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def refuse(request: HttpRequest, error: CatalogError) -> None:
    """Show the message of an error, and its detail, to the user."""
    text = error.message
    messages.error(request, f"{text}. {error.detail}" if error.detail else text)


def render(
    request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """A page with the sidebar and the header of the admin."""
    request.current_app = admin.site.name
    original, opts = context.get("original"), context.get("opts")
    last = context.get("places", ())
    if opts is None:
        places = []  # the header shows the title
    elif original is None:
        places = [breadcrumbs.list_of(opts), *last] if last else []
    else:
        places = breadcrumbs.path(original, opts, last)
    context = context | {"places": places}
    shared = admin.site.each_context(request)
    return TemplateResponse(request, template, shared | context, status=status)


def ask(
    request: HttpRequest,
    *,
    title: str,
    submit: str,
    call: Callable[[Any], HttpResponseBase],
    back: str,
    form: forms.Form | None = None,
    text: str = "",
    danger: bool = False,
    original: Model | None = None,
    opts: Any = None,
) -> HttpResponseBase:
    """Show the form until it is valid and ``call`` succeeds. A CatalogError becomes a message.

    ``back`` is the URL of the button that leaves the form. A page that opens the form in place gets the form
    alone, and is loaded again when ``call`` has succeeded.
    """
    form = form or forms.Form(sent(request))
    is_in_place = request.headers.get("HX-Request") == "true"
    if form.is_valid():
        try:
            response = call(form.cleaned_data)
        except CatalogError as error:
            refuse(request, error)
        else:
            if is_in_place and response.status_code == HTTPStatus.FOUND:
                return HttpResponse(status=204, headers={"HX-Refresh": "true"})
            return response
    context = {
        "title": title,
        "form": form,
        "text": text,
        "submit_text": submit,
        "danger": danger,
        "back": back,
        "original": original,
        "opts": opts,
        "places": [(submit, "")],
    }
    if is_in_place:
        for field in list(form.fields.values())[:1]:
            field.widget.attrs["autofocus"] = True
        return TemplateResponse(request, "admin/catalog/form_in_place.html", context)
    return render(request, "admin/catalog/form.html", context)
