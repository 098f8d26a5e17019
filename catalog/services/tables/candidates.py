"""The tables that match the terms of a list, by the index of ``models.TableTerms``.

The terms are some seconds old. Tables that changed since then are in ``Fresh.tables``: the list evaluates its
own condition on them, and ignores their terms.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from catalog import access
from catalog.access import Principal
from catalog.services.tables import terms

MOST = 150_000
"""The largest number of tables that are read. A list with more matches follows an index."""
SMALL_CATALOG = 20_000
"""Number of tables up to which a list reads all tables."""
_MOST_FRESH = 5_000
_GRAMS = 64
"""Parts of a search term that are looked up; the term as a whole is compared with the results."""


def array(ids: Sequence[int]) -> str:
    """The literal of an array of these numbers. Django and psycopg would convert each number by itself."""
    return f"{{{','.join(map(str, ids))}}}"


@dataclass(frozen=True)
class Terms:
    """The condition of a list: all of these marks, one of each group of marks, and a part of the name.

    It must be equivalent to the condition of the list, for tables that are not dropped.
    """

    all_of: Sequence[str] = ()
    one_of_each: Sequence[Sequence[str]] = ()
    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.all_of or self.one_of_each or self.name)


@dataclass(frozen=True)
class Fresh:
    """Primary keys of the tables whose terms or summary may be out of date."""

    tables: Sequence[int]


_FRESH = """
    WITH passed AS (
        SELECT xid, event FROM (
            SELECT xid, event FROM catalog_tabletermscursor
            UNION ALL SELECT xid, event FROM catalog_tablesummarycursor
        ) cursors
        ORDER BY xid, event LIMIT 1
    ), changed AS MATERIALIZED (
        SELECT table_uuid FROM catalog_auditevent e, passed
        WHERE (e.xid, e.id) > (passed.xid, passed.event) LIMIT %(most)s
    )
    SELECT (SELECT count(*) FROM changed), ARRAY(
        SELECT DISTINCT t.id FROM changed JOIN catalog_table t ON t.uuid = changed.table_uuid
    )
    FROM catalog_tabletermscursor terms, catalog_tablesummarycursor summaries
    WHERE terms.next_table IS NULL AND summaries.next_table IS NULL
        AND (SELECT reltuples FROM pg_class WHERE oid = 'catalog_table'::regclass) > %(small)s
"""


def fresh() -> Fresh | None:
    """The tables that changed since the last passes; None if the terms cannot be used. One statement.

    They cannot be used if tables have none yet, and if too many changes are ahead of them. A small catalog does
    not need them.
    """
    with connection.cursor() as cursor:
        cursor.execute(_FRESH, {"most": _MOST_FRESH, "small": SMALL_CATALOG})
        row = cursor.fetchone()
    if row is None or row[0] == _MOST_FRESH:
        return None
    return Fresh(row[1])


@dataclass(frozen=True)
class Reach:
    """The tables that an actor may browse: those with all marks and one of each group, and single tables."""

    all_of: Sequence[str] = ()
    one_of_each: Sequence[Sequence[str]] = ()
    tables: Sequence[int] = ()

    @property
    def is_everything(self) -> bool:
        return not (self.all_of or self.one_of_each)


def reach(actor: Principal) -> Reach | None:
    """What the actor may browse; None if it may browse nothing, or too many single tables.

    One statement at most.
    """
    sources = access.visible_sources(actor, _MOST_FRESH)
    if sources is None or len(sources.tables) >= _MOST_FRESH:
        return None
    within = () if sources.within is None else (terms.inside(sources.within),)
    if sources.is_everything:
        return Reach(within)
    marks = [*map(terms.inside, sources.namespaces), *map(terms.of_owner, sources.owners)]
    return Reach(within, (marks,), sources.tables)


@contextmanager
def by_index() -> Iterator[CursorWrapper]:
    """A cursor whose statements read no table as a whole if an index serves. Three further statements."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        yield cursor
        cursor.execute("SET LOCAL enable_seqscan = on")  # the transaction may be an outer one


def read(condition: Terms, actor_reach: Reach, ignored: Sequence[int]) -> list[int] | None:
    """The tables that match and that the actor may browse, without the ignored ones; None if more than MOST.

    Tables in ``Reach.tables`` are not among them, unless a mark admits them.
    """
    all_of = [*condition.all_of, *actor_reach.all_of]
    groups = [*condition.one_of_each, *actor_reach.one_of_each]
    conditions: list[str] = []
    parameters: list[Any] = []
    if all_of:
        conditions.append("marks @> %s::text[]")
        parameters.append(all_of)
    for group in groups:
        conditions.append("marks && %s::text[]")
        parameters.append(list(group))
    if condition.name:
        conditions.append(
            "monodon_grams(name) @> ARRAY(SELECT DISTINCT substr(term, first, least(3, length(term)))"
            " FROM (SELECT upper(%s) AS term) searched,"
            " generate_series(1, least(greatest(length(term) - 2, 1), %s)) first)"
            " AND upper(name) LIKE upper(%s)"
        )
        escaped = connection.ops.prep_for_like_query(condition.name)
        parameters += [condition.name, _GRAMS, f"%{escaped}%"]
    # PostgreSQL assumes that marks are independent, and would scan all tables for two frequent marks that
    # no table has both.
    with by_index() as cursor:
        cursor.execute(
            "SELECT ARRAY(SELECT table_id FROM catalog_tableterms WHERE"  # noqa: S608 -- no input in the text
            f" {' AND '.join(conditions)} LIMIT {MOST + 1})",
            parameters,
        )
        ((tables,),) = cursor.fetchall()
    if len(tables) > MOST:
        return None
    unwanted = set(ignored)
    return [pk for pk in tables if pk not in unwanted] if unwanted else tables
