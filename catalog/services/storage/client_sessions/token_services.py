"""Sessions of clients: temporary credentials that open directories of a store, and nothing else.

The modules beside this one request them from the token service of their kind of store.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from cachetools import TTLCache
from django.utils.module_loading import import_string

from catalog.errors import CredentialsRefused, ServiceUnavailable
from catalog.storage import object_clients, stores
from catalog.storage.configuration import Key, StoreConfiguration, StoreKind
from catalog.storage.stores import StorageUnavailable

log = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
"""After a failure, requests fail at once for as many seconds as it took, within these limits: they would
all wait for the token service."""
_TRUSTED_SECONDS = 30.0
# By dotted path: their libraries take up to 300 ms to load.
_REQUESTS = {
    StoreKind.S3: "catalog.services.storage.client_sessions.s3.request",
    StoreKind.GCS: "catalog.services.storage.client_sessions.gcs.request",
    StoreKind.ADLS: "catalog.services.storage.client_sessions.azure.request",
}


@dataclass(frozen=True, slots=True)
class Session:
    """Temporary credentials."""

    key: Key = field(repr=False)
    """S3: all three parts. GCS: the token. ADLS: the account, and the signature as its token."""
    expires_at: float
    """Seconds since 1970."""
    directories: tuple[str, ...]
    """The directories that they open."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there are no credentials."""

    cause: str
    """For clients."""
    remedy: str
    details: str = ""
    """The message of the token service, for operators."""
    is_of_one_table: bool = False
    """True if it says nothing about credentials for other tables."""
    is_of_location: bool = False
    """True if no request for this location can succeed, now or later. It says nothing about other tables either."""


class Request(Protocol):
    """Requests a session from the token service of one kind of store. Raises StorageUnavailable."""

    def __call__(
        self,
        configuration: StoreConfiguration,
        directories: tuple[str, ...],
        *,
        write: bool,
        principal: str,
    ) -> Session | Failure: ...


_lock = threading.Lock()
_failures: dict[StoreConfiguration, tuple[float, str]] = {}
"""The last failures: until when they count, and their causes."""
_successes: Any = TTLCache(1000, _TRUSTED_SECONDS)


def forget() -> None:
    """Forget what is known about token services: the next session is requested at once."""
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
        open_session(configuration, [directory], write=False, principal="monodon")


def open_session(
    configuration: StoreConfiguration, directories: Collection[str], *, write: bool, principal: str
) -> Session:
    """Credentials that read, or also write, below canonical directories, the first foremost.

    If no credentials can be limited to all of them, they open the first one only. ``principal`` is
    shown in the provider's logs, if the provider supports it. Raises ServiceUnavailable, or CredentialsRefused if
    the first directory is the cause; both name the profile and the cause.
    """
    started = time.monotonic()
    until, cause = _failures.get(configuration, (0.0, ""))
    if until > started:
        raise _unavailable(configuration, cause)
    request: Request = import_string(_REQUESTS[configuration.kind])
    with waiting(configuration):
        answer = request(configuration, tuple(directories), write=write, principal=principal)
    if isinstance(answer, Session):
        with _lock:
            _successes[configuration] = True
        return answer
    if answer.is_of_location:
        raise CredentialsRefused(f"{_message(configuration, answer.cause)}. {answer.remedy}")
    if not answer.is_of_one_table:
        now = time.monotonic()
        pause = min(max(now - started, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        with _lock:
            _successes.pop(configuration, None)
            expired = [profile for profile, (end, _) in _failures.items() if end <= now]
            for profile in expired:
                del _failures[profile]
            _failures[configuration] = (now + pause, answer.cause)
    log.error(
        "Storage profile '%s' cannot issue credentials: %s. %s.%s",
        configuration.profile,
        answer.cause,
        answer.remedy,
        f" The token service says: {answer.details}" if answer.details else "",
    )
    raise _unavailable(configuration, answer.cause)


@contextlib.contextmanager
def waiting(configuration: StoreConfiguration) -> Iterator[None]:
    """Count the current thread as one that waits for the store of a profile, for the block.

    Otherwise a token service that does not answer would occupy all threads that serve requests. Raises
    ServiceUnavailable if too many threads wait already, if the store does not answer, or if the profile's key
    cannot be read.
    """
    try:
        stores.require_key(configuration)
        with object_clients.availability_of(configuration).calling():
            yield
    except StorageUnavailable as error:
        raise _unavailable(configuration, error.cause, error.retry_seconds) from None


def _unavailable(
    configuration: StoreConfiguration, cause: str, retry_seconds: int = 1
) -> ServiceUnavailable:
    return ServiceUnavailable(_message(configuration, cause), retry_seconds=retry_seconds)


def _message(configuration: StoreConfiguration, cause: str) -> str:
    return f"Storage profile '{configuration.profile}' cannot issue credentials: {cause}"
