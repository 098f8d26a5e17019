"""The filters of the audit trail. Each declares its parameter, and ``search`` reads them all."""

import contextlib
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter, RangeDateFilter, TextFilter

from catalog.admin import cells
from catalog.admin.paging import word
from catalog.errors import InvalidIdentifier
from catalog.identifiers import typed
from catalog.models import AuditEvent, Table
from catalog.models.audit import Interface, Outcome
from catalog.services.audit.trail import Search
from catalog.services.engine.operation import Operation

_OTHER_ACTIONS = (
    *("api_key.create", "api_key.revoke", "transaction.alter"),
    *("function.create", "function.update", "function.drop"),
    *("audit.export", "audit.retention", "refusals.count"),
)


def actions(of: type[Operation] = Operation) -> set[str]:
    """Names of the actions of all operations."""
    own = {of.action} if hasattr(of, "action") else set()
    return own.union(*(actions(kind) for kind in of.__subclasses__()))


class _Choice(DropdownFilter):  # type: ignore[misc]
    def queryset(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent]
    ) -> QuerySet[AuditEvent]:
        return queryset


class ActionFilter(_Choice):
    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted(actions().union(_OTHER_ACTIONS))]


class InterfaceFilter(_Choice):
    title = "interface"
    parameter_name = "interface"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(Interface.choices)


class OutcomeFilter(_Choice):
    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(Outcome.choices)


class _Text(TextFilter):  # type: ignore[misc]
    def queryset(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent]
    ) -> QuerySet[AuditEvent]:
        return queryset


class ActorFilter(_Text):
    title = "actor"
    parameter_name = "actor"


class TargetFilter(_Text):
    title = "namespace or table, including contents"
    parameter_name = "target"


class KeyFilter(_Text):
    title = "API key"
    parameter_name = "key"


class RequestFilter(_Text):
    title = "request id"
    parameter_name = "request_id"


class TransactionFilter(_Text):
    title = "transaction id"
    parameter_name = "transaction"


class BeforeFilter(_Text):
    title = "events before id"
    parameter_name = "before"


class DateFilter(RangeDateFilter):  # type: ignore[misc]
    def queryset(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent]
    ) -> QuerySet[AuditEvent]:
        return queryset


def search(request: HttpRequest) -> Search | None:
    """The search that the parameters of the page describe; None if it cannot match any event."""
    values: dict[str, Any] = {
        name: word(request, name).strip() or None
        for name in ("action", "interface", "outcome", "actor", "target", "key", "request_id")
    }
    try:
        if transaction := word(request, "transaction").strip():
            values["transaction_id"] = uuid.UUID(transaction)
        if first := word(request, "at_from"):
            values["since"] = _midnight(first)
        if last := word(request, "at_to"):
            values["until"] = _midnight(last) + timedelta(days=1)
    except (ValueError, OverflowError):
        return None
    if term := word(request, "q").strip():
        values |= _searched(term)
    return Search(**values)


def _midnight(text: str) -> datetime:
    return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)


def _searched(term: str) -> dict[str, Any]:
    uuid_ = cells.as_uuid(term)
    if uuid_ is not None:
        return {"transaction_id" if uuid_.version == 7 else "table_uuid": uuid_}
    # The name of a table selects all of its events, however old.
    with contextlib.suppress(InvalidIdentifier):
        name = typed(term)
        if Table.objects.named(name).exists():
            return {"table": name}
    return {"text": term}
