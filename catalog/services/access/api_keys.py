"""API keys: making, replacing and revoking them.

A principal may have several. Administrators manage all of them. Everybody else manages its own, and
never makes one that may do more, in more places or for longer than what it came in with.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
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
from catalog.privileges import Privilege, closure, essence, parse
from catalog.services.access import known_keys, principals
from catalog.services.engine import audit_records, locks

PAGE_SIZE = 100
MAX_PAGE = 1000
MAX_OVERLAP = timedelta(days=30)
DEFAULT_LIFETIME = timedelta(days=90)
"""How long a key is valid unless something else is said."""
_LONGEST_NAME = 100
_MOST_DAYS = 100 * 365


def create_api_key(
    *,
    actor: access.Principal,
    name: str,
    level: PrincipalLevel = PrincipalLevel.ADMIN,
    expires_at: datetime | None = None,
    key: str | None = None,
) -> tuple[ApiKey, str]:
    """A new key and its row; the key is known to nobody else and cannot be read again.

    It belongs to the service account of its name, which is made with this level if there is none, and
    never expires unless an end is given: for the first key of an installation. ``create_for`` makes
    keys that are narrow unless something else is said.

    ``key`` presets it. Raises InvalidInput when the name or the key is in use, or the account has
    another level: the key would do more, or less, than was asked for.
    """
    access.require(actor, Privilege.ALL)
    _check_name(name)
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
                    f"The service account '{name}' is there already, with level {principal.level}"
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
    """Another key of a principal, and the key itself, which nobody can read again.

    ``scopes`` are words of privileges that may be used with it at most; None: all that the
    principal has. With ``namespace`` it may be used only there and below. It is valid for
    DEFAULT_LIFETIME unless ``expires_at`` says otherwise; only an administrator makes one that
    never expires. Raises PermissionDenied
    for another's key, or for one that would do more than what the actor came in with;
    PrincipalNotFound, NamespaceNotFound, and InvalidInput when the name is in use or a group is
    to have one. One of the actor's own ends with what they came in with, at the latest; where an
    issuer vouched for them, after MONODON_OIDC_KEY_DAYS.
    """
    is_own = _require_own(actor, principal)
    _check_name(name)
    row = Principal.objects.filter(name=principal).first() if "\x00" not in principal else None
    if row is None:
        raise PrincipalNotFound(principal)
    if row.kind == PrincipalKind.GROUP:
        raise InvalidInput(f"'{principal}' is a group: only its members have keys")
    may = None if scopes is None else _scopes(scopes)
    within = None if namespace is None else _namespace(actor, namespace)
    expires_at = _end(expires_at, never_expires=never_expires)
    if is_own and never_expires:
        raise PermissionDenied(
            "Only an administrator makes an API key that never expires",
            detail="Give an end, or leave it out: then the key is valid for"
            f" {DEFAULT_LIFETIME.days} days.",
        )
    if is_own:
        if may is None and actor.ceiling != Privilege.ALL:
            may = essence(actor.ceiling)
        if within is None and actor.within is not None:
            within = Namespace.objects.get(pk=actor.within)
        _require_no_more(actor, may, within)
        expires_at = _earliest(_latest_end(actor), expires_at)
    _require_future(expires_at)
    try:
        with transaction.atomic():
            key, secret = _insert(
                actor, row, name, scopes=may, namespace=within, expires_at=expires_at
            )
            audit_records.record(actor, "api_key.create", name, after=facts(key))
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
    """A key of a principal, or, if none is named, of a new service account with the key's name.

    Such an account may do nothing until something is granted to it, unless it gets a level. All of
    it or nothing. Raises as ``add_key`` and ``principals.create_principal``.
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
    """A key that takes the place of another, which ends with the overlap and names its successor.

    It may do what the old one may. ``name`` None: the old name with a number. It expires when the
    old one would have, unless sooner is asked for, or an administrator says otherwise. Raises
    PermissionDenied, also where what the actor came in with ends before that; KeyNotFound; and
    InvalidInput for a key that has ended or was replaced before, a name in use, or an overlap of
    more than 30 days.
    """
    is_own = _require_own(actor, key.principal.name)
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InvalidInput(f"The overlap must be 0 to {MAX_OVERLAP.days} days")
    try:
        with transaction.atomic():
            old = locks.lock_api_key(key.pk)
            if old is None:
                raise KeyNotFound(key.name)
            now = timezone.now()
            if old.revoked_at is not None or (old.expires_at and old.expires_at <= now):
                raise InvalidInput(f"API key '{old}' has ended: make a new one")
            if old.replaced_by_id is not None:
                raise InvalidInput(f"API key '{old}' was replaced before, by '{old.replaced_by}'")
            if is_own:
                _require_no_more(actor, old.scopes, old.namespace)
                expires_at = _earliest(old.expires_at, expires_at)
                latest = _latest_end(actor)
                if latest is not None and (expires_at is None or expires_at > latest):
                    raise PermissionDenied(
                        f"A key by '{actor.name}', who came in until"
                        f" {latest.isoformat(timespec='seconds')}, would end before the key that it"
                        " replaces: say an end, or come with another key"
                    )
            expires_at = expires_at or old.expires_at
            _require_future(expires_at)
            name = name or _next_name(old.name)
            _check_name(name)
            new, secret = _insert(
                actor,
                old.principal,
                name,
                scopes=old.scopes,
                namespace=old.namespace,
                expires_at=expires_at,
            )
            old.expires_at = _earliest(old.expires_at, now + overlap)
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
            audit_records.record(actor, "api_key.create", name, after=facts(new))
    except IntegrityError as exc:
        raise _taken(name or key.name) from exc
    known_keys.forget_keys()
    return new, secret


def revoke_api_key(*, actor: access.Principal, key: ApiKey) -> None:
    """End a key. Other processes stop accepting it within five seconds."""
    is_own = _require_own(actor, key.principal.name)
    is_narrow = actor.ceiling != Privilege.ALL or actor.within is not None
    if is_own and is_narrow and key.name != actor.key:
        raise PermissionDenied(f"The key '{actor.key}' ends no other key than itself")
    with transaction.atomic():
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(
            revoked_at=timezone.now()
        )
        if revoked:
            audit_records.record(actor, "api_key.revoke", key.name)
    known_keys.forget_keys()


def find_api_key(*, actor: access.Principal, name: str) -> ApiKey:
    """A key by its name. Raises KeyNotFound, also for another's key if not an administrator asks."""
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
    """A page of the keys by name, and the token of the next: all, or one's own."""
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = _visible(actor).order_by("name")
    if principal is not None:
        rows = rows.filter(principal__name=principal)
    if page_token:
        rows = rows.filter(name__gt=page_token)
    page = list(rows[: size + 1])
    return page[:size], page[size - 1].name if len(page) > size else None


def find_client(*, client_id: str, client_secret: str) -> ApiKey:
    """The key of an OAuth2 client, whose secret is the key itself.

    The client's id is the key's name, or how it begins, or empty. Raises Unauthenticated.
    """
    key = known_keys.find_key(client_secret)
    if credentials.key_digest(client_secret) != key.digest or client_id not in {
        "",
        key.name,
        key.prefix,
    }:
        raise Unauthenticated("The client's id or its secret is wrong")
    return key


def find_subject(*, token: str, client: ApiKey | None = None) -> ApiKey:
    """The key of a token that is to be renewed; the token may be the key itself.

    A client that proves itself may renew its own token even when that has expired. Raises
    Unauthenticated.
    """
    key = known_keys.find_key(token, expired_token_too=client is not None)
    if client is not None and client.pk != key.pk:
        raise Unauthenticated("The token belongs to another client")
    return key


# --- for the neighbours --------------------------------------------------------------------------


def facts(key: ApiKey) -> dict[str, Any]:
    """What the audit trail tells of a key."""
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
        # Never so much of a short preset key that the rest could be guessed.
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


def _require_own(actor: access.Principal, principal: str) -> bool:
    """Whether it is the actor's own; not so for who administers. Raises PermissionDenied."""
    if actor.holds_everywhere(Privilege.ALL):
        return False
    if principal != actor.name or not actor.ids:
        raise PermissionDenied(f"'{actor.name}' may not manage the API keys of '{principal}'")
    if actor.tables:
        raise PermissionDenied("A job manages no keys")
    return True


def _require_no_more(
    actor: access.Principal, scopes: Sequence[str] | None, namespace: Namespace | None
) -> None:
    """Raises PermissionDenied for a key of one's own that does more than what one came in with."""
    asked = Privilege.ALL if scopes is None else closure(parse(scopes))
    if asked & ~actor.ceiling:
        came_with = ", ".join(essence(actor.ceiling)) or "nothing"
        raise PermissionDenied(f"'{actor.name}' came in with {came_with} only")
    inside = [] if namespace is None else namespace.ancestors
    if actor.within is not None and actor.within not in inside:
        raise PermissionDenied(f"'{actor.name}' came in for one namespace only")


def _latest_end(actor: access.Principal) -> datetime | None:
    """When a key of one's own may end at the latest: with what one came in with. None: never.

    Issuers' tokens hold for minutes, and people come with nothing else: theirs may hold for days.
    """
    if actor.is_vouched_for:
        days = min(settings.MONODON_OIDC_KEY_DAYS, _MOST_DAYS)
        return timezone.now() + timedelta(days=days) if days else actor.ends_at
    # It may have got another end since this process looked it up.
    presented = ApiKey.objects.filter(name=actor.key, principal__in=actor.ids).first()
    return _earliest(actor.ends_at, None if presented is None else presented.expires_at)


def _end(expires_at: datetime | None, *, never_expires: bool) -> datetime | None:
    """When a new key expires; None: never. Raises InvalidInput for a contradiction."""
    if never_expires:
        if expires_at is not None:
            raise InvalidInput("A key that never expires has no end: leave one of the two out")
        return None
    return expires_at or timezone.now() + DEFAULT_LIFETIME


def _earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _scopes(words: Iterable[str]) -> list[str] | None:
    """As they are stored: the fewest words, and null for all."""
    found = closure(parse(words))
    if not found:
        raise InvalidInput("A key without any privilege is of no use: leave the scopes out for all")
    return None if found == Privilege.ALL else essence(found)


def _namespace(actor: access.Principal, path: Identifier) -> Namespace:
    row = Namespace.objects.named(path).first()
    if row is None or not access.is_visible(actor, row):
        raise NamespaceNotFound(path)
    return row


def _check_name(name: str) -> None:
    if ":" in name or not name.isprintable() or not name.strip():
        # The audit trail tells keys from people, who are "user:<name>".
        raise InvalidInput("A key's name must be printable and without a colon")
    if len(name) > _LONGEST_NAME:
        raise InvalidInput(f"A key's name has at most {_LONGEST_NAME} characters")
    if name in principals.RESERVED:
        # Its service account would be taken for the catalog itself.
        raise InvalidInput(f"'{name}' is a name of the catalog itself")


def _require_future(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInput("This time is over: the key could never be used")


def _next_name(name: str) -> str:
    """``etl``, ``etl-2``, ``etl-3``. Whether it is free the insert tells."""
    stem, dash, number = name.rpartition("-")
    if dash and stem and number.isascii() and number.isdigit() and len(number) < 6:
        return f"{stem}-{int(number) + 1}"
    return f"{name}-2"


def _taken(name: str) -> InvalidInput:
    return InvalidInput(f"An API key named '{name}' or this very key exists already")
