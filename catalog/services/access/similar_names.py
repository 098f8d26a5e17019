"""Similar names of principals, for the error about a name that does not exist."""

from difflib import get_close_matches

from django.db.models import Q

from catalog.errors import PrincipalNotFound
from catalog.models import Principal

_COMPARED = 500
_SIMILARITY = 0.75
_PREFIXES = ("user:", "group:")


def not_found(name: str) -> PrincipalNotFound:
    """The error for a name that no principal has. One statement.

    It names a principal with a similar name, so the actor must be allowed to name principals.
    """
    return PrincipalNotFound(name, similar_name(name))


def similar_name(name: str) -> str:
    """The name of an active principal that is likely meant; empty if there is none."""
    name = name.replace("\x00", "")
    bare = _without_prefix(name)
    if not bare:
        return ""
    begins = Q()
    for prefix in ("", *_PREFIXES):
        begins |= Q(name__startswith=prefix + bare[0])
    rows = Principal.objects.filter(begins, is_active=True).order_by("name")
    names = list(rows.values_list("name", flat=True)[:_COMPARED])
    by_bare: dict[str, str] = {}
    for existing in names:
        by_bare.setdefault(_without_prefix(existing), existing)
    close = get_close_matches(bare, by_bare, 1, _SIMILARITY)
    return by_bare[close[0]] if close else ""


def _without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
