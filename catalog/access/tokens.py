"""Access tokens: signed stand-ins for an API key that last an hour and are not stored.

A token names its key and is checked against it, so it ends with the key. It may permit less than its
key: only some privileges, which it names as well.

A job that runs in its own process also gets a token. It names the attempt and ends with it: a process
left behind by a worker that lost its lease, or had to stop, can no longer commit.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.core import signing

from catalog.errors import TokenExpired, Unauthenticated
from catalog.privileges import Privilege

PREFIX = "mnt_"
JOB_PREFIX = "mnj_"
LIFETIME_SECONDS = 3600
_JOB_SECONDS = 26 * 3600  # longer than the time limit of a task

# The separator is a dot, because a bearer token must not contain a colon (RFC 6750).
_signer = signing.TimestampSigner(salt="monodon.access-token", sep=".")
_job_signer = signing.TimestampSigner(salt="monodon.job-token", sep=".")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """The content of an access token."""

    key: int
    """The primary key of its API key."""
    ends_at: datetime
    privileges: Privilege
    """The most that it permits."""


def issue_token(key: int, privileges: Privilege = Privilege.ALL) -> str:
    """A token of the API key with this primary key, limited to these privileges."""
    return PREFIX + _signer.sign_object({"key": key, "may": privileges.value})


def read_token(text: str, *, allow_expired: bool = False) -> AccessToken | None:
    """The content of a token; None: it is not a token of this catalog.

    Raises TokenExpired, unless expired tokens are allowed.
    """
    if not text.startswith(PREFIX):
        return None
    signed = text.removeprefix(PREFIX)
    try:
        content = _signer.unsign_object(signed, max_age=None if allow_expired else LIFETIME_SECONDS)
    except signing.SignatureExpired:
        raise TokenExpired from None
    except (signing.BadSignature, ValueError):
        return None
    if "may" not in content:  # a token of an older release, which named no privileges
        return None
    issued_at = datetime.fromtimestamp(signing.b62_decode(signed.rsplit(".", 2)[1]), UTC)
    return AccessToken(
        content["key"],
        issued_at + timedelta(seconds=LIFETIME_SECONDS),
        Privilege(content["may"]),
    )


def issue_job_token(job: int, attempt: int) -> str:
    """A token for one attempt of the job with this primary key."""
    return JOB_PREFIX + _job_signer.sign_object({"job": job, "attempt": attempt})


def read_job_token(text: str) -> tuple[int, int]:
    """The primary key of the job, and the attempt. Raises Unauthenticated for an invalid token."""
    try:
        content = _job_signer.unsign_object(text.removeprefix(JOB_PREFIX), max_age=_JOB_SECONDS)
    except (signing.BadSignature, ValueError):
        raise Unauthenticated("The token of a job is malformed or too old") from None
    return content["job"], content["attempt"]
