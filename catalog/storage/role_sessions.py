"""Credentials of the server itself for S3: a profile's key, the environment, or an assumed role.

Clients of object stores and of Lance get them from here, so that a profile has one session in a
process. The variables of the environment never change what a profile with a key states.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from catalog.storage.configuration import MAX_PROFILES, ServerIdentity, StoreConfiguration
from catalog.storage.stores import AccessDenied, StorageUnavailable, require_key

# At its debug level botocore logs answers, and with them the credentials.
logging.getLogger("botocore").setLevel(logging.WARNING)
T = TypeVar("T")
DEFAULT_REGION = "us-east-1"
_ROLE_REFUSED = "the role cannot be assumed"
_SESSION_NAME = "monodon"
_SESSION_SECONDS = 3600  # the longest that a role may be assumed with temporary credentials
_REFRESH_SECONDS = 600
"""A session is replaced when less than this remains; one request at a time does it."""
_UNUSABLE_SECONDS = 30
"""A session is no longer used when less than this remains."""
_ENVIRONMENT_SECONDS = 900
"""The environment's credentials are read again after this time; botocore renews them in between."""
_FAILURE_SECONDS = 2
"""After a failure, other requests fail at once for this time instead of waiting for their turn."""
_NO_FILES = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
_DENIALS = {
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "ValidationError",
}


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """Credentials for S3. The secret parts are not in the representation."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    expires_at: float | None = None
    """Seconds since 1970; None: not temporary, or renewed by whoever reads them."""


def sts_client(configuration: StoreConfiguration) -> Any:
    """A client of the profile's token service, with the server's own key or environment.

    Clients are safe to share between threads, and kept for each configuration. Calls end within
    about 30 seconds, and raise botocore's exceptions.
    """
    return _sts_client(configuration)


@lru_cache(maxsize=64)
def _sts_client(configuration: StoreConfiguration) -> Any:
    return _client("sts", configuration, configuration.sts_endpoint or configuration.endpoint)


def s3_client(configuration: StoreConfiguration, credentials: SessionCredentials) -> Any:
    """A client of botocore for what obstore cannot address. Making it takes tens of milliseconds."""
    session = botocore.session.Session(session_vars=_NO_FILES)
    return session.create_client(
        "s3",
        region_name=configuration.region or DEFAULT_REGION,
        endpoint_url=configuration.endpoint or None,
        aws_access_key_id=credentials.key_id,
        aws_secret_access_key=credentials.secret,
        aws_session_token=credentials.token or None,
        config=_client_config().merge(
            Config(s3={"addressing_style": "path" if configuration.path_style else "virtual"})
        ),
    )


def _client(service: str, configuration: StoreConfiguration, endpoint: str) -> Any:
    key = configuration.key
    session = botocore.session.Session(session_vars=_NO_FILES if key else None)
    return session.create_client(
        service,
        region_name=configuration.region or DEFAULT_REGION,
        endpoint_url=endpoint or None,
        config=_client_config(),
        **(
            {
                "aws_access_key_id": key.id,
                "aws_secret_access_key": key.secret,
                "aws_session_token": key.token or None,
            }
            if key
            else {}
        ),
    )


def _client_config() -> Config:
    return Config(
        connect_timeout=3,
        read_timeout=10,
        retries={"mode": "standard", "total_max_attempts": 3},
        # Compatible token services accept other role names and shorter lifetimes than AWS.
        parameter_validation=False,
        # A variable such as AWS_ENDPOINT_URL must not lead a profile's key to another server.
        ignore_configured_endpoint_urls=True,
    )


def call(profile: str, operation: Callable[[], T], cause: str = "a request failed") -> T:
    """Call botocore. Raises AccessDenied and StorageUnavailable, with the cause and the error's code."""
    failure: OSError
    try:
        return operation()
    except (BotoCoreError, ClientError) as error:
        failure = _failure(profile, cause, error)
    raise failure  # not in the handler: the library's error may hold URLs and keys


class CredentialSource:
    """The present credentials of a profile for S3, renewed before they expire.

    Safe for threads: one of them renews, while the others use what is still valid or wait.
    """

    def __init__(self, configuration: StoreConfiguration) -> None:
        self._configuration = configuration
        self._lock = threading.Lock()
        self._credentials: SessionCredentials | None = None
        self._renew_at = 0.0
        self._failure: tuple[float, OSError] | None = None
        self._environment: Any = None

    @property
    def is_fresh(self) -> bool:
        """True if ``current`` returns at once, without a call of a token service."""
        if self._configuration.identity == ServerIdentity.KEY:
            return True
        return self._credentials is not None and time.time() < self._renew_at

    def current(self) -> SessionCredentials:
        """Credentials that are valid for a while. Raises AccessDenied and StorageUnavailable."""
        credentials = self._credentials
        now = time.time()
        if credentials is not None and now < self._renew_at:
            return credentials
        if credentials is not None and (
            credentials.expires_at is None or now < credentials.expires_at - _UNUSABLE_SECONDS
        ):
            return self._renewed_by_one_thread(credentials)
        with self._lock:
            return self._renewed(None)

    def _renewed_by_one_thread(self, usable: SessionCredentials) -> SessionCredentials:
        if not self._lock.acquire(blocking=False):
            return usable
        try:
            return self._renewed(usable)
        finally:
            self._lock.release()

    def __call__(self) -> dict[str, Any]:
        """The present credentials as obstore expects them from a provider."""
        credentials = self.current()
        expires_at = credentials.expires_at
        if expires_at is None and self._configuration.identity == ServerIdentity.ENVIRONMENT:
            expires_at = self._renew_at
        return {
            "access_key_id": credentials.key_id,
            "secret_access_key": credentials.secret,
            "token": credentials.token or None,
            "expires_at": None if expires_at is None else datetime.fromtimestamp(expires_at, UTC),
        }

    def _renewed(self, usable: SessionCredentials | None) -> SessionCredentials:
        """New credentials; after a failure, those that are still usable. The lock is held."""
        credentials = self._credentials
        if credentials is not None and time.time() < self._renew_at:
            return credentials  # renewed while this thread waited
        failure = self._recent_failure()
        if failure is None:
            try:
                fresh, self._renew_at = self._read()
            except OSError as error:
                self._failure = (time.monotonic(), error)
                failure = error
            else:
                self._credentials, self._failure = fresh, None
                return fresh
        if usable is not None:
            return usable
        raise failure.with_traceback(None)

    def _recent_failure(self) -> OSError | None:
        if self._failure is None or time.monotonic() - self._failure[0] > _FAILURE_SECONDS:
            return None
        return self._failure[1]

    def _read(self) -> tuple[SessionCredentials, float]:
        """Credentials, and when to read them again."""
        match self._configuration.identity:
            case ServerIdentity.KEY:
                return _profile_key(self._configuration), float("inf")
            case ServerIdentity.ENVIRONMENT:
                return self._from_environment(), time.time() + _ENVIRONMENT_SECONDS
            case ServerIdentity.ROLE:
                credentials = _assumed_role(self._configuration)
                expires_at = credentials.expires_at or 0.0
                lifetime = expires_at - time.time()
                return credentials, expires_at - min(_REFRESH_SECONDS, lifetime / 2)

    def _from_environment(self) -> SessionCredentials:
        profile = self._configuration.profile
        credentials = call(profile, self._read_environment, "the environment gives no credentials")
        if credentials is None or not credentials.access_key:
            raise AccessDenied(profile, "the environment of the server has no credentials")
        return SessionCredentials(
            credentials.access_key, credentials.secret_key or "", credentials.token or ""
        )

    def _read_environment(self) -> Any:
        if self._environment is None:
            self._environment = botocore.session.Session().get_credentials()
        return self._environment and self._environment.get_frozen_credentials()


def _profile_key(configuration: StoreConfiguration) -> SessionCredentials:
    key = configuration.key
    if key is None or not key.id or not key.secret:
        raise AccessDenied(configuration.profile, "it has no key")
    return SessionCredentials(key.id, key.secret, key.token)


def _assumed_role(configuration: StoreConfiguration) -> SessionCredentials:
    options = {"ExternalId": configuration.external_id} if configuration.external_id else {}
    client = call(configuration.profile, lambda: sts_client(configuration), _ROLE_REFUSED)
    answer = call(
        configuration.profile,
        lambda: client.assume_role(
            RoleArn=configuration.role,
            RoleSessionName=_SESSION_NAME,
            DurationSeconds=_SESSION_SECONDS,
            **options,
        ),
        _ROLE_REFUSED,
    )
    credentials = answer["Credentials"]
    return SessionCredentials(
        credentials["AccessKeyId"],
        credentials["SecretAccessKey"],
        credentials["SessionToken"],
        credentials["Expiration"].timestamp(),
    )


def _failure(profile: str, cause: str, error: Exception) -> OSError:
    """The error to raise; of the library's message only the code, because the rest may be secret."""
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        code = code if code.isalnum() and len(code) <= 64 else "unknown"
        if code in _DENIALS:
            return AccessDenied(profile, f"{cause} ({code})")
        return StorageUnavailable(profile, f"{cause} ({code})")
    return StorageUnavailable(profile, f"{cause} ({type(error).__name__})")


@lru_cache(maxsize=MAX_PROFILES)
def credential_source(configuration: StoreConfiguration) -> CredentialSource:
    """The source of a profile's credentials, shared by all its buckets and libraries.

    Raises StorageUnavailable if the profile's key cannot be read.
    """
    require_key(configuration)
    return CredentialSource(configuration)
