"""Who asks, and whether they may."""

import hashlib
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from catalog.errors import PermissionDenied, Unauthenticated
from catalog.models import ApiKey, Namespace, Table
from catalog.services import tokens

KEY_PREFIX = "mnd_"
# How long a process goes on trusting a key that it has looked up: so long does a revoked key live.
_TRUST_SECONDS = 4.0
_CACHE_LIMIT = 10_000


class Action(IntEnum):
    """What is asked for, from the least to the most."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The key under which a request may change the catalog once; its change notes it."""

    key: uuid.UUID
    fingerprint: str
    """SHA-256 of the request, so that a key is not taken for two requests."""


@dataclass(slots=True)
class Progress:
    """How far a request has come."""

    committed: bool = False
    """Whether something stands already that a later failure does not undo."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, and through which request."""

    name: str
    may: Action | None
    request_id: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    idempotency: IdempotencyKey | None = None
    progress: Progress = field(default_factory=Progress, compare=False, repr=False)


SYSTEM = Principal("system", Action.WRITE)
"""The catalog itself: jobs, the command line, migrations."""

_ANONYMOUS = {"none": None, "read": Action.READ, "admin": Action.WRITE}
_KEY_ACCESS = {ApiKey.Access.READ: Action.READ, ApiKey.Access.ADMIN: Action.WRITE}
_known: dict[str, tuple[float, str, Action]] = {}


def require(actor: Principal, action: Action, target: Namespace | Table | None = None) -> None:
    """Let the action pass or raise PermissionDenied. ``target`` is the row it is about."""
    if actor.may is None or actor.may < action:
        what = f"write to '{target}'" if target is not None else action.name.lower()
        raise PermissionDenied(f"'{actor.name}' may not {what}")


def authenticate(
    key: str | None, *, request_id: str = "", context: Mapping[str, str] | None = None
) -> Principal:
    """The principal of an API key, or the anonymous one where MONODON_ANONYMOUS grants it.

    ``key`` may be an access token of a key, or the token of a running job, too. Raises
    Unauthenticated for a missing, unknown, expired or revoked key, and TokenExpired.
    """
    if key is not None and key.startswith(tokens.JOB_PREFIX):
        from catalog.services import jobs  # which needs this module

        of_job = jobs.principal_of_token(key)  # at every request: a job may lose its lease
        return replace(of_job, request_id=request_id, context=context or {})
    if not key:
        may = _ANONYMOUS[settings.MONODON_ANONYMOUS]
        if may is None:
            raise Unauthenticated("No API key was given: send it as x-api-key or as a bearer token")
        return Principal("anonymous", may, request_id, context or {})
    name, may = _lookup(key)
    return Principal(name, may, request_id, context or {})


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def forget_keys() -> None:
    """Make this process look every key up again."""
    _known.clear()


def find_key(secret: str, *, expired_token_too: bool = False) -> ApiKey:
    """The row of an API key, or of the one that an access token stands for.

    Raises Unauthenticated for a missing, unknown, expired or revoked key, and TokenExpired.
    """
    pk = tokens.read_token(secret, expired_too=expired_token_too)
    wanted = Q(digest=key_digest(secret)) if pk is None else Q(pk=pk)
    moment = timezone.now()
    row = (
        ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=moment))
        .filter(wanted, revoked_at=None)
        .first()
    )
    if row is None:
        raise Unauthenticated("The API key is unknown, expired or revoked")
    if row.last_used_at is None or moment - row.last_used_at > timedelta(minutes=1):
        ApiKey.objects.filter(pk=row.pk).update(last_used_at=moment)
    return row


def _lookup(key: str) -> tuple[str, Action]:
    digest = key_digest(key)
    now = time.monotonic()
    cached = _known.get(digest)
    if cached is not None and cached[0] > now:
        return cached[1], cached[2]
    _known.pop(digest, None)
    row = find_key(key)
    if len(_known) >= _CACHE_LIMIT:
        _known.clear()
    trusted_until = now + _TRUST_SECONDS
    if row.expires_at is not None:
        remaining = (row.expires_at - timezone.now()).total_seconds()
        trusted_until = min(trusted_until, now + remaining)
    entry = (trusted_until, row.name, _KEY_ACCESS[ApiKey.Access(row.access)])
    _known[digest] = entry
    return entry[1], entry[2]
