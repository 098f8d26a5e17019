"""Paths without an operation."""

from typing import Any, NoReturn

from api.errors import RouteNotFound
from api.management.viewsets import ManagementView


class NoRoute(ManagementView):
    """Refuses every method with a problem, after authentication."""

    schema = None
    http_method_names: list[str] = []
    operation = "NoRoute"

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise RouteNotFound(request.path)
