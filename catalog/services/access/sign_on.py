"""Single sign-on: the Django user of a person whom an issuer vouches for."""

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from catalog.errors import PermissionDenied
from catalog.models import Principal, PrincipalKind
from catalog.services.access import oidc, users

_LONGEST_USERNAME = 150


def user_of(issuer: str, claims: oidc.Claims) -> User:
    """The user for whom verified claims stand, who may enter the admin; made if there is none.

    Where MONODON_OIDC_STAFF_GROUPS or MONODON_OIDC_ADMIN_GROUPS name groups, the groups claim
    decides each time anew who may enter, and who may do everything; else the user's own flags do.
    Raises Unauthenticated for an unknown or inactive subject, and PermissionDenied for who may not
    enter, whose user, if any, then is no member of the staff any more; LastAdministrator.
    """
    row = oidc.principal_of(issuer, claims)
    if row.kind != PrincipalKind.USER:
        raise PermissionDenied(f"'{row.name}' is no person")
    staff, admins = settings.MONODON_OIDC_STAFF_GROUPS, settings.MONODON_OIDC_ADMIN_GROUPS
    groups = oidc.groups_of(claims) or set()
    is_admin = not groups.isdisjoint(admins)
    is_staff = is_admin or not groups.isdisjoint(staff)
    user = row.user
    if user is None and is_staff:
        user = _create(row)
    if user is not None and (staff or admins):
        wanted = {"is_staff": is_staff} | ({"is_superuser": is_admin} if admins else {})
        changed = [name for name, value in wanted.items() if getattr(user, name) != value]
        if changed:
            for name in changed:
                setattr(user, name, wanted[name])
            with transaction.atomic():
                user.save(update_fields=changed)
    if user is None or not user.is_staff:
        raise PermissionDenied(f"'{row.name}' may not enter the admin")
    return user


def _create(row: Principal) -> User:
    name = row.name.removeprefix("user:")
    if get_user_model().normalize_username(name) != name:
        # Django would make the user of another name, and so of another principal.
        raise PermissionDenied(f"The name of '{row.name}' is none that a user may have")
    if len(name) > _LONGEST_USERNAME:
        raise PermissionDenied(f"The name of '{row.name}' is too long for a user")
    try:
        with transaction.atomic(), users.joining(row):
            # Without a password: the issuer alone lets this person in.
            return get_user_model().objects.create_user(name)
    except IntegrityError:
        raise PermissionDenied(f"The user name '{name}' is another's") from None
