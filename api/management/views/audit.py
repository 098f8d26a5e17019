"""The audit trail: searching it, and taking it along."""

import uuid
from typing import Any

from django.http import StreamingHttpResponse
from django.utils import timezone

from api.management.audit_messages import AuditEventModel, AuditPage
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.models.audit import Door, Outcome
from catalog.services.audit import trail as audit_trail

_MOMENT = {"type": "string", "format": "date-time"}
_DESCRIBED: dict[str, dict[str, Any]] = {
    "table": {
        "description": "All events of the table that has this name now; spelled as in a path.",
        "schema": {"type": "string"},
    },
    "target": {
        "description": "What it was called then, dotted, with all below it: prod.users.",
        "schema": {"type": "string"},
    },
    "actor": {"schema": {"type": "string"}},
    "action": {"description": "Such as version.create.", "schema": {"type": "string"}},
    "door": {"schema": {"type": "string", "enum": Door.values}},
    "outcome": {"schema": {"type": "string", "enum": Outcome.values}},
    "key": {"description": "The name of an API key.", "schema": {"type": "string"}},
    "request_id": {"schema": {"type": "string"}},
    "transaction": {"schema": {"type": "string", "format": "uuid"}},
    "since": {"schema": _MOMENT},
    "until": {"description": "Events before it.", "schema": _MOMENT},
    "format": {"schema": {"type": "string", "enum": list(audit_trail.FORMATS), "default": "csv"}},
}
_SEARCH = tuple(name for name in _DESCRIBED if name != "format")


class _AuditOperation(ManagementOperation):
    described = _DESCRIBED

    def search(self) -> audit_trail.Search:
        """What the parameters say. Raises InvalidInput."""
        words = ("target", "actor", "action", "key", "request_id")
        text: dict[str, Any] = {name: self.query_values.get(name) or None for name in words}
        for name, kind in (("door", Door), ("outcome", Outcome)):
            chosen = self.chosen(name, kind)
            if len(chosen) > 1:
                raise InvalidInput(f"Query parameter '{name}' takes one value")
            text[name] = chosen[0].value if chosen else None
        return audit_trail.Search(
            table=self.named("table"),
            transaction_id=self._transaction(),
            since=self.moment("since"),
            until=self.moment("until"),
            **text,
        )

    def _transaction(self) -> uuid.UUID | None:
        text = self.query_values.get("transaction")
        try:
            return uuid.UUID(text) if text else None
        except ValueError:
            raise InvalidInput(f"Query parameter 'transaction' is {text!r}; use a UUID") from None


class ListAudit(_AuditOperation):
    """Events of the audit trail, the newest first. Go on until there is no next_page_token."""

    response_model = AuditPage
    query = (*_SEARCH, "limit", "page_token")

    def handle(self, actor: Principal, body: None) -> AuditPage:
        events = audit_trail.list_events(actor=actor, search=self.search(), **self.page)
        return AuditPage(
            events=[AuditEventModel.of(row) for row in events.events],
            next_page_token=events.next_page_token,
        )


class ExportAudit(_AuditOperation):
    """All events that are found, the oldest first, as one file. The export is audited itself."""

    media = tuple(audit_trail.FORMATS.values())
    query = (*_SEARCH, "format")

    def handle(self, actor: Principal, body: None) -> StreamingHttpResponse:
        kind = self.query_values.get("format") or "csv"
        pieces = audit_trail.export(actor=actor, search=self.search(), format=kind)
        name = f"audit-{timezone.now():%Y%m%dT%H%M%SZ}.{kind}"
        return StreamingHttpResponse(
            pieces,
            content_type=audit_trail.FORMATS[kind],
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )
