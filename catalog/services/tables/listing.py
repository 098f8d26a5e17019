"""Lists of tables in catalogs of any size: the matching tables, their number, and counts of their values.

A list with few matches is exact: the matches are read, sorted and counted. Numbers of more matches than
``EXACT`` are estimated from a sample, and a page of them

- is read from the sorted matches, if they are less than a tenth of the tables (``candidates``);
- follows an index otherwise, which meets a match at least at every tenth table, as a rule.

All consider only rows that the given condition admits, so nobody learns of tables that they may not browse.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import BooleanField, F, Func, Q, QuerySet, TextField, Value

from catalog import access
from catalog.access import Principal
from catalog.models import Table
from catalog.services.tables import candidates
from catalog.services.tables.candidates import Terms

EXACT = 10_000
"""The number of matching tables up to which a list is exact."""
_SAMPLED_BLOCKS = 100  # of PostgreSQL, with about 40 tables each
_SAMPLED_CANDIDATES = 1_000
_FREQUENT = 0.1
"""Share of the tables from which on a list follows an index."""


@dataclass(frozen=True)
class Matches:
    """The tables that match a list's filters: all of them, or a sample."""

    ids: Sequence[int]
    weight: float = 1.0
    """The number of tables that each of the ids stands for."""
    is_estimate: bool = False
    all_ids: Sequence[int] | None = None
    """If the ids are a sample: all matching tables, as of some seconds ago; None if they are too many."""
    without_terms: frozenset[int] | None = None
    """The tables whose terms and summary may be out of date; None: all."""
    catalog_size: float = 0.0
    """The number of tables of the catalog, roughly, if ``without_terms`` is set."""
    are_all: bool = False
    """True if all tables match that are not dropped."""

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
    def are_up_to_date(self) -> bool:
        """True if the terms and summaries of the tables are known to be of this moment."""
        return self.without_terms is not None and self.without_terms.isdisjoint(self.ids)

    @cached_property
    def condition(self) -> Q:
        return among(self.ids)


class _Among(Func):
    """A number is an element of an array."""

    arg_joiner = " = ANY("
    template = "(%(expressions)s::bigint[]))"
    output_field = BooleanField()


def among(ids: Sequence[int]) -> Q:
    """The condition that a row's primary key is one of these. One parameter, however many they are.

    Not a subquery: PostgreSQL might read all rows that meet another condition, and compare them.
    """
    return Q(_Among(F("pk"), Value(candidates.array(ids), output_field=TextField())))


def narrowed(actor: Principal, rows: QuerySet[Table]) -> QuerySet[Table]:
    """The same rows, which must not include dropped tables, with a faster condition if the actor may browse few.

    One statement at most.
    """
    few = access.few_visible_tables(actor, EXACT)
    return rows if few is None else rows.filter(among(few))


def matches(rows: QuerySet[Table], actor: Principal, condition: Terms | None = None) -> Matches:
    """The matching tables, or a sample if they are more than EXACT. One statement, or at most ten.

    ``condition`` are the terms to which the filters of the rows are equivalent, without the condition that
    the actor may browse them; None if there are no such terms.
    """
    rows = rows.order_by()
    reach = None if condition is None else candidates.reach(actor)
    if condition is None or reach is None:
        return _scanned(rows)
    if reach.is_everything and not condition:
        return replace(_scanned(rows), are_all=True)
    changed = candidates.fresh()
    if changed is None:
        return _scanned(rows)
    sample = _sample()
    estimate = sample.matches(rows)
    # A sample is empty if the table has many pages without rows.
    if not sample.ids or len(estimate.ids) >= _FREQUENT * len(sample.ids):
        return _scanned(rows, estimate)
    # The terms of these tables do not say whether they match.
    singly = [*changed.tables, *reach.tables]
    ids = candidates.read(condition, reach, singly)
    if ids is None:
        return estimate
    if singly:
        ids += rows.filter(among(singly)).values_list("pk", flat=True)
    without_terms = frozenset(changed.tables)
    is_estimate = len(ids) > EXACT
    chosen = ids[:: -(-len(ids) // _SAMPLED_CANDIDATES)] if is_estimate else ids
    checked: Sequence[int] = chosen
    if not reach.is_everything:
        checked = list(rows.filter(among(chosen)).values_list("pk", flat=True))
    return Matches(
        checked,
        len(ids) / len(chosen) if is_estimate else 1.0,
        is_estimate=is_estimate,
        all_ids=ids if is_estimate else None,
        without_terms=without_terms,
        catalog_size=len(sample.ids) * sample.weight,
    )


def _scanned(rows: QuerySet[Table], estimate: Matches | None = None) -> Matches:
    """The matching tables without the help of terms, or an estimate if they are more than EXACT.

    One statement, or four if the estimate is not given.
    """
    ids = list(rows.values_list("pk", flat=True)[: EXACT + 1])
    if len(ids) <= EXACT:
        return Matches(ids)
    return _sample().matches(rows) if estimate is None else estimate


@dataclass(frozen=True)
class _Sample:
    ids: Sequence[int]
    weight: float

    def matches(self, rows: QuerySet[Table]) -> Matches:
        sampled = list(rows.filter(among(self.ids)).values_list("pk", flat=True))
        return Matches(sampled, self.weight, is_estimate=True)


def _sample() -> _Sample:
    """A sample of all tables. Two statements."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_relation_size('catalog_table') / current_setting('block_size')::int"
        )
        ((blocks,),) = cursor.fetchall()
        percent = min(100.0, 100.0 * _SAMPLED_BLOCKS / max(blocks, 1))
        # Not as a subquery: PostgreSQL would scan all tables, and look each of them up in the sample.
        cursor.execute(
            "SELECT ARRAY(SELECT id FROM catalog_table TABLESAMPLE SYSTEM (%s) REPEATABLE (1))",
            [percent],
        )
        ((ids,),) = cursor.fetchall()
    return _Sample(ids, 100.0 / percent)


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

    @property
    def is_in_summary(self) -> bool:
        return self.indexed.startswith("summary__")


def page(
    rows: QuerySet[Table],
    matching: Matches,
    order: Order,
    *,
    is_descending: bool,
    start: int,
    count: int,
) -> list[int]:
    """The primary keys of a page of the matching rows. One statement, or at most four."""
    ids = matching.all_ids
    if not matching.is_estimate and matching.are_up_to_date:
        ids = matching.ids
    if ids is not None:
        return _sorted(matching, ids, order, is_descending=is_descending, start=start, count=count)
    if not matching.is_estimate:
        chosen = Table.objects.filter(matching.condition).annotate(sort_key=order.exact)
        key = F("sort_key")
        by_key = key.desc(nulls_last=True) if is_descending else key.asc(nulls_last=True)
        ordered = chosen.order_by(by_key, "-pk" if is_descending else "pk")
        return list(ordered.values_list("pk", flat=True)[start : start + count])
    if matching.are_all and order.is_in_summary:
        # Without the tables, which would be looked up for each row before the page.
        keys = _in_order(order, None, is_descending=is_descending, start=start, count=count)
        if len(keys) == count:
            return keys
    sign = "-" if is_descending else ""
    if not order.is_in_summary:
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


_LOOK_UP = 10
"""Cost of looking up a row, in entries of an index that are read in their order."""
_SORTED = """
    SELECT ARRAY(
        SELECT chosen.id FROM unnest(%s::bigint[]) AS chosen (id)
        LEFT JOIN {table} ON {table}.{key} = chosen.id
        ORDER BY {table}.{column} {direction} NULLS LAST, chosen.id {direction}
        LIMIT {limit} OFFSET {offset}
    )
"""
# With "+ 0" PostgreSQL reads no other index than that of the order, and looks the entries up in a hash table.
_IN_ORDER = """
    SELECT ARRAY(
        SELECT {key} FROM {table} WHERE {column} IS NOT NULL {condition} {chosen}
        ORDER BY {column} {direction} {nulls}, {key} {direction} LIMIT {limit} OFFSET {offset}
    )
"""


def _sorted(
    matching: Matches,
    ids: Sequence[int],
    order: Order,
    *,
    is_descending: bool,
    start: int,
    count: int,
) -> list[int]:
    """The primary keys of a page of these tables, in the order that an index has. Eight statements at most."""
    if not order.indexed:
        return sorted(ids, reverse=is_descending)[start : start + count]
    entries = (start + count) * matching.catalog_size / max(len(ids), 1)
    # The tables may be anywhere in the index, so a few are looked up.
    if matching.is_estimate and entries < len(ids) * _LOOK_UP:
        keys = _in_order(order, ids, is_descending=is_descending, start=start, count=count)
        if len(keys) == count:
            return keys
    names = _names(order, is_descending=is_descending, start=start, count=count)
    with candidates.by_index() as cursor:
        cursor.execute(_SORTED.format(**names), [candidates.array(ids)])
        ((page_keys,),) = cursor.fetchall()
    return list(page_keys)


def _in_order(
    order: Order, ids: Sequence[int] | None, *, is_descending: bool, start: int, count: int
) -> list[int]:
    """The primary keys of a page of these tables, or of all, without those that lack the sort key.

    Reads the index of the order up to the page. Four statements.
    """
    names = _names(order, is_descending=is_descending, start=start, count=count)
    chosen = "" if ids is None else f"AND {names['key']} + 0 = ANY(%s::bigint[])"
    # An index of a nullable column read backwards begins with the rows without the value.
    last = is_descending == order.is_nullable
    statement = _IN_ORDER.format(
        **names,
        chosen=chosen,
        condition="" if names["key"] == "table_id" else "AND state <> 'dropped'",
        nulls="NULLS LAST" if last else "NULLS FIRST",
    )
    with candidates.by_index() as cursor:
        cursor.execute(statement, [] if ids is None else [candidates.array(ids)])
        ((page_keys,),) = cursor.fetchall()
    return list(page_keys)


def _names(order: Order, *, is_descending: bool, start: int, count: int) -> dict[str, str]:
    """The names and numbers of the statement of an order, none of which is input."""
    _, in_summary, column = order.indexed.rpartition("summary__")
    return {
        "table": "catalog_tablesummary" if in_summary else "catalog_table",
        "key": "table_id" if in_summary else "id",
        "column": connection.ops.quote_name(column),
        "direction": "DESC" if is_descending else "ASC",
        "limit": str(count),
        "offset": str(start),
    }


def _keys(rows: QuerySet[Table], start: int, count: int) -> list[int]:
    return list(rows.values_list("pk", flat=True)[start : start + count])
