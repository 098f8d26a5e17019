"""Temporary credentials for S3, from the token service of AWS or of a compatible store (STS AssumeRole)."""

import hashlib
import logging
import re
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from catalog.errors import ServiceUnavailable
from catalog.services.storage import s3_policies
from catalog.storage.configuration import Key, StoreConfiguration

log = logging.getLogger(__name__)
# At its debug level botocore logs answers, and with them the credentials.
logging.getLogger("botocore").setLevel(logging.WARNING)

_DEFAULT_REGION = "us-east-1"
_CONNECT_SECONDS, _READ_SECONDS, _ATTEMPTS = 2, 5, 2
_PAUSE_SECONDS = 2.0
"""After a failure, requests fail at once for this time: they would all wait for the token service."""
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


class _Failures:
    """The last failures of token services, which are not asked again at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[StoreConfiguration, tuple[float, str]] = {}

    def add(self, configuration: StoreConfiguration, cause: str) -> None:
        with self._lock:
            now = time.monotonic()
            self._until = {each: until for each, until in self._until.items() if until[0] > now}
            self._until[configuration] = (now + _PAUSE_SECONDS, cause)

    def cause(self, configuration: StoreConfiguration) -> str | None:
        until = self._until.get(configuration)
        return until[1] if until is not None and until[0] > time.monotonic() else None

    def clear(self) -> None:
        with self._lock:
            self._until = {}


failures = _Failures()


def assume_role(
    configuration: StoreConfiguration, directories: Collection[str], *, write: bool, principal: str
) -> Session:
    """Credentials that read, or also write, below canonical ``s3://`` directories, the first foremost.

    If they are too many for a policy, the credentials open the first one only. ``principal`` is shown
    in the provider's logs. Raises ServiceUnavailable, which names the profile and the cause.
    """
    cause = failures.cause(configuration)
    if cause is not None:
        raise unavailable(configuration, cause)
    if not configuration.role:
        raise _refused(configuration, "NoRole", "the profile has no role", "Set the profile's role")
    opened, policy = _policy(configuration, tuple(directories), write=write)
    try:
        answer = _client(configuration).assume_role(
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
        code = str(details.get("Code", "unknown"))
        log_text = _without_secrets(configuration, str(details.get("Message", "")))
        raise _refused(
            configuration,
            code,
            f"the token service refuses: {code}",
            _REMEDIES.get(code, "See the token service's message"),
            log_text,
        ) from None
    except NoCredentialsError:
        raise _refused(
            configuration,
            "NoCredentials",
            "the server has no credentials in its environment",
            "Give the server's environment credentials, or the profile a key",
        ) from None
    except (BotoCoreError, KeyError, AttributeError) as error:
        # The class only: texts of these errors may quote the request.
        raise _refused(
            configuration,
            type(error).__name__,
            f"the token service does not answer as expected: {type(error).__name__}",
            "Check the profile's sts_endpoint and region, and that the server reaches it",
        ) from None


def session_name(principal: str) -> str:
    """A session name for a principal, of the characters that STS allows; unique for each principal."""
    text = _NOT_IN_SESSION_NAMES.sub("-", principal)
    if text == principal and 2 <= len(text) <= _LONGEST_SESSION_NAME:
        return text
    digest = hashlib.sha256(principal.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{text[: _LONGEST_SESSION_NAME - 11]}-{digest}"


def unavailable(configuration: StoreConfiguration, cause: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"Storage profile '{configuration.profile}' cannot issue credentials: {cause}"
    )


def _policy(
    configuration: StoreConfiguration, directories: tuple[str, ...], *, write: bool
) -> tuple[tuple[str, ...], str]:
    options: dict[str, Any] = {
        "write": write,
        "partition": s3_policies.partition_of(configuration.role),
        "kms_key": configuration.kms_key,
    }
    for opened in (directories, directories[:1]):
        try:
            return opened, s3_policies.session_policy(opened, **options)
        except s3_policies.PolicyTooLong:
            continue
    raise _refused(
        configuration,
        "PackedPolicyTooLarge",
        "the table's location is too long for a session policy",
        _REMEDIES["PackedPolicyTooLarge"],
    )


def _refused(
    configuration: StoreConfiguration, code: str, cause: str, remedy: str, details: str = ""
) -> ServiceUnavailable:
    if code not in _OF_ONE_TABLE:
        failures.add(configuration, cause)
    log.error(
        "Storage profile '%s' cannot issue credentials: %s. %s.%s",
        configuration.profile,
        cause,
        remedy,
        f" The token service says: {details}" if details else "",
    )
    return unavailable(configuration, cause)


def _without_secrets(configuration: StoreConfiguration, text: str) -> str:
    key = configuration.key or Key()
    for secret in (key.secret, key.token, key.id, configuration.external_id):
        if secret:
            text = text.replace(secret, "***")
    return text[:500]


# Loading the description of the service takes 100 ms, and a connection is worth keeping.
@lru_cache(maxsize=16)
def _client(configuration: StoreConfiguration) -> Any:
    """The client of a profile's token service; threads may share it."""
    key = configuration.key
    return botocore.session.Session().create_client(
        "sts",
        region_name=configuration.region or _DEFAULT_REGION,
        endpoint_url=configuration.sts_endpoint or configuration.endpoint or None,
        aws_access_key_id=key.id if key else None,
        aws_secret_access_key=key.secret if key else None,
        aws_session_token=(key.token or None) if key else None,
        config=Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            # Compatible stores accept shorter lifetimes and other role names than AWS.
            parameter_validation=False,
        ),
    )
