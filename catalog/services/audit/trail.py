"""Reading the audit trail: searching it page by page, and exporting it as CSV or JSON lines.

No statement scans the whole trail, however large it is: without a suitable index a page scans a
limited number of rows and returns the position of the next page, even if it is empty itself. So a
search is complete when there is no next page.
"""

import csv
import io
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import orjson
from django.db.models import Max, Min, Q, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier, digest, label
from catalog.models import AuditEvent, Table
from catalog.privileges import Privilege
from catalog.services.audit.names import hide_names, visible_names
from catalog.services.engine import audit_records

PAGE_SIZE = 100
MAX_PAGE = 1000
SEARCHED = 200_000
"""The number of ids that a page scans without a suitable index."""
_BATCH = 2000
FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}
COLUMNS = (
    *(
        "id",
        "at",
        "actor",
        "action",
        "target",
        "outcome",
        "error",
        "interface",
        "key",
        "table_uuid",
    ),
    *("before", "after", "context", "request_id", "transaction_id", "xid"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The criteria of a search. All given criteria must match; without criteria every event does."""

    table: Identifier | None = None
    """All events of the table that has this name now, under any earlier name."""
    table_uuid: uuid.UUID | None = None
    target: str | None = None
    """A namespace or a table under its name at that time, with everything below it."""
    actor: str | None = None
    action: str | None = None
    interface: str | None = None
    outcome: str | None = None
    key: str | None = None
    request_id: str | None = None
    transaction_id: uuid.UUID | None = None
    text: str | None = None
    """A substring of the target, or the complete actor, key or request id."""
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""

    def __post_init__(self) -> None:
        for name in (
            "target",
            "actor",
            "action",
            "interface",
            "outcome",
            "key",
            "request_id",
            "text",
        ):
            if "\x00" in (getattr(self, name) or ""):
                raise InvalidInput(f"'{name}' must not contain a NUL character")

    @property
    def criteria(self) -> dict[str, str]:
        """The given criteria, as text for the audit trail."""
        criteria = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.table is not None:
            criteria["table"] = ".".join(self.table)
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in criteria.items()
            if value is not None
        }

    @property
    def has_index(self) -> bool:
        """True if an index leads to few rows, or to all matching rows in order."""
        if self.table or self.table_uuid or self.transaction_id:
            return True
        others = (self.target, self.action, self.interface, self.key, self.request_id, self.text)
        return not any(others) and not (self.actor and self.outcome)

    def rows(self, names: Collection[str] | None = None) -> QuerySet[AuditEvent]:
        """The matching events, unordered. Only ``names`` match the criteria for targets; None: all names."""
        rows = AuditEvent.objects.all()
        exact = ("table_uuid", "actor", "action", "interface", "outcome", "key", "request_id")
        values: dict[str, Any] = {name: getattr(self, name) for name in exact}
        values |= {"transaction_id": self.transaction_id}
        rows = rows.filter(**{name: value for name, value in values.items() if value is not None})
        if self.table is not None:
            uuids = Table.objects.filter(digest=digest(self.table)).values_list("uuid", flat=True)
            rows = rows.filter(table_uuid__in=list(uuids))
        is_shown = Q() if names is None else Q(target__in=names)
        if self.target is not None:
            is_target = Q(target=self.target) | Q(target__startswith=f"{self.target}.")
            rows = rows.filter(is_target, is_shown)
        if self.text is not None:
            columns = {"actor": self.text, "key": self.text, "request_id": self.text}
            is_equal = Q(*columns.items(), _connector=Q.OR)
            rows = rows.filter(Q(target__icontains=self.text) & is_shown | is_equal)
        if self.since is not None:
            rows = rows.filter(at__gte=self.since)
        return rows if self.until is None else rows.filter(at__lt=self.until)


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of events, the newest first. ``next_page_token`` None: this is the last page."""

    events: list[AuditEvent]
    next_page_token: str | None


def list_events(
    *, actor: Principal, search: Search, limit: int | None = None, page_token: str | None = None
) -> EventPage:
    """A page of the trail; it may have a next page even if it holds fewer events than the limit.

    The actor must hold MANAGE on the catalog, or on the table in the search, of which it does not see names
    in namespaces that it may not browse. Raises InvalidInput, PermissionDenied, TableNotFound.
    """
    _require(actor, search)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    before = _number(page_token) if page_token else None
    rows = search.rows(_shown_targets(actor, search))
    floor = 0
    if before is not None:
        rows = rows.filter(pk__lt=before)
    if not search.has_index:
        newest = before or (AuditEvent.objects.aggregate(top=Max("pk"))["top"] or 0) + 1
        floor = max(newest - SEARCHED, 0)
        rows = rows.filter(pk__gte=floor)
    page = list(rows.order_by("-pk")[: size + 1])
    if search.table is not None:
        hide_names(actor, page, label(search.table))
    if len(page) > size:
        return EventPage(page[:size], str(page[size - 1].pk))
    # No event is older than the oldest one that a retention left.
    oldest = AuditEvent.objects.aggregate(low=Min("pk"))["low"] if floor else None
    is_last = oldest is None or floor <= oldest
    return EventPage(page, None if is_last else str(floor))


def export(*, actor: Principal, search: Search, format: str) -> Iterator[bytes]:
    """The matching events that exist now, the oldest first, as a file in chunks.

    Records the criteria of the export in the audit trail. Raises as ``list_events``, and InvalidInput
    for a format that is not in FORMATS, before the first chunk.
    """
    if format not in FORMATS:
        raise InvalidInput(f"Format {format!r} is not known; use {' or '.join(FORMATS)}")
    _require(actor, search)
    ends = AuditEvent.objects.aggregate(low=Min("pk"), top=Max("pk"))
    audit_records.record(
        actor,
        "audit.export",
        "audit",
        after={"format": format, "search": search.criteria or "all"},
    )
    batches = _batches(actor, search, ends["low"] or 0, ends["top"] or 0)
    return _as_csv(batches) if format == "csv" else _as_json_lines(batches)


def _require(actor: Principal, search: Search) -> None:
    on = access.On.table(search.table) if search.table is not None else None
    access.require(actor, Privilege.MANAGE, on)


def _number(token: str) -> int:
    if not (token.isascii() and token.isdigit() and len(token) < 19):
        raise InvalidInput(f"Page token {token!r} is not one of this catalog")
    return int(token)


def _shown_targets(actor: Principal, search: Search) -> set[str] | None:
    """The targets that the search may reveal; None: all. Two statements at most."""
    if search.table is None or not (search.target or search.text):
        return None
    if actor.holds_everywhere(Privilege.BROWSE):
        return None
    targets = Search(table=search.table).rows().values_list("target", flat=True).distinct()
    return visible_names(actor, targets) | {label(search.table)}


def _batches(actor: Principal, search: Search, low: int, top: int) -> Iterator[list[AuditEvent]]:
    rows = search.rows(_shown_targets(actor, search)).order_by("pk")
    low -= 1
    while low < top:
        high = top if search.has_index else min(low + SEARCHED, top)
        batch = list(rows.filter(pk__gt=low, pk__lte=high)[:_BATCH])
        low = batch[-1].pk if len(batch) == _BATCH else high
        if search.table is not None:
            hide_names(actor, batch, label(search.table))
        if batch:
            yield batch


def as_json(row: AuditEvent) -> dict[str, Any]:
    """An event as a JSON object: every column, with times in UTC."""
    event = {name: getattr(row, name) for name in COLUMNS}
    event["at"] = row.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    event["xid"] = str(row.xid)
    return event


def _as_json_lines(batches: Iterable[list[AuditEvent]]) -> Iterator[bytes]:
    for batch in batches:
        yield b"".join(
            orjson.dumps(as_json(row), option=orjson.OPT_APPEND_NEWLINE) for row in batch
        )


def _as_csv(batches: Iterable[list[AuditEvent]]) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(COLUMNS)
    for batch in batches:
        writer.writerows([_cell(value) for value in as_json(row).values()] for row in batch)
        yield _drain(buffer)
    if remainder := _drain(buffer):
        yield remainder


def _drain(buffer: io.StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode()


def _cell(value: Any) -> str:
    """A cell that no spreadsheet interprets as a formula: an apostrophe precedes such a text."""
    if isinstance(value, Mapping | list):
        return orjson.dumps(value).decode()
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
