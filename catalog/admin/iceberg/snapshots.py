"""The snapshots of an Iceberg table as a timeline, and its branches and tags."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells, history_actions
from catalog.admin.commit_graph import MAX_COMMITS, Commit, Mark, graph
from catalog.admin.pages import Panel
from catalog.admin.paging import paginate, query, word
from catalog.formats.iceberg import describe
from catalog.formats.iceberg.describe import Delta, Reference, Snapshot
from catalog.formats.iceberg.reading import Document
from catalog.models import Table
from catalog.services.iceberg.refs import snapshot_refs

_NAMES = 6  # references beside a snapshot
_ENTRIES = 100  # of a snapshot's summary
_OPERATIONS = {"append": "success", "overwrite": "warning", "delete": "danger", "replace": "info"}


def snapshots(request: HttpRequest, row: Table, document: Document) -> Panel:
    """Timeline of snapshots from the requested one, by default the newest."""
    entries = describe.snapshots(document)
    ids = {entry.get("snapshot-id") for entry in entries if type(entry.get("snapshot-id")) is int}
    snapshot_id = word(request, "snapshot")
    if snapshot_id:
        indexes = (index for index, entry in enumerate(entries) if _is(entry, snapshot_id))
        entries = entries[next(indexes, 0) :]
    page = paginate(request, entries, describe.snapshot_key, "after")
    references = describe.references_by_snapshot(document)
    current = document.get("current-snapshot-id")
    links = history_actions.snapshot_links(request, row, set(snapshot_refs.ancestors(document)))
    return Panel(
        columns=(
            "Snapshot",
            "Committed",
            "Operation",
            "Records",
            "Data files",
            "Size",
            "Parent",
        ),
        rows=[
            _snapshot(request, entry, references, ids, is_current=_is(entry, str(current)))
            for entry in page.items
        ],
        empty="No snapshots. The first write of an engine, such as INSERT or PyIceberg's "
        "table.append(), creates one.",
        first=(
            query(request, after=None, snapshot=None)
            if page.first or len(snapshot_id) > 0
            else None
        ),
        following=page.following,
        style="m-timeline",
        below=[_below(request, describe.snapshot(entry), links) for entry in page.items],
    )


def _is(snapshot: Document, id_: str) -> bool:
    return describe.snapshot_key(snapshot) == id_


def _snapshot(
    request: HttpRequest,
    entry: Document,
    references: dict[int | None, list[Reference]],
    ids: set[object],
    *,
    is_current: bool,
) -> Sequence[object]:
    snapshot = describe.snapshot(entry)
    names = references.get(snapshot.id, []) if snapshot.id is not None else []
    marks: list[object] = [cells.badge("current", "success")] if is_current else []
    marks += [_mark(reference) for reference in names[:_NAMES]]
    if len(names) > _NAMES:
        marks.append(cells.muted(f"and {len(names) - _NAMES:,} more"))
    parent: object = cells.NOTHING
    if snapshot.parent is not None:
        parent = (
            snapshot_link(request, snapshot.parent)
            if snapshot.parent in ids
            else cells.lines([cells.exact(snapshot.parent), cells.muted("expired")])
        )
    return (
        cells.lines([cells.exact(snapshot.id), *([cells.spaced(marks)] if marks else ())]),
        cells.when(snapshot.at),
        (
            cells.badge(
                cells.clipped(snapshot.operation, 40),
                _OPERATIONS.get(snapshot.operation, "plain"),
            )
            if snapshot.operation
            else cells.NOTHING
        ),
        _delta(snapshot.records, _number),
        _delta(snapshot.files, _number),
        _delta(snapshot.bytes, filesizeformat),
        parent,
    )


def _below(
    request: HttpRequest, snapshot: Snapshot, links: Callable[[int], Sequence[object]]
) -> SafeString:
    """The links of a snapshot, and its summary."""
    return cells.sides(cells.actions(_links(request, snapshot, links)), summary(snapshot.summary))


def _links(
    request: HttpRequest, snapshot: Snapshot, links: Callable[[int], Sequence[object]]
) -> Sequence[object]:
    """The links to the rows and the schema of a snapshot, and those that change references to it."""
    if snapshot.id is None:
        return []
    data = query(request, tab="preview", snapshot=snapshot.id, after=None)
    shown = [cells.anchor(data, "Data")]
    if snapshot.schema_id is not None:
        schema = query(request, tab="schema", schema=snapshot.schema_id, snapshot=None, after=None)
        shown.append(cells.anchor(schema, "Schema"))
    return [*shown, *links(snapshot.id)]


def snapshot_link(request: HttpRequest, id_: int) -> SafeString:
    url = query(request, tab="snapshots", snapshot=id_, after=None)
    return cells.anchor(url, cells.code(id_))


def _mark(reference: Reference) -> SafeString:
    colour = "info" if reference.type == "branch" else "warning"
    return cells.badge(cells.clipped(reference.name, 40), colour)


def _number(count: int) -> str:
    return f"{count:,}"


def _delta(delta: Delta, shown: Callable[[int], object]) -> SafeString:
    return cells.delta(
        shown(delta.added) if delta.added else None, shown(delta.removed) if delta.removed else None
    )


def summary(entries: Mapping[str, Any]) -> SafeString:
    """Entries of a summary, folded."""
    lines: list[object] = [
        format_html("{} {}", cells.muted(cells.clipped(key)), cells.brief(entries[key]))
        for key in sorted(entries)[:_ENTRIES]
    ]
    if len(entries) > _ENTRIES:
        lines.append(cells.muted(f"and {len(entries) - _ENTRIES:,} more"))
    title = f"Summary, {len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"
    return cells.fold(title, format_html('<div class="m-pairs">{}</div>', cells.lines(lines)))


def references(request: HttpRequest, document: Document) -> list[Panel]:
    """The graph of the newest snapshots, and the branches and tags."""
    graphs = [_graph(request, document)] if describe.references(document) else []
    return [*graphs, _references(request, document)]


def _graph(request: HttpRequest, document: Document) -> Panel:
    """The newest snapshots, and those of branches and tags."""
    entries = [describe.snapshot(entry) for entry in describe.snapshots(document)]
    by_id = {entry.id: entry for entry in entries if entry.id is not None}
    marks = describe.references_by_snapshot(document)
    named = [id_ for id_ in by_id if id_ in marks][: MAX_COMMITS // 2]
    chosen = {*list(by_id)[: MAX_COMMITS - len(named)], *named}
    commits = []
    for id_, entry in by_id.items():
        if id_ not in chosen:
            continue
        parent, is_adjacent = _drawn_parent(entry, by_id, chosen)
        commits.append(
            Commit(
                key=id_,
                parent=parent,
                name=str(id_),
                details=" · ".join(
                    [
                        *([cells.clipped(entry.operation, 40)] if entry.operation else ()),
                        *([f"{entry.at:%Y-%m-%d %H:%M} UTC"] if entry.at else ()),
                    ]
                ),
                url=query(request, tab="snapshots", snapshot=id_, after=None),
                marks=[Mark(r.name, is_tag=r.type == "tag") for r in marks.get(id_, ())],
                is_adjacent=is_adjacent,
            )
        )
    if not commits:
        return Panel((), (), "The metadata has no snapshots.", title="Graph")
    return Panel((), (), "", title="Graph", lead=graph(commits))


def _drawn_parent(
    entry: Snapshot, by_id: dict[int, Snapshot], drawn: set[int]
) -> tuple[int | None, bool]:
    """The nearest ancestor in the graph, and whether it is the parent itself; otherwise the parent."""
    visited: set[int] = set()
    parent = entry.parent
    while parent is not None and parent in by_id and parent not in visited:
        if parent in drawn:
            return parent, parent == entry.parent
        visited.add(parent)
        parent = by_id[parent].parent
    return entry.parent, False


def _references(request: HttpRequest, document: Document) -> Panel:
    page = paginate(
        request, describe.references(document), lambda reference: reference.name, "after"
    )
    return Panel(
        columns=("Name", "Kind", "Snapshot", "Retention"),
        rows=[
            (
                cells.exact(cells.clipped(reference.name)),
                cells.badge(
                    cells.clipped(reference.type, 40) or "?",
                    "info" if reference.type == "branch" else "warning",
                ),
                (
                    cells.NOTHING
                    if reference.snapshot_id is None
                    else snapshot_link(request, reference.snapshot_id)
                ),
                (
                    cells.lines(reference.retention)
                    if reference.retention
                    else cells.muted("set by table properties")
                ),
            )
            for reference in page.items
        ],
        empty="No branches or tags. The first snapshot creates main. Engines create others, for "
        "example Spark with ALTER TABLE … CREATE TAG.",
        first=page.first,
        following=page.following,
    )
