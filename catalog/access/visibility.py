"""Conditions by which a list shows only what a principal may see.

A list adds them to its own statement, so that paging and counting stay exact.
"""

from collections.abc import Collection
from typing import Any

from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL

from catalog.access.authorization import identities
from catalog.access.principal import Principal
from catalog.models import Grant
from catalog.privileges import Privilege

_READABLE = """
    SELECT t.id FROM catalog_table t JOIN catalog_namespace n ON n.id = t.namespace_id
    WHERE t.id = ANY(%(asked)s::bigint[])
        AND (%(within)s::bigint IS NULL OR %(within)s::bigint = ANY(n.ancestors))
        AND (
            %(everywhere)s
            OR t.owner = ANY(%(names)s::text[])
            OR monodon_held(%(ids)s::bigint[], %(names)s::text[], n.ancestors) & %(read)s <> 0
            OR EXISTS (
                SELECT FROM catalog_grant g WHERE g.table_id = t.id
                    AND g.principal_id = ANY(%(ids)s::bigint[]) AND g.mask & %(read)s <> 0
            )
        )
"""


def readable_tables(actor: Principal, tables: Collection[int]) -> set[int]:
    """Those of these tables, dropped ones too, that the actor may read. One statement at most."""
    found = set(tables) & set(actor.tables)
    if not tables or actor.holds_everywhere(Privilege.READ):
        return set(tables)
    if Privilege.READ not in actor.ceiling:
        return found
    asked: dict[str, Any] = {
        "asked": list(tables),
        "everywhere": Privilege.READ in actor.everywhere,
        "read": Privilege.READ.value,
    }
    with connection.cursor() as cursor:
        cursor.execute(_READABLE, {**identities(actor), **asked})
        return found | {pk for (pk,) in cursor.fetchall()}


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


# What is below the namespaces on which something is held, asked once for a statement: with an array
# of thousands of them, each row of a list would be compared with each.
_INSIDE = """
    SELECT id FROM catalog_namespace
    WHERE ancestors && (SELECT monodon_roots(%s::bigint[], %s::text[]))
"""


def visible_tables(actor: Principal, path: str = "") -> Q:
    """The condition by which a list shows the tables, and views, that the actor may browse.

    ``path`` is the lookup that leads to the table: ``"table__"`` in a list of jobs. Everything of
    it is decided in the list's own statement.
    """
    found = Q()
    if Privilege.BROWSE not in actor.everywhere:
        granted = Grant.objects.filter(principal__in=actor.ids, table__isnull=False)
        found = (
            Q(**{f"{path}namespace__in": _rows(_INSIDE, actor)})
            | Q(**{f"{path}owner__in": actor.names})
            | Q(**{f"{path}pk__in": granted.values("table")})
        )
        if actor.tables:
            found |= Q(**{f"{path}pk__in": actor.tables})
    if Privilege.BROWSE not in actor.ceiling:
        found = Q(**{f"{path}pk__in": []})
    if actor.within is not None:
        found &= Q(**{f"{path}namespace__ancestors__contains": [actor.within]})
    return found


def visible_contents(actor: Principal, path: str = "namespace__") -> Q:
    """The same for what lies in namespaces and is no table: functions.

    ``path`` is the lookup that leads to the namespace. One that only leads on shows nothing of it.
    """
    found = Q()
    if Privilege.BROWSE not in actor.everywhere:
        found = Q(**{f"{path}pk__in": _rows(_INSIDE, actor)})
    if Privilege.BROWSE not in actor.ceiling:
        found = Q(pk__in=[])
    if actor.within is not None:
        found &= Q(**{f"{path}ancestors__contains": [actor.within]})
    return found


def visible_namespaces(actor: Principal, path: str = "") -> Q:
    """The same for namespaces, with those that lead to what may be browsed."""
    pk = f"{path}pk"
    found = Q()
    if Privilege.BROWSE not in actor.everywhere:
        passages = RawSQL(
            "SELECT unnest(monodon_passages(%s::bigint[], %s::text[], %s::bigint[]))",
            [list(actor.ids), list(actor.names), list(actor.tables)],
        )
        found = Q(**{f"{pk}__in": _rows(_INSIDE, actor)}) | Q(**{f"{pk}__in": passages})
    if actor.within is not None:
        on_the_way = RawSQL(
            "SELECT unnest(ancestors) FROM catalog_namespace WHERE id = %s", [actor.within]
        )
        inside = Q(**{f"{path}ancestors__contains": [actor.within]})
        found = (found & inside) | Q(**{f"{pk}__in": on_the_way})
    return found


def _rows(text: str, actor: Principal) -> RawSQL:
    return RawSQL(text, [list(actor.ids), list(actor.names)])  # noqa: S611 -- no input in the text
