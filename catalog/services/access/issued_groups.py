"""Memberships in an issuer's groups, which the groups claim of its tokens determines.

A token is valid until it expires, so an older one may arrive after a newer one. Therefore only a token that
was issued later than the last one changes memberships.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from catalog import access
from catalog.models import Principal, PrincipalKind
from catalog.services.access import known_keys
from catalog.services.engine import audit_records, locks

_MAX_GROUPS = 1000
Claims = Mapping[str, Any]


def apply(row: Principal, claims: Claims) -> None:
    """Set a principal's memberships in its issuer's groups to the groups claim of a verified token.

    Nothing changes without the claim, without the time of issue (``iat``), or if a newer token has been
    applied.
    """
    groups, issued_at = groups_of(claims), moment(claims.get("iat"))
    if groups is not None and issued_at is not None:
        _join(row, groups, issued_at)


def moment(seconds: float | None) -> datetime | None:
    """A time in a claim. None: it is missing, or cannot be represented, and so never comes."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def groups_of(claims: Claims) -> set[str] | None:
    """The groups in the groups claim; None: there is no such claim, so memberships stay."""
    claim = claims.get(settings.MONODON_OIDC_GROUPS_CLAIM)
    if isinstance(claim, str):
        claim = [claim]
    if not isinstance(claim, list):
        return None
    words = (word for word in claim[:_MAX_GROUPS] if isinstance(word, str) and "\x00" not in word)
    return set(words)


def _join(row: Principal, subjects: set[str], issued_at: datetime) -> None:
    """Set the memberships in the issuer's groups to these subjects, unless a newer token has set them.

    Tokens state whole seconds: of tokens of the same second only the first one adds memberships, and the
    others can end some.
    """
    if _is_before(issued_at, row):
        return
    new, old = _memberships(row, subjects)
    if issued_at == row.groups_issued_at and old.keys() <= new.keys():
        return
    with transaction.atomic():
        locked = locks.lock_memberships(row.pk)
        if locked is None or _is_before(issued_at, locked):
            return
        new, old = _memberships(locked, subjects)
        removed = old.keys() - new.keys()
        added = new.keys() - old.keys()
        if issued_at == locked.groups_issued_at:
            added = set()
        Principal.objects.filter(pk=row.pk).update(groups_issued_at=issued_at)
        row.groups.remove(*removed)
        row.groups.add(*added)
        for name in sorted(old[pk] for pk in removed):
            audit_records.record(
                access.SYSTEM, "principal.leave", name, before={"member": row.name}
            )
        for name in sorted(new[pk] for pk in added):
            audit_records.record(access.SYSTEM, "principal.join", name, after={"member": row.name})
    if removed or added:
        known_keys.forget_keys()


def _is_before(issued_at: datetime, row: Principal) -> bool:
    """True if a token was issued before the newest one that has set the memberships."""
    return row.groups_issued_at is not None and issued_at < row.groups_issued_at


def _memberships(row: Principal, subjects: set[str]) -> tuple[dict[int, str], dict[int, str]]:
    """The issuer's groups with these subjects, and those with the principal: names by key."""
    groups = Principal.objects.filter(kind=PrincipalKind.GROUP, issuer=row.issuer)
    named = dict(groups.filter(subject__in=subjects).values_list("pk", "name"))
    return named, dict(row.groups.filter(issuer=row.issuer).values_list("pk", "name"))
