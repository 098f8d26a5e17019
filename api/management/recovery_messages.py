"""The bodies of requests and answers about protection, the trash and approvals."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from catalog.identifiers import label
from catalog.models import (
    ApprovalRequest,
    ApprovalStatus,
    GuardedAction,
    Job,
    Namespace,
    Table,
    TableFormat,
    TrashItem,
    TrashState,
)
from catalog.services.recovery.undrop import NamespaceRules
from catalog.services.storage import file_references

_WHY = "Read by whoever has to approve it, and kept in the audit trail."


class _Request(BaseModel):
    # A misspelled "protected" must not be taken for left out.
    model_config = ConfigDict(extra="forbid")


# --- protection and rules --------------------------------------------------------------------------


class SetProtectionRequest(_Request):
    protected: StrictBool
    reason: str = Field(default="", description=_WHY)


class Protection(BaseModel):
    """Whether nobody may drop or overwrite it."""

    protected: bool

    @classmethod
    def of(cls, row: Namespace | Table) -> Self:
        return cls(protected=row.is_protected)


class SetRetentionRequest(_Request):
    seconds: int | None = Field(
        description="Null: as above it; 0: what is dropped is purged at once."
    )


class Retention(BaseModel):
    """How long what is dropped in a namespace and below can be brought back."""

    direct: int | None = Field(
        description="The retention set at this namespace, in seconds; null: it is inherited."
    )
    seconds: int = Field(description="The effective retention, in seconds.")
    source: str = Field(description="The namespace that sets it; empty: the default.")

    @classmethod
    def of(cls, found: NamespaceRules) -> Self:
        return cls(
            direct=found.namespace.retention_seconds,
            seconds=found.rules.seconds,
            source=found.rules.retention_source,
        )


class SetApprovalRuleRequest(_Request):
    actions: list[str] = Field(
        description=f"What needs a second person: some of {', '.join(GuardedAction.values)}."
    )
    reason: str = Field(default="", description=_WHY)


class ApprovalRule(BaseModel):
    """What needs a second person in a namespace and below."""

    direct: list[GuardedAction] = Field(description="The rule set at this namespace.")
    effective: dict[str, str] = Field(
        description="The effective rule: each action with the highest namespace that sets it."
    )

    @classmethod
    def of(cls, found: NamespaceRules) -> Self:
        return cls(
            direct=[GuardedAction(action) for action in found.namespace.guarded],
            effective={
                str(action): label(source) for action, source in found.rules.guarded.items()
            },
        )


# --- the trash -------------------------------------------------------------------------------------


class Dependents(BaseModel):
    """Tables that refer to files of a table."""

    tables: list[list[str]] = Field(
        description="Those that whoever asks may browse: the first 100."
    )
    others: int = Field(description="How many more there are.")

    @classmethod
    def of(cls, found: file_references.Dependents) -> Self:
        return cls(tables=[list(name) for name in found.visible], others=found.others)


class TrashItemModel(BaseModel):
    """What was dropped and may come back."""

    id: int
    kind: str = Field(description="namespace, table or view.")
    name: list[str] = Field(description="As it was when it was dropped.")
    format: TableFormat | None
    location: str | None = Field(description="Null for who may not read the table, too.")
    state: TrashState
    dropped_by: str
    dropped_at: datetime
    purge_at: datetime | None = Field(description="Null: it is kept until somebody purges it.")
    bytes: int | None = Field(description="When it was measured last; null: it was not.")
    job: int | None = Field(description="What purges it.")
    dependents: Dependents = Field(
        description="What refers to its files, which stay while something does; nobody for who may"
        " not read the table."
    )
    transaction_id: UUID | None = Field(
        description="The drop. A namespace comes back with all that was dropped by the same."
    )

    @classmethod
    def of(
        cls, row: TrashItem, readable: Collection[int], dependents: file_references.Dependents
    ) -> Self:
        table = row.table
        return cls(
            id=row.pk,
            kind=row.kind,
            name=list(row.target.identifier),
            format=None if table is None else TableFormat(table.format),
            location=table.location if table is not None and table.pk in readable else None,
            state=row.state,
            dropped_by=row.dropped_by,
            dropped_at=row.dropped_at,
            purge_at=row.purge_at,
            bytes=getattr(row, "size", None),
            job=row.job_id,
            dependents=Dependents.of(dependents),
            transaction_id=row.transaction_id,
        )


class TrashPage(BaseModel):
    items: list[TrashItemModel]
    next_page_token: str | None


class UndropRequest(_Request):
    new: list[str] | None = Field(
        default=None, description="Another name, from the root down; null: the one that it had."
    )
    with_parents: StrictBool = Field(
        default=False, description="Whether namespaces above it that are gone come back too, empty."
    )
    without_purged: StrictBool = Field(
        default=False, description="Of a namespace: whether tables that are gone are left behind."
    )


class Undropped(BaseModel):
    """What came back."""

    kind: str
    name: list[str]

    @classmethod
    def of(cls, row: Namespace | Table) -> Self:
        return cls(
            kind="namespace" if isinstance(row, Namespace) else row.kind, name=list(row.identifier)
        )


class PurgeRequest(_Request):
    reason: str = Field(default="", description=_WHY)


class PurgeJobs(BaseModel):
    """The jobs that purge it, one for each table; until ``begins_at`` it can be stopped."""

    jobs: list[int]
    begins_at: datetime | None

    @classmethod
    def of(cls, rows: list[Job]) -> Self:
        moments = [row.lease_until for row in rows if row.lease_until is not None]
        return cls(jobs=[row.pk for row in rows], begins_at=min(moments, default=None))


# --- approvals -------------------------------------------------------------------------------------


class ApprovalModel(BaseModel):
    """Something that waits for a second person, or did."""

    id: int
    action: str
    target: str
    namespace: list[str] = Field(description="Who may manage it may decide.")
    operation: dict[str, Any]
    reason: str
    requester: str
    status: ApprovalStatus
    decided_by: str
    decision_reason: str
    transaction_id: UUID | None
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None

    @classmethod
    def of(cls, row: ApprovalRequest) -> Self:
        return cls(
            id=row.pk,
            action=row.action,
            target=row.target,
            namespace=list(row.namespace.path),
            operation=row.operation,
            reason=row.reason,
            requester=row.requester,
            status=ApprovalStatus.EXPIRED if row.is_expired else ApprovalStatus(row.status),
            decided_by=row.decided_by,
            decision_reason=row.decision_reason,
            transaction_id=row.transaction_id,
            created_at=row.created_at,
            expires_at=row.expires_at,
            decided_at=row.decided_at,
        )


class ApprovalPage(BaseModel):
    approvals: list[ApprovalModel]
    next_page_token: str | None


class ApproveBody(_Request):
    reason: str = ""


class RefuseBody(_Request):
    reason: str = Field(description="Told to who asked.")
