"""Credentials of API requests: keys and tokens in their headers."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest

from api.request_id import request_id
from catalog.access import Principal
from catalog.errors import TokenExpired, Unauthenticated
from catalog.services.access import authentication, oidc
from catalog.services.access.throttle import throttle
from catalog.storage.outages import large_inputs


def presented_key(request: HttpRequest) -> str | None:
    """Return the key or token of ``x-api-key`` or ``Authorization: Bearer``, or None."""
    return key_of(request.META)


def key_of(meta: Mapping[str, Any]) -> str | None:
    """The same of a WSGI environment."""
    key = meta.get("HTTP_X_API_KEY")
    if not key:
        scheme, _, token = meta.get("HTTP_AUTHORIZATION", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else None
        if key == "None":  # PyIceberg sends this if it has no token
            key = None
    return key or None


def authenticate(
    request: HttpRequest, *, interface: str, context: Mapping[str, str] | None = None
) -> Principal:
    """Return the principal of a request.

    ``context``: details of the request for the audit trail. Raises Unauthenticated, TokenExpired and,
    after too many wrong keys, TooManyAttempts.
    """
    key, address = presented_key(request), request.META.get("REMOTE_ADDR", "")
    if key is not None:
        throttle.check(key, address)
    try:
        actor = authentication.authenticate(
            key,
            request_id=request_id.get(),
            context=context,
            interface=interface,
        )
    except TokenExpired:
        raise  # the token was valid once, so it is not a guess
    except Unauthenticated:
        # Signatures cannot be guessed; and new keys of an issuer are unknown for a moment.
        if key is not None and not oidc.is_token(key):
            throttle.record_failure(key, address)
        raise
    request.actor_name = actor.name  # type: ignore[attr-defined]
    large_inputs.attribute(actor.name)
    return actor
