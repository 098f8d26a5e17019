"""The state of one commit while its operations are applied: locked rows, pending rows, audit rows."""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Protocol, cast

from django.db import DatabaseError, connection, models

from catalog import access
from catalog.access import Principal
from catalog.errors import NamespaceNotFound, TableNotFound
from catalog.identifiers import Identifier, digest
from catalog.models import (
    Branch,
    IcebergMetadata,
    IdempotencyRecord,
    Job,
    MaterializedView,
    Namespace,
    Table,
    TrashItem,
)
from catalog.services.engine import audit_records, locks, table_cache
from catalog.services.engine.prepared.creation import Creation
from catalog.services.engine.prepared.selects import select_namespace
from catalog.services.engine.statements import (
    NewTransaction,
    NewVersion,
    Record,
    Swap,
    complete,
    insert_row,
    insert_together,
    swap_metadata,
)

log = logging.getLogger(__name__)

# Parents before children: a row is written after the rows that it refers to.
_WRITE_ORDER: tuple[type[models.Model], ...] = (
    Namespace,
    Table,
    IcebergMetadata,
    Branch,
    MaterializedView,
    Job,
    IdempotencyRecord,
)
# A single row of these is inserted without Django's compiler.
_PREPARED = {Namespace, Table, Job}


class LocksRequired(Exception):
    """The batch cannot be committed in a single statement."""


class FilesRequired(Exception):
    """Operations must look at files in an object store (``Operation.look``) before rows are locked."""

    def __init__(self, tables: Mapping[uuid.UUID, Table]) -> None:
        super().__init__()
        self.tables = tables
        """The tables of the batch, by digest."""


class RowReplaced(Exception):
    """Another row took the name of a row while this commit waited for its lock.

    PostgreSQL evaluates the query on the snapshot from before the wait, so it returns the old row
    and then nothing. The commit is repeated with the parents locked: a name is only assigned under
    the lock of its parent.
    """


class NamedOperation(Protocol):
    """The attributes of an operation that are recorded."""

    name: ClassVar[str]
    action: ClassVar[str]

    def keeps_locations(self) -> bool: ...


class Batch:
    """The state of one commit while it is applied."""

    def __init__(self, actor: Principal) -> None:
        self.actor = actor
        self.transaction = NewTransaction(actor=actor.name, request_id=actor.request_id)
        self.current: NamedOperation
        self.results: list[Any] = []
        self.is_one_statement = False
        self.has_looked: bool
        """True if the operations have looked at the files of the tables that this commit locks; set with the locks."""
        self.hidden: frozenset[uuid.UUID] = frozenset()  # names that are not locked, as if missing
        self.pending_swap: Swap | None = None
        self.staged_path: str | None = None
        """The file whose staging record the commit's single statement deletes."""
        self.locations: frozenset[str] = frozenset()
        """The locations that clients chose for the new tables of the whole batch."""
        self.deregistered: set[int] = set()
        """Keys of the tables that the batch removed from the catalog, and whose data stays."""
        self.location_checks: Any = None
        """What was looked up about these; None once an operation may have changed that."""
        self.shares_locations = False  # True if no later operation locks them for itself alone
        self.placements: dict[int, Any] = {}
        """What was looked up about the object storage of namespaces; emptied in the same way."""
        self.has_storage_as_locked = True
        """False once an operation may have changed the storage of the locked namespaces."""
        self.events: list[audit_records.NewEvent] = []
        self._index: int  # of the operation ``current``
        self._keeps_locations = True
        self._added_versions: list[tuple[int, NewVersion]] = []  # with indexes of operations
        self._namespaces: dict[uuid.UUID, Namespace] = {}
        self._tables: dict[uuid.UUID, Table] = {}
        self._dropped_tables: set[uuid.UUID] = set()
        """Digests of tables that this batch dropped; the database may not reflect it yet."""
        self._pending: dict[type[models.Model | Record], list[Any]] = {}
        self._deferred: dict[Callable[[Batch, list[Table]], None], list[Table]] = {}
        self._after: dict[Callable[[list[Any]], None], list[Any]] = {}
        self._claims: set[tuple[object, ...]] = set()

    # -- the locked rows

    def lock(
        self,
        namespaces: Collection[Identifier],
        subtrees: Collection[Identifier],
        tables: Collection[Identifier],
    ) -> None:
        """Lock the rows: namespaces and subtrees first, then tables."""
        if subtrees:
            rows = locks.lock_subtrees(subtrees, namespaces)
            self._namespaces = {row.digest: row for row in rows}
        else:
            self._namespaces = locks.lock_namespaces(namespaces)
        self._tables = locks.lock_tables(tables)
        for row in (*self._namespaces.values(), *self._tables.values()):
            self.now = row.database_now  # type: ignore[attr-defined]
            break

    def assume_tables(self, rows: Mapping[uuid.UUID, Table]) -> None:
        """Apply the operations to cached rows; the commit's single statement checks and locks them."""
        self._tables = dict(rows)
        self.is_one_statement = True

    def assume_parent(self, row: Namespace) -> None:
        """Apply an operation that creates an object in a namespace that is not locked yet.

        The commit's single statement locks it.
        """
        self._namespaces = {row.digest: row}
        self.is_one_statement = True

    def find_namespace(self, path: Identifier) -> Namespace | None:
        return self._namespaces.get(digest(path))

    def namespace(self, path: Identifier) -> Namespace:
        """The locked namespace. Raises NamespaceNotFound."""
        row = self.find_namespace(path)
        if row is None:
            if digest(path) not in self.hidden and Namespace.objects.named(path).exists():
                raise RowReplaced
            raise NamespaceNotFound(path)
        return row

    def find_table(self, identifier: Identifier) -> Table | None:
        return self._tables.get(digest(identifier))

    def table(self, identifier: Identifier) -> Table:
        """The locked table. Raises NamespaceNotFound, or TableNotFound when only the table is missing."""
        row = self.find_table(identifier)
        if row is None:
            is_missing = digest(identifier) in self._dropped_tables | self.hidden
            if not is_missing and Table.objects.named(identifier).exists():
                raise RowReplaced
            # Do not reveal whether a namespace exists to a principal that may not see it.
            if not access.is_visible(self.actor, access.On.namespace(identifier[:-1])):
                raise NamespaceNotFound(identifier[:-1])
            if not Namespace.objects.named(identifier[:-1]).exists():
                raise NamespaceNotFound(identifier[:-1])
            raise TableNotFound(identifier)
        return row

    def parent(self, row: Table, path: Identifier) -> Namespace:
        """The namespace of a locked table, which has this path.

        Only its key and its path are up to date: it may have been cached.
        """
        cached = table_cache.namespaces.get(digest(path))
        if cached is None or cached.pk != row.namespace_id:
            return select_namespace(row.namespace_id)
        return cached

    # -- changes

    def begin(self, index: int, operation: NamedOperation) -> None:
        """Attribute the following changes to this operation."""
        self.current, self._index = operation, index
        keeps_locations = operation.keeps_locations()
        self.has_storage_as_locked &= self._keeps_locations
        if not (keeps_locations and self._keeps_locations):
            self.location_checks = None
            self.placements.clear()
        self._keeps_locations = keeps_locations

    def add(self, row: models.Model | Record) -> None:
        """Insert a row together with the others of its class, at the latest before the commit."""
        self._pending.setdefault(type(row), []).append(row)
        if isinstance(row, NewVersion):
            self._added_versions.append((self._index, row))
        if isinstance(row, Namespace):
            self._namespaces[row.digest] = row
        elif isinstance(row, Table):
            self._tables[row.digest] = row

    def swap(self, swap: Swap) -> bool:
        """Make a staged file a table's current metadata; returns True if its base was current.

        A commit in a single statement checks the base when it writes, and writes nothing if the
        base is not current; here it returns True.
        """
        if not self.is_one_statement:
            self.flush()
            return swap_metadata(swap)
        self.pending_swap = swap
        return True

    def require_locks(self) -> None:
        """Raise LocksRequired if this commit runs as a single statement.

        For operations that write more than that statement does.
        """
        if self.is_one_statement:
            raise LocksRequired

    def require_looked(self) -> None:
        """Raise FilesRequired if rows are locked and the operations have not looked at their files.

        For files in object stores: requests may take seconds, and nobody should wait for the locks.
        """
        if not (self.is_one_statement or self.has_looked):
            raise FilesRequired(dict(self._tables))

    def forget_table(self, row: Table) -> None:
        """Hide a table from the later operations of this batch."""
        self._tables.pop(row.digest, None)
        self._dropped_tables.add(row.digest)

    def forget_namespace(self, row: Namespace) -> None:
        """Hide a namespace from the later operations of this batch."""
        self._namespaces.pop(row.digest, None)

    def enter_namespace(self, row: Namespace) -> None:
        """Make a restored namespace visible to the later operations of this batch."""
        self._namespaces[row.digest] = row

    def relocate_table(self, row: Table, old: uuid.UUID) -> None:
        """Make a table visible under its new name to the later operations of this batch."""
        self._tables.pop(old, None)
        self._tables[row.digest] = row

    def defer(self, work: Callable[["Batch", list[Table]], None], rows: Iterable[Table]) -> None:
        """Change rows of tables together with those of other operations, at the next ``flush``.

        Deferred changes run before the pending rows are inserted, so a later operation may use a
        name that an earlier one frees. A row that is not inserted yet is inserted first.
        """
        rows = list(rows)
        if any(row.pk is None for row in rows):
            self.flush()
        self._deferred.setdefault(work, []).extend(rows)

    def write_versions(self) -> None:
        """Write the versions added so far, and as little else as possible."""
        is_more = self._pending.keys() - {NewVersion, Branch}
        for rows in self.flush_but_last() if is_more else self._insert_but_last():
            insert_together(rows)

    def flush(self) -> None:
        """Write all changes so far. An operation calls it before it reads or updates in SQL.

        Raises LocksRequired if this commit runs as a single statement.
        """
        for rows in self.flush_but_last():
            insert_together(rows)

    def flush_but_last(self) -> list[Sequence[models.Model | Record]]:
        """Write all changes but new versions and items of the trash, to which no row refers.

        Returns these, grouped by class; the caller inserts them.
        """
        self.require_locks()
        while self._deferred:
            deferred, self._deferred = self._deferred, {}
            for work, rows in deferred.items():
                work(self, rows)
        return self._insert_but_last()

    def _insert_but_last(self) -> list[Sequence[models.Model | Record]]:
        versions, items = self.take_versions(), self._pending.pop(TrashItem, [])
        for kind in _WRITE_ORDER:
            rows = self._pending.pop(kind, None)
            if rows is None:
                continue
            if kind in _PREPARED and len(rows) == 1:
                insert_row(rows[0])
            else:
                kind._default_manager.bulk_create(rows)
        for version in versions:
            # The key of a table that this batch inserted is known now.
            version.table_id, version.created_at = version.table.pk, self.now
        for item in items:
            complete(item)
        return [rows for rows in (versions, items) if rows]

    def take_creation(self, parent: Namespace) -> Creation:
        """Remove and return the object that the only operation creates, with its rows.

        Raises LocksRequired if the operation has changed anything else.
        """
        pending, self._pending = self._pending, {}
        rows = [*pending.pop(Table, ()), *pending.pop(Namespace, ())]
        metadata = pending.pop(IcebergMetadata, [None])
        versions = pending.pop(NewVersion, [])
        if pending or self._deferred or len(rows) != 1 or len(metadata) != 1:
            raise LocksRequired
        return Creation(parent, rows[0], metadata[0], versions, self.staged_path)

    def take_versions(self) -> list[NewVersion]:
        """Remove and return the pending versions; the caller inserts them."""
        versions: list[NewVersion] = self._pending.pop(NewVersion, [])
        return versions

    def operation_that_added(self, is_version: Callable[[NewVersion], bool]) -> int | None:
        """The index of the first operation that added such a version; None: no operation did."""
        return next((index for index, row in self._added_versions if is_version(row)), None)

    def record(
        self,
        target: str,
        *,
        table: Table | None = None,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        action: str | None = None,
    ) -> None:
        """Record a change of the current operation in the audit trail and in the transaction.

        ``action`` overrides the operation's action, for operations that do several things.
        """
        operation = self.current
        event = audit_records.event(
            self.actor,
            action or operation.action,
            target,
            table=table,
            before=before,
            after=after,
            transaction_id=self.transaction.id,
        )
        self.events.append(event)
        entry = {"operation": operation.name, "target": target}
        self.transaction.operations.append(entry | (event.after or {}))  # without secrets

    def after_commit(self, action: Callable[[list[Any]], None], row: models.Model | Record) -> None:
        """Call ``action`` with all rows registered for it, once the commit stands and without locks."""
        self._after.setdefault(action, []).append(row)

    def finish(self) -> None:
        """Run the ``after_commit`` actions."""
        for action, rows in self._after.items():
            try:
                action(rows)
            except DatabaseError:
                # The commit stands. A periodic task does the remaining work.
                log.warning(
                    "An action after a commit failed; a periodic task repeats it", exc_info=True
                )

    def claim(self, *key: object) -> bool:
        """True if this operation is the first of its batch to claim this key."""
        if key in self._claims:
            return False
        self._claims.add(key)
        return True

    @cached_property
    def now(self) -> datetime:
        """The time of this transaction by the database's clock."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            return cast(datetime, cursor.fetchone()[0])

    @property
    def transaction_id(self) -> uuid.UUID | None:
        return self.transaction.id if self.events else None
