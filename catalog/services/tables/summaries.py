"""The summaries of tables, from which long lists are sorted (``models.TableSummary``).

A periodic task follows the audit trail, so a commit costs nothing more and its table moves in the lists some
seconds later. A measurement updates the summary of its table itself.
"""

import time
from collections.abc import Collection, Mapping
from typing import Any

from django.db import connection, transaction

from catalog.models import TableSummary, TableSummaryCursor
from catalog.services.engine import locks

SECONDS = 20.0
"""Seconds after which a pass processes no more events."""
_MAX_EVENTS = 10_000  # in one transaction
_FILLED_AT_ONCE = 5_000  # tables, in one transaction
_LOCK_NAME = "table summaries"


def figures(score: int, statistics: Mapping[str, Any]) -> dict[str, int | None]:
    """The figures of a measurement; none if the table has no data or could not be measured."""
    if not statistics or "error" in statistics:
        return {"rows": None, "bytes": None, "score": None}
    return {"rows": statistics.get("rows"), "bytes": statistics.get("bytes"), "score": score}


def record_measurement(table: int, score: int, statistics: Mapping[str, Any]) -> None:
    """Set the figures of the table with this primary key, in the transaction of its measurement."""
    TableSummary.objects.filter(table=table).update(**figures(score, statistics))


def are_complete() -> bool:
    """True if every table that is not new has a summary."""
    return TableSummaryCursor.objects.filter(next_table=None).exists()


def update(*, seconds: float = SECONDS) -> int:
    """Follow the audit trail; returns the number of processed events.

    The first pass begins to enter all tables. Processes nothing more after ``seconds``, and does nothing if
    another pass is running.
    """
    with locks.advisory_lock(_LOCK_NAME) as is_alone:
        if not is_alone:
            return 0
        until = time.monotonic() + seconds
        _begin()
        while _fill() and time.monotonic() < until:
            pass
        events = 0
        while time.monotonic() < until:
            count = follow()
            events += count
            if count < _MAX_EVENTS:
                break
        return events


def _begin() -> None:
    """Set the cursor to the end of the audit trail, unless there is one."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO catalog_tablesummarycursor (id, xid, event, next_table)
            SELECT 1, (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8,
                9223372036854775807, 0
            ON CONFLICT (id) DO NOTHING
            """
        )


# A measurement updates the row itself: what this statement reads may be older.
_ENTER = """
    INSERT INTO catalog_tablesummary (table_id, name, rows, bytes, score, committed_at)
    SELECT t.id, left(array_to_string(array_append(n.path, t.name), '.'), 500),
        CASE WHEN jsonb_typeof(h.statistics->'rows') = 'number'
            THEN LEAST((h.statistics->>'rows')::numeric, 9223372036854775807)::bigint END,
        CASE WHEN jsonb_typeof(h.statistics->'bytes') = 'number'
            THEN LEAST((h.statistics->>'bytes')::numeric, 9223372036854775807)::bigint END,
        CASE WHEN h.statistics ? 'rows' THEN h.score END,
        v.created_at
    FROM catalog_table t
    JOIN catalog_namespace n ON n.id = t.namespace_id
    LEFT JOIN catalog_tablehealth h ON h.table_id = t.id AND h.is_newest
    LEFT JOIN LATERAL (
        SELECT created_at FROM catalog_tableversion
        WHERE table_id = t.id AND branch = '' AND deleted_at IS NULL
        ORDER BY version DESC LIMIT 1
    ) v ON true
    WHERE t.id = ANY(%s::bigint[]) AND t.state <> 'dropped'
    ORDER BY t.id
    ON CONFLICT (table_id) DO UPDATE SET name = excluded.name, committed_at = excluded.committed_at
    WHERE catalog_tablesummary.committed_at IS DISTINCT FROM excluded.committed_at
        OR catalog_tablesummary.name <> excluded.name
"""


def _fill() -> int:
    """Enter the next tables of a catalog that is older than its summaries; returns their number."""
    with transaction.atomic(), connection.cursor() as cursor:
        start = TableSummaryCursor.objects.values_list("next_table", flat=True).get()
        if start is None:
            return 0
        cursor.execute(
            "SELECT id FROM catalog_table WHERE id >= %s ORDER BY id LIMIT %s",
            [start, _FILLED_AT_ONCE],
        )
        tables = [pk for (pk,) in cursor.fetchall()]
        cursor.execute(_ENTER, [tables])
        following = tables[-1] + 1 if len(tables) == _FILLED_AT_ONCE else None
        TableSummaryCursor.objects.update(next_table=following)
        return len(tables)


def follow() -> int:
    """Update the summaries of the tables of the next audit events; returns the number of events.

    One transaction, so no event is lost.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        xid, event = TableSummaryCursor.objects.values_list("xid", "event").get()
        cursor.execute(
            """
            SELECT id, xid::text::bigint, table_uuid FROM catalog_auditevent
            WHERE (xid, id) > (%s::text::xid8, %s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
            ORDER BY xid, id LIMIT %s
            """,
            [str(xid), event, _MAX_EVENTS],
        )
        events = cursor.fetchall()
        if events:
            _refresh({uuid for _, _, uuid in events if uuid is not None})
            last, xid, _ = events[-1]
            TableSummaryCursor.objects.update(xid=xid, event=last)
        return len(events)


def _refresh(uuids: Collection[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, state = 'dropped' FROM catalog_table WHERE uuid = ANY(%s)", [list(uuids)]
        )
        rows = cursor.fetchall()
        cursor.execute(_ENTER, [[pk for pk, is_dropped in rows if not is_dropped]])
    dropped = [pk for pk, is_dropped in rows if is_dropped]
    TableSummary.objects.filter(table__in=dropped).delete()
