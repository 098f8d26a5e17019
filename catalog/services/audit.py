"""The audit trail. Rows are written inside the transaction of the change they tell of."""

import uuid
from typing import Any

from catalog.models import AuditEvent, Table
from catalog.services.access import Principal


def event(
    actor: Principal,
    action: str,
    target: str,
    *,
    table: Table | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    transaction_id: uuid.UUID | None = None,
) -> AuditEvent:
    """An audit row, not yet written: the commit engine writes those of a batch together."""
    return AuditEvent(
        actor=actor.name,
        action=action,
        target=target,
        table_uuid=table.uuid if table else None,
        before=before,
        after=after,
        context=dict(actor.context) or None,
        request_id=actor.request_id,
        transaction_id=transaction_id,
    )


def record(actor: Principal, action: str, target: str, **facts: Any) -> None:
    """Write one audit row; the keyword arguments are those of ``event``."""
    event(actor, action, target, **facts).save()
