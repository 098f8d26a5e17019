"""The base class of the operations of a commit."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from catalog import access
from catalog.access import Principal
from catalog.errors import CatalogError, NamespaceNotFound, TableNotFound, ViewNotFound
from catalog.identifiers import Identifier, digest
from catalog.models import Namespace, Table
from catalog.services.engine.batch import Batch


@dataclass(frozen=True, kw_only=True)
class Operation(ABC):
    """One change in a commit. Subclasses are frozen dataclasses."""

    name: ClassVar[str]
    """The specification's name of the operation, as shown in transactions: ``CreateTableVersion``."""
    action: ClassVar[str]
    """Noun and verb, as shown in the audit trail: ``version.create``."""

    swaps: ClassVar[bool] = False
    """True if the operation swaps a table's current metadata. A single statement can swap only one
    table: with two swaps, the second could fail after the first has taken effect."""

    def admit(self, actor: Principal) -> Self:
        """Check the location that a client has chosen; called before ``prepare`` reads there.

        Returns the operation, with the location resolved if ``prepare`` reads there. Raises CatalogError if
        the actor may not use the location.
        """
        return self

    def prepare(self) -> Self:
        """Return the operation with the data it needs from storage; called before any lock."""
        return self

    def namespaces(self) -> Iterable[Identifier]:
        """The namespaces to lock: those that must continue to exist, and those that change."""
        return ()

    def subtrees(self) -> Iterable[Identifier]:
        """The namespaces to lock together with all namespaces below them."""
        return ()

    def tables(self) -> Iterable[Identifier]:
        """The tables to lock, whether they exist or not."""
        return ()

    def locations(self) -> Iterable[str]:
        """The locations that clients chose for new tables, canonical; known after ``prepare``."""
        return ()

    def keeps_locations(self) -> bool:
        """True if no location is taken by the operation, apart from ``locations``, nor any path.

        Then locations of later operations of its batch need not be looked up again.
        """
        return False

    def shares_locations(self) -> bool:
        """True if the operation never calls ``locks.lock_locations``; known after ``prepare``."""
        return False

    def only_adds(self) -> bool:
        """True if the operation only adds versions to a table that otherwise stays unchanged.

        It may also make a version current (``Batch.swap``).
        """
        return False

    def creates_in(self) -> Identifier | None:
        """The namespace in which the operation creates one object, if it does nothing else.

        A single statement can commit it then.
        """
        return None

    def parent_row(self) -> Namespace | None:
        """The row of that namespace, if it was read for this request; it may be out of date."""
        return None

    def look(self, tables: Mapping[uuid.UUID, Table]) -> Self:
        """Return the operation with what it read from its tables' files; called before any lock.

        ``tables`` maps digests to the rows of the batch's tables that this process has cached.
        """
        return self

    @abstractmethod
    def apply(self, batch: Batch) -> Any:
        """Apply the change to the locked rows and return its result, or raise a CatalogError."""

    def conflict(self, constraint: str) -> CatalogError | None:
        """The refusal for a unique constraint that a row of this operation violated.

        Called after the rollback, with the winner's row committed.
        """
        return None

    def after_refusal(self, error: CatalogError, actor: Principal) -> None:
        """Record what remains of a refusal, such as an approval request.

        Called after the rollback, with no lock held, when this was the only operation of its batch.
        """
        return

    def respelled(self, error: CatalogError) -> CatalogError:
        """The refusal with the names as the request spelled them.

        'a b' and 'a+b' are the same name. The spelling in a refusal must not reveal the existence of
        something that the actor may not browse.
        """
        if not isinstance(error, NamespaceNotFound | TableNotFound | ViewNotFound):
            return error
        requested = [*self.namespaces(), *self.subtrees(), *self.tables()]
        for path in (name[:depth] for name in requested for depth in range(len(name), 0, -1)):
            if path != error.identifier and digest(path) == digest(error.identifier):
                refusal = type(error)(path)
                refusal.detail = error.detail
                return refusal
        return error


# --- the names of a commit ------------------------------------------------------------------------


def locked_names(operations: Sequence[Operation]) -> set[uuid.UUID]:
    """The digests of the names that a commit locks."""
    paths: set[Identifier] = set()
    for operation in operations:
        paths.update(operation.namespaces(), operation.subtrees(), operation.tables())
    return {digest(path) for path in paths}


def table_names(operations: Sequence[Operation]) -> set[uuid.UUID]:
    """The digests of the tables of a commit."""
    return {digest(identifier) for operation in operations for identifier in operation.tables()}


def first_target(operations: Sequence[Operation]) -> Identifier:
    """The table or namespace that names a commit in messages."""
    first = operations[0]
    return next(iter((*first.tables(), *first.namespaces(), *first.subtrees())), ())


def hidden_names(operations: Sequence[Operation], actor: Principal) -> frozenset[uuid.UUID]:
    """The digests of the names that a commit locks, of objects that the actor may not see.

    Four statements at most; none if the actor may browse everything.
    """
    namespaces: set[Identifier] = set()
    tables: set[Identifier] = set()
    for operation in operations:
        namespaces.update(operation.namespaces(), operation.subtrees())
        tables.update(operation.tables())
    return access.hidden_names(actor, namespaces, tables)
