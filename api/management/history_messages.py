"""The bodies of the answers about the past."""

from datetime import datetime
from typing import Self
from uuid import UUID

from pydantic import BaseModel, Field

from catalog import history as past
from catalog.models import TableFormat, TableKind
from catalog.services.audit import history


class PastNamespace(BaseModel):
    id: int = Field(description="Of its row: one dropped and made again has another.")
    namespace: list[str]
    created_at: datetime

    @classmethod
    def of(cls, found: past.NamespaceState) -> Self:
        return cls(id=found.id, namespace=list(found.identifier), created_at=found.created_at)


class PastVersion(BaseModel):
    """The newest version of a branch at a moment."""

    version: int
    metadata_location: str = Field(description="Empty for who may not read the table.")
    committed_at: datetime
    transaction_id: UUID | None
    actor: str

    @classmethod
    def of(cls, found: past.BranchState) -> Self:
        return cls(**{name: getattr(found, name) for name in cls.model_fields})


class PastBranch(PastVersion):
    branch: str = Field(description="Empty: main.")


class PastTable(BaseModel):
    """A table or a view as it was."""

    id: int = Field(description="Of its row, which renaming keeps.")
    uuid: UUID
    table: list[str]
    format: TableFormat
    kind: TableKind
    is_materialized: bool
    created_at: datetime
    branches: list[PastBranch] = Field(description="Those with a version, main first.")
    has_more_branches: bool

    @classmethod
    def of(cls, found: past.TableState) -> Self:
        values = {
            name: getattr(found, name)
            for name in cls.model_fields
            if name not in {"table", "branches"}
        }
        branches = [PastBranch.of(branch) for branch in found.branches]
        return cls(table=list(found.identifier), branches=branches, **values)


class HistoryPage(BaseModel):
    at: datetime
    namespaces: list[PastNamespace]
    tables: list[PastTable]
    next_page_token: str | None

    @classmethod
    def of(cls, found: history.StatePage) -> Self:
        return cls(
            at=found.at,
            namespaces=[PastNamespace.of(row) for row in found.namespaces],
            tables=[PastTable.of(row) for row in found.tables],
            next_page_token=found.next_page,
        )


class PropertyChange(BaseModel):
    before: dict[str, str] | None = Field(description="None: only that they changed is known.")
    after: dict[str, str] | None

    @classmethod
    def of(cls, found: past.PropertyChange | None) -> Self | None:
        return None if found is None else cls(before=found.before, after=found.after)


class NamespaceChange(BaseModel):
    id: int
    namespace: list[str]
    changes: list[past.Change]
    properties: PropertyChange | None
    actor: str = Field(description="Who changed it last, as far as the audit trail tells.")

    @classmethod
    def of(cls, found: past.NamespaceChange) -> Self:
        return cls(
            id=found.id,
            namespace=list(found.identifier),
            changes=list(found.changes),
            properties=PropertyChange.of(found.properties),
            actor=found.actor,
        )


class BranchChange(BaseModel):
    """Another version is the newest. None: the branch had no version at that moment."""

    branch: str
    before: PastVersion | None
    after: PastVersion | None
    commits: int = Field(description="Versions entered between, also those deleted again.")

    @classmethod
    def of(cls, found: past.BranchChange) -> Self:
        return cls(
            branch=found.branch,
            before=PastVersion.of(found.before) if found.before else None,
            after=PastVersion.of(found.after) if found.after else None,
            commits=found.commits,
        )


class TableChange(BaseModel):
    id: int
    uuid: UUID
    before: list[str] | None = Field(description="Its name then; None: it was not there.")
    after: list[str] | None
    format: TableFormat
    kind: TableKind
    changes: list[past.Change]
    branches: list[BranchChange]
    has_more_branches: bool
    properties: PropertyChange | None
    actor: str = Field(description="Who changed it last, as far as it is told.")

    @classmethod
    def of(cls, found: past.TableChange) -> Self:
        return cls(
            id=found.id,
            uuid=found.uuid,
            before=None if found.before is None else list(found.before),
            after=None if found.after is None else list(found.after),
            format=TableFormat(found.format),
            kind=TableKind(found.kind),
            changes=list(found.changes),
            branches=[BranchChange.of(branch) for branch in found.branches],
            has_more_branches=found.has_more_branches,
            properties=PropertyChange.of(found.properties),
            actor=found.actor,
        )


class ChangesPage(BaseModel):
    """May hold fewer than the limit, and still lead on."""

    since: datetime
    until: datetime
    namespaces: list[NamespaceChange]
    tables: list[TableChange]
    next_page_token: str | None

    @classmethod
    def of(cls, found: history.ChangesPage) -> Self:
        return cls(
            since=found.since,
            until=found.until,
            namespaces=[NamespaceChange.of(row) for row in found.namespaces],
            tables=[TableChange.of(row) for row in found.tables],
            next_page_token=found.next_page,
        )


class ChangeCounts(BaseModel):
    since: datetime
    until: datetime
    namespaces_added: int
    namespaces_dropped: int
    tables_added: int
    tables_dropped: int
    tables_renamed: int
    tables_advanced: int = Field(description="There at both moments, and with another ledger.")
    commits: int

    @classmethod
    def of(cls, found: history.Counts) -> Self:
        return cls(**{name: getattr(found, name) for name in cls.model_fields})
