"""Temporary credentials for S3, from the token service of AWS or of a compatible store (STS AssumeRole)."""

import contextlib
import hashlib
import logging
import re
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from cachetools import TTLCache

from catalog.errors import ServiceUnavailable
from catalog.storage import object_clients, role_sessions, s3_policies
from catalog.storage.configuration import Key, StoreConfiguration
from catalog.storage.stores import StorageUnavailable

log = logging.getLogger(__name__)
# At its debug level botocore logs answers, and with them the credentials.
logging.getLogger("botocore").setLevel(logging.WARNING)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
"""After a failure, requests fail at once for as many seconds as it took, within these limits: they would
all wait for the token service."""
_TRUSTED_SECONDS = 30.0
_NOT_IN_SESSION_NAMES = re.compile(r"[^A-Za-z0-9_=,.@-]+")
_LONGEST_SESSION_NAME = 64
_OF_ONE_TABLE = frozenset({"PackedPolicyTooLarge", "MalformedPolicyDocument"})
"""Errors that say nothing about credentials for other tables."""
_REMEDIES = {
    "AccessDenied": "Let the role's trust policy name the server's identity, and the external ID if it requires one;"
    " let the server's identity call sts:AssumeRole on the role",
    "InvalidClientTokenId": "Set the key of the profile again",
    "SignatureDoesNotMatch": "Set the key of the profile again, and check the server's clock",
    "ExpiredToken": "The server's own credentials have expired: renew them",
    "RegionDisabledException": "Activate the token service in the region of the profile",
    "PackedPolicyTooLarge": "Shorten the location of the table",
    "ValidationError": "Check role and lifetime of the profile: the role has a maximum session duration",
}


@dataclass(frozen=True, slots=True)
class Session:
    """Temporary credentials."""

    key: Key = field(repr=False)
    expires_at: float
    """Seconds since 1970."""
    directories: tuple[str, ...]
    """The directories that they open."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why there are no credentials."""

    cause: str
    """For clients."""
    remedy: str
    details: str = ""
    """The message of the token service, for operators."""
    is_of_one_table: bool = False
    """True if it says nothing about credentials for other tables."""


_lock = threading.Lock()
_failures: dict[StoreConfiguration, tuple[float, str]] = {}
"""The last failures: until when they count, and their causes."""
_successes: Any = TTLCache(1000, _TRUSTED_SECONDS)


def forget() -> None:
    """Forget what is known about token services: they are asked again at once."""
    with _lock:
        _failures.clear()
        _successes.clear()


def require_available(configuration: StoreConfiguration) -> None:
    """Require that the token service of a profile issues credentials; some are discarded, if necessary.

    Nothing is requested if it has issued some within half a minute. Raises ServiceUnavailable.
    """
    with _lock:
        is_trusted = configuration in _successes
    if not is_trusted:
        # Below a root, which no client chose.
        directory = f"{configuration.roots[0]}/monodon"
        assume_role(configuration, [directory], write=False, principal="monodon")


def assume_role(
    configuration: StoreConfiguration, directories: Collection[str], *, write: bool, principal: str
) -> Session:
    """Credentials that read, or also write, below canonical ``s3://`` directories, the first foremost.

    If they are too many for a policy, the credentials open the first one only. ``principal`` is shown
    in the provider's logs. Raises ServiceUnavailable, which names the profile and the cause.
    """
    started = time.monotonic()
    until, cause = _failures.get(configuration, (0.0, ""))
    if until > started:
        raise _unavailable(configuration, cause)
    try:
        with object_clients.availability_of(configuration).calling():
            answer = _request(configuration, tuple(directories), write=write, principal=principal)
    except StorageUnavailable as error:
        raise _unavailable(configuration, error.cause, error.retry_seconds) from None
    if isinstance(answer, Session):
        with _lock:
            _successes[configuration] = True
        return answer
    if not answer.is_of_one_table:
        now = time.monotonic()
        pause = min(max(now - started, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        with _lock:
            _successes.pop(configuration, None)
            for past in [each for each, (end, _) in _failures.items() if end <= now]:
                del _failures[past]
            _failures[configuration] = (now + pause, answer.cause)
    log.error(
        "Storage profile '%s' cannot issue credentials: %s. %s.%s",
        configuration.profile,
        answer.cause,
        answer.remedy,
        f" The token service says: {answer.details}" if answer.details else "",
    )
    raise _unavailable(configuration, answer.cause)


def _request(
    configuration: StoreConfiguration, directories: tuple[str, ...], *, write: bool, principal: str
) -> "Session | _Failure":
    """Credentials, or why there are none. The library's errors end here: they may quote the request."""
    if not configuration.role:
        return _Failure("the profile has no role", "Set the role of the profile")
    opened, policy = _policy(configuration, directories, write=write)
    if not policy:
        cause = "the table's location is too long for a session policy"
        return _Failure(cause, _REMEDIES["PackedPolicyTooLarge"], is_of_one_table=True)
    try:
        answer = role_sessions.sts_client(configuration).assume_role(
            RoleArn=configuration.role,
            RoleSessionName=session_name(principal),
            Policy=policy,
            DurationSeconds=configuration.lifetime,
            **({"ExternalId": configuration.external_id} if configuration.external_id else {}),
        )
        parts = answer["Credentials"]
        key = Key(parts["AccessKeyId"], parts["SecretAccessKey"], parts["SessionToken"])
        return Session(key, parts["Expiration"].timestamp(), opened)
    except ClientError as error:
        details = error.response.get("Error", {})
        code = str(details.get("Code", "unknown"))[:80]
        return _Failure(
            f"the token service refuses: {code}",
            _REMEDIES.get(code, "See the message of the token service"),
            _without_secrets(configuration, str(details.get("Message", ""))),
            is_of_one_table=code in _OF_ONE_TABLE,
        )
    except NoCredentialsError:
        return _Failure(
            "the server has no credentials in its environment",
            "Give the server's environment credentials, or the profile a key",
        )
    except (BotoCoreError, KeyError, AttributeError) as error:
        return _Failure(
            f"the token service does not answer as expected: {type(error).__name__}",
            "Check the profile's sts_endpoint and region, and that the server reaches it",
        )


def session_name(principal: str) -> str:
    """A session name for a principal, of the characters that STS allows; unique for each principal."""
    text = _NOT_IN_SESSION_NAMES.sub("-", principal)
    if text == principal and 2 <= len(text) <= _LONGEST_SESSION_NAME:
        return text
    digest = hashlib.sha256(principal.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{text[: _LONGEST_SESSION_NAME - 11]}-{digest}"


def _policy(
    configuration: StoreConfiguration, directories: tuple[str, ...], *, write: bool
) -> tuple[tuple[str, ...], str]:
    """The directories that fit into a policy, and the policy; an empty one if none fits."""
    partition = s3_policies.partition_of(configuration.role)
    for opened in (directories, directories[:1]):
        with contextlib.suppress(s3_policies.PolicyTooLong):
            policy = s3_policies.session_policy(
                opened, write=write, partition=partition, kms_key=configuration.kms_key
            )
            return opened, policy
    return (), ""


def _unavailable(
    configuration: StoreConfiguration, cause: str, retry_seconds: int = 1
) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"Storage profile '{configuration.profile}' cannot issue credentials: {cause}",
        retry_seconds=retry_seconds,
    )


def _without_secrets(configuration: StoreConfiguration, text: str) -> str:
    key = configuration.key or Key()
    for secret in (key.secret, key.token, key.id, configuration.external_id):
        if secret:
            text = text.replace(secret, "***")
    return text[:500]
