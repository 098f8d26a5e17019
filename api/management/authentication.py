"""Authentication and permission classes: principals of the catalog as users of REST framework."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from api import credentials
from catalog import access
from catalog.models.audit import Interface


class KeyAuthentication(BaseAuthentication):
    """Authenticates API keys and tokens. ``request.user`` is the principal."""

    def authenticate(self, request: Request) -> tuple[access.Principal, None]:
        """Return the principal. Raises Unauthenticated, TokenExpired and TooManyAttempts."""
        plain = request._request  # noqa: SLF001 -- the only access to Django's request
        return credentials.authenticate(plain, interface=Interface.MANAGEMENT), None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class IsPrincipal(BasePermission):
    """Requires a principal. Services check privileges, on locked rows and in the commit itself."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return isinstance(request.user, access.Principal)


class KeyAuthenticationScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The security schemes of the document."""

    target_class = KeyAuthentication
    name = ["ApiKeyAuth", "BearerAuth"]

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        return [
            {"type": "apiKey", "in": "header", "name": "x-api-key"},
            {"type": "http", "scheme": "bearer"},
        ]
