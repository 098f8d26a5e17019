"""Approval of a request by a second person: run the stored operation as the requester, or a request for
access as the approver."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from catalog import access
from catalog.access import Principal
from catalog.errors import ApprovalNotFound, InvalidApprovalState, InvalidInput, PermissionDenied
from catalog.identifiers import Identifier
from catalog.models import ApprovalRequest, ApprovalStatus
from catalog.privileges import Privilege
from catalog.services.access.grant_operations import require_days
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.governance.access_requests import GrantAccess
from catalog.services.recovery.purge_operations import PurgeNow
from catalog.services.recovery.rule_operations import SetApprovalRule, SetProtection
from catalog.services.tables.approval_gate import GatedOperation
from catalog.services.tables.namespace_operations import DropNamespace

_KINDS: dict[str, type[GatedOperation]] = {
    kind.name: kind
    for kind in (DropNamespace, GrantAccess, PurgeNow, SetApprovalRule, SetProtection)
}


@dataclass(frozen=True, kw_only=True)
class ApproveRequest(Operation):
    """Approve a request and run it as the requester in one transaction, with all checks repeated.

    Returns its row. Raises ApprovalNotFound, InvalidApprovalState if the request is closed,
    PermissionDenied for the requester, ApprovalOutdated if the target changed, and the errors of the
    operation. After an error the request is still pending.
    """

    name = "ApproveRequest"
    action = "approval.approve"

    request: int
    reason: str = ""
    days: int | None = None
    """For a request for access: the days for which it is granted, instead of the requested ones."""
    stored: Operation | None = None
    """The requested operation, from ``prepare``."""

    def prepare(self) -> "ApproveRequest":
        row = ApprovalRequest.objects.filter(pk=self.request).first()
        if row is None:
            raise ApprovalNotFound(self.request)
        kind = _KINDS[row.operation["operation"]]
        restored: Operation = replace(kind.restored(row.operation, row.expected), reason=row.reason)
        if self.days is not None:
            restored = _limited(restored, self.days)
        return replace(self, stored=restored.prepare())

    @property
    def stored_operation(self) -> Operation:
        if self.stored is None:
            raise AssertionError("apply() was called before prepare()")
        return self.stored

    def namespaces(self) -> Iterable[Identifier]:
        return self.stored_operation.namespaces()

    def subtrees(self) -> Iterable[Identifier]:
        return self.stored_operation.subtrees()

    def tables(self) -> Iterable[Identifier]:
        return self.stored_operation.tables()

    def apply(self, batch: Batch) -> ApprovalRequest:
        batch.flush()
        # Check the privilege first, so that errors of the operation reveal nothing to others.
        require_decider(batch.actor, find(self.request))
        approver = batch.actor
        details = self._carry_out(batch)
        row = locks.lock_approval(self.request)
        if row is None:
            raise ApprovalNotFound(self.request)
        require_pending(row, "approved")
        row.status = ApprovalStatus.DONE
        row.decided_by, row.decision_reason = approver.name, self.reason
        row.decided_at, row.transaction_id = batch.now, batch.transaction.id
        row.save(
            update_fields=["status", "decided_by", "decision_reason", "decided_at", "transaction"]
        )
        batch.record(row.target, after={"request": row.pk, "reason": self.reason, **details})
        return row

    def _carry_out(self, batch: Batch) -> dict[str, Any]:
        row = find(self.request)
        require_pending(row, "approved")
        approver = batch.actor
        if isinstance(self.stored_operation, GrantAccess):
            # The requester could not grant this, so the privileges of the approver count.
            batch.current = self.stored_operation
            try:
                self.stored_operation.apply(batch)
            finally:
                batch.current = self
            return {"requester": row.requester, "action": row.action}
        requester = replace(
            access.on_behalf_of(row.requester),
            request_id=approver.request_id,
            context=approver.context,
            interface=approver.interface,
        )
        batch.transaction.actor = requester.name
        batch.transaction.properties["monodon.approved_by"] = approver.name
        batch.actor, batch.current = requester, self.stored_operation
        try:
            self.stored_operation.apply(batch)
        finally:
            batch.actor, batch.current = approver, self
        return {"requester": row.requester, "action": row.action}


def _limited(operation: Operation, days: int) -> Operation:
    """The requested access for another number of days. Raises InvalidInput."""
    if not isinstance(operation, GrantAccess):
        raise InvalidInput("Only the approval of a request for access has a number of days")
    require_days(days)
    return replace(operation, days=days)


def find(request: int) -> ApprovalRequest:
    """The request of this number. Raises ApprovalNotFound."""
    row = (
        ApprovalRequest.objects.select_related("namespace", "table__namespace")
        .filter(pk=request)
        .first()
    )
    if row is None:
        raise ApprovalNotFound(request)
    return row


def require_decider(actor: Principal, row: ApprovalRequest) -> None:
    """Require MANAGE on the target, and an actor other than the requester, whichever key it uses.

    Raises ApprovalNotFound for actors without BROWSE on the target, and PermissionDenied.
    """
    # The row itself, dropped or not: the owner of a new object of that name does not manage it.
    subject = row.subject
    if row.requester != actor.name and not access.holds(actor, Privilege.BROWSE, subject):
        raise ApprovalNotFound(row.pk)
    if row.requester == actor.name:
        raise PermissionDenied(
            f"'{actor.name}' made request {row.pk}, so another principal must decide it",
            detail="You can withdraw your own request.",
        )
    access.require(actor, Privilege.MANAGE, subject)


def require_pending(row: ApprovalRequest, decision: str) -> None:
    """Raise InvalidApprovalState unless the request is pending and has not expired."""
    if row.status != ApprovalStatus.PENDING:
        raise InvalidApprovalState(row.pk, row.status, decision)
    if row.is_expired:
        raise InvalidApprovalState(row.pk, ApprovalStatus.EXPIRED, decision)
