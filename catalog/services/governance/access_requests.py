"""Requests for access: a principal asks for privileges, and a manager of the object grants them.

A request is an approval request whose operation is a grant. Requests name objects that the requester
may not see. A request for an object that does not exist looks the same to the requester as any other,
so that requests do not reveal which names exist.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from catalog.access import On, Principal
from catalog.errors import ApprovalOutdated, InvalidInput
from catalog.identifiers import Identifier, check, check_table, label
from catalog.models import ApprovalRequest, ApprovalStatus, Grant, Namespace, Table
from catalog.models import Principal as PrincipalRow
from catalog.privileges import NOTHING, Privilege, closure, essence
from catalog.services.access.grant_operations import SetGrant
from catalog.services.engine.batch import Batch
from catalog.services.tables import approval_gate
from catalog.services.tables.approval_gate import GatedOperation

MAX_PENDING = 20
"""Maximum number of pending requests of one principal."""
MAX_DAYS = 3650


@dataclass(frozen=True, kw_only=True)
class GrantAccess(GatedOperation):
    """Add requested privileges to the grant of the requester; runs only as an approved request.

    Requires what ``SetGrant`` requires of the approver. Raises InvalidInput if a grant without an end
    would get one, and ApprovalOutdated if another object has the name now.
    """

    name = "GrantAccess"
    action = "grant.set"

    identifier: Identifier
    is_table: bool
    principal: str
    privileges: int
    days: int | None = None
    """Days from the approval until the end of the grant; None: it does not end."""

    @property
    def on(self) -> On:
        return On.table(self.identifier) if self.is_table else On.namespace(self.identifier)

    def namespaces(self) -> Iterable[Identifier]:
        return () if self.is_table else (self.identifier,)

    def tables(self) -> Iterable[Identifier]:
        return (self.identifier,) if self.is_table else ()

    def apply(self, batch: Batch) -> Privilege:
        if self.approved_for is None:
            raise AssertionError("access is granted only through an approved request")
        row: Namespace | Table = (
            batch.table(self.identifier) if self.is_table else batch.namespace(self.identifier)
        )
        if dict(self.approved_for) != {"pk": row.pk}:
            raise ApprovalOutdated(label(self.identifier))
        present = Grant.objects.valid().on(row).filter(principal__name=self.principal).first()
        if present is not None and present.expires_at is None and self.days is not None:
            raise InvalidInput(
                f"'{self.principal}' holds {', '.join(essence(present.privileges))} on"
                f" '{label(self.identifier)}' without an end: approve the request without an end"
            )
        held = NOTHING if present is None else present.privileges
        operation = SetGrant(
            on=self.on,
            principal=self.principal,
            privileges=held | Privilege(self.privileges),
            expires_at=None if self.days is None else batch.now + timedelta(days=self.days),
        )
        granted: Privilege = operation.prepare().apply(batch)
        return granted


def request_access(
    *,
    actor: Principal,
    on: On,
    privileges: Privilege,
    reason: str,
    days: int | None = None,
) -> ApprovalRequest:
    """Ask the managers of a namespace or table for privileges on it, for a number of days.

    Returns the pending request, also if the actor made the same one before. Raises InvalidInput
    without a reason or privileges, for a malformed name, for too many pending requests, and for an
    actor that is no principal.
    """
    requested = closure(privileges)
    if not reason.strip():
        raise InvalidInput("A request for access requires a reason")
    if not requested:
        raise InvalidInput("A request for access requires at least one privilege")
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InvalidInput(f"Access is requested for 1 to {MAX_DAYS} days")
    if not PrincipalRow.objects.filter(name=actor.name).exists():
        raise InvalidInput(f"'{actor.name}' is no principal, so nothing can be granted to it")
    (check_table if on.is_table else check)(on.identifier)
    namespace, table = _subject(on)
    row = table or namespace
    exists = table is not None or (not on.is_table and namespace.identifier == on.identifier)
    operation = GrantAccess(
        identifier=on.identifier,
        is_table=on.is_table,
        principal=actor.name,
        privileges=requested.value,
        days=days,
    )
    pending = ApprovalRequest.objects.filter(
        requester=actor.name,
        status=ApprovalStatus.PENDING,
        expires_at__gt=timezone.now(),
        operation__operation=GrantAccess.name,
    )
    stored = operation.stored()
    digest = _digest(actor, stored)
    same = pending.filter(digest=digest).first()
    if same is not None:
        return same
    if pending.count() >= MAX_PENDING:
        raise InvalidInput(
            f"'{actor.name}' has {MAX_PENDING} pending requests: withdraw some of them first"
        )
    request = ApprovalRequest(
        action=f"granting {', '.join(essence(requested))} on",
        target=label(on.identifier) or ".",
        namespace=namespace,
        table=table,
        operation=stored,
        expected={"pk": row.pk if exists else None},
        reason=reason.strip(),
        requester=actor.name,
        digest=digest,
        expires_at=timezone.now() + timedelta(days=settings.MONODON_APPROVAL_DAYS),
    )
    return ApprovalRequest.objects.get(pk=approval_gate.save(request, actor))


def _subject(on: On) -> tuple[Namespace, Table | None]:
    """The table, if it exists, and the deepest existing namespace on the path."""
    path = on.namespace_path
    rows = Namespace.objects.live().named(*(path[:depth] for depth in range(len(path) + 1)))
    namespace = max(rows, key=lambda row: len(row.path))
    table = Table.objects.present().named(on.identifier).first() if on.is_table else None
    return namespace, table


def _digest(actor: Principal, stored: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([actor.name, stored], sort_keys=True).encode()).hexdigest()
