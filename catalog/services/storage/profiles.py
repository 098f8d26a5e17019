"""The configurations of stores, from the storage profiles in the database.

Each process keeps them for a second, so that looking up a store costs no statement, and a change of a
profile reaches every process soon. What decides whether a location may be used reads the rows instead
(``object_placement``), so no table is created by an outdated profile.
"""

import threading
import time
from collections.abc import Sequence

import orjson
from django.db import transaction

from catalog import encryption
from catalog.models import StorageProfile
from catalog.storage import stores
from catalog.storage.configuration import (
    ClientAccess,
    Key,
    ServerIdentity,
    StoreConfiguration,
    StoreKind,
)

_FRESH_SECONDS = 1.0
_lock = threading.Lock()
_cached: tuple[float, tuple[StoreConfiguration, ...]] | None = None


def connect() -> None:
    """Let the stores of this process find the profiles."""
    stores.connect(configurations)


def configurations() -> Sequence[StoreConfiguration]:
    """The configurations of all profiles. One statement a second at most."""
    global _cached  # noqa: PLW0603 -- one cache for the process
    with _lock:
        cached = _cached
    if cached is not None and time.monotonic() - cached[0] < _FRESH_SECONDS:
        return cached[1]
    read_at = time.monotonic()
    rows = tuple(configuration(row) for row in StorageProfile.objects.order_by("name"))
    with _lock:
        _cached = (read_at, rows)
    return rows


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
    """The configuration in a profile's row. Raises ServiceUnavailable if its key cannot be decrypted."""
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
        key=key_of(row),
        role=row.role,
        external_id=row.external_id,
        client_access=ClientAccess(row.client_access),
        lifetime=row.lifetime_seconds,
        conditional_writes=row.conditional_writes,
    )


def sealed(secret: str, token: str = "") -> bytes:
    """The secret parts of a key, encrypted for the column."""
    return encryption.encrypt(orjson.dumps({"secret": secret, "token": token}).decode())


def key_of(row: StorageProfile) -> Key | None:
    """The key of a profile; None if it has none. Raises ServiceUnavailable if it cannot be decrypted."""
    if row.secret is None:
        return None
    parts = orjson.loads(encryption.decrypt(bytes(row.secret)))
    return Key(row.key_id, parts["secret"], parts["token"])
