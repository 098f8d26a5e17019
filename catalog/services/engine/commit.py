"""The commit engine: every write of either protocol is a list of operations, applied as one.

    commit(operations, actor)
      0. prepare   what needs storage: checking locations, listing what a registered table has
      1. lock      the namespaces and tables that the operations name, in one order
      2. apply     each operation in turn: check access and preconditions, add rows to the batch;
                   a later operation sees what an earlier one of its batch did
      3. record    the transaction row and the audit rows
      4. COMMIT    the linearization point, for all tables and both formats
      5. after     what needs no lock: moving staged manifests, sending jobs

What only adds versions to tables goes a shorter way: 1, 3 and 4 are one statement, which writes
only if the tables are still what ``apply`` saw of them.

Nothing in 1 to 4 writes to storage or waits for the network; a look whether a local file is there
is all. All or nothing: a refusal anywhere rolls everything back, and carries the index of the
operation that was refused.

To add an operation: a frozen dataclass in ``services/operations/`` that says what to lock and how
to apply itself; nothing here changes.
"""

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Self, cast

from django.db import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    connection,
    models,
    transaction,
)
from prometheus_client import Counter, Histogram

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    Busy,
    CatalogError,
    Conflict,
    NamespaceNotFound,
    OutcomeUnknown,
    ServiceUnavailable,
    TableNotFound,
    VersionAlreadyExists,
    ViewNotFound,
)
from catalog.identifiers import Identifier, digest
from catalog.models import (
    Branch,
    IcebergMetadata,
    IdempotencyRecord,
    Job,
    MaterializedView,
    Namespace,
    Table,
    Transaction,
    TransactionStatus,
    TrashItem,
)
from catalog.postgresql import limits, outcomes
from catalog.postgresql.outcomes import OutcomeLost, TransactionLost
from catalog.services.engine import audit_records, commit_outcomes, locks, table_cache, taken_keys
from catalog.services.engine.admission import admission
from catalog.services.engine.statements import (
    NewVersion,
    Record,
    Swap,
    insert_if_unchanged,
    insert_together,
    swap_metadata,
)

log = logging.getLogger(__name__)

COMMITS = Counter("monodon_commits", "Commits by result.", ["result"])
VERSIONS = Counter("monodon_versions", "Table versions asked for, by result.", ["result"])
COMMIT_SECONDS = Histogram("monodon_commit_seconds", "Duration of commits, all attempts.")
_COMMITTED = COMMITS.labels("committed")  # looking it up takes twice as long as counting

# Sorted locks leave no known deadlock; a retry covers what PostgreSQL may still call one, and a
# connection that was lost before anything could stand.
_ATTEMPTS = 5
_RETRIED = {"40P01", "40001"}  # deadlock_detected, serialization_failure
_LOCK_TIMEOUT = "55P03"
# Parents before children: a row is written after the rows that it refers to.
_WRITE_ORDER: tuple[type[models.Model | Record], ...] = (
    Namespace,
    Table,
    IcebergMetadata,
    Branch,
    NewVersion,
    MaterializedView,
    Job,
    TrashItem,
    IdempotencyRecord,
)


class _NeedsLocks(Exception):
    """A commit cannot go the short way, in one statement."""


class _Replaced(Exception):
    """A row was replaced by another of its name while this commit waited for its lock.

    PostgreSQL gave the waiter what its statement saw before the wait: the old row, then nothing.
    Once more, with the parents locked: who gives a name holds the lock of its parent.
    """


@dataclass(frozen=True, kw_only=True)
class Operation(ABC):
    """One thing to do in a commit. Subclasses are frozen dataclasses."""

    name: ClassVar[str]
    """The spec's operation, as transactions show it: ``CreateTableVersion``."""
    action: ClassVar[str]
    """Noun and verb, as the audit trail shows it: ``version.create``."""

    swaps: ClassVar[bool] = False
    """Whether it swaps a table's current metadata. One statement can do that for one table only:
    of two swaps in it the second might fail when the first is done."""

    def prepare(self) -> Self:
        """The operation with what had to be read from storage; called before anything is locked."""
        return self

    def namespaces(self) -> Iterable[Identifier]:
        """The namespaces to lock: those that must go on existing, or that change."""
        return ()

    def subtrees(self) -> Iterable[Identifier]:
        """The namespaces to lock with everything below them."""
        return ()

    def tables(self) -> Iterable[Identifier]:
        """The tables to lock, whether they exist or not."""
        return ()

    def only_adds(self) -> bool:
        """Whether it does nothing but add versions to a table that goes on as it is.

        Making a version current may go with it (``Batch.swap``).
        """
        return False

    def look(self, tables: Mapping[uuid.UUID, Table]) -> Self:
        """The operation with what files of its tables showed; called before anything is locked.

        ``tables`` are those of the batch, by digest, as far as this process has seen them.
        """
        return self

    @abstractmethod
    def apply(self, batch: "Batch") -> Any:
        """Do it on the locked rows and return its result, or raise a CatalogError."""

    def conflict(self, constraint: str) -> CatalogError | None:
        """The refusal for a unique constraint that a row of this operation violated.

        Called after the rollback, with the winner's row committed.
        """
        return None

    def after_refusal(self, error: CatalogError, actor: Principal) -> None:
        """What remains of this operation's refusal, when it was alone: a request to a second person.

        Called after the rollback, when no lock is held.
        """
        return


@dataclass(frozen=True)
class Commit:
    """What a commit did: its id (None when nothing had to change) and the results, in order."""

    transaction_id: uuid.UUID | None
    results: list[Any]
    goes_on: bool = False
    """Whether a job goes on with it, which the transaction's status follows."""

    @property
    def id(self) -> str | None:
        """The transaction's id as clients get it."""
        return str(self.transaction_id) if self.transaction_id else None


class Batch:
    """The state of one commit while it is applied."""

    def __init__(self, operations: Sequence[Operation], actor: Principal) -> None:
        self.operations = operations
        self.actor = actor
        self.transaction = Transaction(actor=actor.name, request_id=actor.request_id)
        self.current: Operation
        self._parents: dict[int, Namespace] = {}
        self._forgotten: set[uuid.UUID] = set()
        """Tables that were dropped, which the database may not know yet."""
        self._index = 0
        self._entered: list[tuple[int, NewVersion]] = []
        """The versions that were added, each with the index of its operation."""
        self._namespaces: dict[uuid.UUID, Namespace] = {}
        self._tables: dict[uuid.UUID, Table] = {}
        self._pending: dict[type[models.Model | Record], list[Any]] = {}
        self._events: list[audit_records.NewEvent] = []
        self._deferred: dict[Callable[[Batch, list[Table]], None], list[Table]] = {}
        self._after: dict[Callable[[list[Any]], None], list[Any]] = {}
        self._claims: set[tuple[object, ...]] = set()
        self.results: list[Any] = []
        self.is_one_statement = False
        self.pending_swap: Swap | None = None

    # -- the locked rows

    def lock(self, *, with_parents: bool) -> None:
        subtrees = {path for op in self.operations for path in op.subtrees()}
        paths = {path for op in self.operations for path in op.namespaces()}
        tables = {identifier for op in self.operations for identifier in op.tables()}
        if with_parents:
            paths |= {path[:-1] for path in paths | subtrees | tables}
        if subtrees:
            self._namespaces = {row.digest: row for row in locks.lock_subtrees(subtrees, paths)}
        else:
            self._namespaces = locks.lock_namespaces(paths)
        self._tables = locks.lock_tables(tables)

    def find_namespace(self, path: Identifier) -> Namespace | None:
        return self._namespaces.get(digest(path))

    def namespace(self, path: Identifier) -> Namespace:
        """The locked namespace. Raises NamespaceNotFound."""
        row = self.find_namespace(path)
        if row is None:
            if Namespace.objects.named(path).exists():
                raise _Replaced
            raise NamespaceNotFound(path)
        return row

    def find_table(self, identifier: Identifier) -> Table | None:
        return self._tables.get(digest(identifier))

    def table(self, identifier: Identifier) -> Table:
        """The locked table. Raises NamespaceNotFound, or TableNotFound when only that exists."""
        row = self.find_table(identifier)
        if row is None:
            was_dropped_here = digest(identifier) in self._forgotten
            if not was_dropped_here and Table.objects.named(identifier).exists():
                raise _Replaced
            # Who may not see the namespace is not told whether it is there.
            if not access.is_visible(self.actor, access.On.namespace(identifier[:-1])):
                raise NamespaceNotFound(identifier[:-1])
            if not Namespace.objects.named(identifier[:-1]).exists():
                raise NamespaceNotFound(identifier[:-1])
            raise TableNotFound(identifier)
        return row

    def parent(self, row: Table) -> Namespace:
        """The namespace of a locked table, read once for all tables in it."""
        if row.namespace_id not in self._parents:
            self._parents[row.namespace_id] = row.namespace
        return self._parents[row.namespace_id]

    # -- changes

    def add(self, row: models.Model | Record) -> None:
        """Insert a row with the others of its kind, at the latest before the commit."""
        self._pending.setdefault(type(row), []).append(row)
        if isinstance(row, NewVersion):
            self._entered.append((self._index, row))
        if isinstance(row, Namespace):
            self._namespaces[row.digest] = row
        elif isinstance(row, Table):
            self._tables[row.digest] = row

    def swap(self, swap: Swap) -> bool:
        """Make a staged file a table's current metadata; returns whether its base was current.

        A commit in one statement knows that when all is written, and then writes nothing.
        """
        if not self.is_one_statement:
            self.flush()
            return swap_metadata(swap)
        self.pending_swap = swap
        return True

    def require_locks(self) -> None:
        """Leave the short way: the operation writes more than one statement does."""
        if self.is_one_statement:
            raise _NeedsLocks

    def forget_table(self, row: Table) -> None:
        """Let the later operations of this batch find no table of this name."""
        self._tables.pop(row.digest, None)
        self._forgotten.add(row.digest)

    def forget_namespace(self, row: Namespace) -> None:
        self._namespaces.pop(row.digest, None)

    def enter_namespace(self, row: Namespace) -> None:
        """Let the later operations of this batch find a namespace that came back."""
        self._namespaces[row.digest] = row

    def relocate_table(self, row: Table, old: uuid.UUID) -> None:
        """Let the later operations of this batch find a table under its new name."""
        self._tables.pop(old, None)
        self._tables[row.digest] = row

    def defer(self, work: Callable[["Batch", list[Table]], None], rows: Iterable[Table]) -> None:
        """Change rows of tables together with those of other operations, at the next ``flush``.

        They are changed before anything that was added is inserted, so a name that one operation
        frees may be given by a later one. A row that is not inserted yet is inserted first.
        """
        rows = list(rows)
        if any(row.pk is None for row in rows):
            self.flush()
        self._deferred.setdefault(work, []).extend(rows)

    def write_versions(self) -> None:
        """Write the versions that were added so far, and as little else as possible."""
        if self._pending.keys() - {NewVersion, Branch}:
            self.flush()
        else:
            self._insert()

    def flush(self) -> None:
        """Write what was done so far. An operation that reads or updates in SQL calls it first."""
        while self._deferred:
            deferred, self._deferred = self._deferred, {}
            for work, rows in deferred.items():
                work(self, rows)
        self._insert()

    def _insert(self) -> None:
        for kind in _WRITE_ORDER:
            rows = self._pending.pop(kind, None)
            if rows is None:
                continue
            if kind is NewVersion:
                self._complete(rows)
                insert_together(rows)
            else:
                kind.objects.bulk_create(rows)  # type: ignore[union-attr]

    def _complete(self, versions: Sequence[NewVersion]) -> None:
        """Give versions their time, and the key that a table of this batch got by its insert."""
        for version in versions:
            version.table_id, version.created_at = version.table.pk, self.now

    def record(
        self,
        target: str,
        *,
        table: Table | None = None,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        action: str | None = None,
    ) -> None:
        """Note what the current operation changed, for the audit trail and the transaction.

        ``action`` is another than the operation's, where that does several things.
        """
        operation = self.current
        event = audit_records.event(
            self.actor,
            action or operation.action,
            target,
            table=table,
            before=before,
            after=after,
            transaction_id=self.transaction.pk,
        )
        self._events.append(event)
        done = {"operation": operation.name, "target": target}
        self.transaction.operations.append(done | (event.after or {}))  # without secrets

    def after_commit(self, action: Callable[[list[Any]], None], row: models.Model | Record) -> None:
        """Call ``action`` with all rows given for it, once the commit stands and no lock is held."""
        self._after.setdefault(action, []).append(row)

    def claim(self, *key: object) -> bool:
        """Whether this operation is the first of its batch to claim this."""
        if key in self._claims:
            return False
        self._claims.add(key)
        return True

    @cached_property
    def now(self) -> datetime:
        """The time of this transaction by the database's clock."""
        for table in self._tables.values():
            if (moment := getattr(table, "database_now", None)) is not None:
                return cast(datetime, moment)
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            return cast(datetime, cursor.fetchone()[0])

    @property
    def transaction_id(self) -> uuid.UUID | None:
        return self.transaction.pk if self._events else None

    # -- the course of a commit

    def run(self, *, with_parents: bool) -> list[Any]:
        self.lock(with_parents=with_parents)
        results = self.results = self._apply()
        if self.actor.idempotency is not None:
            key = self.actor.idempotency
            owner = self.actor.narrowed_name
            self.add(
                IdempotencyRecord(
                    key=key.key,
                    actor=owner,
                    fingerprint=key.fingerprint,
                    transaction_id=self.transaction_id,
                )
            )
        versions: list[NewVersion] = self._pending.pop(NewVersion, [])
        self.flush()
        self._complete(versions)
        if self._events:
            # Last, when all is known: foreign keys are checked at the commit.
            record: list[Sequence[Any]] = [[self.transaction], self._events]
            insert_together(*([versions, *record] if versions else record))
        return results

    def append(self) -> list[Any] | None:
        """The course of a commit that only adds versions: one statement, its own transaction.

        It locks the tables and writes if they are still what this process last saw of them. None:
        they are not, so nothing was written.
        """
        wanted = {digest(identifier) for op in self.operations for identifier in op.tables()}
        self._tables = table_cache.tables.get(wanted)
        if self._tables.keys() != wanted:
            return None
        tables = list(self._tables.values())
        self.is_one_statement = True
        results = self._apply()
        versions: list[NewVersion] = self._pending.pop(NewVersion)
        for version in versions:
            version.table_id = version.table.pk
        try:
            moment = insert_if_unchanged(
                tables, versions, [self.transaction], self._events, swap=self.pending_swap
            )
        except OutcomeLost:
            moment = commit_outcomes.look_up(self.transaction)
        if moment is None:
            table_cache.tables.forget(wanted)
            return None
        for version in versions:
            version.created_at = moment
        return results

    def _apply(self) -> list[Any]:
        results = []
        for index, operation in enumerate(self.operations):
            self.current, self._index = operation, index
            try:
                results.append(operation.apply(self))
            except CatalogError as error:
                told = _as_asked(error, operation)
                told.operation = index
                raise told from error.__cause__
        return results

    def finish(self) -> None:
        for action, rows in self._after.items():
            try:
                action(rows)
            except DatabaseError:
                # The commit stands. What is left undone, a periodic pass does.
                log.warning("What follows a commit was left to a later pass", exc_info=True)

    def refusal(self, error: IntegrityError) -> CatalogError | None:
        """The refusal behind a violated constraint, naming the first operation that caused it."""
        constraint, key = taken_keys.constraint(error), taken_keys.read(error)
        if constraint == taken_keys.OF_VERSIONS:
            indexes = [i for i, row in self._entered if key == taken_keys.of_version(row)][:1]
        else:
            indexes = list(range(len(self.operations)))
        for index in indexes:
            refused = self.operations[index].conflict(constraint)
            if refused is not None:
                refused.operation = index
                return refused
        return None


def _as_asked(error: CatalogError, operation: Operation) -> CatalogError:
    """The refusal in the words of the request.

    'a b' and 'a+b' are one name: what may not be browsed must not be told by how it is spelled.
    """
    if not isinstance(error, NamespaceNotFound | TableNotFound | ViewNotFound):
        return error
    asked = [*operation.namespaces(), *operation.subtrees(), *operation.tables()]
    for path in (one[:depth] for one in asked for depth in range(len(one), 0, -1)):
        if path != error.identifier and digest(path) == digest(error.identifier):
            told = type(error)(path)
            told.detail = error.detail
            return told
    return error


def commit(operations: Sequence[Operation], *, actor: Principal) -> Commit:
    """Apply all operations in one transaction, or none of them.

    Raises the CatalogError of the first operation that is refused, with its index in
    ``operation``. Whether the answer arrives or not, either everything of the batch is visible or
    nothing is. OutcomeUnknown says that nobody knows which.
    """
    started = time.perf_counter()
    try:
        prepared = _prepare(operations)
        with admission.enter(_locked_names(prepared), lambda: _first_target(prepared)):
            batch, results = _commit(prepared, actor)
    except Conflict as error:
        COMMITS.labels("conflict").inc()
        if isinstance(error, VersionAlreadyExists):
            VERSIONS.labels("conflict").inc()
        raise
    except CatalogError as error:
        COMMITS.labels("refused").inc()
        if len(operations) == 1:
            operations[0].after_refusal(error, actor)
        raise
    except OperationalError as error:
        if outcomes.sqlstate(error) != _LOCK_TIMEOUT:
            raise
        COMMITS.labels("refused").inc()
        raise Busy(
            "Another transaction has held a lock for too long that a commit to '{target}' needs;"
            " try again",
            target=_first_target(operations),
        ) from error
    finally:
        COMMIT_SECONDS.observe(time.perf_counter() - started)
    _COMMITTED.inc()
    actor.progress.committed = True
    batch.finish()
    goes_on = batch.transaction.status != TransactionStatus.SUCCEEDED
    return Commit(batch.transaction_id, results, goes_on)


def _locked_names(operations: Sequence[Operation]) -> set[uuid.UUID]:
    """What a commit locks, where that is to be limited."""
    if limits.requests is None:
        return set()
    paths: set[Identifier] = set()
    for operation in operations:
        paths.update(operation.namespaces(), operation.subtrees(), operation.tables())
    return {digest(path) for path in paths}


def _first_target(operations: Sequence[Operation]) -> Identifier:
    """The table or namespace that a commit is named by in messages."""
    first = operations[0]
    return next(iter((*first.tables(), *first.namespaces(), *first.subtrees())), ())


def _prepare(operations: Sequence[Operation]) -> list[Operation]:
    prepared = []
    for index, operation in enumerate(operations):
        try:
            prepared.append(operation.prepare())
        except CatalogError as error:
            error.operation = index
            raise
    return prepared


def _look(operations: Sequence[Operation]) -> list[Operation]:
    """Look at files before anything is locked, and forget the tables: they may be out of date."""
    names = {digest(identifier) for operation in operations for identifier in operation.tables()}
    tables = table_cache.tables.kept(names)
    table_cache.tables.forget(names)
    return [operation.look(tables) for operation in operations]


def _append(operations: Sequence[Operation], actor: Principal) -> tuple[Batch, list[Any]] | None:
    """The short way, for what only adds versions. None: go the long way.

    A refusal here may rest on what is out of date; only the long way, under locks, refuses.
    """
    batch = Batch(operations, actor)
    own = not connection.in_atomic_block
    try:
        with nullcontext() if own else transaction.atomic():
            results = batch.append()
    except OutcomeUnknown:
        raise
    except (CatalogError, _NeedsLocks):
        return None
    except IntegrityError as error:
        refused = batch.refusal(error)
        if refused is not None:
            raise refused from error
        return None
    except OperationalError as error:
        if outcomes.sqlstate(error) not in _RETRIED:
            raise
        return None
    return None if results is None else (batch, results)


def _commit(operations: Sequence[Operation], actor: Principal) -> tuple[Batch, list[Any]]:
    if (
        operations
        and actor.idempotency is None
        and all(operation.only_adds() for operation in operations)
        and sum(operation.swaps for operation in operations) <= 1
    ):
        done = _append(operations, actor)
        if done is not None:
            return done
        operations = _look(operations)
    is_nested = connection.in_atomic_block
    with_parents = False
    for _ in range(_ATTEMPTS):
        batch = Batch(operations, actor)
        try:
            with transaction.atomic():
                results = batch.run(with_parents=with_parents)
            return batch, results
        except _Replaced as error:
            met: Exception = error
        except (IntegrityError, OperationalError) as error:
            met = error
            if _stands(batch, error, is_nested=is_nested):
                return batch, batch.results
        with_parents = with_parents or not isinstance(met, OperationalError)
    if isinstance(met, IntegrityError):
        raise met  # again and again: no race, a mistake
    if isinstance(met, (OutcomeLost, TransactionLost)):
        raise ServiceUnavailable("The database was lost again and again; try again") from met
    raise ServiceUnavailable("The commit kept meeting others; try again") from met


def _stands(batch: Batch, error: IntegrityError | OperationalError, *, is_nested: bool) -> bool:
    """Return whether a commit stands despite the error; if not, it may be tried again.

    Raises the refusal behind the error, or the error itself where another attempt is of no use.
    """
    if isinstance(error, IntegrityError):
        refused = batch.refusal(error)
        if refused is not None:
            raise refused from error
        if taken_keys.constraint(error) == "idempotency_key_unique":
            raise error  # the same request came twice at once, and the other one did it
        return False
    if isinstance(error, (OutcomeLost, TransactionLost)):
        if is_nested:
            raise error  # only the caller can restart its transaction
        # Without a transaction row nothing had to change, so it may be done again.
        was_sent = isinstance(error, OutcomeLost) and batch.transaction_id is not None
        return was_sent and commit_outcomes.look_up(batch.transaction) is not None
    if outcomes.sqlstate(error) not in _RETRIED:
        raise error
    return False
