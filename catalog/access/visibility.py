"""Conditions that limit a list to the objects that a principal may see.

A list adds them to its own statement, so that paging and counting stay exact.
"""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL

from catalog.access.authorization import identities
from catalog.access.principal import Principal
from catalog.identifiers import Identifier
from catalog.models import Grant, Namespace, Table
from catalog.privileges import Privilege

_TABLES = """
    SELECT t.id FROM catalog_table t JOIN catalog_namespace n ON n.id = t.namespace_id
    WHERE t.id = ANY(%(candidates)s::bigint[])
        AND (%(within)s::bigint IS NULL OR %(within)s::bigint = ANY(n.ancestors))
        AND (
            %(everywhere)s
            OR t.owner = ANY(%(names)s::text[])
            OR {above} & %(privilege)s <> 0
            OR EXISTS (
                SELECT FROM catalog_grant g WHERE g.table_id = t.id
                    AND g.principal_id = ANY(%(ids)s::bigint[]) AND g.mask & %(privilege)s <> 0
                    AND (g.expires_at IS NULL{or_later})
            )
        )
"""
_TABLES_NOW = _TABLES.format(
    above="monodon_held(%(ids)s::bigint[], %(names)s::text[], n.ancestors)",
    or_later=" OR g.expires_at > now()",
)
_TABLES_LASTING = _TABLES.format(
    above="""CASE WHEN EXISTS (
                SELECT FROM catalog_namespace a WHERE a.id = ANY(n.ancestors) AND a.owner = ANY(%(names)s::text[])
            ) THEN 127 ELSE coalesce((
                SELECT bit_or(mask) FROM catalog_grant
                WHERE principal_id = ANY(%(ids)s::bigint[]) AND namespace_id = ANY(n.ancestors)
                    AND expires_at IS NULL
            ), 0) END""",
    or_later="",
)


def readable_tables(actor: Principal, tables: Collection[int]) -> set[int]:
    """The tables among these, including dropped ones, that the actor may read.

    One statement at most.
    """
    return tables_with(actor, Privilege.READ, tables)


def tables_with(
    actor: Principal, privilege: Privilege, tables: Collection[int], *, lasting: bool = False
) -> set[int]:
    """The tables among these, including dropped ones, on which the actor holds a single privilege.

    With ``lasting``, grants that expire do not count. One statement at most.
    """
    own = set(tables) & set(actor.tables)
    if not tables or actor.holds_everywhere(privilege):
        return set(tables)
    if privilege not in actor.ceiling:
        return own
    parameters: dict[str, Any] = {
        "candidates": list(tables),
        "everywhere": privilege in actor.everywhere,
        "privilege": privilege.value,
    }
    with connection.cursor() as cursor:
        text = _TABLES_LASTING if lasting else _TABLES_NOW
        cursor.execute(text, {**identities(actor), **parameters})
        return own | {pk for (pk,) in cursor.fetchall()}


_READABLE_NAMESPACES = """
    SELECT n.id FROM catalog_namespace n
    WHERE n.id = ANY(%(asked)s::bigint[])
        AND (%(within)s::bigint IS NULL OR %(within)s::bigint = ANY(n.ancestors))
        AND (
            %(everywhere)s
            OR monodon_held(%(ids)s::bigint[], %(names)s::text[], n.ancestors) & %(read)s <> 0
        )
"""


def readable_namespaces(actor: Principal, namespaces: Collection[int]) -> set[int]:
    """Those of these namespaces, dropped ones too, that the actor may read. One statement at most."""
    if not namespaces or actor.holds_everywhere(Privilege.READ):
        return set(namespaces)
    if Privilege.READ not in actor.ceiling:
        return set()
    parameters: dict[str, Any] = {
        "asked": list(namespaces),
        "everywhere": Privilege.READ in actor.everywhere,
        "read": Privilege.READ.value,
    }
    with connection.cursor() as cursor:
        cursor.execute(_READABLE_NAMESPACES, {**identities(actor), **parameters})
        return {pk for (pk,) in cursor.fetchall()}


# The namespaces below those on which the actor holds something, computed once per statement: with an
# array of thousands of them, each row of a list would be compared with each.
_INSIDE = """
    SELECT id FROM catalog_namespace
    WHERE ancestors && (SELECT monodon_roots(%s::bigint[], %s::text[]))
"""


def visible_tables(actor: Principal, path: str = "") -> Q:
    """The condition that limits a list to the tables and views that the actor may browse.

    ``path`` is the lookup that leads to the table: ``"table__"`` in a list of jobs. The condition is
    evaluated entirely in the list's own statement.
    """
    condition = Q()
    if Privilege.BROWSE not in actor.everywhere:
        granted = Grant.objects.valid().filter(principal__in=actor.ids, table__isnull=False)
        condition = (
            Q(**{f"{path}namespace__in": _rows(_INSIDE, actor)})
            | Q(**{f"{path}owner__in": actor.names})
            | Q(**{f"{path}pk__in": granted.values("table")})
        )
        if actor.tables:
            condition |= Q(**{f"{path}pk__in": actor.tables})
    if Privilege.BROWSE not in actor.ceiling:
        condition = Q(**{f"{path}pk__in": []})
    if actor.within is not None:
        condition &= Q(**{f"{path}namespace__ancestors__contains": [actor.within]})
    return condition


def hidden_names(
    actor: Principal, namespaces: Collection[Identifier], tables: Collection[Identifier]
) -> frozenset[uuid.UUID]:
    """The digests of those of these names whose objects the actor may not see.

    Four statements at most; none if the actor may browse everything.
    """
    hidden: frozenset[uuid.UUID] = frozenset()
    if actor.holds_everywhere(Privilege.BROWSE):
        return hidden
    for rows, condition in (
        (Namespace.objects.named(*namespaces), visible_namespaces(actor)),
        (Table.objects.named(*tables), visible_tables(actor)),
    ):
        digests = frozenset(rows.values_list("digest", flat=True))
        if digests:
            hidden |= digests.difference(rows.filter(condition).values_list("digest", flat=True))
    return hidden


# Each branch of the union uses an index, unlike the condition of ``visible_tables``.
_VISIBLE = """
    SELECT id FROM (
        SELECT t.id FROM catalog_namespace n
        JOIN catalog_table t ON t.namespace_id = n.id AND t.state <> 'dropped'
        WHERE n.dropped_at IS NULL
            AND n.ancestors && (SELECT monodon_roots(%(ids)s::bigint[], %(names)s::text[]))
        UNION ALL
        SELECT id FROM catalog_table WHERE owner = ANY(%(names)s::text[]) AND state <> 'dropped'
        UNION ALL{dropped}
        SELECT table_id FROM catalog_grant
        WHERE principal_id = ANY(%(ids)s::bigint[]) AND table_id IS NOT NULL
            AND (expires_at IS NULL OR expires_at > now())
        UNION ALL
        SELECT unnest(%(tables)s::bigint[])
    ) visible LIMIT %(limit)s
"""
_VISIBLE_DROPPED = """
        SELECT t.id FROM catalog_namespace n
        JOIN catalog_table t ON t.namespace_id = n.id AND t.state = 'dropped'
        WHERE n.ancestors && (SELECT monodon_roots(%(ids)s::bigint[], %(names)s::text[]))
        UNION ALL
        SELECT id FROM catalog_table WHERE owner = ANY(%(names)s::text[]) AND state = 'dropped'
        UNION ALL"""


def few_visible_tables(
    actor: Principal, limit: int, *, with_dropped: bool = False
) -> list[int] | None:
    """The primary keys of a superset of the tables that the actor may browse; None if they may be more than
    the limit. Without dropped tables, unless they are requested.

    A list adds them to the condition of ``visible_tables``, so that the database need not evaluate this
    condition on every table of the catalog. One statement at most.
    """
    if Privilege.BROWSE in actor.everywhere:
        return None
    with connection.cursor() as cursor:
        text = _VISIBLE.format(dropped=_VISIBLE_DROPPED if with_dropped else "")
        cursor.execute(text, {**identities(actor), "limit": limit + 1})
        rows = cursor.fetchall()
    return sorted({pk for (pk,) in rows}) if len(rows) <= limit else None


@dataclass(frozen=True)
class Sources:
    """The sources of the visibility of tables, for an index of tables by namespace and owner."""

    is_everything: bool = False
    namespaces: Sequence[int] = ()
    """The actor may browse the tables in these namespaces and below them."""
    owners: Sequence[str] = ()
    tables: Sequence[int] = ()
    within: int | None = None
    """Of these tables, the actor may browse only those in this namespace or below it."""


_SOURCES = """
    SELECT monodon_roots(%(ids)s::bigint[], %(names)s::text[]), ARRAY(
        SELECT table_id FROM catalog_grant
        WHERE principal_id = ANY(%(ids)s::bigint[]) AND table_id IS NOT NULL
            AND (expires_at IS NULL OR expires_at > now())
        LIMIT %(limit)s
    ) || %(tables)s::bigint[]
"""


def visible_sources(actor: Principal, limit: int) -> Sources | None:
    """The condition of ``visible_tables`` in another form; None if the actor may browse nothing.

    With ``limit`` single tables or more, they are not all of them. One statement at most.
    """
    if Privilege.BROWSE not in actor.ceiling:
        return None
    if Privilege.BROWSE in actor.everywhere:
        return Sources(is_everything=True, within=actor.within)
    with connection.cursor() as cursor:
        cursor.execute(_SOURCES, {**identities(actor), "limit": limit})
        ((namespaces, tables),) = cursor.fetchall()
    return Sources(False, namespaces, list(actor.names), tables, actor.within)


def visible_contents(actor: Principal, path: str = "namespace__") -> Q:
    """The same condition for the other contents of namespaces: functions.

    ``path`` is the lookup that leads to the namespace. A namespace that the actor may only traverse
    shows no contents.
    """
    condition = Q()
    if Privilege.BROWSE not in actor.everywhere:
        condition = Q(**{f"{path}pk__in": _rows(_INSIDE, actor)})
    if Privilege.BROWSE not in actor.ceiling:
        condition = Q(pk__in=[])
    if actor.within is not None:
        condition &= Q(**{f"{path}ancestors__contains": [actor.within]})
    return condition


def visible_namespaces(actor: Principal, path: str = "") -> Q:
    """The same condition for namespaces, including those that the actor may only traverse."""
    pk = f"{path}pk"
    condition = Q()
    if Privilege.BROWSE not in actor.everywhere:
        traversable = RawSQL(
            "SELECT unnest(monodon_passages(%s::bigint[], %s::text[], %s::bigint[]))",
            [list(actor.ids), list(actor.names), list(actor.tables)],
        )
        condition = Q(**{f"{pk}__in": _rows(_INSIDE, actor)}) | Q(**{f"{pk}__in": traversable})
    if actor.within is not None:
        ancestors = RawSQL(
            "SELECT unnest(ancestors) FROM catalog_namespace WHERE id = %s", [actor.within]
        )
        inside = Q(**{f"{path}ancestors__contains": [actor.within]})
        condition = (condition & inside) | Q(**{f"{pk}__in": ancestors})
    return condition


def _rows(text: str, actor: Principal) -> RawSQL:
    return RawSQL(text, [list(actor.ids), list(actor.names)])  # noqa: S611 -- no input in the text
