"""The commit engine: every write of either protocol is a list of operations, applied atomically.

    commit(operations, actor)
      0. prepare   the work that needs storage: check locations, list a registered table's versions
      1. lock      the namespaces and tables that the operations name, in one order
      2. apply     each operation in turn: check access and preconditions, add rows to the batch;
                   a later operation sees the changes of earlier ones of its batch
      3. record    the transaction row and the audit rows
      4. COMMIT    the linearization point, for all tables and both formats
      5. after     the work that needs no lock: move staged manifests, send jobs

A batch that only adds versions to tables takes a fast path: steps 1, 3 and 4 are one statement,
which writes only if the tables still match the cached rows that ``apply`` used. So does a commit that
only creates a table or a namespace, unless the namespace above has object storage.

Steps 1 to 4 neither write to storage nor wait for the network; at most they check whether a local
file exists. A refusal at any point rolls back the whole batch, and carries the index of the refused
operation.

``operation.Operation`` is the base class of the operations, ``batch.Batch`` the state that they
change. To add an operation, write a frozen dataclass beside its concern that declares its locks and
implements ``apply``; nothing changes here.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import IntegrityError, OperationalError, connection, transaction
from prometheus_client import Counter, Histogram

from catalog.access import Principal
from catalog.errors import (
    Busy,
    CatalogError,
    Conflict,
    OutcomeUnknown,
    ServiceUnavailable,
    VersionAlreadyExists,
)
from catalog.identifiers import Identifier, digest
from catalog.models import IdempotencyRecord, TransactionStatus
from catalog.postgresql import limits, outcomes
from catalog.postgresql.outcomes import OutcomeLost, TransactionLost
from catalog.services.engine import commit_outcomes, table_cache
from catalog.services.engine.admission import admission
from catalog.services.engine.batch import Batch, FilesRequired, LocksRequired, RowReplaced
from catalog.services.engine.operation import (
    Operation,
    first_target,
    hidden_names,
    locked_names,
    table_names,
)
from catalog.services.engine.prepared.creation import complete, insert
from catalog.services.engine.statements import (
    insert_if_unchanged,
    insert_together,
)
from catalog.storage.outages import large_inputs

COMMITS = Counter("monodon_commits", "Commits by result.", ["result"])
VERSIONS = Counter("monodon_versions", "Table versions requested, by result.", ["result"])
COMMIT_SECONDS = Histogram("monodon_commit_seconds", "Duration of commits, all attempts.")
_COMMITTED = COMMITS.labels("committed")  # looking it up takes twice as long as counting

# Sorted locks leave no known deadlock. The retries cover deadlocks that PostgreSQL may still report,
# and connections lost before the commit could stand.
_ATTEMPTS = 5
_LOCK_TIMEOUT = "55P03"


@dataclass(frozen=True)
class Commit:
    """The result of a commit: its id (None when nothing changed) and the results, in order."""

    transaction_id: uuid.UUID | None
    results: list[Any]
    goes_on: bool = False
    """True if a job continues the commit; the transaction's status follows that job."""

    @property
    def id(self) -> str | None:
        """The transaction's id in the form that clients receive."""
        return str(self.transaction_id) if self.transaction_id else None


def commit(operations: Sequence[Operation], *, actor: Principal) -> Commit:
    """Apply all operations in one transaction, or none of them.

    Raises the CatalogError of the first refused operation, with its index in ``operation``. Even if
    the answer is lost, either the whole batch is visible or nothing is. OutcomeUnknown means that it
    cannot be determined which of the two holds.
    """
    started = time.perf_counter()
    try:
        actor.confirm()
        prepared = _prepare(operations, actor)
        batch = _admitted(prepared, actor)
    except Conflict as error:
        COMMITS.labels("conflict").inc()
        if isinstance(error, VersionAlreadyExists):
            VERSIONS.labels("conflict").inc()
        raise
    except CatalogError as error:
        COMMITS.labels("refused").inc()
        if len(operations) == 1 and not actor.progress.is_dry_run:
            operations[0].after_refusal(error, actor)
        raise
    except OperationalError as error:
        if outcomes.sqlstate(error) != _LOCK_TIMEOUT:
            raise
        COMMITS.labels("refused").inc()
        raise Busy(
            "Another transaction has held a lock for too long that a commit to '{target}' needs;"
            " try again",
            target=first_target(operations),
        ) from error
    finally:
        COMMIT_SECONDS.observe(time.perf_counter() - started)
    _COMMITTED.inc()
    actor.progress.committed = True
    if not actor.progress.is_dry_run:
        large_inputs.exempt()
    batch.finish()
    goes_on = batch.transaction.status != TransactionStatus.SUCCEEDED
    return Commit(batch.transaction_id, batch.results, goes_on)


# --- before the locks ----------------------------------------------------------------------------


def _prepare(operations: Sequence[Operation], actor: Principal) -> list[Operation]:
    prepared = []
    for index, operation in enumerate(operations):
        try:
            prepared.append(operation.admit(actor).prepare())
        except CatalogError as error:
            error.operation = index
            raise
    return prepared


def _look(operations: Sequence[Operation]) -> list[Operation]:
    """Read files before any lock, and drop the tables from the cache: they may be out of date."""
    names = table_names(operations)
    tables = table_cache.tables.cached(names)
    table_cache.tables.discard(names)
    return [operation.look(tables) for operation in operations]


# --- the commit ----------------------------------------------------------------------------------


def _admitted(operations: Sequence[Operation], actor: Principal) -> Batch:
    """Commit in turn. Whoever may not see an object gets the same answer as without it, also while others lock it.

    Several operations may hold their locks for long, so they lock no hidden object. A single one holds it only until
    its refusal.
    """
    looks_first = len(operations) > 1 or actor.progress.is_dry_run
    hidden = hidden_names(operations, actor) if looks_first else frozenset()
    try:
        return _commit_in_turn(operations, actor, hidden)
    except (Busy, OperationalError) as error:
        is_late = isinstance(error, Busy) or outcomes.sqlstate(error) == _LOCK_TIMEOUT
        if looks_first or not is_late or not (hidden := hidden_names(operations, actor)):
            raise
        return _commit_in_turn(operations, actor, hidden)


def _commit_in_turn(
    operations: Sequence[Operation], actor: Principal, hidden: frozenset[uuid.UUID]
) -> Batch:
    names = locked_names(operations) - hidden if limits.requests is not None else ()
    with admission.enter(names, lambda: first_target(operations)):
        return (
            _commit_with_locks(operations, actor, hidden) if hidden else _commit(operations, actor)
        )


def _commit(operations: Sequence[Operation], actor: Principal) -> Batch:
    if not operations or actor.idempotency is not None:
        return _commit_with_locks(operations, actor)
    if (
        all(operation.only_adds() for operation in operations)
        and sum(operation.swaps for operation in operations) <= 1
    ):
        appended = _in_one_statement(_append, operations, actor)
        if appended is not None:
            return appended
        operations = _look(operations)
    elif len(operations) == 1 and (parent := operations[0].creates_in()) is not None:
        created = _in_one_statement(partial(_create, parent), operations, actor)
        if created is not None:
            return created
        table_cache.namespaces.discard(digest(parent))
    return _commit_with_locks(operations, actor)


def _commit_with_locks(
    operations: Sequence[Operation], actor: Principal, hidden: frozenset[uuid.UUID] = frozenset()
) -> Batch:
    """Commit on locked rows, and repeat that after races that a retry resolves."""
    is_nested = connection.in_atomic_block
    with_parents = has_looked = False
    for _ in range(_ATTEMPTS):
        batch = Batch(actor)
        batch.has_looked, batch.hidden = has_looked, hidden
        try:
            with transaction.atomic():
                _lock(batch, operations, with_parents=with_parents)
                _apply(batch, operations)
                _record(batch)
            return batch
        except FilesRequired as required:
            last_error: Exception = required
            operations = [operation.look(required.tables) for operation in operations]
            has_looked = True
            continue
        except RowReplaced as error:
            last_error = error
        except (IntegrityError, OperationalError) as error:
            last_error = error
            if commit_outcomes.stands(batch, operations, error, is_nested=is_nested):
                return batch
        with_parents = with_parents or not isinstance(last_error, OperationalError)
    if isinstance(last_error, IntegrityError):
        raise last_error  # the same error at every attempt is a bug, not a race
    if isinstance(last_error, (OutcomeLost, TransactionLost)):
        raise ServiceUnavailable("The database was lost again and again; try again") from last_error
    raise ServiceUnavailable("The commit kept meeting others; try again") from last_error


def _lock(batch: Batch, operations: Sequence[Operation], *, with_parents: bool) -> None:
    subtrees = {path for operation in operations for path in operation.subtrees()}
    namespaces = {path for operation in operations for path in operation.namespaces()}
    tables = {identifier for operation in operations for identifier in operation.tables()}
    if with_parents:
        namespaces |= {path[:-1] for path in namespaces | subtrees | tables}
    if batch.hidden:
        for paths in (namespaces, subtrees, tables):
            paths.difference_update([path for path in paths if digest(path) in batch.hidden])
    batch.lock(namespaces, subtrees, tables)


def _apply(batch: Batch, operations: Sequence[Operation]) -> None:
    batch.locations = frozenset(
        location for operation in operations for location in operation.locations()
    )
    locking = (i for i, operation in enumerate(operations) if not operation.shares_locations())
    last_locking = max(locking, default=0)
    for index, operation in enumerate(operations):
        batch.shares_locations = index >= last_locking
        batch.begin(index, operation)
        try:
            batch.results.append(operation.apply(batch))
        except CatalogError as error:
            refusal = operation.respelled(error)
            refusal.operation = index
            raise refusal from error.__cause__


def _record(batch: Batch) -> None:
    """Write the pending rows, the idempotency key, the transaction row and the audit rows."""
    key = batch.actor.idempotency
    if key is not None:
        batch.add(
            IdempotencyRecord(
                key=key.key,
                actor=batch.actor.narrowed_name,
                fingerprint=key.fingerprint,
                transaction_id=batch.transaction_id,
            )
        )
    last = batch.flush_but_last()
    if batch.events:
        # When everything is known: foreign keys are checked at the commit.
        insert_together(*last, [batch.transaction], batch.events)


# --- the fast path -------------------------------------------------------------------------------


def _in_one_statement(
    write: Callable[[Batch, Sequence[Operation]], bool],
    operations: Sequence[Operation],
    actor: Principal,
) -> Batch | None:
    """Commit a batch in one statement, which takes the locks. None: commit it with locks.

    A refusal here may rest on outdated rows; only a commit with locks refuses.
    """
    batch = Batch(actor)
    is_own_transaction = not connection.in_atomic_block
    try:
        with nullcontext() if is_own_transaction else transaction.atomic():
            was_written = write(batch, operations)
    except OutcomeUnknown:
        raise
    except (CatalogError, LocksRequired):
        return None
    except IntegrityError as error:
        commit_outcomes.raise_refusal(batch, operations, error)
        return None
    except OperationalError as error:
        if outcomes.sqlstate(error) not in commit_outcomes.RETRIED:
            raise
        return None
    return batch if was_written else None


def _append(batch: Batch, operations: Sequence[Operation]) -> bool:
    """Add versions, if the tables still match the cached rows; returns False if they do not.

    One statement, which locks the tables and is its own transaction.
    """
    names = table_names(operations)
    tables = table_cache.tables.get(names)
    if tables.keys() != names:
        return False
    batch.assume_tables(tables)
    _apply(batch, operations)
    versions = batch.take_versions()
    for version in versions:
        version.table_id = version.table.pk
    try:
        moment = insert_if_unchanged(
            list(tables.values()),
            versions,
            [batch.transaction],
            batch.events,
            swap=batch.pending_swap,
        )
    except OutcomeLost:
        moment = commit_outcomes.look_up(batch.transaction)
    if moment is None:
        table_cache.tables.discard(names)
        return False
    for version in versions:
        version.created_at = moment
    return True


def _create(path: Identifier, batch: Batch, operations: Sequence[Operation]) -> bool:
    """Create one object in the namespace at a path; returns False if that takes locks.

    One statement, which locks the namespace and is its own transaction.
    """
    parent = operations[0].parent_row() or table_cache.namespaces.get(digest(path))
    if parent is None:
        return False
    batch.assume_parent(parent)
    _apply(batch, operations)
    creation = batch.take_creation(parent)
    try:
        moment = insert(creation, [batch.transaction], batch.events)
    except OutcomeLost:
        moment = commit_outcomes.look_up(batch.transaction)
        if moment is not None:
            complete(creation, moment)
    return moment is not None
