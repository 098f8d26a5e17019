"""The lineage as SVG without scripts: a column for each distance, sources on the left."""

from collections import defaultdict
from collections.abc import Mapping

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.models import TableState
from catalog.services.tables.lineage import EdgeKind, Lineage, Node

_WIDTH, _HEIGHT = 210, 46  # of a node
_COLUMN, _ROW, _MARGIN = 270, 62, 8
_MAX_ROWS = 20
"""Nodes drawn in a column; the list below the graph has all."""
RELATIONS: Mapping[EdgeKind, str] = {
    EdgeKind.MATERIALIZED_VIEW: "is a materialized view of",
    EdgeKind.VIEW: "is a view of",
    EdgeKind.FILES: "refers to files of",
}


def url_of(node: Node) -> str:
    return f"{cells.page_url(node.table)}?tab=lineage"


def graph(lineage: Lineage) -> SafeString:
    """The nodes as links, and the edges as lines. The list beside it is the alternative text."""
    columns = _columns(lineage)
    first = min(columns)
    places = {
        node.table.pk: (_MARGIN + (distance - first) * _COLUMN, _MARGIN + row * _ROW)
        for distance, nodes in columns.items()
        for row, node in enumerate(nodes)
    }
    width = (max(columns) - first) * _COLUMN + _WIDTH + 2 * _MARGIN
    height = max(map(len, columns.values())) * _ROW - (_ROW - _HEIGHT) + 2 * _MARGIN
    lines = format_html_join(
        "",
        '<path class="m-edge m-edge-{}" d="M{} {}C{} {} {} {} {} {}" marker-end="url(#m-arrow)"></path>',
        (
            (edge.kind, *_curve(places[edge.source], places[edge.dependent]))
            for edge in lineage.edges
            if edge.source in places and edge.dependent in places
        ),
    )
    boxes = format_html_join(
        "",
        "{}",
        ((_box(node, *places[node.table.pk]),) for nodes in columns.values() for node in nodes),
    )
    hidden = len(lineage.nodes) - len(places)
    return format_html(
        '<div class="m-scroll m-graph"><svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group"'
        ' aria-label="Lineage, also listed below"><defs><marker id="m-arrow" viewBox="0 0 8 8" refX="8"'
        ' refY="4" markerWidth="8" markerHeight="8" orient="auto"><polygon points="0,0 8,4 0,8"></polygon>'
        "</marker></defs>{2}{3}</svg></div>{4}",
        width,
        height,
        lines,
        boxes,
        cells.lines([cells.muted(f"{cells.counted(hidden, 'more object')} in the list below.")])
        if hidden
        else "",
    )


def _columns(lineage: Lineage) -> dict[int, list[Node]]:
    """Nodes by distance, each column in the order of its neighbours one step nearer."""
    columns: dict[int, list[Node]] = defaultdict(list)
    for node in lineage.nodes:
        columns[node.distance].append(node)
    neighbours: dict[int, list[int]] = defaultdict(list)
    for edge in lineage.edges:
        neighbours[edge.source].append(edge.dependent)
        neighbours[edge.dependent].append(edge.source)
    for distance in sorted(columns, key=abs)[1:]:
        nearer = columns[distance - 1 if distance > 0 else distance + 1]
        rows = {node.table.pk: row for row, node in enumerate(nearer)}

        def mean(node: Node, rows: Mapping[int, int] = rows) -> float:
            above = [rows[pk] for pk in neighbours[node.table.pk] if pk in rows]
            return sum(above) / len(above) if above else 0.0

        columns[distance] = sorted(columns[distance], key=mean)[:_MAX_ROWS]
    return columns


def _curve(source: tuple[int, int], dependent: tuple[int, int]) -> tuple[int, ...]:
    """From the right side of the source to the left side of the dependent."""
    x1, y1 = source[0] + _WIDTH, source[1] + _HEIGHT // 2
    x2, y2 = dependent[0], dependent[1] + _HEIGHT // 2
    bend = (_COLUMN - _WIDTH) // 2
    return (x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2)


def _box(node: Node, x: int, y: int) -> SafeString:
    """A node as a link, whose name and tooltip is its title. The inner svg clips a long text."""
    row = node.table
    name = cells.clipped(row.name, 60)
    kind = (
        f"{node.kind_in_words}, dropped" if row.state == TableState.DROPPED else node.kind_in_words
    )
    remarks = [kind, *(["not parsed"] if node.problem else []), str(row.namespace)]
    details = cells.clipped(" · ".join(remarks), 80)
    if node.distance:
        side = "upstream" if node.distance < 0 else "downstream"
        position = f"{cells.counted(abs(node.distance), 'step')} {side}"
    else:
        position = "this object"
    return format_html(
        '<a class="m-node-{}" href="{}"{}><title>{}, {}, {}</title>'
        '<rect x="{}" y="{}" width="{}" height="{}" rx="6"></rect>'
        '<svg x="{}" y="{}" width="{}" height="{}" aria-hidden="true">'
        '<text x="0" y="18" class="m-node-name">{}</text><text x="0" y="36">{}</text></svg></a>',
        node.kind if node.distance else "self",
        url_of(node),
        "" if node.distance else format_html(' aria-current="{}"', "true"),
        *(row, kind, position),
        *(x, y, _WIDTH, _HEIGHT),
        *(x + 10, y, _WIDTH - 20, _HEIGHT),
        *(name, details),
    )
