from datetime import datetime

from django.db import IntegrityError, transaction
from django.utils import timezone

from catalog.errors import InvalidInput, Unauthenticated
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


def find_client(*, client_id: str, client_secret: str) -> ApiKey:
    """The key of an OAuth2 client, whose secret is the key itself.

    The client's id is the key's name, or how it begins, or empty. Raises Unauthenticated.
    """
    key = access.find_key(client_secret)
    if access.key_digest(client_secret) != key.digest or client_id not in {
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
    key = access.find_key(token, expired_token_too=client is not None)
    if client is not None and client.pk != key.pk:
        raise Unauthenticated("The token belongs to another client")
    return key
