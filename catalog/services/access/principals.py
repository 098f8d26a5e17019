"""Principals: people, groups and service accounts, and which groups they are in.

Only administrators change them. A principal is never deleted, because the audit trail, owners and
grants name it; it is deactivated instead, and may do nothing then. Of a person whose Django user is
deleted the name alone stays, inactive (``catalog.services.access.users``).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from catalog import access
from catalog.errors import (
    InvalidInput,
    LastAdministrator,
    PrincipalAlreadyExists,
    PrincipalNotFound,
)
from catalog.models import (
    ApiKey,
    Function,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.access import known_keys
from catalog.services.engine import audit_records, locks

PREFIXES = {
    PrincipalKind.USER: "user:",
    PrincipalKind.GROUP: "group:",
    PrincipalKind.SERVICE: "",
}
RESERVED = frozenset({access.SYSTEM.name, "anonymous"})
"""What the audit trail calls who is no principal: nobody may take these names."""
LONGEST_NAME = 200
PAGE_SIZE = 100
MAX_PAGE = 1000


def check_name(name: str, kind: PrincipalKind) -> str:
    """The name, if a principal of this kind may have it. Raises InvalidInput.

    ``user:ada``, ``group:analysts``, ``etl``: printable, without blanks at the ends, slashes and
    further colons.
    """
    prefix = PREFIXES[kind]
    own = name.removeprefix(prefix)
    if not name.startswith(prefix) or not own:
        raise InvalidInput(f"The name of a {kind.label} looks like '{prefix}name', not {name!r}")
    if not own.isprintable() or own != own.strip() or ":" in own or "/" in own:
        raise InvalidInput(
            f"Name {name!r} must be printable, without slashes, blanks at the ends and other colons"
        )
    if len(name) > LONGEST_NAME:
        raise InvalidInput(f"A name has at most {LONGEST_NAME} characters")
    if name in RESERVED:
        raise InvalidInput(f"'{name}' is a name of the catalog itself")
    return name


def create_principal(
    *,
    actor: access.Principal,
    name: str,
    kind: PrincipalKind,
    level: PrincipalLevel = PrincipalLevel.GRANTED,
    description: str = "",
    issuer: str = "",
    subject: str = "",
) -> Principal:
    """A new principal, which is active and in no group.

    With ``issuer`` and ``subject`` a token of that issuer stands for it; of a group they say which
    group of the issuer's it is. Raises PermissionDenied, InvalidInput, PrincipalAlreadyExists.
    """
    access.require(actor, Privilege.ALL)
    check_name(name, kind)
    _check_subject(issuer, subject)
    try:
        with transaction.atomic():
            row = Principal.objects.create(
                name=name,
                kind=kind,
                level=level,
                description=description,
                issuer=issuer,
                subject=subject,
                created_by=actor.name,
            )
            audit_records.record(actor, "principal.create", name, after=facts(row))
    except IntegrityError as exc:
        raise PrincipalAlreadyExists(name) from exc
    known_keys.forget_keys()
    return row


def update_principal(
    *,
    actor: access.Principal,
    name: str,
    level: PrincipalLevel | None = None,
    description: str | None = None,
    is_active: bool | None = None,
    issuer: str | None = None,
    subject: str | None = None,
) -> Principal:
    """Change what is not None. Who is deactivated loses all rights, with every key and session.

    Other processes learn of it within five seconds. The Django user of a person is deactivated and
    activated with it. Raises PermissionDenied, PrincipalNotFound, InvalidInput,
    PrincipalAlreadyExists when another has the subject, and LastAdministrator.
    """
    access.require(actor, Privilege.ALL)
    wanted: dict[str, Any] = {
        "level": level,
        "description": description,
        "is_active": is_active,
        "issuer": issuer,
        "subject": subject,
    }
    try:
        with administered(name):
            row = _find(name)
            before = facts(row)
            for field, value in wanted.items():
                if value is not None:
                    setattr(row, field, value)
            _check_subject(row.issuer, row.subject)
            after = facts(row)
            if after != before:
                row.save(update_fields=[field for field in wanted if wanted[field] is not None])
                if row.user_id is not None and is_active is not None:
                    # Not save(): the user's own hook would do this again.
                    get_user_model().objects.filter(pk=row.user_id).update(is_active=is_active)
                audit_records.record(actor, "principal.update", name, **_difference(before, after))
    except IntegrityError as exc:
        raise PrincipalAlreadyExists(name) from exc
    known_keys.forget_keys()
    return row


def add_member(*, actor: access.Principal, group: str, member: str) -> None:
    """Put a person or a service account into a group; being there already is no error.

    Raises PermissionDenied, PrincipalNotFound, and InvalidInput for a group: groups have no groups.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        found, row = _membership(group, member)
        if not row.groups.filter(pk=found.pk).exists():
            row.groups.add(found)
            audit_records.record(actor, "principal.join", group, after={"member": member})
    known_keys.forget_keys()


def remove_member(*, actor: access.Principal, group: str, member: str) -> None:
    """Take it out; not being there is no error. Raises as ``add_member``, and LastAdministrator."""
    access.require(actor, Privilege.ALL)
    with administered(member):
        found, row = _membership(group, member)
        if row.groups.filter(pk=found.pk).exists():
            row.groups.remove(found)
            audit_records.record(actor, "principal.leave", group, before={"member": member})
    known_keys.forget_keys()


def find_principal(*, actor: access.Principal, name: str) -> Principal:
    """A principal, as an administrator or it itself sees it.

    Raises PermissionDenied for all others, whether there is such a one or not, and
    PrincipalNotFound.
    """
    if name != actor.name:
        access.require(actor, Privilege.ALL)
    return _find(name)


def list_principals(
    *,
    actor: access.Principal,
    kinds: Sequence[PrincipalKind] = (),
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Principal], str | None]:
    """A page of the principals by name, and the token of the next. Raises PermissionDenied."""
    access.require(actor, Privilege.ALL)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = Principal.objects.select_related("user").prefetch_related("groups").order_by("name")
    if kinds:
        rows = rows.filter(kind__in=kinds)
    if page_token:
        rows = rows.filter(name__gt=page_token)
    page = list(rows[: size + 1])
    return page[:size], page[size - 1].name if len(page) > size else None


def owns_anything(name: str) -> bool:
    """Whether whoever is called so owns something, in the trash too. Three statements at most."""
    return any(
        model._default_manager.filter(owner=name).exists() for model in (Namespace, Table, Function)
    )


# --- who administers -----------------------------------------------------------------------------


def administrators() -> QuerySet[Principal]:
    """Those who may do everything, and can still come in."""
    not_over = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    keys = ApiKey.objects.filter(
        not_over, principal=OuterRef("pk"), revoked_at=None, scopes=None, namespace=None
    )
    in_group = Principal.objects.filter(groups__level=PrincipalLevel.ADMIN, groups__is_active=True)
    return (
        Principal.objects.exclude(kind=PrincipalKind.GROUP)
        .filter(
            Q(level=PrincipalLevel.ADMIN) | Q(user__is_superuser=True) | Q(pk__in=in_group),
            Q(user=None) | Q(user__is_active=True),
            Q(user__isnull=False) | ~Q(issuer="") | Exists(keys),
            is_active=True,
        )
        .distinct()
    )


@contextmanager
def administered(name: str) -> Iterator[None]:
    """A transaction that may not take the last administrator away. ``name``: whose change it is.

    Raises LastAdministrator. Where there was none before, there may be none after it.
    """
    with transaction.atomic():
        locks.lock_principals()
        had_one = administrators().exists()
        yield
        if had_one and not administrators().exists():
            raise LastAdministrator(name)


def require_another_administrator(row: Principal) -> None:
    """Raises LastAdministrator if this is the only one. Inside a transaction it holds to its end."""
    locks.lock_principals()
    found = administrators()
    if found.filter(pk=row.pk).exists() and not found.exclude(pk=row.pk).exists():
        raise LastAdministrator(row.name)


# --- for the neighbours --------------------------------------------------------------------------


def facts(row: Principal) -> dict[str, Any]:
    """What the audit trail tells of a principal."""
    found = {
        "level": str(row.level),
        "is_active": row.is_active,
        "description": row.description,
        "issuer": row.issuer,
        "subject": row.subject,
    }
    return {name: value for name, value in found.items() if value != ""}


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, dict[str, Any]]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {
        "before": {name: before.get(name) for name in names},
        "after": {name: after.get(name) for name in names},
    }


def _find(name: str) -> Principal:
    if "\x00" in name:
        raise PrincipalNotFound(name.replace("\x00", "?"))
    row = Principal.objects.select_related("user").filter(name=name).first()
    if row is None:
        raise PrincipalNotFound(name)
    return row


def _membership(group: str, member: str) -> tuple[Principal, Principal]:
    found, row = _find(group), _find(member)
    if found.kind != PrincipalKind.GROUP:
        raise InvalidInput(f"'{group}' is no group")
    if row.kind == PrincipalKind.GROUP:
        raise InvalidInput(f"'{member}' is a group, and groups have no groups")
    return found, row


def _check_subject(issuer: str, subject: str) -> None:
    if bool(issuer) != bool(subject):
        raise InvalidInput("An issuer needs a subject, and a subject an issuer")
    if "\x00" in issuer + subject:
        raise InvalidInput("Issuer and subject hold no NUL character")
