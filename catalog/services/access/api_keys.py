"""API keys: creating, rotating and revoking them.

A principal may have several. Administrators manage all keys; other principals manage their own,
within the limits of ``key_rules``.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from catalog import access
from catalog.access import credentials
from catalog.errors import (
    InvalidInput,
    KeyNotFound,
    NamespaceNotFound,
    PermissionDenied,
    PrincipalNotFound,
    Unauthenticated,
)
from catalog.identifiers import Identifier, label
from catalog.models import ApiKey, Namespace, Principal, PrincipalKind, PrincipalLevel
from catalog.privileges import Privilege, essence
from catalog.services.access import key_rules, known_keys, principals
from catalog.services.access.pages import page_of
from catalog.services.engine import audit_records, locks

PAGE_SIZE = 100
MAX_PAGE = 1000
MAX_OVERLAP = timedelta(days=30)


def create_api_key(
    *,
    actor: access.Principal,
    name: str,
    level: PrincipalLevel = PrincipalLevel.ADMIN,
    expires_at: datetime | None = None,
    key: str | None = None,
) -> tuple[ApiKey, str]:
    """Create the first key of an installation; returns its row and the key, which is not stored.

    It belongs to the service account of its name, which is created with this level if necessary, and
    never expires unless an end is given. ``create_for`` creates keys that are limited by default.

    ``key`` presets the key. Raises InvalidInput when the name or the key is in use, or the account
    has another level: the key would permit more, or less, than requested.
    """
    access.require(actor, Privilege.ALL)
    key_rules.check_name(name)
    try:
        with transaction.atomic():
            principal, _ = Principal.objects.get_or_create(
                name=name,
                defaults={
                    "kind": PrincipalKind.SERVICE,
                    "level": level,
                    "created_by": actor.name,
                },
            )
            if principal.level != level:
                raise InvalidInput(
                    f"The service account '{name}' exists already, with level {principal.level}:"
                    " choose another name, or that level"
                )
            row, secret = _insert(actor, principal, name, expires_at=expires_at, secret=key)
            audit_records.record(actor, "api_key.create", name, after={"level": level})
    except IntegrityError as exc:
        raise _taken(name) from exc
    return row, secret


def add_key(
    *,
    actor: access.Principal,
    principal: str,
    name: str,
    scopes: Iterable[str] | None = None,
    namespace: Identifier | None = None,
    expires_at: datetime | None = None,
    never_expires: bool = False,
) -> tuple[ApiKey, str]:
    """Create another key of a principal; returns its row and the key, which is not stored.

    ``scopes`` are the words of the privileges that the key permits at most; None: all that the
    principal has. ``namespace`` limits it to that namespace and everything below. It expires after
    ``key_rules.DEFAULT_LIFETIME`` unless ``expires_at`` is given; only an administrator creates a
    key that never expires. A key that the actor creates for itself ends at the latest with the key
    that it presented, or after MONODON_OIDC_KEY_DAYS if it presented a token of an issuer.

    Raises PermissionDenied for another principal's key, or for one that would permit more than the
    presented key; PrincipalNotFound; NamespaceNotFound; and InvalidInput when the name is in use or
    the principal is a group.
    """
    is_own = key_rules.require_own(actor, principal)
    key_rules.check_name(name)
    row = Principal.objects.filter(name=principal).first() if "\x00" not in principal else None
    if row is None:
        raise PrincipalNotFound(principal)
    if row.kind == PrincipalKind.GROUP:
        raise InvalidInput(f"'{principal}' is a group and has no keys: choose one of its members")
    may = None if scopes is None else key_rules.normalized_scopes(scopes)
    within = None if namespace is None else _namespace(actor, namespace)
    expires_at = key_rules.end_of_new_key(expires_at, never_expires=never_expires)
    if is_own and never_expires:
        raise PermissionDenied(
            "Only an administrator may create an API key that never expires",
            detail="Set an end, or leave it out: the key is then valid for"
            f" {key_rules.DEFAULT_LIFETIME.days} days.",
        )
    if is_own:
        if may is None and actor.ceiling != Privilege.ALL:
            may = essence(actor.ceiling)
        if within is None and actor.within is not None:
            within = Namespace.objects.get(pk=actor.within)
        key_rules.require_no_more(actor, may, within)
        expires_at = key_rules.earliest(key_rules.latest_end(actor), expires_at)
    key_rules.require_future(expires_at)
    try:
        with transaction.atomic():
            key, secret = _insert(
                actor, row, name, scopes=may, namespace=within, expires_at=expires_at
            )
            audit_records.record(actor, "api_key.create", name, after=_audit_values(key))
    except IntegrityError as exc:
        raise _taken(name) from exc
    return key, secret


def create_for(
    *,
    actor: access.Principal,
    name: str,
    principal: str | None = None,
    level: PrincipalLevel = PrincipalLevel.GRANTED,
    scopes: Iterable[str] | None = None,
    namespace: Identifier | None = None,
    expires_at: datetime | None = None,
    never_expires: bool = False,
) -> tuple[ApiKey, str]:
    """Create a key of a principal, or of a new service account with the key's name.

    Such an account holds no privileges until it gets a grant, unless it gets a level. The account
    and its key are created together. Raises as ``add_key`` and ``principals.create_principal``.
    """
    with transaction.atomic():
        if principal is None:
            row = principals.create_principal(
                actor=actor, name=name, kind=PrincipalKind.SERVICE, level=level
            )
            principal = row.name
        return add_key(
            actor=actor,
            principal=principal,
            name=name,
            scopes=scopes,
            namespace=namespace,
            expires_at=expires_at,
            never_expires=never_expires,
        )


def rotate(
    *,
    actor: access.Principal,
    key: ApiKey,
    overlap: timedelta,
    name: str | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Replace a key; the old one names its successor and ends after the overlap.

    The new key permits the same. ``name`` None: the old name with a number. It expires when the old
    one would have, unless an earlier end is requested; an administrator may choose a later one.
    Raises PermissionDenied, also when the key that the actor presented ends before that;
    KeyNotFound; and InvalidInput for a key that has ended or is already replaced, a name in use, or
    an overlap of more than 30 days.
    """
    is_own = key_rules.require_own(actor, key.principal.name)
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InvalidInput(f"The overlap must be 0 to {MAX_OVERLAP.days} days")
    try:
        with transaction.atomic():
            old = locks.lock_api_key(key.pk)
            if old is None:
                raise KeyNotFound(key.name)
            now = timezone.now()
            if old.revoked_at is not None or (old.expires_at and old.expires_at <= now):
                raise InvalidInput(f"API key '{old}' has ended: create a new one")
            if old.replaced_by_id is not None:
                raise InvalidInput(f"API key '{old}' is already replaced, by '{old.replaced_by}'")
            if is_own:
                key_rules.require_no_more(actor, old.scopes, old.namespace)
                expires_at = key_rules.earliest(old.expires_at, expires_at)
                latest = key_rules.latest_end(actor)
                if latest is not None and (expires_at is None or expires_at > latest):
                    raise PermissionDenied(
                        f"The key that '{actor.name}' presented ends at"
                        f" {latest.isoformat(timespec='seconds')}, before the key to be replaced:"
                        " set an end that is not later, or present another key"
                    )
            expires_at = expires_at or old.expires_at
            key_rules.require_future(expires_at)
            name = name or key_rules.next_name(old.name)
            key_rules.check_name(name)
            new, secret = _insert(
                actor,
                old.principal,
                name,
                scopes=old.scopes,
                namespace=old.namespace,
                expires_at=expires_at,
            )
            old.expires_at = key_rules.earliest(old.expires_at, now + overlap)
            old.replaced_by = new
            old.save(update_fields=["expires_at", "replaced_by"])
            audit_records.record(
                actor,
                "api_key.rotate",
                old.name,
                after={
                    "replaced_by": new.name,
                    "ends": None if old.expires_at is None else old.expires_at.isoformat(),
                },
            )
            audit_records.record(actor, "api_key.create", name, after=_audit_values(new))
    except IntegrityError as exc:
        raise _taken(name or key.name) from exc
    known_keys.forget_keys()
    return new, secret


def revoke_api_key(*, actor: access.Principal, key: ApiKey) -> None:
    """Revoke a key. Other processes stop accepting it within five seconds."""
    is_own = key_rules.require_own(actor, key.principal.name)
    is_narrow = actor.ceiling != Privilege.ALL or actor.within is not None
    if is_own and is_narrow and key.name != actor.key:
        raise PermissionDenied(f"The limited key '{actor.key}' may revoke only itself")
    with transaction.atomic():
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(
            revoked_at=timezone.now()
        )
        if revoked:
            audit_records.record(actor, "api_key.revoke", key.name)
    known_keys.forget_keys()


def find_api_key(*, actor: access.Principal, name: str) -> ApiKey:
    """A key by its name. Raises KeyNotFound, also for a key that the actor may not manage."""
    rows = _visible(actor).filter(name=name) if "\x00" not in name else ApiKey.objects.none()
    row = rows.first()
    if row is None:
        raise KeyNotFound(name.replace("\x00", "?"))
    return row


def list_api_keys(
    *,
    actor: access.Principal,
    principal: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[ApiKey], str | None]:
    """A page of the keys by name, and the token of the next page.

    All keys for an administrator, otherwise the actor's own.
    """
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = _visible(actor).order_by("name")
    if principal is not None:
        rows = rows.filter(principal__name=principal)
    if page_token:
        rows = rows.filter(name__gt=page_token)
    page, last = page_of(rows, size)
    return page, last.name if last else None


def find_client(*, client_id: str, client_secret: str) -> ApiKey:
    """The key of an OAuth2 client, whose secret is the key itself.

    The client's id is the key's name, or its prefix, or empty. If the name of a key from
    MONODON_ADMIN_API_KEY ends with the beginning of its digest, that may be omitted: ``admin``.
    Raises Unauthenticated.
    """
    key = known_keys.find_key(client_secret)
    names = {"", key.name, key.prefix, key.name.removesuffix(f"-{key.digest[:8]}")}
    if credentials.key_digest(client_secret) != key.digest or client_id not in names:
        raise Unauthenticated("The client's id or its secret is wrong")
    return key


def find_subject(*, token: str, client: ApiKey | None = None) -> ApiKey:
    """The key of a token that is to be renewed; the token may be the key itself.

    An authenticated client may renew its own token even after it has expired. Raises
    Unauthenticated.
    """
    key = known_keys.find_key(token, allow_expired_token=client is not None)
    if client is not None and client.pk != key.pk:
        raise Unauthenticated("The token belongs to another client")
    return key


# --- internals -----------------------------------------------------------------------------------


def _audit_values(key: ApiKey) -> dict[str, Any]:
    """The values of a key that the audit trail records."""
    return {
        "principal": key.principal.name,
        "scopes": key.scopes,
        "namespace": None if key.namespace is None else label(key.namespace.identifier),
        "expires_at": None if key.expires_at is None else key.expires_at.isoformat(),
    }


def _insert(
    actor: access.Principal,
    principal: Principal,
    name: str,
    *,
    scopes: Sequence[str] | None = None,
    namespace: Namespace | None = None,
    expires_at: datetime | None = None,
    secret: str | None = None,
) -> tuple[ApiKey, str]:
    secret = secret or credentials.new_key()
    if len(secret) < 8:
        raise InvalidInput("An API key needs at least 8 characters")
    row = ApiKey.objects.create(
        name=name,
        principal=principal,
        digest=credentials.key_digest(secret),
        # Short enough that the remainder of a short preset key cannot be guessed.
        prefix=secret[: min(8, len(secret) // 4)],
        scopes=scopes,
        namespace=namespace,
        expires_at=expires_at,
        created_by=actor.name,
    )
    return row, secret


def _visible(actor: access.Principal) -> QuerySet[ApiKey]:
    rows = ApiKey.objects.select_related("principal", "namespace", "replaced_by")
    if actor.holds_everywhere(Privilege.ALL):
        return rows
    return rows.filter(principal__name=actor.name, principal__in=actor.ids)


def _namespace(actor: access.Principal, path: Identifier) -> Namespace:
    row = Namespace.objects.named(path).first()
    if row is None or not access.is_visible(actor, row):
        raise NamespaceNotFound(path)
    return row


def _taken(name: str) -> InvalidInput:
    return InvalidInput(
        f"An API key named '{name}', or with the same secret, exists already: choose another name"
    )
