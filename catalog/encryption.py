"""Encryption of secrets that are needed in clear text: stored ones, and states that clients keep.

The key is derived from MONODON_SECRET_KEY, which is not in the database.
"""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from catalog.errors import ServiceUnavailable

_AT_REST, _OF_CLIENTS = b"monodon secrets at rest", b"monodon states of clients"
"""Purposes, each with a key of its own."""


def encrypt(text: str) -> bytes:
    return _cipher().encrypt(text.encode())


def decrypt(sealed: bytes) -> str:
    """Decrypt a secret. Raises ServiceUnavailable if it was encrypted with another key."""
    try:
        return _cipher().decrypt(sealed).decode()
    except InvalidToken:
        raise ServiceUnavailable(
            "A stored secret cannot be decrypted: MONODON_SECRET_KEY has changed since it was stored"
        ) from None


def seal(text: str) -> str:
    """Encrypt a text that a client keeps for a while."""
    return _cipher(_OF_CLIENTS).encrypt(text.encode()).decode()


def unseal(sealed: str, seconds: int) -> str | None:
    """The text of ``seal``; None if it was not sealed here, or longer ago than this."""
    try:
        return _cipher(_OF_CLIENTS).decrypt(sealed, ttl=seconds).decode()
    except InvalidToken:
        return None


def _cipher(purpose: bytes = _AT_REST) -> Fernet:
    derived = HKDF(SHA256(), 32, salt=None, info=purpose)
    return Fernet(base64.urlsafe_b64encode(derived.derive(settings.SECRET_KEY.encode())))
