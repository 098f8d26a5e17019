"""obstore's clients for the three kinds of object stores.

obstore and Lance read variables of the environment for every option that is not set. So every option
that decides where a request goes, and in whose name, is set here.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from catalog.storage import object_errors, object_locations, role_sessions
from catalog.storage.configuration import (
    MAX_PROFILES,
    ServerIdentity,
    StoreConfiguration,
    StoreKind,
)
from catalog.storage.outages.availability import Availability, serves_requests
from catalog.storage.stores import AccessDenied, StorageUnavailable, require_key

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

T = TypeVar("T")
FAILURES = (exceptions.BaseError, FileNotFoundError, ValueError)
"""What obstore raises."""
CONNECT_SECONDS = 3
READ_SECONDS = 15
"""The store may be silent for this time while it answers; half of it in a process that serves requests."""
REQUEST_SECONDS = 30
RETRIES = 5
RETRY_SECONDS = 20
"""No attempt starts later than this after the first; less in a process that serves requests."""
_RETRY_SECONDS_OF_REQUESTS = 6
_ATTEMPTS = 3
_REPEAT_SECONDS = 10
_PROBE_SECONDS = 2
PROBE_KEY = ".monodon-probe"
"""An object that does not exist: the store looks it up, and answers that it is missing."""
_USER_AGENT = "monodon"
_GCS = "https://storage.googleapis.com"
_ADDRESS = re.compile(r"\[|\d+\.\d+\.\d+\.\d+(?::|/|$)|localhost(?::|/|$)")
# Variables that replace a profile's service account, and that no option overrides.
GCS_IDENTITIES = ("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
_S3_ENCRYPTION = (
    *("AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID", "AWS_SSE_BUCKET_KEY_ENABLED"),
    "AWS_SSE_CUSTOMER_KEY_BASE64",
)


class ObjectClient:
    """The client of one bucket: its pooled connections, its keys, and its errors."""

    def __init__(
        self,
        configuration: StoreConfiguration,
        bucket: str,
        *,
        availability: Availability | None = None,
    ) -> None:
        self.availability = availability or availability_of(configuration)
        self.configuration = configuration
        self.bucket = bucket
        """With its scheme: ``s3://bucket``."""
        self.profile = configuration.profile
        require_key(configuration)
        if object_locations.SCHEMES.get(bucket.partition("://")[0]) != configuration.kind:
            raise StorageUnavailable(self.profile, f"it is not for locations such as {bucket}")
        self.credentials: role_sessions.CredentialSource | None = None
        """The source of the credentials; None if obstore gets them itself."""
        if configuration.kind == StoreKind.S3:
            self.credentials = role_sessions.credential_source(configuration)
        self.store: ObjectStore = _store(configuration, bucket)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.bucket} in storage profile '{self.profile}'>"

    @cached_property
    def bulk_store(self) -> "ObjectStore":
        """The same bucket, for removing many objects by one request."""
        return _store(self.configuration, self.bucket, bulk=True)

    def key(self, path: str) -> str:
        """The key of a canonical path. Raises OSError if no request can name exactly this key."""
        if path != self.bucket and not path.startswith(f"{self.bucket}/"):
            raise ValueError(f"the path is not in {self.bucket}")
        key = object_locations.key_of(path)
        if not is_addressable(key):
            raise OSError(
                f"no object can have the name {key!r}: it holds an empty segment, '.', '..' or a control character"
            )
        if len(key.encode()) > object_locations.MAX_KEY_BYTES:
            raise OSError(errno.ENAMETOOLONG, "the key is too long")
        return key

    def call(
        self,
        operation: Callable[[], T],
        key: str = "",
        *,
        of_file: bool = True,
        attempts: int = _ATTEMPTS,
    ) -> T:
        """Call obstore, with its errors translated. ``operation`` must be safe to repeat.

        obstore retries what a store refuses for now. A request whose answer was lost is repeated here.
        Raises StorageUnavailable at once while the store does not answer.
        """
        with self.availability.calling():
            return self._call(operation, key, of_file=of_file, attempts=attempts)

    def _call(self, operation: Callable[[], T], key: str, *, of_file: bool, attempts: int) -> T:
        self.require_credentials()
        begin = time.monotonic()
        for attempt in range(1, attempts + 1):
            failure: Exception
            try:
                return operation()
            except FAILURES as error:
                failure = error
            if (
                attempt == attempts
                or time.monotonic() - begin > _REPEAT_SECONDS
                or not object_errors.is_lost(failure, key)
            ):
                break
            time.sleep(random.uniform(0.05, 0.2) * attempt)  # noqa: S311 -- jitter
        # Not in the handler: the error of obstore, with its URLs, must not become the context.
        raise self.translated(failure, key, of_file=of_file)

    def require_credentials(self) -> None:
        """Get credentials before a request: obstore would turn the errors into texts.

        Raises AccessDenied and StorageUnavailable.
        """
        try:
            if self.credentials is not None:
                self.credentials.current()
        except StorageUnavailable:
            self.availability.suspect()
            raise

    def translated(self, failure: Exception, key: str, *, of_file: bool = True) -> OSError:
        """The error for a request that failed in obstore. The store is probed if that may be an outage."""
        if object_errors.is_outage(failure, key):
            self.availability.suspect()
        return object_errors.translate(failure, self.profile, key, of_file=of_file)

    def call_once(self, operation: Callable[[], T], key: str = "", *, of_file: bool = True) -> T:
        """As ``call``, for an operation that must not be repeated here."""
        return self.call(operation, key, of_file=of_file, attempts=1)


@lru_cache(maxsize=MAX_PROFILES)
def availability_of(configuration: StoreConfiguration) -> Availability:
    """The availability of a profile's store, which all its buckets and libraries share in this process."""
    return Availability(configuration.profile, _Probe(configuration), configuration)


class _Probe:
    """A request with short time limits, to see whether the store answers."""

    def __init__(self, configuration: StoreConfiguration) -> None:
        self._configuration = configuration

    def __call__(self) -> str | None:
        """None if the store answers, else why it does not."""
        try:
            if self._configuration.kind == StoreKind.S3:
                role_sessions.credential_source(self._configuration).current()
            obstore.head(self._store, PROBE_KEY)
        except StorageUnavailable as error:
            return error.cause
        except AccessDenied:
            pass
        except FAILURES as error:
            if object_errors.is_outage(error, PROBE_KEY):
                return object_errors.outage_cause(error, PROBE_KEY)
        return None

    @cached_property
    def _store(self) -> "ObjectStore":
        root = self._configuration.roots[0]
        return _store(self._configuration, object_locations.bucket_of(root), is_probe=True)


def is_addressable(key: str) -> bool:
    """True if obstore sends this key as it is: no empty segment, no dots, no control character.

    Every other character is sent encoded once, so that a percent sign in a key stays one.
    """
    if not key:
        return True
    if any(character < " " or character == "\x7f" for character in key):
        return False
    try:
        key.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return not any(segment in {"", ".", ".."} for segment in key.split("/"))


def s3_address(configuration: StoreConfiguration, bucket: str) -> tuple[str, bool]:
    """The URL of a bucket's server, and True if the URL's host contains the bucket."""
    name = bucket.partition("://")[2]
    region = configuration.region or role_sessions.DEFAULT_REGION
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    endpoint = configuration.endpoint.rstrip("/") or f"https://s3.{region}.{domain}"
    scheme, _, host = endpoint.partition("://")
    # Certificates for all buckets of a server do not include names with dots, and an address of the
    # network has no names below it.
    if configuration.path_style or "." in name or _ADDRESS.match(host):
        return endpoint, False
    return f"{scheme}://{name}.{host}", True


def gcs_endpoint(configuration: StoreConfiguration) -> str:
    """The URL of Google Cloud Storage, or of the server that the profile names."""
    return configuration.endpoint.rstrip("/") or _GCS


def azure_address(configuration: StoreConfiguration, bucket: str) -> tuple[str, str]:
    """The account and the URL of a container ``abfss://container@account.dfs.core.windows.net``."""
    host = bucket.rpartition("@")[2]
    endpoint = configuration.endpoint.rstrip("/") or f"https://{host.replace('.dfs.', '.blob.', 1)}"
    return host.partition(".")[0], endpoint


def _store(
    configuration: StoreConfiguration, bucket: str, *, bulk: bool = False, is_probe: bool = False
) -> "ObjectStore":
    failure: str
    waiting = _waiting(configuration, is_probe=is_probe)
    try:
        match configuration.kind:
            case StoreKind.S3:
                return _s3(configuration, bucket, waiting, bulk=bulk)
            case StoreKind.GCS:
                return _gcs(configuration, bucket, waiting)
            case StoreKind.ADLS:
                return _azure(configuration, bucket, waiting)
            case _:
                raise ValueError(f"{configuration.kind} is not an object store")
    except exceptions.BaseError as error:  # its message may contain parts of a key
        failure = type(error).__name__
    raise StorageUnavailable(configuration.profile, f"its settings are refused ({failure})")


def _s3(
    configuration: StoreConfiguration, bucket: str, waiting: "_Waiting", *, bulk: bool
) -> S3Store:
    endpoint, virtual_hosted = s3_address(configuration, bucket)
    region = configuration.region or role_sessions.DEFAULT_REGION
    config: dict[str, Any] = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "region": region,
        "default_region": region,
        "virtual_hosted_style_request": virtual_hosted,
        "skip_signature": False,
        "unsigned_payload": False,
        "request_payer": False,
        "s3_express": False,
        "disable_tagging": False,
        "conditional_put": "etag",
        # One object is removed by DELETE, which every store has.
        "disable_bulk_delete": not bulk,
    } | s3_encryption(configuration)
    return S3Store(
        bucket.partition("://")[2],
        config=config,  # type: ignore[arg-type] # made of parts
        **waiting,
        credential_provider=role_sessions.credential_source(configuration),  # type: ignore[arg-type]
    )


def s3_encryption(configuration: StoreConfiguration) -> dict[str, str]:
    """Options for the encryption of new objects.

    Raises AccessDenied if the environment would add another one to what the profile states.
    """
    if configuration.kms_key:
        return {"server_side_encryption": "aws:kms", "sse_kms_key_id": configuration.kms_key}
    if configuration.identity != ServerIdentity.ENVIRONMENT:
        _refuse_variables(configuration, _S3_ENCRYPTION, "would change how it encrypts")
    return {}


def _gcs(configuration: StoreConfiguration, bucket: str, waiting: "_Waiting") -> GCSStore:
    _refuse_role(configuration)
    options: dict[str, Any] = {}
    if configuration.identity == ServerIdentity.KEY:
        options["service_account_key"] = secret_of(configuration, GCS_IDENTITIES)
    return GCSStore(
        bucket.partition("://")[2],
        base_url=gcs_endpoint(configuration),
        skip_signature=False,
        **waiting,
        **options,
    )


def _azure(configuration: StoreConfiguration, bucket: str, waiting: "_Waiting") -> AzureStore:
    _refuse_role(configuration)
    account, endpoint = azure_address(configuration, bucket)
    options: dict[str, Any] = {}
    if configuration.identity == ServerIdentity.KEY:
        access_key = secret_of(configuration)
        # As a provider, because a token in the environment would take precedence over a key.
        options["credential_provider"] = lambda: {"access_key": access_key, "expires_at": None}
    return AzureStore(
        bucket.partition("://")[2].partition("@")[0],
        account_name=account,
        endpoint=endpoint,
        skip_signature=False,
        use_emulator=False,
        use_fabric_endpoint=False,
        **waiting,
        **options,
    )


def secret_of(configuration: StoreConfiguration, overriding: Iterable[str] = ()) -> str:
    """The secret of a profile's key.

    Raises AccessDenied if a variable of the environment overrides it, StorageUnavailable if the key cannot be read.
    """
    _refuse_variables(configuration, overriding, "would replace its key")
    require_key(configuration)
    if configuration.key is None or not configuration.key.secret:
        raise AccessDenied(configuration.profile, "it has no key")
    return configuration.key.secret


def _refuse_variables(
    configuration: StoreConfiguration, variables: Iterable[str], effect: str
) -> None:
    for variable in variables:
        if os.environ.get(variable):
            cause = f"{variable} is set in the environment of the server and {effect}"
            raise AccessDenied(configuration.profile, cause)


def _refuse_role(configuration: StoreConfiguration) -> None:
    if configuration.identity == ServerIdentity.ROLE:
        raise AccessDenied(configuration.profile, "only S3 has roles to assume")


class _Waiting(TypedDict):
    """obstore's options about time limits and retries."""

    client_options: "ClientConfig"
    retry_config: "RetryConfig"


def _waiting(configuration: StoreConfiguration, *, is_probe: bool) -> _Waiting:
    connect, read, request = CONNECT_SECONDS, read_seconds(), REQUEST_SECONDS
    retries, retry = RETRIES, retry_seconds()
    if is_probe:
        connect = read = request = _PROBE_SECONDS
        retries = 0
    return {
        "client_options": {
            "allow_http": configuration.allow_http,
            "allow_invalid_certificates": False,
            "connect_timeout": timedelta(seconds=connect),
            "read_timeout": timedelta(seconds=read),
            "timeout": timedelta(seconds=request),
            "user_agent": _USER_AGENT,
        },
        "retry_config": {
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=retry),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=3),
                "base": 2,
            },
        },
    }


def read_seconds() -> float:
    """The time for which a store may be silent. Requests wait less than jobs."""
    return READ_SECONDS / 2 if serves_requests() else READ_SECONDS


def retry_seconds() -> int:
    """The time after which no attempt starts any more. Requests wait less than jobs."""
    return _RETRY_SECONDS_OF_REQUESTS if serves_requests() else RETRY_SECONDS
