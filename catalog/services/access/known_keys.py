"""Looking up API keys, with a cache of their principals."""

import time
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from catalog.access import tokens
from catalog.access.credentials import key_digest
from catalog.access.principal import Principal
from catalog.errors import Unauthenticated
from catalog.models import ApiKey

# The time for which a process trusts a key that it has looked up, and so the delay of a revocation.
TRUST_SECONDS = 4.0
_CACHE_LIMIT = 10_000

_principals: dict[str, tuple[float, Principal]] = {}


def forget_keys() -> None:
    """Clear the cache, so that this process looks up every key again."""
    _principals.clear()


def cached_principal(key: str) -> Principal | None:
    """The principal of a key that this process has looked up within the trusted time."""
    digest = key_digest(key)
    entry = _principals.get(digest)
    if entry is None:
        return None
    if entry[0] > time.monotonic():
        return entry[1]
    _principals.pop(digest, None)
    return None


def remember(key: str, principal: Principal, seconds: float) -> None:
    """Cache the principal of a key for at most this long, and never longer than TRUST_SECONDS."""
    if len(_principals) >= _CACHE_LIMIT:
        _principals.clear()
    until = time.monotonic() + min(seconds, TRUST_SECONDS)
    _principals[key_digest(key)] = (until, principal)


def find_key(secret: str, *, allow_expired_token: bool = False) -> ApiKey:
    """The row of an API key, given the key or one of its access tokens.

    Raises Unauthenticated for a missing, unknown, expired or revoked key, and TokenExpired.
    """
    token = tokens.read_token(secret, allow_expired=allow_expired_token)
    condition = Q(digest=key_digest(secret)) if token is None else Q(pk=token.key)
    moment = timezone.now()
    row = (
        ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=moment))
        .filter(condition, revoked_at=None, principal__is_active=True)
        .select_related("principal__user")
        .first()
    )
    if row is None or (row.principal.user is not None and not row.principal.user.is_active):
        raise Unauthenticated("The API key is unknown, expired or revoked")
    if row.last_used_at is None or moment - row.last_used_at > timedelta(minutes=1):
        ApiKey.objects.filter(pk=row.pk).update(last_used_at=moment)
    return row
