"""Approval requests: list them, and approve, refuse, withdraw or expire one."""

from typing import cast

from django.contrib.postgres.fields import ArrayField
from django.db import models as db
from django.db import transaction
from django.db.models import F, Func, IntegerField, Q, QuerySet, Value
from django.utils import timezone

from catalog import access
from catalog.access import Principal
from catalog.errors import ApprovalNotFound, InvalidInput, PermissionDenied
from catalog.models import ApprovalRequest, ApprovalStatus, Grant
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks
from catalog.services.engine.commit import commit
from catalog.services.governance import approval_operations
from catalog.services.governance.approval_operations import (
    require_decider,
    require_pending,
)

PAGE_SIZE = 100
MAX_PAGE = 1000


def list_approvals(
    *,
    actor: Principal,
    status: ApprovalStatus | None = None,
    waiting_for_me: bool = False,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[ApprovalRequest], str | None]:
    """A page of requests, newest first, and the token of the next page. One statement.

    Requests that the actor made and requests on targets that they may browse; with
    ``waiting_for_me`` only those that they may decide now. Raises InvalidInput.
    """
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = waiting_for(actor) if waiting_for_me else visible(actor)
    not_over = Q(expires_at__gt=timezone.now())
    if status == ApprovalStatus.EXPIRED:
        rows = rows.filter(Q(status=status) | Q(~not_over, status=ApprovalStatus.PENDING))
    elif status == ApprovalStatus.PENDING:
        rows = rows.filter(not_over, status=status)
    elif status is not None:
        rows = rows.filter(status=status)
    if page_token:
        if not (page_token.isascii() and page_token.isdigit() and len(page_token) < 19):
            raise InvalidInput(f"Page token {page_token!r} is not one of this list")
        rows = rows.filter(pk__lt=int(page_token))
    page = list(rows.order_by("-pk")[: size + 1])
    return page[:size], str(page[size - 1].pk) if len(page) > size else None


def find_approval(*, actor: Principal, request: int) -> ApprovalRequest:
    """A request that the actor may see. Raises ApprovalNotFound."""
    row = visible(actor).filter(pk=request).first()
    if row is None:
        raise ApprovalNotFound(request)
    return row


def waiting_for(actor: Principal) -> "QuerySet[ApprovalRequest]":
    """Requests that the actor may decide now."""
    rows = ApprovalRequest.objects.select_related("namespace", "table__namespace").filter(
        status=ApprovalStatus.PENDING, expires_at__gt=timezone.now()
    )
    rows = rows.exclude(requester=actor.name)
    if actor.within is not None:
        rows = rows.filter(namespace__ancestors__contains=[actor.within])
    if Privilege.MANAGE in actor.everywhere:
        return rows
    if Privilege.MANAGE not in actor.ceiling:
        return rows.none()
    held = Func(
        Value(list(actor.ids), output_field=ArrayField(db.BigIntegerField())),
        Value(list(actor.names), output_field=ArrayField(db.TextField())),
        F("namespace__ancestors"),
        function="monodon_held",
        output_field=IntegerField(),
    )
    managed = Q(table__owner__in=actor.names) | Q(
        table__in=Grant.objects.valid()
        .filter(principal__in=actor.ids, table__isnull=False)
        .annotate(part=F("mask").bitand(int(Privilege.MANAGE)))
        .filter(part__gt=0)
        .values("table")
    )
    manage = F("held").bitand(int(Privilege.MANAGE))
    return rows.annotate(held=held).annotate(manage=manage).filter(Q(manage__gt=0) | managed)


def visible(actor: Principal) -> "QuerySet[ApprovalRequest]":
    """Requests that the actor made, and requests on targets that they may browse."""
    rows = ApprovalRequest.objects.select_related("namespace", "table__namespace")
    if actor.holds_everywhere(Privilege.BROWSE):
        return rows
    # Not of namespaces that are only traversable, of which only the name is visible.
    of_tables = Q(table__isnull=False) & access.visible_tables(actor, "table__")
    return rows.filter(Q(requester=actor.name) | of_tables | access.visible_contents(actor))


def approve(
    *, actor: Principal, request: int, reason: str = "", days: int | None = None
) -> ApprovalRequest:
    """Approve a request and run its operation as the requester, with all checks repeated.

    A request for access is granted with the privileges of the approver, for ``days`` days if given.
    Returns the request. Raises ApprovalNotFound, PermissionDenied (also for the requester),
    InvalidApprovalState if the request is closed, ApprovalOutdated if the target changed, and the
    errors of the operation.
    """
    find_approval(actor=actor, request=request)
    committed = commit(
        [approval_operations.ApproveRequest(request=request, reason=reason, days=days)], actor=actor
    )
    return cast(ApprovalRequest, committed.results[0])


def refuse(*, actor: Principal, request: int, reason: str) -> ApprovalRequest:
    """Refuse a request.

    Raises ApprovalNotFound, PermissionDenied, InvalidApprovalState, and InvalidInput without a reason.
    """
    if not reason.strip():
        raise InvalidInput("A refusal requires a reason")
    require_decider(actor, find_approval(actor=actor, request=request))
    return _end(actor, request, ApprovalStatus.REFUSED, "approval.refuse", reason)


def withdraw(*, actor: Principal, request: int) -> ApprovalRequest:
    """Withdraw an own request. Raises ApprovalNotFound, PermissionDenied, InvalidApprovalState."""
    row = find_approval(actor=actor, request=request)
    if row.requester != actor.name:
        raise PermissionDenied(
            f"'{actor.name}' may not withdraw request {request}: only '{row.requester}' may"
        )
    return _end(actor, request, ApprovalStatus.WITHDRAWN, "approval.withdraw", "")


def _end(
    actor: Principal, request: int, status: ApprovalStatus, action: str, reason: str
) -> ApprovalRequest:
    with transaction.atomic():
        row = locks.lock_approval(request)
        if row is None:
            raise ApprovalNotFound(request)
        require_pending(row, status)
        row.status, row.decided_by, row.decision_reason = status, actor.name, reason
        row.decided_at = timezone.now()
        row.save(update_fields=["status", "decided_by", "decision_reason", "decided_at"])
        audit_records.record(actor, action, row.target, after={"request": row.pk, "reason": reason})
    return row


def expire() -> int:
    """Mark requests that nobody decided in time as expired; returns the number."""
    over = ApprovalRequest.objects.filter(
        status=ApprovalStatus.PENDING, expires_at__lte=timezone.now()
    )
    return over.update(status=ApprovalStatus.EXPIRED)
