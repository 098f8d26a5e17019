"""Encryption at rest of secrets that are needed in clear text, such as webhook signing secrets.

The key is derived from MONODON_SECRET_KEY, which is not in the database.
"""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from catalog.errors import ServiceUnavailable


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


def _cipher() -> Fernet:
    derived = HKDF(SHA256(), 32, salt=None, info=b"monodon secrets at rest")
    return Fernet(base64.urlsafe_b64encode(derived.derive(settings.SECRET_KEY.encode())))
