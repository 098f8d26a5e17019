"""Who acts when somebody presses a button here."""

from django.http import HttpRequest

from catalog.privileges import READ_ONLY, Privilege
from catalog.services.access import Principal


def actor(request: HttpRequest, permission: str) -> Principal:
    """The signed-in user as a principal, who may write if they have this Django permission."""
    may = Privilege.ALL if request.user.has_perm(permission) else READ_ONLY
    request_id = getattr(request, "request_id", "")
    return Principal(f"user:{request.user.get_username()}", may, request_id, door="admin")
