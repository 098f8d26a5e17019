"""Middleware: statements of the admin are planned for their values."""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from catalog.postgresql.plans import planned_for_values


class PlansMiddleware:
    """The admin's lists have many filters and orders, and a catalog may have a million tables."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with planned_for_values():
            return self._get_response(request)
