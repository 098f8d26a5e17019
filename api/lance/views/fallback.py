"""What answers where no operation does: still in the Lance form."""

from typing import Any, NoReturn

from django.http import HttpRequest, HttpResponse

from api.errors import RouteNotFound
from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.errors import Unsupported


class _Fallback(LanceOperation):
    """Asks for a principal like every operation, and takes any method."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        self.verb = request.method or ""  # type: ignore[misc]
        return super().dispatch(request)


class NotServed(_Fallback):
    """An operation of the specification that this server does not do yet."""

    operation_id = ""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise Unsupported(f"This server does not do {self.operation_id} yet")


class NoRoute(_Fallback):
    """A path that the specification does not have."""

    def handle(self, actor: Principal, body: None) -> NoReturn:
        raise RouteNotFound(self.request.path)
