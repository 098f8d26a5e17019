"""Credentials with which clients open the files of one table, and of no other.

    table_access        what a principal gets for a table: the store, and the directories; None: local files
    issue               the credentials themselves, cached until shortly before they expire
    require_available   before a table is created, so that a failure changes nothing

How clients get access is a choice of the storage profile (``ClientAccess``). Access is checked before
each call of ``issue``, and again whenever credentials are made; only then the audit trail records it.
"""

import hashlib
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cachetools import TTLCache
from django.db import transaction
from prometheus_client import Counter

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    CatalogError,
    CredentialsRefused,
    InvalidLocation,
    ServiceUnavailable,
    TableNotFound,
)
from catalog.identifiers import Identifier, label
from catalog.models import Table, TableState
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks
from catalog.services.engine.expiring_cache import ExpiringCache
from catalog.services.storage import object_placement
from catalog.services.storage.client_sessions import (
    late_writes,
    staged_locations,
    token_services,
)
from catalog.services.storage.file_owners import FutureTable, Holder
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations, object_locations, stores
from catalog.storage.configuration import ClientAccess, Key, StoreConfiguration

ISSUED = Counter("monodon_credentials", "Credentials issued to clients, by result.", ["result"])

_WITH_SECRETS = frozenset({ClientAccess.STS, ClientAccess.STATIC})
_MAX_CACHED = 10_000
_LONGEST_MARGIN = 300.0
"""Seconds before the expiry at which credentials are renewed. Iceberg's Java clients ask that early."""
_SHORTEST_RESERVATION = timedelta(hours=1)
"""Google's tokens are valid for as long whatever the profile says."""
_SLOWEST_ISSUE = timedelta(minutes=1)
"""The time after the reservation of a location until its credentials begin. It is extended for later ones."""
_DIRECTORIES_FRESH_SECONDS = 30


@dataclass(frozen=True, slots=True)
class TableAccess:
    """What a principal may open for a table: the store, the directories, and whether it may write."""

    configuration: StoreConfiguration
    table_id: int
    """0 for a table whose creation is staged."""
    location: str
    directories: tuple[str, ...]
    """Canonical; the location is the first."""
    write: bool
    principal: str
    """The principal's name with the limits of its key."""
    has_secrets: bool
    """True if there are credentials, and not only the address of the store."""

    @property
    def tag(self) -> str:
        """A text that differs for other directories, principals and profiles; it reveals nothing."""
        configuration = self.configuration
        key = configuration.key
        parts = (
            *(configuration.profile, configuration.version, configuration.client_access.value),
            *(configuration.endpoint, configuration.role, key.id if key else ""),
            *(self.table_id, self.directories, self.write, self.principal, self.has_secrets),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The address of a table's store, and the key that opens the table's directories."""

    configuration: StoreConfiguration
    location: str
    key: Key | None = field(default=None, repr=False)
    """None: clients use credentials of their own, or have their requests signed."""
    expires_at: float | None = None
    """Seconds since 1970; None: the key does not expire."""
    renew_at: float = 0.0
    """When the server issues new ones, in seconds since 1970."""
    has_several_directories: bool = False

    @property
    def expires_at_millis(self) -> int | None:
        return None if self.expires_at is None else int(self.expires_at * 1000)

    @property
    def refresh_offset_millis(self) -> int:
        """How long before the expiry clients are to renew them: not before the server does."""
        return int(min(60.0, margin_of(self.configuration)) * 1000)


_cache: ExpiringCache[TableAccess, Credentials] = ExpiringCache(_MAX_CACHED)
_lock = threading.Lock()
_directories: Any = TTLCache(_MAX_CACHED, _DIRECTORIES_FRESH_SECONDS)


def margin_of(configuration: StoreConfiguration) -> float:
    """Seconds before their expiry at which credentials are renewed."""
    return min(_LONGEST_MARGIN, configuration.lifetime / 5)


def table_access(
    actor: Principal, table: Holder, *, held: Privilege, secrets: bool = True, state: str = ""
) -> TableAccess | None:
    """What a principal gets for a table on which it holds READ; None for a table in local files.

    ``held`` are the privileges that were found when READ was checked. Without ``secrets``, or if the
    profile has no credentials for clients, it gets the address of the store alone. ``state`` changes
    whenever the table may get other directories, such as the ETag of its metadata. No statement as a
    rule. Raises ServiceUnavailable, and CredentialsRefused if another table has files inside the location.
    """
    if table.location.startswith("/"):
        return None
    configuration = _configuration(table.location)
    has_secrets = secrets and configuration.client_access in _WITH_SECRETS
    directories: tuple[str, ...] = (table.location,)
    write = False
    if has_secrets:
        write = Privilege.WRITE in held or (
            actor.holds_everywhere(Privilege.READ)  # then nothing else was looked up
            and not actor.holds_everywhere(Privilege.WRITE)
            and table.pk != 0
            and access.holds(actor, Privilege.WRITE, On.table(table.identifier))
        )
        if configuration.client_access is ClientAccess.STS:
            directories = _directories_of(table, configuration, state)
    return TableAccess(
        configuration,
        table.pk,
        table.location,
        directories,
        write,
        actor.narrowed_name,
        has_secrets,
    )


def issue(actor: Principal, table: Holder, opens: TableAccess) -> Credentials:
    """The credentials for what ``table_access`` returned, from the cache if possible.

    Raises ServiceUnavailable if none can be issued, and TableNotFound or PermissionDenied if access
    has been withdrawn in between.
    """
    if not opens.has_secrets:
        return Credentials(opens.configuration, opens.location)
    return _cache.get(
        opens,
        lambda: _issue(actor, table, opens),
        waiting=lambda: token_services.waiting(opens.configuration),
    )


def require_available(actor: Principal, table: Identifier, location: str | None) -> None:
    """Require that credentials can be issued for a table that is about to be created.

    So a token service that is unavailable, or another table with files inside the location, refuses the creation,
    rather than the answer to it.
    ``location`` is the client's choice, None: the server chooses one in the namespace. No statement
    unless there are storage profiles. Raises ServiceUnavailable, CredentialsRefused, PermissionDenied, NamespaceNotFound,
    and InvalidLocation.
    """
    if not stores.object_roots() or (location and location.startswith(("/", "file:"))):
        return
    placement = object_placement.placement_of(actor, table[:-1])
    if location is None or not object_locations.scheme_of(location):
        path = placement.base
    else:
        path = location.removesuffix("/")
    configuration = None if path is None else stores.configuration_of(path)
    if path is None or configuration is None or configuration.client_access is not ClientAccess.STS:
        return
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    if path != placement.base:
        try:
            placement.require(path)
        except InvalidLocation:
            return  # the creation will be refused, in the words for every such location
    if location is not None:
        _require_alone(table, path, configuration)
    token_services.require_available(configuration)


def _require_alone(table: Identifier, path: str, configuration: StoreConfiguration) -> None:
    """Raise CredentialsRefused if another table has files inside the location of a new table."""
    _, foreign = TableFiles(FutureTable(table, path)).prefixes()
    if any(locations.is_below(directory, path) for directory in foreign):
        raise _refused(configuration)


def discard_cache() -> None:
    """Forget all credentials of this process."""
    _cache.clear()
    with _lock:
        _directories.clear()


# --- issuing -----------------------------------------------------------------------------------


def _issue(actor: Principal, table: Holder, opens: TableAccess) -> Credentials:
    current = access.current(actor)
    row, reserved_until = None, None
    if opens.table_id:
        row = _require_access(current, table, opens)
    else:
        reserved_until = _reserve(current, table, opens)
    try:
        credentials = _make(actor, opens)
    except CatalogError:
        ISSUED.labels("failed").inc()
        raise
    until = datetime.fromtimestamp(credentials.expires_at or credentials.renew_at, UTC)
    with transaction.atomic():
        if row is not None:
            _require_present(row, table)
        elif reserved_until is not None and until + _late(opens) > reserved_until:
            staged_locations.extend(current, opens.location, until + _late(opens))
        audit_records.record(
            actor,
            "credentials.issue",
            label(row.identifier if row is not None else table.identifier),
            table=row,
            after={
                "access": "write" if opens.write else "read",
                "client_access": opens.configuration.client_access.value,
                "profile": opens.configuration.profile,
                "until": until.isoformat(timespec="seconds"),
            },
        )
    ISSUED.labels("issued").inc()
    return credentials


def _require_access(actor: Principal, table: Holder, opens: TableAccess) -> Table:
    """The table's row, after a check of access to it rather than to its name.

    Names may have been exchanged since the caller checked, and keys, groups and grants may have been withdrawn
    in another process. Raises Unauthenticated, TableNotFound and PermissionDenied.
    """
    row = Table.objects.present().filter(pk=opens.table_id).select_related("namespace").first()
    if row is None:
        raise TableNotFound(table.identifier)
    if row.location != opens.location:
        raise ServiceUnavailable("The location of the table has just changed; try again")
    access.require(actor, Privilege.WRITE if opens.write else Privilege.READ, row)
    return row


def _require_present(row: Table, table: Holder) -> None:
    """Require that a table has not been dropped while the token service answered, and lock it.

    So the purge of a table that is dropped later finds the record of all its credentials. Raises TableNotFound.
    """
    if locks.lock_table_row(row.pk).state == TableState.DROPPED:
        raise TableNotFound(table.identifier)


def _reserve(actor: Principal, table: Holder, opens: TableAccess) -> datetime | None:
    """Reserve the location of a table whose creation is staged; returns until when.

    Raises PermissionDenied, NamespaceNotFound, LocationTaken, and InvalidInput for too many locations.
    """
    access.require(actor, Privilege.CREATE, On.namespace(table.identifier[:-1]))
    if opens.configuration.client_access is not ClientAccess.STS:
        return None
    lifetime = max(timedelta(seconds=opens.configuration.lifetime), _SHORTEST_RESERVATION)
    return staged_locations.reserve(actor, opens.location, lifetime + _late(opens) + _SLOWEST_ISSUE)


def _late(opens: TableAccess) -> timedelta:
    return late_writes.after_expiry(opens.configuration)


def _make(actor: Principal, opens: TableAccess) -> Credentials:
    configuration = opens.configuration
    if configuration.client_access is ClientAccess.STATIC:
        if configuration.key is None or configuration.key_error:
            cause = configuration.key_error or "the profile has no key of its own"
            raise _unavailable(configuration, cause)
        renew_at = time.time() + configuration.lifetime
        return Credentials(configuration, opens.location, configuration.key, renew_at=renew_at)
    session = token_services.open_session(
        configuration, opens.directories, write=opens.write, principal=actor.name
    )
    return Credentials(
        configuration,
        opens.location,
        session.key,
        expires_at=session.expires_at,
        renew_at=_renewal(configuration, session.expires_at),
        has_several_directories=len(session.directories) > 1,
    )


def _renewal(configuration: StoreConfiguration, expires_at: float) -> float:
    """When to issue new credentials. Those that expire too early are still used for half their time."""
    now = time.time()
    return max(expires_at - margin_of(configuration), now + (expires_at - now) / 2)


def _unavailable(configuration: StoreConfiguration, cause: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"Storage profile '{configuration.profile}' cannot issue credentials: {cause}"
    )


def _refused(configuration: StoreConfiguration) -> CredentialsRefused:
    return CredentialsRefused(
        f"Storage profile '{configuration.profile}' issues no credentials: another table has files inside"
        " the location of this table"
    )


# --- directories -------------------------------------------------------------------------------


def _configuration(location: str) -> StoreConfiguration:
    configuration = stores.configuration_of(location)
    if configuration is None:
        bucket = object_locations.bucket_of(location)
        raise ServiceUnavailable(f"No storage profile has a root above the table in {bucket}")
    return configuration


def _directories_of(
    table: Holder, configuration: StoreConfiguration, state: str
) -> tuple[str, ...]:
    """The directories of a table in its store: its location, and others in which it alone has files.

    Two statements, repeated after a change of the table and every half minute. Raises
    CredentialsRefused if another table has files inside the location.
    """
    key = (table.pk, table.location, state, configuration.roots)
    with _lock:
        cached: tuple[str, ...] | None = _directories.get(key)
    if cached is not None:
        return cached
    own, foreign = TableFiles(table).prefixes()
    exclusive = [
        directory
        for directory in own
        if not any(locations.is_below(path, directory) for path in foreign)
    ]
    if table.location not in exclusive:
        raise _refused(configuration)
    others = [
        directory
        for directory in exclusive
        if not locations.is_below_any(directory, [table.location])
        and locations.is_below_any(directory, configuration.roots)
    ]
    directories = (table.location, *others)
    if table.pk:
        with _lock:
            _directories[key] = directories
    return directories
