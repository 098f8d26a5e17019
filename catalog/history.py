"""Past states of the catalog and the changes between two moments: the pure part.

A moment is a time or the id of a transaction. ``catalog.services.audit.history`` reads the states,
and this module compares them.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from catalog.errors import InvalidInput
from catalog.identifiers import Identifier


@dataclass(frozen=True, slots=True)
class BranchState:
    """The newest version of a branch at a moment; the empty branch is main."""

    branch: str
    version: int
    metadata_location: str
    """The manifest of a Lance version, the metadata file of an Iceberg one."""
    committed_at: datetime
    transaction_id: uuid.UUID | None
    actor: str
    """The principal who committed it; empty if no transaction recorded it."""


@dataclass(frozen=True, slots=True)
class NamespaceState:
    id: int
    """The id of its row. A namespace that is dropped and created again has another."""
    identifier: Identifier
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TableState:
    """A table or a view at a moment."""

    id: int
    """The id of its row, unchanged by renaming. A table that is created again has another."""
    uuid: uuid.UUID
    identifier: Identifier
    format: str
    kind: str
    is_materialized: bool
    created_at: datetime
    branches: tuple[BranchState, ...] = ()
    """The branches that have a version, main first."""
    has_more_branches: bool = False


class Change(StrEnum):
    """A kind of change of a namespace or a table between two moments."""

    ADDED = "added"
    DROPPED = "dropped"
    RENAMED = "renamed"
    """Renamed, or moved to another namespace."""
    ADVANCED = "advanced"
    """Another version is the newest of a branch, whether newer or older."""
    PROPERTIES = "properties"


@dataclass(frozen=True, slots=True)
class BranchChange:
    """The change of a branch. A state is None if the branch had no version at that moment."""

    branch: str
    before: BranchState | None
    after: BranchState | None
    commits: int
    """The number of versions created between the moments, including deleted ones."""


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """Properties before and after; None if only the fact of a change is known."""

    before: Mapping[str, str] | None
    after: Mapping[str, str] | None

    @property
    def may_differ(self) -> bool:
        """True unless the properties are known to be equal."""
        return self.before is None or self.after is None or self.before != self.after


@dataclass(frozen=True, slots=True)
class NamespaceChange:
    id: int
    identifier: Identifier
    changes: tuple[Change, ...]
    properties: PropertyChange | None
    actor: str
    """The principal who changed it last, if the audit trail has the change."""


@dataclass(frozen=True, slots=True)
class TableChange:
    id: int
    uuid: uuid.UUID
    before: Identifier | None
    """Its name at the first moment; None if it did not exist, or not in this namespace."""
    after: Identifier | None
    format: str
    kind: str
    changes: tuple[Change, ...]
    branches: tuple[BranchChange, ...]
    has_more_branches: bool
    properties: PropertyChange | None
    actor: str
    """The principal who changed it last, if the audit trail or the ledger has the change."""

    @property
    def identifier(self) -> Identifier:
        return self.after or self.before or ()


@dataclass(frozen=True, slots=True)
class Trace:
    """The audit trail's data about a namespace or a table between two moments."""

    actor: str = ""
    properties: PropertyChange | None = None


NO_TRACE = Trace()


def parse_moment(text: str) -> datetime | uuid.UUID:
    """Parse a time such as 2027-01-31T12:00:00Z, by default in UTC, or the id of a transaction.

    Raises InvalidInput.
    """
    text = text.strip()
    try:
        return uuid.UUID(text)
    except ValueError:
        pass
    try:
        # In a query string an unencoded plus is decoded as a space.
        moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"Moment {text!r} is neither a time such as 2027-01-31T12:00:00Z nor a transaction's id"
        ) from None


def compare_namespaces(
    before: NamespaceState | None, after: NamespaceState | None, trace: Trace = NO_TRACE
) -> NamespaceChange | None:
    """The change of a namespace between two moments; None if it did not change."""
    existing = after or before
    if existing is None:
        return None
    changes: list[Change] = []
    if before is None:
        changes = [Change.ADDED]
    elif after is None:
        changes = [Change.DROPPED]
    properties = trace.properties if before is not None and after is not None else None
    if properties is not None and properties.may_differ:
        changes.append(Change.PROPERTIES)
    if not changes:
        return None
    return NamespaceChange(
        id=existing.id,
        identifier=existing.identifier,
        changes=tuple(changes),
        properties=properties if Change.PROPERTIES in changes else None,
        actor=trace.actor,
    )


def compare_tables(
    before: TableState | None,
    after: TableState | None,
    commits: Mapping[str, int] | None = None,
    trace: Trace = NO_TRACE,
) -> TableChange | None:
    """The change of a table between two moments; None if it did not change.

    ``commits`` are the numbers of versions created in between, by branch.
    """
    existing = after or before
    if existing is None:
        return None
    branches = _compare_branches(
        before.branches if before else (), after.branches if after else (), commits or {}
    )
    changes: list[Change] = []
    if before is None:
        changes = [Change.ADDED]
    elif after is None:
        changes = [Change.DROPPED]
    else:
        if before.identifier != after.identifier:
            changes.append(Change.RENAMED)
        if branches:
            changes.append(Change.ADVANCED)
    properties = trace.properties if before is not None and after is not None else None
    if properties is not None and properties.may_differ:
        changes.append(Change.PROPERTIES)
    if not changes:
        return None
    newest = [branch.after for branch in branches if branch.after is not None]
    last = max(newest, key=lambda state: state.committed_at, default=None)
    return TableChange(
        id=existing.id,
        uuid=existing.uuid,
        before=before.identifier if before else None,
        after=after.identifier if after else None,
        format=existing.format,
        kind=existing.kind,
        changes=tuple(changes),
        branches=branches,
        has_more_branches=any(state.has_more_branches for state in (before, after) if state),
        properties=properties if Change.PROPERTIES in changes else None,
        actor=trace.actor or (last.actor if last else ""),
    )


def _compare_branches(
    before: Sequence[BranchState], after: Sequence[BranchState], commits: Mapping[str, int]
) -> tuple[BranchChange, ...]:
    old = {state.branch: state for state in before}
    new = {state.branch: state for state in after}
    return tuple(
        BranchChange(name, old.get(name), new.get(name), commits.get(name, 0))
        for name in sorted(old.keys() | new.keys())
        if _entry(old.get(name)) != _entry(new.get(name))
    )


def _entry(state: BranchState | None) -> tuple[int, datetime] | None:
    """A key of a ledger entry, with its time because a new branch may reuse an old one's numbers."""
    return None if state is None else (state.version, state.committed_at)
