"""Lists of tables in catalogs of any size: the matching tables, their number, and counts of their values.

A list with few matches is exact: the matches are read, sorted and counted. If they are more than
``EXACT``, a page is read along an index, and numbers are estimated from a sample. Both consider only rows that
the given condition admits, so nobody learns of tables that they may not browse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import F, Q, QuerySet
from django.db.models.expressions import RawSQL

from catalog import access
from catalog.access import Principal
from catalog.models import Table

EXACT = 10_000
"""The number of matching tables up to which a list is exact."""
_SAMPLED_BLOCKS = 100  # of PostgreSQL, with about 40 tables each
_VALUES = 8
"""The number of values of each facet, the most frequent ones."""


@dataclass(frozen=True)
class Matches:
    """The tables that match a list's filters: all of them, or a sample."""

    ids: Sequence[int]
    weight: float = 1.0
    """The number of tables that each of the ids stands for."""
    is_estimate: bool = False

    @property
    def total(self) -> int:
        """The number of matching tables, rounded if it is an estimate."""
        return self.scaled(len(self.ids), least=EXACT + 1)

    def scaled(self, count: int, least: int = 1) -> int:
        """The number of tables that this number of ids stands for, at least ``least`` if it is an estimate."""
        if not self.is_estimate:
            return count
        number = max(round(count * self.weight), least)
        return int(round(number, 2 - len(str(number)))) if number >= 100 else number

    @cached_property
    def condition(self) -> Q:
        return among(self.ids)


def among(ids: Sequence[int]) -> Q:
    """The condition that a row's primary key is one of these. One parameter, however many they are."""
    return Q(pk__in=RawSQL("SELECT unnest(%s::bigint[])", [list(ids)]))


def narrowed(actor: Principal, rows: QuerySet[Table]) -> QuerySet[Table]:
    """The same rows, which must not include dropped tables, with a faster condition if the actor may browse few.

    One statement at most.
    """
    few = access.few_visible_tables(actor, EXACT)
    return rows if few is None else rows.filter(among(few))


def matches(rows: QuerySet[Table]) -> Matches:
    """The matching tables, or a sample if they are more than EXACT. One statement, or four."""
    rows = rows.order_by()
    ids = list(rows.values_list("pk", flat=True)[: EXACT + 1])
    if len(ids) <= EXACT:
        return Matches(ids)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_relation_size('catalog_table') / current_setting('block_size')::int"
        )
        ((blocks,),) = cursor.fetchall()
        percent = min(100.0, 100.0 * _SAMPLED_BLOCKS / max(blocks, 1))
        # Not as a subquery: PostgreSQL would scan all tables, and look each of them up in the sample.
        cursor.execute(
            "SELECT id FROM catalog_table TABLESAMPLE SYSTEM (%s) REPEATABLE (1)", [percent]
        )
        sample = [pk for (pk,) in cursor.fetchall()]
    sampled = list(rows.filter(among(sample)).values_list("pk", flat=True))
    return Matches(sampled, 100.0 / percent, is_estimate=True)


@dataclass(frozen=True)
class FacetValue:
    """A value of a facet, with the number of matching tables that have it."""

    facet: str
    value: str
    count: int


_FACETS = """
    WITH matching AS MATERIALIZED (
        SELECT t.id, t.format, t.kind, t.state, t.owner
        FROM unnest(%(ids)s::bigint[]) AS chosen (id) JOIN catalog_table t ON t.id = chosen.id
    ), counted AS (
        SELECT 'format' AS facet, format AS value, count(*) FROM matching GROUP BY format
        UNION ALL SELECT 'kind', kind, count(*) FROM matching GROUP BY kind
        UNION ALL SELECT 'state', state, count(*) FROM matching GROUP BY state
        UNION ALL SELECT 'owner', owner, count(*) FROM matching WHERE owner <> '' GROUP BY owner
        UNION ALL
        SELECT 'health', CASE
                WHEN h.statistics IS NULL OR NOT h.statistics ? 'rows' THEN 'unknown'
                WHEN h.score < %(fair)s THEN 'poor' WHEN h.score < %(good)s THEN 'fair'
                ELSE 'good' END AS grade,
            count(*)
        FROM matching m LEFT JOIN catalog_tablehealth h ON h.table_id = m.id AND h.is_newest
        WHERE m.kind = 'table' GROUP BY grade
        UNION ALL
        SELECT 'label', d.key, count(DISTINCT m.id)
        FROM matching m
        JOIN catalog_labelassignment a ON a.table_id = m.id AND a."column" = ''
        JOIN catalog_labeldefinition d ON d.id = a.definition_id
        GROUP BY d.key
    ), ranked AS (
        SELECT facet, value, count, row_number() OVER (PARTITION BY facet ORDER BY count DESC, value) AS rank
        FROM counted
    )
    SELECT facet, value, count FROM ranked WHERE rank <= %(values)s ORDER BY facet, rank
"""


def facets(matching: Matches, *, fair: int, good: int) -> list[FacetValue]:
    """The most frequent values of each facet, the most frequent first. One statement.

    ``fair`` and ``good`` are the lowest scores of these grades of health.
    """
    parameters: dict[str, Any] = {
        "ids": list(matching.ids),
        "values": _VALUES,
        "fair": fair,
        "good": good,
    }
    with connection.cursor() as cursor:
        cursor.execute(_FACETS, parameters)
        rows: list[tuple[str, str, int]] = cursor.fetchall()
    return [FacetValue(facet, value, matching.scaled(count)) for facet, value, count in rows]


@dataclass(frozen=True)
class Order:
    """The order of a list: by a field or an annotation of the rows, which lists of few tables use, and by an
    indexed column, which lists of many tables use.
    """

    exact: Any
    indexed: str = ""
    """Empty: by creation."""
    is_nullable: bool = False
    """Rows without the value are last in both directions."""


def page(
    rows: QuerySet[Table],
    matching: Matches,
    order: Order,
    *,
    is_descending: bool,
    start: int,
    count: int,
) -> list[int]:
    """The primary keys of a page of the matching rows. One statement, or three."""
    if not matching.is_estimate:
        chosen = Table.objects.filter(matching.condition).annotate(sort_key=order.exact)
        key = F("sort_key")
        by_key = key.desc(nulls_last=True) if is_descending else key.asc(nulls_last=True)
        ordered = chosen.order_by(by_key, "-pk" if is_descending else "pk")
        return list(ordered.values_list("pk", flat=True)[start : start + count])
    sign = "-" if is_descending else ""
    if not order.indexed.startswith("summary__"):
        by = [f"{sign}{order.indexed}"] if order.indexed else []
        return _keys(rows.order_by(*by, f"{sign}pk"), start, count)
    key = F(order.indexed)
    if not order.is_nullable:
        by_key = key.desc() if is_descending else key.asc()
    else:  # the index read backwards begins with the rows without the value
        by_key = key.desc(nulls_last=True) if is_descending else key.asc(nulls_first=True)
    valued = rows.filter(**{f"{order.indexed}__isnull": False})
    chosen_keys = _keys(valued.order_by(by_key, f"{sign}pk"), start, count)
    if len(chosen_keys) < count:
        before = start and valued.order_by()[: start + count].count()
        # Also rows without a summary: dropped ones, and new ones.
        without = rows.filter(**{f"{order.indexed}__isnull": True}).order_by(f"{sign}pk")
        skipped = max(start - before, 0)
        chosen_keys += _keys(without, skipped, count - len(chosen_keys))
    return chosen_keys


def _keys(rows: QuerySet[Table], start: int, count: int) -> list[int]:
    return list(rows.values_list("pk", flat=True)[start : start + count])
