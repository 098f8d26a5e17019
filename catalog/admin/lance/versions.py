"""The history of a Lance table: its versions with their changes, and the graph of its branches and tags."""

from collections.abc import Iterable, Sequence

from django.db.models import Q
from django.http import HttpRequest
from django.utils.safestring import SafeString

from catalog.admin import cells, history_actions, transaction_links
from catalog.admin.commit_graph import MAX_COMMITS, Commit, Mark, graph
from catalog.admin.pages import Panel
from catalog.admin.paging import PANEL_SIZE, number, query, word
from catalog.formats.lance.history import Change
from catalog.models import Table, TableVersion
from catalog.services.lance.ledger import history
from catalog.services.lance.refs.branches import BranchDetails
from catalog.services.lance.refs.tags import Tag
from catalog.storage import locations

_OF_BRANCH = 12  # versions of a branch in the graph
_BRANCHES = 8  # in the graph, besides main
_COLOURS = {
    "Append": "success",
    "Delete": "danger",
    "Overwrite": "warning",
    "Update": "warning",
    "Restore": "warning",
    "Merge": "warning",
    "Rewrite": "info",
    "CreateIndex": "info",
}


def versions(request: HttpRequest, row: Table) -> Panel:
    """Versions of a branch, newest first. Three statements, and the manifests of the page."""
    before = number(request, "before")
    rows = TableVersion.objects.filter(table=row).on(word(request, "branch"))
    if before is not None:
        rows = rows.filter(version__lt=before)
    entries = list(rows.select_related("transaction").order_by("-version")[: PANEL_SIZE + 1])
    page_entries = entries[:PANEL_SIZE]
    changes = history.changes(row, entries)
    interfaces = history_actions.interfaces(row, page_entries)
    links = history_actions.version_links(request, row)
    return Panel(
        columns=(
            "Version",
            "Committed",
            "Operation",
            "Rows",
            "Data files",
            "Actor",
            "Interface",
            "Transaction",
        ),
        rows=[
            (
                _version(version),
                cells.when(version.created_at),
                *_change(version, changes.get(version.version)),
                cells.who(version.transaction.actor if version.transaction else ""),
                interfaces.get(version.transaction_id, cells.NOTHING),
                transaction_links.link(request, version.transaction),
            )
            for version in page_entries
        ],
        below=[
            cells.sides(
                _actions(request, version, links(version, is_newest=before is None and index == 0)),
                _manifest(row, version),
            )
            for index, version in enumerate(page_entries)
        ],
        style="m-timeline",
        empty="No versions on this branch.",
        first=query(request, before=None) if before is not None else None,
        following=(
            query(request, before=page_entries[-1].version) if len(entries) > PANEL_SIZE else None
        ),
        note=_note(page_entries, changes),
    )


def _note(entries: Sequence[TableVersion], changes: dict[int, Change]) -> str:
    if all(v.version in changes or v.deleted_at for v in entries):
        return ""
    return (
        f"At most {history.MAX_BYTES // 1024**2} MiB of manifests are read for this page. Versions without"
        " an operation were not read, or could not be read."
    )


def _version(version: TableVersion) -> object:
    if version.deleted_at is not None:
        return cells.lines([version.version, cells.muted("deleted")])
    return version.version


def _actions(request: HttpRequest, version: TableVersion, links: Iterable[object]) -> SafeString:
    """The links to the rows and the schema of a version, and those that change the table."""
    if version.deleted_at is not None:
        return cells.actions(())
    shown = [
        cells.anchor(query(request, tab=tab, version=version.version, before=None), text)
        for tab, text in (("preview", "Data"), ("schema", "Schema"))
    ]
    if version.version > 1:
        compared = query(
            request,
            tab="schema",
            version=version.version,
            compare=version.version - 1,
            before=None,
        )
        shown.append(cells.anchor(compared, "Compare"))
    return cells.actions([*shown, *links])


def _change(version: TableVersion, change: Change | None) -> tuple[object, object, object]:
    written = version.transaction.operations if version.transaction else []
    name = next((str(entry.get("operation", "")) for entry in written), "")
    if change is None:
        return (cells.badge(cells.clipped(name, 40)) if name else cells.NOTHING, *_NO_AMOUNTS)
    operation = change.operation or name
    badge = cells.badge(cells.clipped(operation, 40), _COLOURS.get(operation, "plain"))
    return (
        badge if operation else cells.NOTHING,
        cells.spaced([_delta(change.rows_added, change.rows_removed), _total(change.rows)]),
        _delta(change.files_added, change.files_removed),
    )


_NO_AMOUNTS = (cells.NOTHING, cells.NOTHING)


def _delta(added: int | None, removed: int | None) -> SafeString:
    if added is None or removed is None:
        return cells.NOTHING
    return cells.delta(f"{added:,}" if added else None, f"{removed:,}" if removed else None)


def _total(rows: int) -> SafeString:
    return cells.muted(f"of {rows:,}")


def _manifest(row: Table, version: TableVersion) -> SafeString:
    path = version.manifest_path
    inside = (locations.store_path(row.location, ""), f"{locations.iceberg_uri(row.location)}/")
    for directory in inside:
        path = path.removeprefix(directory)
    return cells.spaced(
        [
            cells.muted("Manifest"),
            cells.code(path, version.manifest_path),
            cells.size(version.manifest_size),
            *([cells.muted("not yet moved to its final name")] if version.staged_path else ()),
        ]
    )


# --- the graph ---------------------------------------------------------------------------------


def graph_panel(
    request: HttpRequest, row: Table, branches: Sequence[BranchDetails], tags: Sequence[Tag]
) -> Panel:
    """The newest versions of main and of each branch, where the branches begin, and tagged versions."""
    drawn = {branch.name: branch for branch in branches[:_BRANCHES]}
    rows = TableVersion.objects.filter(table=row).visible().order_by("-version")
    fields = ("branch", "version", "created_at")
    newest = [rows.on(name).values_list(*fields)[:_OF_BRANCH] for name in ("", *drawn)]
    named = Q(pk=None)
    for tag in tags:
        if not tag.branch or tag.branch in drawn:
            named |= Q(branch=tag.branch, version=tag.version)
    for branch in drawn.values():
        named |= Q(branch=branch.parent, version=branch.parent_version)
    also = rows.filter(named).values_list(*fields)[:MAX_COMMITS]
    rows_drawn = newest[0].union(*newest[1:], also)
    ordered = sorted(set(rows_drawn), key=lambda entry: (entry[2], entry[1]), reverse=True)
    shown = ordered[:MAX_COMMITS]
    if not shown:
        return Panel((), (), "The ledger has no versions.", title="Graph")
    marks = _marks(shown, tags)
    commits = []
    for branch, version, at in shown:
        key = (branch, version)
        older = [v for b, v, _ in shown if b == branch and v < version]
        parent, is_adjacent = _parent(key, max(older, default=None), drawn)
        url = query(request, tab="versions", branch=branch or None, before=version + 1)
        commits.append(
            Commit(
                key=key,
                parent=parent,
                name=f"Version {version}",
                details=f"{at:%Y-%m-%d %H:%M} UTC",
                url=url,
                marks=marks.get(key, ()),
                is_adjacent=is_adjacent,
            )
        )
    hidden = len(branches) - len(drawn)
    note = f"The {_OF_BRANCH} newest versions of main and of each branch."
    if hidden > 0:
        note = f"{note} Only the first {_BRANCHES} branches are drawn."
    return Panel((), (), note, title="Graph", lead=graph(commits))


def _parent(
    key: tuple[str, int], older: int | None, branches: dict[str, BranchDetails]
) -> tuple[tuple[str, int] | None, bool]:
    """The next older version in the graph, and whether it is the parent itself."""
    branch, version = key
    if older is not None:
        return (branch, older), older == version - 1
    details = branches.get(branch)
    if details is not None:
        return (details.parent, details.parent_version), version - details.parent_version in {0, 1}
    return ((branch, version - 1), False) if version > 1 else (None, True)


def _marks(
    shown: Sequence[tuple[str, int, object]], tags: Sequence[Tag]
) -> dict[tuple[str, int], list[Mark]]:
    newest: dict[str, int] = {}
    for branch, version, _ in shown:
        newest[branch] = max(version, newest.get(branch, 0))
    marks = {
        (branch, version): [Mark(branch or "main", is_tag=False)]
        for branch, version in newest.items()
    }
    for tag in tags:
        marks.setdefault((tag.branch, tag.version), []).append(Mark(tag.name, is_tag=True))
    return marks
