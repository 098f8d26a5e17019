"""API keys as text: generating a key, and the digest under which it is stored."""

import hashlib
import secrets

KEY_PREFIX = "mnd_"


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)
