"""Single sign-on: the Django user of a person authenticated by an issuer, and the client of the command line."""

from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import IntegrityError, transaction
from django.utils import timezone

from catalog.errors import PermissionDenied
from catalog.models import Principal, PrincipalKind
from catalog.services.access import issued_groups, oidc, users

_LONGEST_USERNAME = 150


@dataclass(frozen=True, slots=True)
class DeviceClient:
    """The public client with which the command line signs people in (RFC 8628)."""

    issuer: str
    client_id: str
    scope: str
    """Scopes, separated by spaces."""


def device_client() -> DeviceClient | None:
    """Return the client of the command line; None: single sign-on is not configured for it."""
    if not (settings.MONODON_OIDC_CLI_CLIENT_ID and settings.MONODON_OIDC_ISSUERS):
        return None
    return DeviceClient(
        issuer=settings.MONODON_OIDC_ISSUERS[0],
        client_id=settings.MONODON_OIDC_CLI_CLIENT_ID,
        scope=settings.MONODON_OIDC_CLI_SCOPES,
    )


def user_of(issuer: str, claims: oidc.Claims) -> User:
    """Return the admin user of verified claims, and create it if necessary.

    If MONODON_OIDC_STAFF_GROUPS or MONODON_OIDC_ADMIN_GROUPS name groups, the groups claim decides
    at every sign-on whether the user is staff and a superuser; otherwise the user's own flags do.
    Raises Unauthenticated for an unknown or inactive subject, LastAdministrator, and
    PermissionDenied if the user is not staff; an existing user then loses its staff status.
    """
    row = oidc.principal_of(issuer, claims)
    if row.kind != PrincipalKind.USER:
        raise PermissionDenied(f"'{row.name}' is not a person, and may not enter the admin")
    staff, admins = settings.MONODON_OIDC_STAFF_GROUPS, settings.MONODON_OIDC_ADMIN_GROUPS
    groups = issued_groups.groups_of(claims) or set()
    is_admin = not groups.isdisjoint(admins)
    is_staff = is_admin or not groups.isdisjoint(staff)
    user = row.user
    if user is None and is_staff:
        user = _create(row)
    if user is not None and (staff or admins):
        flags = {"is_staff": is_staff} | ({"is_superuser": is_admin} if admins else {})
        changed = [name for name, value in flags.items() if getattr(user, name) != value]
        if changed:
            for name in changed:
                setattr(user, name, flags[name])
            with transaction.atomic():
                user.save(update_fields=changed)
    if user is None or not user.is_staff:
        raise PermissionDenied(f"'{row.name}' may not enter the admin")
    return user


def delete_expired_sessions() -> int:
    """Delete sessions of the admin that have ended; returns the number."""
    return Session.objects.filter(expire_date__lt=timezone.now()).delete()[0]


def _create(row: Principal) -> User:
    name = row.name.removeprefix("user:")
    if get_user_model().normalize_username(name) != name:
        # Django would create a user with a different name, and so of a different principal.
        raise PermissionDenied(f"'{name}', of principal '{row.name}', is not a valid user name")
    if len(name) > _LONGEST_USERNAME:
        raise PermissionDenied(
            f"The name of '{row.name}' is too long for a user: at most {_LONGEST_USERNAME}"
            " characters"
        )
    try:
        with transaction.atomic(), users.joining(row):
            # Without a password: only the issuer authenticates this person.
            return get_user_model().objects.create_user(name)
    except IntegrityError:
        raise PermissionDenied(f"The user name '{name}' belongs to another user") from None
