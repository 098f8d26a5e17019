"""The answer to paths without an operation, in the form of the Iceberg protocol."""

from typing import Any, NoReturn

from django.http import HttpRequest, HttpResponse

from api.errors import MethodNotAllowed, RouteNotFound
from api.iceberg.operation import IcebergOperation
from catalog.access import Principal


class _Fallback(IcebergOperation):
    """Requires a principal like every operation, and accepts any method."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        self.verb = request.method or ""  # type: ignore[misc]
        return super().dispatch(request)


class WrongMethod(_Fallback):
    """A path that other methods have."""

    allowed = ""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise MethodNotAllowed(self.verb, self.allowed)


class NoRoute(_Fallback):
    """A path that begins like this protocol's and is none of them."""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise RouteNotFound(self.request.path)
