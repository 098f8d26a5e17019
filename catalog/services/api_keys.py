from datetime import datetime

from django.db import IntegrityError, transaction
from django.utils import timezone

from catalog.errors import InvalidInput
from catalog.models import ApiKey
from catalog.services import access, audit
from catalog.services.access import Action, Principal


def create_api_key(
    *,
    actor: Principal,
    name: str,
    level: ApiKey.Access = ApiKey.Access.ADMIN,
    expires_at: datetime | None = None,
    key: str | None = None,
) -> tuple[ApiKey, str]:
    """A new key and its row; the key is known to nobody else and cannot be read again.

    ``key`` presets it. Raises InvalidInput when the name or the key is in use.
    """
    access.require(actor, Action.WRITE)
    key = key or access.new_key()
    if ":" in name or not name.isprintable() or not name.strip():
        # The audit trail tells keys from people, who are "user:<name>".
        raise InvalidInput("A key's name must be printable and without a colon")
    if len(key) < 8:
        raise InvalidInput("An API key needs at least 8 characters")
    try:
        with transaction.atomic():
            row = ApiKey.objects.create(
                name=name,
                digest=access.key_digest(key),
                # Never so much of a short preset key that the rest could be guessed.
                prefix=key[: min(8, len(key) // 4)],
                access=level,
                expires_at=expires_at,
            )
            audit.record(actor, "api_key.create", name, after={"access": level})
    except IntegrityError as exc:
        raise InvalidInput(f"An API key named '{name}' or this very key exists already") from exc
    return row, key


def revoke_api_key(*, actor: Principal, key: ApiKey) -> None:
    """End a key. Other processes stop accepting it within five seconds."""
    access.require(actor, Action.WRITE)
    with transaction.atomic():
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(
            revoked_at=timezone.now()
        )
        if revoked:
            audit.record(actor, "api_key.revoke", key.name)
    access.forget_keys()
