"""Building the principal of a user, of a stored name, or of a row."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import Q
from django.utils import timezone

from catalog import models
from catalog.access.principal import SYSTEM, Principal
from catalog.errors import PermissionDenied, Unauthenticated
from catalog.models import ApiKey, PrincipalLevel
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import NOTHING, READ_ONLY, Privilege

_ANONYMOUS = {"none": None, "read": READ_ONLY, "admin": Privilege.ALL}
_LEVELS = {
    PrincipalLevel.GRANTED: NOTHING,
    PrincipalLevel.READ: READ_ONLY,
    PrincipalLevel.ADMIN: Privilege.ALL,
}

# Jobs look their principals up before each step.
_STORED = """
SELECT p.id, p.level, coalesce(u.is_superuser, false),
    p.is_active AND coalesce(u.is_active, true),
    p.kind <> 'service' OR p.issuer <> '' OR EXISTS (
        SELECT FROM catalog_apikey k
        WHERE k.principal_id = p.id AND k.revoked_at IS NULL
            AND (k.expires_at IS NULL OR k.expires_at > %s)
    ),
    ARRAY(
        SELECT ARRAY[g.id::text, g.name, g.level]
        FROM catalog_principal_groups m JOIN catalog_principal g ON g.id = m.to_principal_id
        WHERE m.from_principal_id = p.id AND g.is_active
    )
FROM catalog_principal p LEFT JOIN auth_user u ON u.id = p.user_id
WHERE p.name = %s
"""


class _Stored(NamedTuple):
    """The columns of ``_STORED``."""

    pk: int
    level: str
    is_superuser: bool
    is_active: bool
    """The principal, and its user."""
    has_key: bool
    """True if it authenticates itself without a key of the catalog, or if one of its keys is valid."""
    groups: Sequence[Sequence[str]]
    """The keys, names and levels of its active groups."""


def of_user(user: AbstractBaseUser | AnonymousUser) -> Principal:
    """The principal of a signed-in user. Superusers hold all privileges. One statement."""
    name = f"user:{user.get_username()}"
    if getattr(user, "is_superuser", False) and user.is_active:
        return Principal(name, Privilege.ALL)
    if not user.is_active:
        return Principal(name)
    return named(name) or Principal(name)


def named(name: str) -> Principal | None:
    """The active principal of this name, with its groups; None: there is none. One statement."""
    row = _stored(name)
    return None if row is None or not row.is_active else _of_stored(name, row)


def current(actor: Principal) -> Principal:
    """The principal of a request with its present level and groups. Two statements at most.

    A process trusts a key that it has looked up for some seconds. What outlives the request, such as
    credentials, is given to the present principal only. Raises Unauthenticated if the principal or its key is
    no longer active.
    """
    if not actor.ids or actor.tables:  # looked up for this request
        return actor
    present = named(actor.name)
    if present is None:
        raise Unauthenticated(f"'{actor.name}' is no longer active")
    if actor.key and not actor.is_vouched_for:
        is_over = Q(revoked_at__isnull=False) | Q(expires_at__lte=timezone.now())
        if ApiKey.objects.filter(is_over, name=actor.key).exists():
            raise Unauthenticated("The API key is unknown, expired or revoked")
    everywhere = present.everywhere & actor.ceiling
    return actor.through(ids=present.ids, groups=present.groups, everywhere=everywhere)


def without_limits(actor: Principal) -> Principal:
    """The principal of a request as another key of it would have it, without the limits of the presented one.

    One statement, or none for a key without limits.
    """
    if actor.ceiling == Privilege.ALL and actor.within is None:
        return actor
    return named(actor.name) or actor


def on_behalf_of(name: str) -> Principal:
    """The principal of a stored name, with its current privileges.

    Only the reserved name yields the system principal. A principal that can no longer authenticate
    holds no privileges. Raises PermissionDenied for an empty or unknown name.
    """
    principal = committer(name)
    if principal is None:
        raise PermissionDenied(
            f"Nothing is done on behalf of '{name[:200]}': no principal has this name"
            if name
            else "Nothing is done on behalf of nobody: no principal is named"
        )
    return principal


def committer(name: str, *, counts_inactive: bool = False) -> Principal | None:
    """The principal that a commit names, with its current privileges; None: it no longer exists.

    One statement. A principal that can no longer authenticate holds no privileges, unless ``counts_inactive``: then it
    holds those that it would have if it were active.
    """
    if name == SYSTEM.name:
        return SYSTEM
    if name == "anonymous":
        return anonymous() or Principal(name, ceiling=NOTHING)
    row = _stored(name)
    if row is None:
        return None
    # An inactive principal holds no privileges on what it owns, either.
    may_act = counts_inactive or (row.is_active and row.has_key)
    return _of_stored(name, row) if may_act else Principal(name, ceiling=NOTHING)


def anonymous() -> Principal | None:
    """The principal of requests without a key; None: MONODON_ANONYMOUS allows no such requests.

    It holds no further privileges on objects that anonymous requests created.
    """
    privileges = _ANONYMOUS[settings.MONODON_ANONYMOUS]
    if privileges is None:
        return None
    return Principal("anonymous", privileges, ceiling=privileges)


def _stored(name: str) -> _Stored | None:
    cursor = hot_cursor()
    cursor.execute(_STORED, [timezone.now(), name])
    row = cursor.fetchone()
    return None if row is None else _Stored(*row)


def _of_stored(name: str, row: _Stored) -> Principal:
    levels = {row.level, *(level for _, _, level in row.groups)}
    return Principal(
        name,
        Privilege.ALL if row.is_superuser else _everywhere(levels),
        ids=(row.pk, *(int(pk) for pk, _, _ in row.groups)),
        groups=tuple(group for _, group, _ in row.groups),
    )


def _everywhere(levels: Iterable[str]) -> Privilege:
    everywhere = NOTHING
    for level in levels:
        everywhere |= _LEVELS[PrincipalLevel(level)]
    return everywhere


def of_row(
    row: models.Principal, key: ApiKey | None = None, *, with_groups: bool = True
) -> Principal:
    """A principal with its groups, limited by the key that it presented. One statement at most."""
    groups = []
    if with_groups:
        groups = list(row.groups.filter(is_active=True).values_list("pk", "name", "level"))
    everywhere = _everywhere({row.level, *(level for _, _, level in groups)})
    if row.user is not None and row.user.is_superuser:
        everywhere = Privilege.ALL
    ceiling = Privilege.ALL if key is None else key.ceiling
    return Principal(
        row.name,
        everywhere & ceiling,
        ids=(row.pk, *(pk for pk, _, _ in groups)),
        groups=tuple(name for _, name, _ in groups),
        ceiling=ceiling,
        within=None if key is None else key.namespace_id,
        key="" if key is None else key.name,
        ends_at=None if key is None else key.expires_at,
    )
