"""The answers about the audit trail."""

from typing import Any, Self

from pydantic import BaseModel

from catalog.models import AuditEvent
from catalog.services.audit import trail as audit_trail


class AuditEventModel(BaseModel):
    """One event. ``before`` and ``after`` hold only what the action changed, without secrets."""

    id: int
    at: str
    actor: str
    action: str
    target: str
    outcome: str
    error: str
    door: str
    key: str
    table_uuid: str | None
    before: Any
    after: Any
    context: dict[str, str] | None
    request_id: str
    transaction_id: str | None
    xid: str

    @classmethod
    def of(cls, row: AuditEvent) -> Self:
        facts = audit_trail.as_json(row)
        for name in ("table_uuid", "transaction_id"):
            facts[name] = None if facts[name] is None else str(facts[name])
        return cls(**facts)


class AuditPage(BaseModel):
    """A page that may hold fewer events than asked for, or none, while there is a next one."""

    events: list[AuditEventModel]
    next_page_token: str | None
