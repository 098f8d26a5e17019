"""What answers where no operation does: still in the Lance form."""

from typing import Any, NoReturn

from django.http import HttpRequest, HttpResponse

from api.errors import RouteNotFound
from api.lance.operation import LanceOperation
from catalog.access import Principal


class _Fallback(LanceOperation):
    """Asks for a principal like every operation, and takes any method."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        self.verb = request.method or ""  # type: ignore[misc]
        return super().dispatch(request)


class NoRoute(_Fallback):
    """A path that the specification does not have."""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise RouteNotFound(self.request.path)
