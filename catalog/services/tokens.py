"""Access tokens: an API key for an hour, signed, so that nothing is stored.

A token names its key, so it ends with it: whoever presents one is looked up by that key.
"""

from django.core import signing

from catalog.errors import TokenExpired

PREFIX = "mnt_"
LIFETIME_SECONDS = 3600

# Separated by a dot, because a colon is no character of a bearer token (RFC 6750).
_signer = signing.TimestampSigner(salt="monodon.access-token", sep=".")


def issue_token(key: int) -> str:
    """A token of the API key with this primary key."""
    return PREFIX + _signer.sign_object({"key": key})


def read_token(text: str, *, expired_too: bool = False) -> int | None:
    """The primary key of the API key that a token stands for; None: it is no token of ours.

    Raises TokenExpired, unless expired ones are wanted too.
    """
    if not text.startswith(PREFIX):
        return None
    signed = text.removeprefix(PREFIX)
    try:
        facts = _signer.unsign_object(signed, max_age=None if expired_too else LIFETIME_SECONDS)
    except signing.SignatureExpired:
        raise TokenExpired from None
    except (signing.BadSignature, ValueError):
        return None
    key: int = facts["key"]
    return key
