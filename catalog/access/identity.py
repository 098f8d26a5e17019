"""Building the principal of a user, of a stored name, or of a row."""

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import Q
from django.utils import timezone

from catalog import models
from catalog.access.principal import SYSTEM, Principal
from catalog.errors import PermissionDenied, Unauthenticated
from catalog.models import ApiKey, PrincipalKind, PrincipalLevel
from catalog.privileges import NOTHING, READ_ONLY, Privilege

_ANONYMOUS = {"none": None, "read": READ_ONLY, "admin": Privilege.ALL}
_LEVELS = {
    PrincipalLevel.GRANTED: NOTHING,
    PrincipalLevel.READ: READ_ONLY,
    PrincipalLevel.ADMIN: Privilege.ALL,
}


def of_user(user: AbstractBaseUser | AnonymousUser) -> Principal:
    """The principal of a signed-in user. Superusers hold all privileges. One statement."""
    name = f"user:{user.get_username()}"
    if getattr(user, "is_superuser", False) and user.is_active:
        return Principal(name, Privilege.ALL)
    if not user.is_active:
        return Principal(name)
    return named(name) or Principal(name)


def named(name: str) -> Principal | None:
    """The active principal of this name, with its groups; None: there is none. Two statements."""
    row = models.Principal.objects.filter(name=name, is_active=True).select_related("user").first()
    if row is None or (row.user is not None and not row.user.is_active):
        return None
    return of_row(row)


def current(actor: Principal) -> Principal:
    """The principal of a request with its present level and groups. Three statements at most.

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

    Two statements, or none for a key without limits.
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

    One that can no longer authenticate holds no privileges, unless ``counts_inactive``: then it
    holds those that it would have if it were active.
    """
    if name == SYSTEM.name:
        return SYSTEM
    if name == "anonymous":
        return anonymous() or Principal(name, ceiling=NOTHING)
    row = models.Principal.objects.filter(name=name).select_related("user").first()
    if row is None:
        return None
    # An inactive principal holds no privileges on what it owns, either.
    may_act = counts_inactive or _can_authenticate(row)
    return of_row(row) if may_act else Principal(name, ceiling=NOTHING)


def anonymous() -> Principal | None:
    """The principal of requests without a key; None: MONODON_ANONYMOUS allows no such requests.

    It holds no further privileges on objects that anonymous requests created.
    """
    privileges = _ANONYMOUS[settings.MONODON_ANONYMOUS]
    if privileges is None:
        return None
    return Principal("anonymous", privileges, ceiling=privileges)


def _can_authenticate(row: models.Principal) -> bool:
    """True if the principal could still authenticate itself."""
    if not row.is_active or (row.user is not None and not row.user.is_active):
        return False
    if row.kind != PrincipalKind.SERVICE or row.issuer:
        return True
    not_over = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return row.keys.filter(not_over, revoked_at=None).exists()


def of_row(
    row: models.Principal, key: ApiKey | None = None, *, with_groups: bool = True
) -> Principal:
    """A principal with its groups, limited by the key that it presented. One statement at most."""
    groups = []
    if with_groups:
        groups = list(row.groups.filter(is_active=True).values_list("pk", "name", "level"))
    everywhere = _LEVELS[PrincipalLevel(row.level)]
    for _, _, level in groups:
        everywhere |= _LEVELS[PrincipalLevel(level)]
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
