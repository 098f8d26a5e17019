"""Lineage: what a table or view is made from, and what is made from it, over several steps.

    materialized view   reads its source
    view                an Iceberg view reads the tables that its SQL names (``ViewSource``)
    files               a clone refers to files of another table (``FileReference``)

Only objects that the actor may browse are part of a graph. A path ends at an object that the actor
may not browse, so neither the object nor what is behind it can be inferred.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Value

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.models import (
    FileReference,
    MaterializedView,
    Table,
    TableKind,
    TableState,
    ViewQuery,
    ViewSource,
)
from catalog.privileges import Privilege
from catalog.services.storage import file_references
from catalog.services.tables import tables

MAX_HOPS = 10
DEFAULT_HOPS = 3
MAX_NODES = 200
"""Objects of a graph, without those it begins with."""
_MAX_EDGES = 1_000  # read in one step
_MAX_NAMES = 100
_INCOMPLETE = "The SQL of the view is not parsed, or not all of it."


class EdgeKind(StrEnum):
    """How an object depends on its source."""

    MATERIALIZED_VIEW = "materialized_view"
    VIEW = "view"
    FILES = "files"


class Direction(StrEnum):
    """Which part of the graph is read."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Node:
    """A table or view in the graph."""

    table: Table
    distance: int
    """Steps from the object of the graph; negative for sources."""
    problem: str = ""
    """For an Iceberg view: that some of its SQL was not parsed, so that sources may be missing; with
    the reason if it is the view that the graph begins with and the actor may read it."""

    @property
    def kind(self) -> str:
        """table, view or materialized_view."""
        return EdgeKind.MATERIALIZED_VIEW if self.table.is_materialized else self.table.kind

    @property
    def kind_in_words(self) -> str:
        """table, view or "materialized view"."""
        return self.kind.replace("_", " ")


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """A dependency between two nodes, by primary key."""

    source: int
    dependent: int
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class Lineage:
    """The graph around an object, as a principal may see it."""

    nodes: tuple[Node, ...]
    """By distance and name; the object itself has distance 0."""
    edges: tuple[Edge, ...]
    is_complete: bool
    """False if there are more objects than a graph may have."""
    unresolved: tuple[str, ...] = ()
    """Names in the SQL of the view that are not names of objects that the actor may browse. Text
    of clients. Empty unless the actor may read the view."""

    @property
    def dependents(self) -> tuple[Identifier, ...]:
        """The objects downstream, nearest first."""
        return tuple(node.table.identifier for node in self.nodes if node.distance > 0)


@dataclass(slots=True)
class _Graph:
    actor: Principal
    kinds: frozenset[EdgeKind]
    nodes: dict[int, Node]
    max_nodes: int
    edges: set[Edge] = field(default_factory=set)
    is_complete: bool = True


def lineage_of(
    *,
    actor: Principal,
    table: Identifier,
    hops: int = DEFAULT_HOPS,
    direction: Direction = Direction.BOTH,
) -> Lineage:
    """The graph around a table or view that the actor may browse.

    Three statements for a step, and six more at most. Raises NamespaceNotFound, TableNotFound,
    InvalidInput.
    """
    if not 1 <= hops <= MAX_HOPS:
        raise InvalidInput(f"The number of hops is from 1 to {MAX_HOPS}, not {hops}")
    access.require(actor, Privilege.BROWSE, On.table(table))
    row = Table.objects.named(table).select_related("namespace").first()
    if row is None:
        raise tables.not_found(table)
    # Names may have been exchanged since the check.
    access.require(actor, Privilege.BROWSE, row)
    return around(actor=actor, row=row, hops=hops, direction=direction)


def around(
    *,
    actor: Principal,
    row: Table,
    hops: int = DEFAULT_HOPS,
    direction: Direction = Direction.BOTH,
) -> Lineage:
    """The graph around a row that the actor may browse, dropped or not."""
    graph = _graph(actor, [row], hops, direction, frozenset(EdgeKind))
    if row.kind != TableKind.VIEW or not access.holds(actor, Privilege.READ, row):
        return graph
    problem = ViewQuery.objects.filter(view=row).values_list("problem", flat=True).first()
    nodes = tuple(
        replace(node, problem=problem) if problem and node.table.pk == row.pk else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, unresolved=_unresolved(actor, row))


def impact_of(*, actor: Principal, rows: Sequence[Table], hops: int = MAX_HOPS) -> Lineage:
    """The views and materialized views that read these rows, directly or through others.

    Tables that only refer to their files are not part of it: those files are kept.
    """
    kinds = frozenset({EdgeKind.VIEW, EdgeKind.MATERIALIZED_VIEW})
    return _graph(actor, rows, hops, Direction.DOWNSTREAM, kinds)


# --- steps -------------------------------------------------------------------------------------


def _graph(
    actor: Principal,
    rows: Sequence[Table],
    hops: int,
    direction: Direction,
    kinds: frozenset[EdgeKind],
) -> Lineage:
    graph = _Graph(actor, kinds, {row.pk: Node(row, 0) for row in rows}, MAX_NODES + len(rows))
    above = below = list(graph.nodes)
    above = [] if direction == Direction.DOWNSTREAM else above
    below = [] if direction == Direction.UPSTREAM else below
    for step in range(1, hops + 1):
        if not (above or below):
            break
        above, below = _step(graph, above, below, step)
    complete = set(
        ViewQuery.objects.filter(view__in=graph.nodes, problem="").values_list("view", flat=True)
    )
    nodes = [
        replace(node, problem=_INCOMPLETE)
        if node.table.kind == TableKind.VIEW and pk not in complete
        else node
        for pk, node in graph.nodes.items()
    ]
    nodes.sort(key=lambda node: (node.distance, node.table.identifier, node.table.pk))
    return Lineage(tuple(nodes), tuple(sorted(graph.edges)), graph.is_complete)


def _step(
    graph: _Graph, above: Collection[int], below: Collection[int], step: int
) -> tuple[list[int], list[int]]:
    """Add the neighbours of both frontiers; returns the new frontiers. Three statements."""
    pairs = _recorded(graph, above, below)
    by_name = _named(graph, above, below) if EdgeKind.VIEW in graph.kinds else []
    new = {pk for edge in pairs for pk in (edge.source, edge.dependent)}
    new |= {view for view, _ in by_name}
    digests = {key for view, key in by_name if view in above}
    rows = {row.pk: row for row in _rows(graph.actor, new - graph.nodes.keys(), digests)}
    tables_ = {pk: node.table for pk, node in graph.nodes.items()} | rows
    by_digest = {row.digest: pk for pk, row in tables_.items() if row.state != TableState.DROPPED}
    edges = [
        *pairs,
        *(
            Edge(by_digest[key], view, EdgeKind.VIEW)
            for view, key in by_name
            if key in by_digest and by_digest[key] != view
        ),
    ]
    frontiers: tuple[list[int], list[int]] = ([], [])
    for edge in sorted(edges):
        if edge.source not in tables_ or edge.dependent not in tables_:
            continue  # a purged table
        for pk, start, side, distance in (
            (edge.source, edge.dependent in above, 0, -step),
            (edge.dependent, edge.source in below, 1, step),
        ):
            if not start or pk in graph.nodes:
                continue
            if len(graph.nodes) >= graph.max_nodes:
                graph.is_complete = False
                continue
            graph.nodes[pk] = Node(tables_[pk], distance)
            frontiers[side].append(pk)
        if edge.source in graph.nodes and edge.dependent in graph.nodes:
            graph.edges.add(edge)
    return frontiers


def _recorded(graph: _Graph, above: Collection[int], below: Collection[int]) -> list[Edge]:
    """Dependencies between rows: materialized views, and references to files. One statement."""
    sources = Q(table__in=above) & access.visible_tables(graph.actor, "source__")
    holders = Q(source__in=below) & access.visible_tables(graph.actor, "table__")
    views = holders & ~Q(table__state=TableState.DROPPED)
    of_views = MaterializedView.objects.order_by()
    of_files = FileReference.objects.attached().order_by()
    parts: dict[EdgeKind, list[QuerySet[Any]]] = {
        EdgeKind.MATERIALIZED_VIEW: [of_views.filter(sources), of_views.filter(views)],
        EdgeKind.FILES: [of_files.filter(sources), of_files.filter(holders)],
    }
    first, *others = [
        rows.annotate(edge_kind=Value(kind.value)).values_list("source_id", "table_id", "edge_kind")
        for kind in parts
        if kind in graph.kinds
        for rows in parts[kind]
    ]
    pairs = list(first.union(*others, all=True)[: _MAX_EDGES + 1])
    graph.is_complete &= len(pairs) <= _MAX_EDGES
    return [Edge(source, table, EdgeKind(kind)) for source, table, kind in pairs[:_MAX_EDGES]]


def _named(graph: _Graph, above: Collection[int], below: Collection[int]) -> list[tuple[int, UUID]]:
    """Views with the digests that their SQL names: views above, and readers of tables below."""
    digests = [
        graph.nodes[pk].table.digest
        for pk in below
        if graph.nodes[pk].table.state != TableState.DROPPED
    ]
    visible = access.visible_tables(graph.actor, "view__") & ~Q(view__state=TableState.DROPPED)
    # Each side has its own limit, so the names of a view do not displace its readers.
    sides = [
        ViewSource.objects.filter(condition)
        .order_by("pk")
        .annotate(side=Value(side))
        .values_list("view_id", "digest", "side")[: _MAX_EDGES + 1]
        for side, condition in enumerate((Q(view__in=above), Q(digest__in=digests) & visible))
    ]
    pairs: list[tuple[int, UUID]] = []
    by_side: dict[int, list[tuple[int, UUID]]] = {0: [], 1: []}
    for view, digest, side in sides[0].union(sides[1], all=True):
        by_side[side].append((view, digest))
    for rows in by_side.values():
        graph.is_complete &= len(rows) <= _MAX_EDGES
        pairs.extend(rows[:_MAX_EDGES])
    return pairs


def _rows(actor: Principal, new: Iterable[int], digests: Collection[UUID]) -> QuerySet[Table]:
    """New rows, which are visible, and visible tables with these digests; without purged ones."""
    named = ~Q(state=TableState.DROPPED) & Q(digest__in=digests) & access.visible_tables(actor)
    rows = Table.objects.filter(Q(pk__in=list(new)) | named)
    return file_references.not_purged(rows).select_related("namespace")


def _unresolved(actor: Principal, row: Table) -> tuple[str, ...]:
    """Names in the SQL of a view that no visible table or view has. One statement."""
    visible = Table.objects.present().filter(
        access.visible_tables(actor), digest=OuterRef("digest")
    )
    rows = ViewSource.objects.filter(view=row).annotate(is_resolved=Exists(visible))
    resolved: dict[str, bool] = {}
    for name, is_resolved in rows.order_by("name").values_list("name", "is_resolved"):
        resolved[name] = resolved.get(name, False) or is_resolved
    return tuple(name for name, is_resolved in resolved.items() if not is_resolved)[:_MAX_NAMES]
