"""The rules of API keys: names, scopes, expiry, and the limits of keys that principals make.

A principal that is not an administrator never makes a key that permits more, in more places or for
longer than the key or token that it presented.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from catalog import access
from catalog.errors import InvalidInput, PermissionDenied
from catalog.models import ApiKey, Namespace
from catalog.privileges import Privilege, closure, essence, parse
from catalog.services.access import principals

DEFAULT_LIFETIME = timedelta(days=90)
"""The lifetime of a key for which no end is given."""
_LONGEST_NAME = 100
_MOST_DAYS = 100 * 365


def require_own(actor: access.Principal, principal: str) -> bool:
    """True if the key is the actor's own; False for an administrator. Raises PermissionDenied."""
    if actor.holds_everywhere(Privilege.ALL):
        return False
    if principal != actor.name or not actor.ids:
        raise PermissionDenied(f"'{actor.name}' may not manage the API keys of '{principal}'")
    if actor.tables:
        raise PermissionDenied("A job may not manage API keys")
    return True


def require_no_more(
    actor: access.Principal, scopes: Sequence[str] | None, namespace: Namespace | None
) -> None:
    """Raise PermissionDenied for a key that permits more than the one that the actor presented."""
    requested = Privilege.ALL if scopes is None else closure(parse(scopes))
    if requested & ~actor.ceiling:
        presented = ", ".join(essence(actor.ceiling)) or "nothing"
        raise PermissionDenied(
            f"The key that '{actor.name}' presented permits {presented} only; a new key cannot"
            " permit more"
        )
    ancestors = [] if namespace is None else namespace.ancestors
    if actor.within is not None and actor.within not in ancestors:
        raise PermissionDenied(
            f"The key that '{actor.name}' presented is limited to one namespace; a new key must lie"
            " within it"
        )


def latest_end(actor: access.Principal) -> datetime | None:
    """The latest end of a key that the actor makes for itself: the end of the one it presented.

    None: no limit. Tokens of issuers are valid for minutes only, and people have nothing else to
    present: their keys may last for MONODON_OIDC_KEY_DAYS.
    """
    if actor.is_vouched_for:
        days = min(settings.MONODON_OIDC_KEY_DAYS, _MOST_DAYS)
        return timezone.now() + timedelta(days=days) if days else actor.ends_at
    # Its end may have changed since this process looked it up.
    presented = ApiKey.objects.filter(name=actor.key, principal__in=actor.ids).first()
    return earliest(actor.ends_at, None if presented is None else presented.expires_at)


def end_of_new_key(expires_at: datetime | None, *, never_expires: bool) -> datetime | None:
    """The end of a new key; None: it never expires. Raises InvalidInput for a contradiction."""
    if never_expires:
        if expires_at is not None:
            raise InvalidInput(
                "A key cannot both never expire and have an end: leave out one of the two"
            )
        return None
    return expires_at or timezone.now() + DEFAULT_LIFETIME


def earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def normalized_scopes(words: Iterable[str]) -> list[str] | None:
    """The scopes as stored: the fewest words that include them, None for all privileges."""
    privileges = closure(parse(words))
    if not privileges:
        raise InvalidInput(
            "A key needs at least one scope: leave the scopes out to permit all privileges"
        )
    return None if privileges == Privilege.ALL else essence(privileges)


def check_name(name: str) -> None:
    if ":" in name or not name.isprintable() or not name.strip():
        # The audit trail distinguishes keys from people, whose names begin with "user:".
        raise InvalidInput("A key's name must be printable, not blank, and without a colon")
    if len(name) > _LONGEST_NAME:
        raise InvalidInput(f"A key's name has at most {_LONGEST_NAME} characters")
    if name in principals.RESERVED:
        # Its service account would be mistaken for the catalog itself.
        raise InvalidInput(f"The name '{name}' is reserved for the catalog itself")


def require_future(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInput(
            f"The end {expires_at.isoformat(timespec='seconds')} is in the past: choose a later one"
        )


def next_name(name: str) -> str:
    """The name of a successor: ``etl``, ``etl-2``, ``etl-3``. It may be taken."""
    stem, dash, number = name.rpartition("-")
    if dash and stem and number.isascii() and number.isdigit() and len(number) < 6:
        return f"{stem}-{int(number) + 1}"
    return f"{name}-2"
