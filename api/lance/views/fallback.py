"""The answer to paths without an operation, in the form of the Lance protocol."""

from typing import Any, NoReturn

from django.http import HttpRequest, HttpResponse

from api.errors import RouteNotFound
from api.lance.operation import LanceOperation
from catalog.access import Principal


class _Fallback(LanceOperation):
    """Requires a principal like every operation, and accepts any method."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        self.verb = request.method or ""  # type: ignore[misc]
        return super().dispatch(request)


class NoRoute(_Fallback):
    """A path that the specification does not have."""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise RouteNotFound(self.request.path)
