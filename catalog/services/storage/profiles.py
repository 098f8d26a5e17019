"""The configurations of stores, from the storage profiles in the database.

Each process keeps them for a second, so that looking up a store costs no statement, and a change of a
profile reaches every process soon. A location below no known profile is looked up again, so that a new
profile can be used at once (at most 20 times a second: ``stores``). What decides whether a location may be used reads the rows instead
(``object_placement``), so no table is created by an outdated profile.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence

import orjson
from django.db import transaction

from catalog import encryption
from catalog.errors import ServiceUnavailable
from catalog.models import StorageProfile
from catalog.storage import stores
from catalog.storage.configuration import (
    ClientAccess,
    Key,
    ServerIdentity,
    StoreConfiguration,
    StoreKind,
)
from catalog.storage.outages import availability

log = logging.getLogger(__name__)

_FRESH_SECONDS = 1.0
_KEY_ERROR = (
    "its key cannot be decrypted, because MONODON_SECRET_KEY has changed since it was stored"
)
REMEDY = "Enter the key of the profile again, or restore MONODON_SECRET_KEY."
_lock = threading.Lock()
_cached: tuple[float, tuple[StoreConfiguration, ...]] | None = None
_last_read: frozenset[StoreConfiguration] = frozenset()
"""The configurations that were read last."""


def connect() -> None:
    """Let the stores of this process find the profiles."""
    stores.connect(configurations)


def configurations(fresh: bool = False) -> Sequence[StoreConfiguration]:
    """The configurations of all profiles. One statement a second at most, unless ``fresh``."""
    global _cached, _last_read  # noqa: PLW0603 -- one cache for the process
    with _lock:
        cached = _cached
    if not fresh and cached is not None and time.monotonic() - cached[0] < _FRESH_SECONDS:
        return cached[1]
    read_at = time.monotonic()
    rows = tuple(configuration(row) for row in StorageProfile.objects.order_by("name"))
    present = frozenset(rows)
    with _lock:
        if _cached is None or _cached[0] <= read_at:
            _cached = (read_at, rows)
            removed, added, _last_read = _last_read - present, present - _last_read, present
            availability.retire(removed, present)
            _log_unreadable(added)
    return rows


def unreadable() -> list[str]:
    """The names of the profiles whose keys this server cannot decrypt. One statement."""
    return [row.name for row in StorageProfile.objects.order_by("name") if key_error(row)]


def _log_unreadable(added: Iterable[StoreConfiguration]) -> None:
    for configuration in added:
        if configuration.key_error:
            log.error(
                "Storage profile '%s' cannot be used: %s. %s",
                configuration.profile,
                configuration.key_error,
                REMEDY,
            )


def discard_cache() -> None:
    """Read the profiles again at the next use: after a change in this process."""
    global _cached  # noqa: PLW0603
    with _lock:
        _cached = None


def discard_cache_and_after_commit() -> None:
    """Discard now, for the rest of the transaction, and again once other threads can see its changes."""
    discard_cache()
    transaction.on_commit(discard_cache)


def configuration(row: StorageProfile) -> StoreConfiguration:
    """The configuration in a profile's row. Its ``key_error`` is set if its key cannot be decrypted.

    Then only the tables of this profile are unavailable. The key stays present, without its secret, so that
    nothing falls back to the environment of the server.
    """
    try:
        key, error = key_of(row), ""
    except ServiceUnavailable:
        key, error = Key(row.key_id), _KEY_ERROR
    return StoreConfiguration(
        profile=row.name,
        version=row.version,
        kind=StoreKind(row.kind),
        roots=tuple(row.roots),
        region=row.region,
        endpoint=row.endpoint,
        sts_endpoint=row.sts_endpoint,
        path_style=row.path_style,
        kms_key=row.kms_key,
        identity=ServerIdentity(row.identity),
        key=key,
        key_error=error,
        role=row.role,
        external_id=row.external_id,
        client_access=ClientAccess(row.client_access),
        lifetime=row.lifetime_seconds,
        conditional_writes=row.conditional_writes,
    )


def sealed(secret: str, token: str = "") -> bytes:
    """The secret parts of a key, encrypted for the column."""
    return encryption.encrypt(orjson.dumps({"secret": secret, "token": token}).decode())


def key_error(row: StorageProfile) -> str:
    """Why the key of a profile cannot be used; empty if it can, or if there is none."""
    try:
        key_of(row)
    except ServiceUnavailable:
        return _KEY_ERROR
    return ""


def key_of(row: StorageProfile) -> Key | None:
    """The key of a profile; None if it has none. Raises ServiceUnavailable if it cannot be decrypted."""
    if row.secret is None:
        return None
    try:
        parts = orjson.loads(encryption.decrypt(bytes(row.secret)))
    except ServiceUnavailable:
        raise ServiceUnavailable(f"Storage profile '{row.name}': {_KEY_ERROR}. {REMEDY}") from None
    return Key(row.key_id, parts["secret"], parts["token"])
