"""The terms of tables, by which long lists are filtered and searched (``models.TableTerms``).

A periodic task follows the audit trail, so a commit costs nothing more. A list evaluates the tables that changed
since the last pass by itself (``catalog.services.tables.candidates``), so it misses none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection

from catalog.models import TableTerms, TableTermsCursor
from catalog.services.tables.followers import Follower

SECONDS = 20.0
"""Seconds after which a pass processes no more events."""
LONGEST = 200
"""Characters of an owner or a label in a mark: entries of an index have a limited size."""


SCORES = 10
"""The number of scores of health that share a mark. The bounds of filters are multiples of it."""

FACETS = {"f": "format", "k": "kind", "s": "state", "o": "owner", "h": "health", "l": "label"}
"""The facet of a mark, by its first letter."""

# The marks of a table.


def of_format(value: str) -> str:
    return f"f:{value}"


def of_kind(value: str) -> str:
    return f"k:{value}"


def of_state(value: str) -> str:
    return f"s:{value}"


def of_owner(value: str) -> str:
    return f"o:{value}"[:LONGEST]


def inside(namespace: int) -> str:
    """The table is in this namespace or below it."""
    return f"n:{namespace}"


def directly_in(namespace: int) -> str:
    return f"i:{namespace}"


def of_score(score: int) -> str:
    return f"h:{score // SCORES}"


NOT_MEASURED = "h:-"


def of_label(key: str) -> str:
    return f"l:{key}"[:LONGEST]


def of_label_value(key: str, value: str) -> str:
    return f"v:{key}={value}"[:LONGEST]


# A measurement updates its mark itself: what this statement reads may be older.
_ENTER = """
    INSERT INTO catalog_tableterms (table_id, name, marks)
    SELECT t.id, t.name, m.marks
    FROM catalog_table t
    JOIN catalog_namespace n ON n.id = t.namespace_id
    LEFT JOIN catalog_tableterms e ON e.table_id = t.id
    LEFT JOIN catalog_tablehealth h ON h.table_id = t.id AND h.is_newest
    CROSS JOIN LATERAL (
        SELECT ARRAY['f:' || t.format, 'k:' || t.kind, 's:' || t.state, left('o:' || t.owner, %(longest)s),
                'i:' || t.namespace_id]
            || ARRAY(SELECT 'n:' || above FROM unnest(n.ancestors) above ORDER BY above)
            || CASE WHEN t.kind <> 'table' THEN '{}'::text[] ELSE ARRAY[coalesce(
                (SELECT mark FROM unnest(e.marks) mark WHERE mark LIKE 'h:%%' LIMIT 1),
                CASE WHEN h.statistics ? 'rows' THEN 'h:' || h.score / 10 ELSE 'h:-' END
            )] END
            || ARRAY(
                SELECT left(mark, %(longest)s) FROM catalog_labelassignment a
                JOIN catalog_labeldefinition d ON d.id = a.definition_id
                CROSS JOIN unnest(ARRAY['l:' || d.key, 'v:' || d.key || '=' || a.value]) mark
                WHERE a.table_id = t.id AND a."column" = '' GROUP BY 1 ORDER BY 1
            ) AS marks
    ) m
    WHERE t.id = ANY(%(tables)s::bigint[]) AND t.state <> 'dropped'
        AND (e.marks IS DISTINCT FROM m.marks OR e.name <> t.name)
    ORDER BY t.id
    ON CONFLICT (table_id) DO UPDATE SET name = excluded.name, marks = ARRAY(
        SELECT coalesce(
            (SELECT h FROM unnest(catalog_tableterms.marks) h WHERE mark LIKE 'h:%%' AND h LIKE 'h:%%'),
            mark
        ) FROM unnest(excluded.marks) WITH ORDINALITY AS m (mark, position) ORDER BY position
    )
"""


def _enter(tables: Sequence[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_ENTER, {"tables": list(tables), "longest": LONGEST})


def _remove(tables: Sequence[int]) -> None:
    TableTerms.objects.filter(table__in=tables).delete()


_FOLLOWER = Follower("table terms", TableTermsCursor, _enter, _remove)
are_complete = _FOLLOWER.are_complete


def update(*, seconds: float = SECONDS) -> int:
    """Follow the audit trail; returns the number of processed events."""
    return _FOLLOWER.update(seconds=seconds)


def record_measurement(table: int, score: int, statistics: Mapping[str, Any]) -> None:
    """Set the mark of the table with this primary key, in the transaction of its measurement."""
    mark = of_score(score) if "rows" in statistics else NOT_MEASURED
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE catalog_tableterms SET marks = ARRAY(
                SELECT CASE WHEN mark LIKE 'h:%%' THEN %(mark)s ELSE mark END
                FROM unnest(marks) WITH ORDINALITY AS m (mark, position) ORDER BY position
            )
            WHERE table_id = %(table)s AND NOT marks @> ARRAY[%(mark)s]
            """,
            {"table": table, "mark": mark},
        )
