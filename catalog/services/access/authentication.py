"""Finding the principal of a request by the credentials that it presents."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.utils import timezone

from catalog import access
from catalog.access import Principal, Progress, tokens
from catalog.errors import PermissionDenied, TokenExpired, Unauthenticated
from catalog.services.access import known_keys, oidc
from catalog.services.access.throttle import throttle
from catalog.services.engine import jobs


def authenticate(
    key: str | None,
    *,
    request_id: str = "",
    context: Mapping[str, str] | None = None,
    interface: str = "",
) -> Principal:
    """The principal of an API key, or the anonymous one where MONODON_ANONYMOUS grants it.

    ``key`` may also be an access token of a key, or the token of a running job. Raises
    Unauthenticated for a missing, unknown, expired or revoked key, and TokenExpired.
    """
    details: dict[str, Any] = {
        "request_id": request_id,
        "context": context or {},
        "progress": Progress(),
        "interface": interface,
    }
    if not key:
        anonymous = access.anonymous()
        if anonymous is None:
            raise Unauthenticated("No API key was given: send it as x-api-key or as a bearer token")
        return anonymous.through(**details)
    if key.startswith(tokens.JOB_PREFIX):
        # Not cached, because a job may lose its lease at any time.
        return jobs.principal_of_token(key).through(**details)
    principal = _lookup(key)
    return principal.through(**details, confirm=_Presented(key, principal).confirm)


class _Presented:
    """A key of a request, which may be revoked before the request commits: an upload takes as long as its client."""

    __slots__ = ("_key", "_principal", "_until")

    def __init__(self, key: str, principal: Principal) -> None:
        self._key, self._principal = key, principal
        self._until = time.monotonic() + known_keys.TRUST_SECONDS

    def confirm(self) -> None:
        """Raises Unauthenticated if the key was revoked, and PermissionDenied if its principal has lost something.

        A token that expires meanwhile is still valid for its request.
        """
        if time.monotonic() < self._until:
            return
        before = self._principal
        try:
            now = _lookup(self._key)
        except TokenExpired:
            if oidc.is_token(self._key):
                now = access.on_behalf_of(before.name)
            else:
                row = known_keys.find_key(self._key, allow_expired_token=True)
                now = access.of_row(row.principal, row)
        is_less = before.everywhere & ~now.everywhere or before.ceiling & ~now.ceiling
        if is_less or now.within != before.within or not set(before.ids) <= set(now.ids):
            raise PermissionDenied(
                "'{actor}' has lost privileges since this request began", actor=before.name
            )


def _lookup(key: str) -> Principal:
    principal = known_keys.cached_principal(key)
    if principal is None:
        principal, seconds = _recognise(key)
        throttle.record_success(key)
        known_keys.remember(key, principal, seconds)
    return principal


def _recognise(key: str) -> tuple[Principal, float]:
    """The principal of a key or a token, and the seconds for which it may be trusted."""
    if oidc.is_token(key):
        return oidc.authenticate(key)
    row = known_keys.find_key(key)
    principal = access.of_row(row.principal, row)
    token = tokens.read_token(key)
    if token is not None:
        ceiling = token.privileges & principal.ceiling
        ends_at = min(token.ends_at, principal.ends_at or token.ends_at)
        principal = replace(
            principal, ceiling=ceiling, everywhere=principal.everywhere & ceiling, ends_at=ends_at
        )
    if row.expires_at is None:
        return principal, known_keys.TRUST_SECONDS
    return principal, (row.expires_at - timezone.now()).total_seconds()
