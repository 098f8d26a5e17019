"""The audit trail. Rows are written inside the transaction of the change they tell of."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalog.models import AuditEvent, Table
from catalog.services.access import Principal
from catalog.services.statements import Record, insert_together


@dataclass(kw_only=True)
class NewEvent(Record):
    """An audit row to be written."""

    model = AuditEvent

    actor: str
    action: str
    target: str
    table_uuid: uuid.UUID | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    context: Mapping[str, str] | None
    request_id: str
    transaction_id: uuid.UUID | None
    door: str
    key: str


def event(
    actor: Principal,
    action: str,
    target: str,
    *,
    table: Table | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    transaction_id: uuid.UUID | None = None,
) -> NewEvent:
    """An audit row, not yet written: the commit engine writes those of a batch together."""
    return NewEvent(
        actor=actor.name,
        action=action,
        target=target,
        table_uuid=table.uuid if table else None,
        before=before,
        after=after,
        context=dict(actor.context) or None,
        request_id=actor.request_id,
        transaction_id=transaction_id,
        door=getattr(actor, "door", ""),
        key=getattr(actor, "key", ""),
    )


def record(actor: Principal, action: str, target: str, **facts: Any) -> None:
    """Write one audit row; the keyword arguments are those of ``event``."""
    insert_together([event(actor, action, target, **facts)])
