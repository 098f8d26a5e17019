"""What answers where no operation does: still as problem details."""

from typing import Any, NoReturn

from django.http import HttpRequest, HttpResponse

from api.errors import MethodNotAllowed, RouteNotFound
from api.management.operation import ManagementOperation
from catalog.access import Principal


class _Fallback(ManagementOperation):
    """Asks for a principal like every operation, and takes any method."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        self.verb = request.method or ""  # type: ignore[misc]
        return super().dispatch(request)


class WrongMethod(_Fallback):
    """A path that other methods have."""

    allowed = ""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise MethodNotAllowed(self.verb, self.allowed)


class NoRoute(_Fallback):
    """A path that is none of this API's."""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise RouteNotFound(self.request.path)
