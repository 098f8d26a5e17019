"""Requests for access: a principal asks for privileges, and a manager of the object grants them.

A request is an approval request whose operation is a grant. Requests name objects that the requester
may not see. A request for an object that does not exist looks the same to the requester as any other,
so that requests do not reveal which names exist.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from catalog.access import On, Principal
from catalog.errors import ApprovalOutdated, InvalidInput
from catalog.identifiers import Identifier, check, check_table, label
from catalog.models import ApprovalRequest, ApprovalStatus, Grant, Namespace, Table
from catalog.models import Principal as PrincipalRow
from catalog.privileges import NOTHING, Privilege, closure, essence
from catalog.services.access.grant_operations import GrantChange, SetGrant, require_days
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.tables import approval_gate
from catalog.services.tables.approval_gate import GatedOperation

MAX_PENDING = 20
"""Maximum number of pending requests of one principal."""
MAX_REASON = 2000  # characters


@dataclass(frozen=True, kw_only=True)
class GrantAccess(GatedOperation):
    """Add requested privileges to the grant of the requester; runs only as an approved request.

    Requires what ``SetGrant`` requires of the approver. Raises InvalidInput if the present grant would
    end earlier, or if privileges that were not requested would last longer, and ApprovalOutdated if
    another object has the name now.
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
        ends_at = None if self.days is None else batch.now + timedelta(days=self.days)
        held = NOTHING
        if present is not None:
            held = present.privileges
            self._require_same_or_longer(present, ends_at)
        operation = SetGrant(
            on=self.on,
            principal=self.principal,
            privileges=held | Privilege(self.privileges),
            expires_at=ends_at,
        )
        change: GrantChange = operation.prepare().apply(batch)
        return change.privileges

    def _require_same_or_longer(self, present: Grant, ends_at: datetime | None) -> None:
        """Require that the new end suits the present grant, since a grant has only one end."""
        if present.expires_at == ends_at:
            return
        holds = f"'{self.principal}' holds {', '.join(essence(present.privileges))}"
        where = f"on '{label(self.identifier)}'"
        if present.expires_at is None:
            raise InvalidInput(
                f"{holds} {where} without an end: approve the request without an end"
            )
        end = f"until {present.expires_at:%Y-%m-%d %H:%M} UTC"
        if ends_at is not None and ends_at < present.expires_at:
            raise InvalidInput(f"{holds} {where} {end}: approve the request for more days")
        if present.privileges & ~Privilege(self.privileges):
            raise InvalidInput(
                f"{holds} {where} {end}, and the approval would prolong all of it: change that grant"
                " instead"
            )


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
    without a reason or privileges, for a reason that is too long, a malformed name, too many pending
    requests, and an actor that is no principal.
    """
    requested = closure(privileges)
    if not reason.strip():
        raise InvalidInput("A request for access requires a reason")
    if len(reason) > MAX_REASON:
        raise InvalidInput(f"The reason has {len(reason):,} characters; {MAX_REASON:,} are allowed")
    if not requested:
        raise InvalidInput("A request for access requires at least one privilege")
    if days is not None:
        require_days(days)
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
    stored = operation.stored()
    request = ApprovalRequest(
        action=f"granting {', '.join(essence(requested))} on",
        target=label(on.identifier) or ".",
        namespace=namespace,
        table=table,
        operation=stored,
        expected={"pk": row.pk if exists else None},
        reason=reason.strip(),
        requester=actor.name,
        digest=_digest(actor, stored),
        expires_at=timezone.now() + timedelta(days=settings.MONODON_APPROVAL_DAYS),
    )
    return _save(request, actor)


def _save(request: ApprovalRequest, actor: Principal) -> ApprovalRequest:
    """Save a request, or return the pending one for the same. Raises InvalidInput if too many are pending."""
    pending = ApprovalRequest.objects.filter(
        requester=actor.name,
        status=ApprovalStatus.PENDING,
        expires_at__gt=timezone.now(),
        operation__operation=GrantAccess.name,
    )
    with transaction.atomic():
        locks.lock_key(f"access requests of {actor.name}")  # until the number includes this request
        same = pending.filter(digest=request.digest).first()
        if same is not None:
            return same
        if pending.count() >= MAX_PENDING:
            raise InvalidInput(
                f"'{actor.name}' has {MAX_PENDING} pending requests: withdraw some of them first"
            )
        return ApprovalRequest.objects.get(pk=approval_gate.save(request, actor))


def requested_namespace(row: ApprovalRequest) -> Identifier | None:
    """The namespace that a request for access names, or that of its table; None for other requests.

    It need not exist, nor be the one whose managers decide.
    """
    if row.operation["operation"] != GrantAccess.name:
        return None
    identifier = tuple(row.operation["identifier"])
    return identifier[:-1] if row.operation["is_table"] else identifier


def _subject(on: On) -> tuple[Namespace, Table | None]:
    """The table, if it exists, and the deepest existing namespace on the path."""
    path = on.namespace_path
    rows = Namespace.objects.live().named(*(path[:depth] for depth in range(len(path) + 1)))
    namespace = max(rows, key=lambda row: len(row.path))
    table = Table.objects.present().named(on.identifier).first() if on.is_table else None
    return namespace, table


def _digest(actor: Principal, stored: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([actor.name, stored], sort_keys=True).encode()).hexdigest()
