"""What a store does with signatures, and which requests of clients may therefore be signed for it.

A store that follows the specification obeys no header of S3 that a signature does not cover, and compares the body of
a request with its signed hash. With other stores, a client that may write to one table could read or delete
the files of all others. So the first signature of such a request is preceded by a check with two objects of a
test, which is repeated every hour. Amazon's own store is not checked.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import urllib3

from catalog.errors import ServiceUnavailable, Unsupported
from catalog.services.engine.expiring_cache import ExpiringCache
from catalog.services.storage.profile_checks.s3_client import Answer, S3Client
from catalog.services.storage.profile_checks.trial import new_directory
from catalog.storage import object_clients
from catalog.storage.configuration import MAX_PROFILES, Key, StoreConfiguration
from catalog.storage.object_locations import bucket_of, key_of
from catalog.storage.role_sessions import credential_source
from catalog.storage.s3.requests import S3Request

log = logging.getLogger(__name__)

_SECONDS = 3600.0
"""How long the outcome of a check is used."""
_SECONDS_OF_FAILURE = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a check of a store. Each cause is empty if such requests may be signed."""

    renew_at: float
    writes: str = ""
    """Why no request may be signed that writes an object."""
    deletions: str = ""
    """Why no request may be signed that names the objects to delete in its body."""
    failure: str = ""
    """Why the store could not be checked."""
    are_writes_checked: bool = True
    """False if the check failed before it knew whether ``writes`` may be signed."""


_outcomes: ExpiringCache[StoreConfiguration, Outcome] = ExpiringCache(MAX_PROFILES)


def require_safe(request: S3Request, configuration: StoreConfiguration) -> None:
    """Refuse to sign a request for a store that may do something else with the signature.

    Raises Unsupported, and ServiceUnavailable or OSError if the store cannot be checked.
    """
    is_put, is_deletion = request.method == "PUT", request.names_objects_in_body
    if not (is_put or is_deletion) or not configuration.endpoint:
        return
    availability = object_clients.availability_of(configuration)
    outcome = _outcomes.get(
        configuration, lambda: _check(configuration), waiting=availability.calling
    )
    cause = outcome.writes if is_put else outcome.deletions
    if cause:
        raise Unsupported(f"Storage profile '{configuration.profile}' does not sign this: {cause}")
    if outcome.failure and (is_deletion or not outcome.are_writes_checked):
        raise ServiceUnavailable(
            f"Storage profile '{configuration.profile}' cannot be checked: {outcome.failure}"
        )


def discard_outcomes() -> None:
    """Forget the outcomes of all checks of this process."""
    _outcomes.clear()


def obeys_unsigned_copy(requests: S3Client, key: str, source: str) -> bool:
    """True if a store copies another object because of a header that the signature does not cover.

    ``source``: the bucket and the key of the other object. Raises urllib3's HTTPError.
    """
    return requests.send_copy(key, quote(f"/{source}")).is_copy


def deletes_unsigned(requests: S3Client, signed_key: str, key: str) -> bool | None:
    """True if a store deletes an object that is only in the body, with the signature for another body.

    None if this cannot be seen. Both objects exist before, and the second one is deleted. Raises urllib3's HTTPError.
    """
    requests.send_deletion(signed_key, key)
    if _is_missing(requests.send("GET", key)):
        return True
    requests.send_deletion(key, key)
    return False if _is_missing(requests.send("GET", key)) else None


def _is_missing(answer: Answer) -> bool:
    return answer.status == 404


def _check(configuration: StoreConfiguration) -> Outcome:
    with object_clients.availability_of(configuration).calling():
        current = credential_source(configuration).current()
        root = configuration.roots[0]
        bucket = bucket_of(root).removeprefix("s3://")
        requests = S3Client(
            configuration, bucket, Key(current.key_id, current.secret, current.token)
        )
        directory = key_of(new_directory(root))
        try:
            with _objects(requests, f"{directory}/own", f"{directory}/other") as (own, other):
                outcome = _outcome(requests, bucket, own, other)
        except urllib3.exceptions.HTTPError as error:
            outcome = _failed(f"{type(error).__name__}")
    for cause in filter(None, (outcome.writes, outcome.deletions, outcome.failure)):
        log.error("Not every request is signed for '%s': %s", configuration.profile, cause)
    return outcome


@contextlib.contextmanager
def _objects(requests: S3Client, *keys: str) -> Iterator[tuple[str, ...]]:
    try:
        for key in keys:
            requests.put(key, key.encode())
        yield keys
    finally:
        for key in keys:
            requests.send("DELETE", key)


def _outcome(requests: S3Client, bucket: str, own: str, other: str) -> Outcome:
    answer = requests.send("GET", other)
    if not answer.is_success:
        return _failed(answer.summary)
    writes = deletions = failure = ""
    if obeys_unsigned_copy(requests, own, f"{bucket}/{other}"):
        writes = "the store obeys a header of S3 that the signature does not cover"
    is_deleted = deletes_unsigned(requests, own, other)
    if is_deleted:
        deletions = "the store does not compare the body of a request with its signed hash"
    elif is_deleted is None:
        failure = "the store does not delete an object that DeleteObjects names"
    return Outcome(time.time() + _SECONDS, writes, deletions, failure)


def _failed(cause: str) -> Outcome:
    until = time.time() + _SECONDS_OF_FAILURE
    return Outcome(until, failure=cause, are_writes_checked=False)
