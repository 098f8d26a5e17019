"""What a request was about, for its log line and its span: the operation, the object, the principal."""

from collections.abc import Mapping

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from catalog.identifiers import DEFAULT_DELIMITER


def operation(request: HttpRequest) -> str:
    """The operation of an API, or the name of the route of a page. Empty for paths that do not exist."""
    operation: str = getattr(request, "operation", "")
    if operation:
        return operation
    match = getattr(request, "resolver_match", None)
    return "" if match is None else match.view_name


def target(request: HttpRequest) -> str:
    """The object that the path of an API request names, as in the audit trail."""
    target: tuple[Mapping[str, str], str | None] | None = getattr(request, "target", None)
    return "" if target is None else name(*target)


def name(path: Mapping[str, str], delimiter: str | None) -> str:
    """The object that the variable parts of a path name, with dots between the names."""
    text = ".".join(part for key, part in path.items() if key != "prefix")
    return text.replace(delimiter or DEFAULT_DELIMITER, ".").replace("\x1f", ".").strip(".")


def actor(request: HttpRequest) -> str:
    """The principal of a request, if it was determined. Reads no session and no user."""
    actor: str = getattr(request, "actor_name", "")
    if actor:
        return actor
    user = getattr(request, "__dict__", {}).get("user")
    if isinstance(user, SimpleLazyObject):  # of the session
        user = getattr(request, "_cached_user", None)
    return f"user:{user.get_username()}" if user is not None and user.is_authenticated else ""
