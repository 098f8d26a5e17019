"""What a request was about, for its log line and its span: the operation, the object, the principal."""

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject


def operation(request: HttpRequest) -> str:
    """The operation of an API, or the name of the route of a page. Empty for paths that do not exist."""
    name: str = getattr(request, "operation", "")
    if name:
        return name
    match = getattr(request, "resolver_match", None)
    return "" if match is None else match.view_name


def target(request: HttpRequest) -> str:
    """The object that the path of an API request names, as in the audit trail."""
    name: str = getattr(request, "target", "")
    return name


def actor(request: HttpRequest) -> str:
    """The principal of a request, if it was determined. Reads no session and no user."""
    name: str = getattr(request, "actor_name", "")
    if name:
        return name
    user = getattr(request, "__dict__", {}).get("user")
    if isinstance(user, SimpleLazyObject):  # of the session
        user = getattr(request, "_cached_user", None)
    return f"user:{user.get_username()}" if user is not None and user.is_authenticated else ""
