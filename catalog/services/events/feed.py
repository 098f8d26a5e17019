"""Event feed: changes of the catalog as CloudEvents 1.0, for programs that follow them.

The audit trail is the outbox: the transaction of a change writes its rows, so there is no event
without its commit, and no commit without its event. Readers follow it in the order (xid, id), up to
the oldest running transaction; whatever commits later has a higher position. Changes of one table
are ordered by their ``sequence``.

After the database is restored into another server, whose transaction ids are lower, readers continue
after their position by row id, because row ids are restored too.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from fnmatch import fnmatchcase
from typing import Any, Self

from django.conf import settings
from django.db import connection
from django.db.models import Q

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier, label
from catalog.models import AuditEvent, Namespace, Table
from catalog.models.audit import Outcome
from catalog.privileges import Privilege
from catalog.services.audit.names import visible_names
from catalog.services.tables import namespaces

TYPE_PREFIX = "monodon."
MEDIA = "application/cloudevents+json"
PAGE_SIZE = 100
MAX_PAGE = 1000
OF_DATA = (
    *("namespace.", "table.", "view.", "materialized_view.", "version.", "branch.", "tag."),
    *("index.", "function.", "maintenance."),
)
"""The beginnings of actions on data, in contrast to those on principals, keys, grants and rules."""
_LOOKED_AT = 2000
"""Maximum number of audit rows that one page reads, because matching events may be rare."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Position after an event of the stream; clients send it to continue from there."""

    xid: int
    event: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a position. Raises InvalidInput."""
        xid, _dash, event = text.partition("-")
        if not all(
            number.isascii() and number.isdigit() and len(number) < 20 for number in (xid, event)
        ):
            raise InvalidInput(f"{text!r} is not a position in the event stream; use an event's id")
        position = cls(int(xid), int(event))
        if max(position.xid, position.event) >= 1 << 63:
            raise InvalidInput(f"{text!r} is not a position in the event stream; use an event's id")
        return position

    def __str__(self) -> str:
        return f"{self.xid}-{self.event}"


BEGINNING = Position(0, 0)


@dataclass(frozen=True)
class EventFilter:
    """Filter of events by type and namespace."""

    types: tuple[str, ...] = ()
    """Patterns such as ``table.*``; empty: all types."""
    namespace: Identifier = ()
    """Events in this namespace and below it."""

    def __post_init__(self) -> None:
        for pattern in self.types:
            plain = pattern.replace("*", "").replace(".", "").replace("_", "")
            if not pattern or len(pattern) > 100 or (plain and not plain.isidentifier()):
                raise InvalidInput(
                    f"'{pattern}' is not an event type; use a type such as table.create, or table.*"
                )

    def matches(self, action: str) -> bool:
        return not self.types or any(fnmatchcase(action, pattern) for pattern in self.types)


@dataclass(frozen=True)
class Page:
    """Events in order, and the position to continue from; ``is_last``: no later events exist yet."""

    rows: list[AuditEvent]
    position: Position
    is_last: bool


def read(
    *,
    actor: Principal,
    after: Position | None = None,
    event_filter: EventFilter | None = None,
    limit: int | None = None,
) -> Page:
    """A page of the events after a position, by default of those from now on.

    A page may be shorter than ``limit``, or empty, before the last page. Principals with MANAGE on
    everything get all events. Others get events of data but not of governance, without the values
    before and after; unless they may browse everything, only events of tables that they may browse,
    under their present names if the former ones are hidden.
    Raises NamespaceNotFound, InvalidInput. Five statements at most.
    """
    event_filter = event_filter or EventFilter()
    if event_filter.namespace:
        namespaces.describe_namespace(actor=actor, namespace=event_filter.namespace)
    top = _horizon()
    start = after or _behind(top)
    ended = AuditEvent.objects.extra(where=["xid < %s::text::xid8"], params=[top])
    if start.xid > top:  # from the server that this database was restored from
        behind = ended.filter(pk__gt=start.event)
        start = _behind(top)
    else:
        behind = ended.extra(
            where=["(xid, id) > (%s::text::xid8, %s)"], params=[start.xid, start.event]
        )
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    behind = behind.order_by("xid", "pk")
    looked_at = list(behind.values_list("xid", "pk", "action", "outcome")[:_LOOKED_AT])
    matching = [
        pk
        for _, pk, action, outcome in looked_at
        if outcome == Outcome.DONE and event_filter.matches(action)
    ]
    rows = AuditEvent.objects.filter(pk__in=matching).filter(
        _where(event_filter), _visible_to(actor)
    )
    page_rows = sorted(rows, key=lambda row: (row.xid, row.pk))
    if not actor.holds_everywhere(Privilege.MANAGE):
        _remove_details(page_rows)
    if not actor.holds_everywhere(Privilege.BROWSE):
        _hide_former_names(actor, page_rows)
    if len(page_rows) > size:
        page_rows = page_rows[:size]
        return Page(page_rows, position_of(page_rows[-1]), is_last=False)
    last = Position(looked_at[-1][0], looked_at[-1][1]) if looked_at else start
    return Page(page_rows, last, is_last=len(looked_at) < _LOOKED_AT)


def _remove_details(rows: Sequence[AuditEvent]) -> None:
    """Remove the values of changes, which principals without MANAGE may not see."""
    for row in rows:
        row.before = row.after = None


def _hide_former_names(actor: Principal, rows: Sequence[AuditEvent]) -> None:
    """Replace names in namespaces that the actor may not browse by the present names of the tables."""
    visible = visible_names(actor, (row.target for row in rows))
    former = [row for row in rows if row.target not in visible]
    if not former:
        return
    tables = Table.objects.filter(uuid__in={row.table_uuid for row in former})
    present = {table.uuid: str(table) for table in tables.select_related("namespace")}
    for row in former:
        row.target = present.get(row.table_uuid, "") if row.table_uuid else ""


def newest_position() -> Position:
    """Position after all committed events. Running transactions come after it."""
    return _behind(_horizon())


def _behind(horizon: int) -> Position:
    return Position(horizon - 1, (1 << 63) - 1)


def position_of(row: AuditEvent) -> Position:
    return Position(row.xid, row.pk)


def as_cloud_event(row: AuditEvent) -> dict[str, Any]:
    """CloudEvents 1.0, section 3; ``sequence`` (an extension) orders the events of a table."""
    return {
        "specversion": "1.0",
        "id": str(position_of(row)),
        "source": settings.MONODON_URL,
        "type": TYPE_PREFIX + row.action,
        "subject": row.target,
        "time": row.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "sequence": str(row.pk),
        "data": {
            "actor": row.actor,
            "action": row.action,
            "target": row.target,
            "table_uuid": None if row.table_uuid is None else str(row.table_uuid),
            "before": row.before,
            "after": row.after,
            "transaction_id": None if row.transaction_id is None else str(row.transaction_id),
            "request_id": row.request_id,
        },
    }


def as_stream(rows: Sequence[AuditEvent]) -> Iterator[str]:
    """Server-sent events (HTML, section 9.2): a client that reconnects sends the last id."""
    for row in rows:
        text = json.dumps(as_cloud_event(row), separators=(",", ":"))
        yield f"id: {position_of(row)}\nevent: {TYPE_PREFIX}{row.action}\ndata: {text}\n\n"


def _where(event_filter: EventFilter) -> Q:
    if not event_filter.namespace:
        return Q()
    name = label(event_filter.namespace)
    path = (
        Namespace.objects.named(event_filter.namespace).values_list("ancestors", flat=True).first()
    )
    inside = Table.objects.filter(namespace__ancestors__contains=list(path or [])[-1:])
    of_tables = Q(table_uuid__in=inside.values("uuid"))
    return of_tables | Q(table_uuid=None) & (Q(target=name) | Q(target__startswith=name + "."))


def _visible_to(actor: Principal) -> Q:
    if actor.holds_everywhere(Privilege.MANAGE):
        return Q()
    of_data = Q()
    for noun in OF_DATA:
        of_data |= Q(action__startswith=noun)
    if actor.holds_everywhere(Privilege.BROWSE):
        return of_data
    return of_data & Q(
        table_uuid__in=Table.objects.filter(access.visible_tables(actor)).values("uuid")
    )


def _horizon() -> int:
    """The lowest id of a running transaction: all transactions with lower ids have ended."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        return int(cursor.fetchone()[0])
