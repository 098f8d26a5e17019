"""The summaries of tables, from which long lists are sorted (``models.TableSummary``).

A periodic task follows the audit trail, so a commit costs nothing more and its table moves in the lists some
seconds later. A measurement updates the summary of its table itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection

from catalog.models import TableSummary, TableSummaryCursor
from catalog.services.tables.followers import Follower

SECONDS = 20.0
"""Seconds after which a pass processes no more events."""


def figures(score: int, statistics: Mapping[str, Any]) -> dict[str, int | None]:
    """The figures of a measurement; none if the table has no data or could not be measured."""
    if not statistics or "error" in statistics:
        return {"rows": None, "bytes": None, "score": None}
    return {"rows": statistics.get("rows"), "bytes": statistics.get("bytes"), "score": score}


def record_measurement(table: int, score: int, statistics: Mapping[str, Any]) -> None:
    """Set the figures of the table with this primary key, in the transaction of its measurement."""
    TableSummary.objects.filter(table=table).update(**figures(score, statistics))


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


def _enter(tables: Sequence[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_ENTER, [list(tables)])


def _remove(tables: Sequence[int]) -> None:
    TableSummary.objects.filter(table__in=tables).delete()


_FOLLOWER = Follower("table summaries", TableSummaryCursor, _enter, _remove)
are_complete = _FOLLOWER.are_complete
follow = _FOLLOWER.follow


def update(*, seconds: float = SECONDS) -> int:
    """Follow the audit trail; returns the number of processed events."""
    return _FOLLOWER.update(seconds=seconds)
