"""The page of a Lance table: details and tabs, from the ledger and the newest manifest."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db.models import OuterRef
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from lance.dataset import LanceDataset

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.engine import ledger
from catalog.admin.lance import panels as lance_panels
from catalog.admin.lance import preview as lance_preview
from catalog.admin.lance import refs, versions
from catalog.admin.pages import Page, Panel, Tab
from catalog.admin.paging import COUNT_LIMIT, count_up_to, number, query, word
from catalog.admin.recovery import protection
from catalog.errors import CatalogError
from catalog.formats.lance.naming import branch_name
from catalog.models import Branch, MaterializedView, Table, TableState, TableVersion
from catalog.services.lance import contents as lance_contents
from catalog.services.lance.contents import Contents, Unreadable

_BRANCHES = 200  # offered for selection
_DECLARED = "The table is declared and has no data yet."
_DROPPED = "The table was dropped."


@dataclass(frozen=True)
class Opened:
    """A version of a table, or the reason why it cannot be opened."""

    dataset: LanceDataset | None
    fault: str = ""


def open_version(
    request: HttpRequest, row: Table, version: int | None = None, branch: str = ""
) -> Opened:
    """Open a version. One statement. Never fails: the page has to show what is wrong."""
    if row.state == TableState.DROPPED:
        return Opened(None, _DROPPED)
    if row.state == TableState.DECLARED:
        return Opened(None, _DECLARED)
    reader = actor(request)
    try:
        return Opened(
            lance_contents.open_table(actor=reader, table=row, version=version, branch=branch)
        )
    except CatalogError as error:
        return Opened(None, error.message)
    except Unreadable as error:
        return Opened(None, f"The files of the table cannot be read: {error}")


def table_page(request: HttpRequest, row: Table) -> Page:
    newest = open_version(request, row)
    contents, fault = _contents(newest)
    indexes = partial(lance_panels.indexes, row)
    preview = Tab(
        "preview", "Data", _version_tab(request, row, newest, partial(lance_preview.panel, row))
    )
    return Page(
        facts=[
            *_identity(row, contents, fault if row.state == TableState.LIVE else ""),
            *_ledger(row),
            *_numbers(contents),
            *_history(row),
        ],
        tabs=(
            Tab("schema", "Schema", _version_tab(request, row, newest, partial(_schema, row))),
            Tab(
                "fragments", "Fragments", _version_tab(request, row, newest, lance_panels.fragments)
            ),
            Tab("indexes", "Indexes", _version_tab(request, row, newest, indexes)),
            preview,
            Tab(
                "profile",
                "Column profile",
                _version_tab(request, row, newest, partial(lance_preview.profile, row)),
            ),
            Tab(
                "refs",
                "Tags and branches",
                lambda: refs.refs_tab(request, row),
            ),
            Tab("versions", "Versions", lambda: versions.versions(request, row)),
            *ledger.tabs(request, row),
        ),
        aside_template="admin/catalog/table_aside.html" if row.state == TableState.LIVE else "",
        aside={
            "server": request.build_absolute_uri("/").rstrip("/"),
            "table_id": json.dumps(row.identifier, ensure_ascii=False),
        },
        options=_branch_choice(request, row),
    )


_Build = Callable[[HttpRequest, LanceDataset], Panel | Sequence[Panel]]


def _version_tab(
    request: HttpRequest, row: Table, newest: Opened, build: _Build
) -> Callable[[], Panel | Sequence[Panel]]:
    """A tab about the requested version, by default the newest."""

    def panels() -> Panel | Sequence[Panel]:
        version, branch = number(request, "version"), branch_name(word(request, "branch"))
        opened = newest
        if version is not None or branch:
            opened = open_version(request, row, version, branch)
        if opened.dataset is None:
            lead = _version_notice(request, version, branch)
            return Panel((), (), opened.fault, lead=_notice(lead) if lead else "")
        try:
            built = build(request, opened.dataset)
        except CatalogError as error:
            return Panel((), (), error.message)
        except Unreadable as error:
            return Panel((), (), f"The version cannot be read: {error}")
        lead = (
            _version_notice(request, opened.dataset.version, branch) if opened is not newest else ""
        )
        if not lead:
            return built
        return [Panel((), (), lead), *([built] if isinstance(built, Panel) else built)]

    return panels


def _schema(row: Table, request: HttpRequest, dataset: LanceDataset) -> list[Panel]:
    """The schema of a version, and its differences from that of another version."""
    panels = lance_panels.schema_tab(request, dataset)
    if word(request, "tab") != "schema":  # the overview
        return panels
    opened = Opened(None)
    if (compared := number(request, "compare")) is not None:
        opened = open_version(request, row, compared, branch_name(word(request, "branch")))
    return [
        *panels,
        lance_panels.changes_panel(request, opened.dataset, dataset, opened.fault),
    ]


def _notice(text: SafeString | str) -> SafeString:
    return format_html('<p class="m-say m-muted">{}</p>', text)


def _version_notice(request: HttpRequest, version: int | None, branch: str) -> SafeString | str:
    """Notice of the version in view, unless it is the newest of main."""
    if version is None and not branch:
        return ""
    which = "The newest version" if version is None else f"Version {version}"
    on = f" on branch '{cells.clipped(branch)}'" if branch else ""
    back = cells.anchor(query(request, version=None, branch=None), "the newest of main")
    return cells.spaced([f"{which}{on}. Return to", back])


# --- facts -------------------------------------------------------------------------------------


def _contents(opened: Opened) -> tuple[Contents | None, str]:
    if opened.dataset is None:
        return None, opened.fault
    try:
        return lance_contents.contents(opened.dataset), ""
    except Unreadable as error:
        return None, f"The manifest of the table cannot be read: {error}"


def _identity(row: Table, contents: Contents | None, fault: str) -> list[tuple[str, object]]:
    storage = f", data storage version {contents.storage_version}" if contents else ""
    facts: list[tuple[str, object]] = [
        ("Namespace", cells.link(row.namespace)),
        ("Format", f"{row.get_format_display()} {row.kind}{storage}"),
        ("State", cells.badge(row.state)),
    ]
    if row.is_materialized:
        view = cells.page_url(MaterializedView(pk=row.pk))
        facts.append(("Materialized view", cells.anchor(view, "query, source and refreshes")))
    if fault:
        facts.append(
            ("Fault", cells.lines([cells.badge("fault", "danger"), cells.expandable(fault)]))
        )
    return [
        *facts,
        ("UUID", cells.exact(row.uuid)),
        ("Location", cells.exact(row.location)),
    ]


def _ledger(row: Table) -> list[tuple[str, object]]:
    """Details of main from the ledger. One statement."""
    all_of_main = TableVersion.objects.filter(table=OuterRef("table")).on("").visible()
    rows = TableVersion.objects.filter(table=row).on("").visible().select_related("transaction")
    newest: Any = (
        rows.annotate(count=count_up_to(all_of_main.order_by())).order_by("-version").first()
    )
    if newest is None:
        return [("Newest version", cells.muted("none"))]
    by = newest.transaction.actor if newest.transaction else ""
    versions = cells.bounded(newest.count, COUNT_LIMIT)
    return [
        ("Newest version", cells.spaced([f"{newest.version},", cells.when(newest.created_at)])),
        ("Last written by", cells.who(by)),
        ("Versions", cells.anchor("?tab=versions", versions)),
    ]


def _numbers(contents: Contents | None) -> list[tuple[str, object]]:
    if contents is None:
        return []
    files = "data file" if contents.data_files == 1 else "data files"
    return [
        ("Rows", f"{contents.rows:,}"),
        ("Deleted rows", f"{contents.deleted_rows:,}"),
        ("Fragments", f"{contents.fragments:,}, in {contents.data_files:,} {files}"),
        ("Size", cells.size(contents.bytes)),
        ("Stable row IDs", "yes" if contents.has_stable_row_ids else "no"),
    ]


def _history(row: Table) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("Properties", cells.mapping(row.properties)),
        ("Managed versioning", "yes" if row.managed_versioning else "no"),
        ("Owner", row.owner or cells.NOTHING),
        ("Protected", protection.badge(row)),
        ("Created", cells.when(row.created_at)),
        ("Changed", cells.when(row.updated_at)),
    ]
    if row.dropped_at is not None:
        facts.append(("Dropped", cells.when(row.dropped_at)))
    return facts


def _branch_choice(request: HttpRequest, row: Table) -> dict[str, object]:
    """Branches to select for the list of versions."""
    if request.GET.get("tab") != "versions":
        return {}
    names = list(
        Branch.objects.filter(table=row).order_by("name").values_list("name", flat=True)[:_BRANCHES]
    )
    if not names:
        return {}
    chosen = word(request, "branch")
    return {
        "branches": [
            (name or "main", query(request, branch=name or None, before=None), name == chosen)
            for name in ["", *names]
        ]
    }
