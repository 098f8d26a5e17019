"""Approving what somebody else asked for: the stored operation is carried out as who asked."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from catalog import access
from catalog.access import Principal
from catalog.errors import ApprovalNotFound, InvalidApprovalState, PermissionDenied
from catalog.identifiers import Identifier
from catalog.models import ApprovalRequest, ApprovalStatus
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.commit import Batch, Operation
from catalog.services.recovery.recovery_operations import (
    PurgeNow,
    SetApprovalRule,
    SetProtection,
)
from catalog.services.tables.approval_gate import Guarded
from catalog.services.tables.namespace_operations import DropNamespace

_KINDS: dict[str, type[Guarded]] = {
    kind.name: kind for kind in (DropNamespace, PurgeNow, SetApprovalRule, SetProtection)
}


@dataclass(frozen=True, kw_only=True)
class ApproveRequest(Operation):
    """Approve a request and carry it out, in one transaction, as who asked and with all checks anew.

    The result is its row. Raises ApprovalNotFound, InvalidApprovalState when it is over, for who asked
    PermissionDenied, ApprovalOutdated when what it is about changed, and what the operation raises:
    then the request still waits.
    """

    name = "ApproveRequest"
    action = "approval.approve"

    request: int
    reason: str = ""
    stored: Operation | None = None
    """What was asked for, from ``prepare``."""

    def prepare(self) -> "ApproveRequest":
        row = ApprovalRequest.objects.filter(pk=self.request).first()
        if row is None:
            raise ApprovalNotFound(self.request)
        kind = _KINDS[row.operation["operation"]]
        restored = replace(kind.restored(row.operation, row.expected), reason=row.reason)
        return replace(self, stored=restored.prepare())

    @property
    def stored_operation(self) -> Operation:
        if self.stored is None:
            raise AssertionError("it was not prepared")
        return self.stored

    def namespaces(self) -> Iterable[Identifier]:
        return self.stored_operation.namespaces()

    def subtrees(self) -> Iterable[Identifier]:
        return self.stored_operation.subtrees()

    def tables(self) -> Iterable[Identifier]:
        return self.stored_operation.tables()

    def apply(self, batch: Batch) -> ApprovalRequest:
        batch.flush()
        # First the right to, so that nobody learns more from a refusal of the operation.
        require_decider(batch.actor, find(self.request))
        approver = batch.actor
        details = self._carry_out(batch)
        row = locks.lock_approval(self.request)
        if row is None:
            raise ApprovalNotFound(self.request)
        require_pending(row, "approved")
        row.status = ApprovalStatus.DONE
        row.decided_by, row.decision_reason = approver.name, self.reason
        row.decided_at, row.transaction = batch.now, batch.transaction
        row.save(
            update_fields=["status", "decided_by", "decision_reason", "decided_at", "transaction"]
        )
        batch.record(row.target, after={"request": row.pk, "reason": self.reason, **details})
        return row

    def _carry_out(self, batch: Batch) -> dict[str, Any]:
        row = find(self.request)
        require_pending(row, "approved")
        approver = batch.actor
        requester = replace(
            access.on_behalf_of(row.requester),
            request_id=approver.request_id,
            context=approver.context,
            door=approver.door,
        )
        batch.transaction.actor = requester.name
        batch.transaction.properties["monodon.approved_by"] = approver.name
        batch.actor, batch.current = requester, self.stored_operation
        try:
            self.stored_operation.apply(batch)
        finally:
            batch.actor, batch.current = approver, self
        return {"requester": row.requester, "action": row.action}


def find(request: int) -> ApprovalRequest:
    """Raises ApprovalNotFound."""
    row = ApprovalRequest.objects.select_related("namespace").filter(pk=request).first()
    if row is None:
        raise ApprovalNotFound(request)
    return row


def require_decider(actor: Principal, row: ApprovalRequest) -> None:
    """Let pass who may decide: whoever manages the target, but not who asked, by whatever key.

    Raises ApprovalNotFound for who may not even browse it, and PermissionDenied.
    """
    # The row itself, dropped or not: whoever gives its name again does not manage what had it.
    namespace = row.namespace
    if row.requester != actor.name and not access.holds(actor, Privilege.BROWSE, namespace):
        raise ApprovalNotFound(row.pk)
    if row.requester == actor.name:
        raise PermissionDenied(
            f"'{actor.name}' asked for it, so somebody else has to decide",
            detail="Who asked may withdraw it.",
        )
    access.require(actor, Privilege.MANAGE, namespace)


def require_pending(row: ApprovalRequest, decision: str) -> None:
    """Raises InvalidApprovalState."""
    if row.status != ApprovalStatus.PENDING:
        raise InvalidApprovalState(row.pk, row.status, decision)
    if row.is_expired:
        raise InvalidApprovalState(row.pk, ApprovalStatus.EXPIRED, decision)
