"""Synchronizing Django's users with their principals, and auditing sign-in and sign-out.

Users are created, changed, deleted and signed in by Django's own pages, commands and code. So this
module uses Django's signals, the only place that all of these pass; no other code of the catalog uses
signals. ``catalog.apps`` connects them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction
from django.db.models.signals import post_delete, post_save, pre_delete, pre_save
from django.http import HttpRequest

from catalog import access
from catalog.errors import InvalidInput, PrincipalAlreadyExists, Unauthenticated
from catalog.models import Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import known_keys, principals
from catalog.services.audit import refusals
from catalog.services.engine import audit_records

PASSWORD, SIGN_ON = "password", "sign-on"
_WATCHED = {"username", "is_active", "is_staff", "is_superuser"}
_AUDITED = ("is_staff", "is_superuser", "first_name", "last_name", "email", "password")
"""Fields whose changes the audit trail records; passwords without their values. A change of ``is_active``
is recorded as one of the principal."""
_BEFORE = "_monodon_before"
_RETIRED = (
    "The principal is inactive, for example because its user was deleted. A new user of this name"
    " would get everything that it owns. Activate the principal first."
)
_STILL_OWNS = (
    "No principal has this name, but it still owns objects. A new user of this name would get them."
    " Create the principal first."
)
_acting: ContextVar[access.Principal] = ContextVar("acting", default=access.SYSTEM)
_joining: ContextVar[int | None] = ContextVar("joining", default=None)


@contextmanager
def acting_as(actor: access.Principal) -> Iterator[None]:
    """Attribute changes of users to this principal in the audit trail, instead of the catalog."""
    token = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(token)


@contextmanager
def joining(principal: Principal) -> Iterator[None]:
    """Attach the user created inside to a principal that an issuer has authenticated."""
    token = _joining.set(principal.pk)
    try:
        yield
    finally:
        _joining.reset(token)


def name_of(user: User) -> str:
    """The name of a user's principal."""
    return f"user:{user.get_username()}"


def check_new_name(username: str) -> None:
    """Raise InvalidInput, or PrincipalAlreadyExists if a user would get another's rights.

    So nobody gets the name of a deleted user, unless an administrator activates the principal that
    remained.
    """
    name = principals.check_name(f"user:{username}", PrincipalKind.USER)
    row = Principal.objects.filter(name=name).first()
    joining_as = _joining.get()
    if joining_as is not None and (row is None or row.pk != joining_as):
        raise PrincipalAlreadyExists(name)  # a person of an issuer only gets their own user
    # A principal created in advance waits for its user; one of an issuer belongs to the person who
    # signs in there.
    if row is not None and (row.user_id or row.issuer) and row.pk != joining_as:
        raise PrincipalAlreadyExists(name)
    if row is not None and not row.is_active:
        raise PrincipalAlreadyExists(name, detail=_RETIRED)
    if row is None and principals.owns_anything(name):
        raise PrincipalAlreadyExists(name, detail=_STILL_OWNS)


def ensure_principal(user: User) -> Principal:
    """The principal of a user; it is created if there is none."""
    row = Principal.objects.filter(user=user).first()
    if row is not None:
        return row
    name = name_of(user)
    actor = _acting.get()
    with transaction.atomic():
        # ``check_new_name`` ran before the user was saved, so an existing principal may be taken over.
        row, is_new = Principal.objects.get_or_create(
            name=name,
            defaults={
                "kind": PrincipalKind.USER,
                "level": PrincipalLevel.GRANTED,
                "is_active": user.is_active,
                "user": user,
                "created_by": actor.name,
            },
        )
        if is_new:
            audit_records.record(actor, "principal.create", name, after=_audit_values(user))
        else:
            row.user = user
            row.save(update_fields=["user"])
            audit_records.record(
                actor, "principal.update", name, after={"user": user.get_username()}
            )
    known_keys.forget_keys()
    return row


# --- receivers -----------------------------------------------------------------------------------


def before_save(instance: User, raw: bool, update_fields: Any, **_: Any) -> None:
    """Refuse a change that gives a user another's name, or removes the last administrator."""
    if raw or (update_fields is not None and _WATCHED.isdisjoint(update_fields)):
        return
    if instance._state.adding:
        check_new_name(instance.get_username())
        return
    before = get_user_model().objects.filter(pk=instance.pk).values(*_AUDITED).first()
    setattr(instance, _BEFORE, before)
    row = Principal.objects.select_related("user").filter(user=instance.pk).first()
    if row is None or row.user is None:
        return
    if row.name != name_of(instance):
        raise InvalidInput(
            f"User '{row.name}' cannot be renamed: the audit trail, owners and grants refer to the"
            " name"
        )
    stays = row.level == PrincipalLevel.ADMIN or instance.is_superuser
    if row.user.is_active and not (instance.is_active and stays):
        principals.require_another_administrator(row)


def after_save(instance: User, created: bool, raw: bool, update_fields: Any, **_: Any) -> None:
    if raw or (update_fields is not None and _WATCHED.isdisjoint(update_fields)):
        return
    row = ensure_principal(instance)
    _record_changes(instance, row)
    if not created and row.is_active != instance.is_active:
        with transaction.atomic():
            row.is_active = instance.is_active
            row.save(update_fields=["is_active"])
            audit_records.record(
                _acting.get(),
                "principal.update",
                row.name,
                before={"is_active": not instance.is_active},
                after={"is_active": instance.is_active},
            )
    known_keys.forget_keys()


def _record_changes(instance: User, row: Principal) -> None:
    before = instance.__dict__.pop(_BEFORE, None) or {}
    changed = {name: value for name, value in before.items() if getattr(instance, name) != value}
    if changed:
        after = {name: getattr(instance, name) for name in changed}
        # Digests of passwords, which the trail masks as it does any password.
        audit_records.record(_acting.get(), "user.update", row.name, before=changed, after=after)


def before_delete(instance: User, **_: Any) -> None:
    row = Principal.objects.filter(user=instance.pk).first()
    if row is not None:
        principals.require_another_administrator(row)
        audit_records.record(
            _acting.get(), "principal.delete", row.name, before=principals.audit_values(row)
        )


def after_delete(**_: Any) -> None:
    known_keys.forget_keys()


def keep_name(instance: Principal, **_: Any) -> None:
    """Keep the name of a principal that is deleted with its user.

    Its keys, grants and memberships are deleted, but not the objects that it owns.
    """
    if instance.user_id is not None:
        Principal.objects.create(
            name=instance.name,
            kind=instance.kind,
            description=instance.description,
            is_active=False,
            issuer=instance.issuer,
            subject=instance.subject,
            created_by=instance.created_by,
            created_at=instance.created_at,
        )


def signed_in(request: HttpRequest | None, user: User, **_: Any) -> None:
    ensure_principal(user)
    method = getattr(request, "signed_on_by", None)
    values = {"address": _address(request), "by": method or PASSWORD}
    audit_records.record(_actor(request, user), "session.begin", name_of(user), after=values)


def signed_out(request: HttpRequest | None, user: User | None, **_: Any) -> None:
    if user is not None:
        values = {"address": _address(request)}
        audit_records.record(_actor(request, user), "session.end", name_of(user), after=values)


def failed_to_sign_in(
    credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any
) -> None:
    """Record a failed sign-in. An unknown user name is not stored: it may be a password."""
    username = str(credentials.get("username") or "").replace("\x00", "")
    names = get_user_model().objects.filter(username=username).values_list("username", flat=True)
    user_name = names.first()
    refusals.note(
        Unauthenticated("The user name or the password is wrong"),
        actor=None,
        interface="admin",
        action="session.begin",
        target="(unknown user)" if user_name is None else f"user:{user_name}",
        address=_address(request),
        request_id=getattr(request, "request_id", ""),
    )


def connect() -> None:
    """Connect the receivers to Django's signals, each once."""
    user_model = get_user_model()
    for signal, receiver, sender in (
        (pre_save, before_save, user_model),
        (post_save, after_save, user_model),
        (pre_delete, before_delete, user_model),
        (post_delete, after_delete, user_model),
        (post_delete, keep_name, Principal),
        (user_logged_in, signed_in, None),
        (user_logged_out, signed_out, None),
        (user_login_failed, failed_to_sign_in, None),
    ):
        signal.connect(receiver, sender)


def _actor(request: HttpRequest | None, user: User) -> access.Principal:
    return access.Principal(
        name_of(user), request_id=getattr(request, "request_id", ""), interface="admin"
    )


def _address(request: HttpRequest | None) -> str:
    return "" if request is None else str(request.META.get("REMOTE_ADDR", ""))


def _audit_values(user: User) -> dict[str, Any]:
    return {"user": user.get_username(), "is_superuser": user.is_superuser}
