"""Access tokens: an API key for an hour, signed, so that nothing is stored.

A token names its key, so it ends with it: whoever presents one is looked up by that key. It may be
for less than its key: only for some privileges, which it names too.

A job that works in a process of its own gets a token too. It names the attempt, so it ends with that:
what a worker left behind, after it lost its lease or was told to stop, can commit nothing any more.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.core import signing

from catalog.errors import TokenExpired, Unauthenticated
from catalog.privileges import Privilege

PREFIX = "mnt_"
JOB_PREFIX = "mnj_"
LIFETIME_SECONDS = 3600
_JOB_SECONDS = 26 * 3600  # longer than a task may take

# Separated by a dot, because a colon is no character of a bearer token (RFC 6750).
_signer = signing.TimestampSigner(salt="monodon.access-token", sep=".")
_job_signer = signing.TimestampSigner(salt="monodon.job-token", sep=".")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """What an access token says."""

    key: int
    """The primary key of its API key."""
    ends_at: datetime
    privileges: Privilege
    """What may be done with it at most."""


def issue_token(key: int, privileges: Privilege = Privilege.ALL) -> str:
    """A token of the API key with this primary key, for no more than these privileges."""
    return PREFIX + _signer.sign_object({"key": key, "may": privileges.value})


def read_token(text: str, *, expired_too: bool = False) -> AccessToken | None:
    """What a token says; None: it is no token of ours.

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
    if "may" not in facts:  # a token of an older release, which named no privileges
        return None
    issued_at = datetime.fromtimestamp(signing.b62_decode(signed.rsplit(".", 2)[1]), UTC)
    return AccessToken(
        facts["key"],
        issued_at + timedelta(seconds=LIFETIME_SECONDS),
        Privilege(facts["may"]),
    )


def issue_job_token(job: int, attempt: int) -> str:
    """A token for one attempt of the job with this primary key."""
    return JOB_PREFIX + _job_signer.sign_object({"job": job, "attempt": attempt})


def read_job_token(text: str) -> tuple[int, int]:
    """The primary key of the job, and the attempt. Raises Unauthenticated for what is no such."""
    try:
        facts = _job_signer.unsign_object(text.removeprefix(JOB_PREFIX), max_age=_JOB_SECONDS)
    except (signing.BadSignature, ValueError):
        raise Unauthenticated("The token of a job is malformed or too old") from None
    return facts["job"], facts["attempt"]
