"""The tags and branches of a Lance table."""

from collections.abc import Callable
from datetime import UTC, datetime

from django.db.models import OuterRef, Q, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.lance import versions
from catalog.admin.pages import Panel
from catalog.admin.paging import PANEL_SIZE, query, word
from catalog.errors import CatalogError
from catalog.models import Branch, Table, TableState, TableVersion
from catalog.services.lance.contents import Unreadable, reading
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.lance.refs.branches import BranchDetails
from catalog.services.lance.refs.tags import Tag


def refs_tab(request: HttpRequest, row: Table) -> list[Panel]:
    """Tags from storage, branches from the ledger."""
    if row.state != TableState.LIVE:
        return [Panel((), (), "Tags and branches require a table with data.")]
    return [
        _panel_or_error("Graph", lambda: _graph(request, row)),
        _panel_or_error("Tags", lambda: _tags(request, row)),
        _panel_or_error("Branches", lambda: _branches(request, row)),
    ]


def _panel_or_error(title: str, build: Callable[[], Panel]) -> Panel:
    try:
        with reading():
            return build()
    except CatalogError as error:
        return Panel((), (), error.message, title=title)
    except Unreadable as error:
        return Panel((), (), f"{title} cannot be read: {error}", title=title)


def _graph(request: HttpRequest, row: Table) -> Panel:
    reader, name = actor(request), row.identifier
    branches, _ = lance_branches.list_branches(actor=reader, table=name, limit=PANEL_SIZE)
    tags, _ = lance_tags.list_tags(actor=reader, table=name, limit=PANEL_SIZE)
    return versions.graph_panel(request, row, branches, tags)


def _tags(request: HttpRequest, row: Table) -> Panel:
    after = word(request, "tag")
    tags, token = lance_tags.list_tags(
        actor=actor(request),
        table=row.identifier,
        limit=PANEL_SIZE,
        page_token=after or None,
    )
    present = _in_ledger(row, tags)
    return Panel(
        title="Tags",
        columns=("Tag", "Branch", "Version", ""),
        rows=[
            (
                cells.exact(cells.clipped(tag.name)),
                cells.clipped(tag.branch) or "main",
                _version(request, tag.version, tag.branch, is_present=_key(tag) in present),
                _view_link(request, tag.version, tag.branch) if _key(tag) in present else "",
            )
            for tag in tags
        ],
        empty="No tags. Clients create tags with dataset.tags.create().",
        first=query(request, tag=None) if after else None,
        following=query(request, tag=token) if token else None,
    )


def _key(tag: Tag) -> tuple[str, int]:
    return tag.branch, tag.version


def _in_ledger(row: Table, tags: list[Tag]) -> set[tuple[str, int]]:
    """Versions of the tags that exist in the ledger. One statement."""
    condition = Q(pk=None)
    for branch, version in {_key(tag) for tag in tags}:
        condition |= Q(branch=branch, version=version)
    rows = TableVersion.objects.filter(condition, table=row).visible()
    return set(rows.values_list("branch", "version"))


def _branches(request: HttpRequest, row: Table) -> Panel:
    after = word(request, "from")
    branches, token = lance_branches.list_branches(
        actor=actor(request),
        table=row.identifier,
        limit=PANEL_SIZE,
        page_token=after or None,
    )
    newest = _newest(row, branches)
    return Panel(
        title="Branches",
        columns=("Branch", "Newest version", "Parent version", "Parent branch", "Created", ""),
        rows=[_branch(request, branch, newest.get(branch.name)) for branch in branches],
        empty="No branches other than main. Clients create branches with dataset.create_branch().",
        first=query(request, **{"from": None}) if after else None,
        following=query(request, **{"from": token}) if token else None,
    )


def _branch(request: HttpRequest, branch: BranchDetails, newest: int | None) -> tuple[object, ...]:
    return (
        cells.exact(cells.clipped(branch.name)),
        cells.NOTHING if newest is None else _version(request, newest, branch.name),
        _version(request, branch.parent_version, branch.parent),
        cells.clipped(branch.parent) or "main",
        cells.when(_moment(branch.create_at)),
        cells.NOTHING if newest is None else _view_link(request, None, branch.name),
    )


def _newest(row: Table, branches: list[BranchDetails]) -> dict[str, int | None]:
    """Newest version of each branch. One statement."""
    versions = TableVersion.objects.filter(table_id=OuterRef("table_id"), branch=OuterRef("name"))
    newest = versions.visible().order_by("-version").values("version")[:1]
    rows = Branch.objects.filter(table=row, name__in=[branch.name for branch in branches])
    return dict(rows.annotate(newest=Subquery(newest)).values_list("name", "newest"))


def _version(
    request: HttpRequest, version: int, branch: str, *, is_present: bool = True
) -> SafeString:
    """Link to the page of the ledger that begins with the version."""
    url = query(
        request,
        tab="versions",
        branch=branch or None,
        before=version + 1,
        version=None,
        tag=None,
        **{"from": None},
    )
    marks = [] if is_present else [cells.badge("missing", "danger")]
    return cells.spaced([cells.anchor(url, version), *marks])


def _view_link(request: HttpRequest, version: int | None, branch: str) -> SafeString:
    """Link to the contents of the version."""
    url = query(
        request, tab="schema", version=version, branch=branch or None, tag=None, **{"from": None}
    )
    return cells.anchor(url, "View")


def _moment(seconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None
