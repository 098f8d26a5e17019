"""Principals: people, groups and service accounts, and which groups they are in.

Only administrators change them. A principal is never deleted, because the audit trail, owners and
grants refer to it; it is deactivated instead, and then holds no privileges. When a Django user is
deleted, only the name of its principal remains, inactive (``catalog.services.access.users``).
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from catalog import access, writing_systems
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
from catalog.services.access.pages import page_of
from catalog.services.engine import audit_records, locks

PREFIXES = {
    PrincipalKind.USER: "user:",
    PrincipalKind.GROUP: "group:",
    PrincipalKind.SERVICE: "",
}
RESERVED = frozenset({access.SYSTEM.name, "anonymous"})
"""The audit trail's names for actors that are not principals; no principal may have them."""
LONGEST_NAME = 200
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Printable for Python, but not displayed."""
PAGE_SIZE = 100
MAX_PAGE = 1000


def check_name(name: str, kind: PrincipalKind) -> str:
    """Return the name if a principal of this kind may have it. Raises InvalidInput.

    ``user:ada``, ``group:analysts``, ``etl``: printable, without leading or trailing blanks, slashes
    and further colons, and without words that mix letters of scripts which no language mixes.
    """
    prefix = PREFIXES[kind]
    own = name.removeprefix(prefix)
    if not name.startswith(prefix) or not own:
        raise InvalidInput(f"The name of a {kind.label} looks like '{prefix}name', not {name!r}")
    # Otherwise two principals could have names that look the same.
    if not unicodedata.is_normalized("NFKC", own) or _IGNORABLE.search(own):
        raise InvalidInput(
            f"Name {name!r} must be in the normal form NFKC of Unicode, without characters that are not"
            " displayed"
        )
    if (word := writing_systems.mixed_word(own)) is not None:
        raise InvalidInput(
            f"Name {name!a} mixes {writing_systems.describe(word)} letters in one word, which could pass"
            " for another name"
        )
    if not own.isprintable() or own != own.strip() or ":" in own or "/" in own:
        raise InvalidInput(
            f"Name {name!r} must be printable, without slashes, further colons, and leading or"
            " trailing blanks"
        )
    if len(name) > LONGEST_NAME:
        raise InvalidInput(f"A name has at most {LONGEST_NAME} characters")
    if name in RESERVED:
        raise InvalidInput(f"The name '{name}' is reserved for the catalog itself")
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
    """Create a principal, active and in no group.

    With ``issuer`` and ``subject`` it authenticates with tokens of that issuer; for a group they name
    the issuer's group. Raises PermissionDenied, InvalidInput, PrincipalAlreadyExists.
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
            audit_records.record(actor, "principal.create", name, after=audit_values(row))
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
    """Change the values that are not None. Deactivation revokes all rights, keys and sessions.

    Other processes apply the change within five seconds. The Django user of a person is deactivated
    and activated with the principal. Raises PermissionDenied, PrincipalNotFound, InvalidInput,
    PrincipalAlreadyExists when another principal has the subject, and LastAdministrator.
    """
    access.require(actor, Privilege.ALL)
    values: dict[str, Any] = {
        "level": level,
        "description": description,
        "is_active": is_active,
        "issuer": issuer,
        "subject": subject,
    }
    try:
        with administered(name):
            row = _find(name)
            before = audit_values(row)
            for field, value in values.items():
                if value is not None:
                    setattr(row, field, value)
            _check_subject(row.issuer, row.subject)
            after = audit_values(row)
            if after != before:
                changed = [field for field in values if values[field] is not None]
                if (row.issuer, row.subject) != (
                    before.get("issuer", ""),
                    before.get("subject", ""),
                ):
                    # The times of the tokens of another issuer say nothing about those of this one.
                    row.groups_issued_at = None
                    changed.append("groups_issued_at")
                row.save(update_fields=changed)
                if row.user_id is not None and is_active is not None:
                    # Not save(): the user's signal handler would repeat the change.
                    get_user_model().objects.filter(pk=row.user_id).update(is_active=is_active)
                audit_records.record(actor, "principal.update", name, **_difference(before, after))
    except IntegrityError as exc:
        raise PrincipalAlreadyExists(name) from exc
    known_keys.forget_keys()
    return row


def add_member(*, actor: access.Principal, group: str, member: str) -> None:
    """Add a person or a service account to a group; an existing membership is not an error.

    Raises PermissionDenied, PrincipalNotFound, and InvalidInput for a group, since groups are not
    nested.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        group_row, row = _membership(group, member)
        if not row.groups.filter(pk=group_row.pk).exists():
            row.groups.add(group_row)
            audit_records.record(actor, "principal.join", group, after={"member": member})
    known_keys.forget_keys()


def remove_member(*, actor: access.Principal, group: str, member: str) -> None:
    """Remove a member from a group; a missing membership is not an error.

    Raises as ``add_member``, and LastAdministrator.
    """
    access.require(actor, Privilege.ALL)
    with administered(member):
        group_row, row = _membership(group, member)
        if row.groups.filter(pk=group_row.pk).exists():
            row.groups.remove(group_row)
            audit_records.record(actor, "principal.leave", group, before={"member": member})
    known_keys.forget_keys()


def find_principal(*, actor: access.Principal, name: str) -> Principal:
    """A principal, for an administrator or for itself.

    Raises PermissionDenied for all others, whether the principal exists or not, and
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
    """A page of the principals by name, and the token of the next page. Raises PermissionDenied."""
    access.require(actor, Privilege.ALL)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = Principal.objects.select_related("user").prefetch_related("groups").order_by("name")
    if kinds:
        rows = rows.filter(kind__in=kinds)
    if page_token:
        rows = rows.filter(name__gt=page_token)
    page, last = page_of(rows, size)
    return page, last.name if last else None


def list_members(
    *,
    actor: access.Principal,
    group: str,
    member: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Principal], str | None]:
    """A page of the members of a group by name, and the token of the next page; with ``member``, only this one.

    Raises PermissionDenied, PrincipalNotFound, and InvalidInput if the principal is not a group.
    """
    access.require(actor, Privilege.ALL)
    row = _find(group)
    if row.kind != PrincipalKind.GROUP:
        raise InvalidInput(f"'{group}' is not a group")
    rows = row.members.select_related("user").prefetch_related("groups").order_by("name")
    if member is not None:
        rows = rows.filter(name=member)
    if page_token:
        rows = rows.filter(name__gt=page_token)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    page, last = page_of(rows, size)
    return page, last.name if last else None


def owns_anything(name: str) -> bool:
    """True if this name owns an object, also in the trash. Three statements at most."""
    return any(
        model._default_manager.filter(owner=name).exists() for model in (Namespace, Table, Function)
    )


# --- administrators ------------------------------------------------------------------------------


def administrators() -> QuerySet[Principal]:
    """The principals that hold all privileges and can still authenticate."""
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
    """Run a transaction that must not remove the last administrator; ``name`` is the one changed.

    Raises LastAdministrator, unless there was no administrator before.
    """
    with transaction.atomic():
        locks.lock_principals()
        had_administrator = administrators().exists()
        yield
        if had_administrator and not administrators().exists():
            raise LastAdministrator(name)


def require_another_administrator(row: Principal) -> None:
    """Raise LastAdministrator if this is the only one; the answer holds until the transaction ends."""
    locks.lock_principals()
    rows = administrators()
    if rows.filter(pk=row.pk).exists() and not rows.exclude(pk=row.pk).exists():
        raise LastAdministrator(row.name)


# --- shared with other services ------------------------------------------------------------------


def audit_values(row: Principal) -> dict[str, Any]:
    """The values of a principal that the audit trail records."""
    values = {
        "level": str(row.level),
        "is_active": row.is_active,
        "description": row.description,
        "issuer": row.issuer,
        "subject": row.subject,
    }
    return {name: value for name, value in values.items() if value != ""}


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
    group_row, row = _find(group), _find(member)
    if group_row.kind != PrincipalKind.GROUP:
        raise InvalidInput(f"'{group}' is not a group")
    if row.kind == PrincipalKind.GROUP:
        raise InvalidInput(f"'{member}' is a group, and a group cannot be a member of a group")
    return group_row, row


def _check_subject(issuer: str, subject: str) -> None:
    if bool(issuer) != bool(subject):
        raise InvalidInput("Issuer and subject belong together: set both, or neither")
    if not (issuer + subject).isprintable():
        raise InvalidInput("Issuer and subject must be printable")
