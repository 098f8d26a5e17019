"""History of the catalog: its contents at a time, and the changes between two times."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog import history as past
from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import Panel, ReadOnlyAdmin
from catalog.admin.paging import PANEL_SIZE, query, word
from catalog.errors import CatalogError, NotFound
from catalog.identifiers import Identifier, label, typed
from catalog.models import Namespace, Table, TableFormat, Transaction
from catalog.services.audit import history

_BRANCHES = 5  # shown for a table
_AGO: Sequence[tuple[str, timedelta]] = (
    ("One hour ago", timedelta(hours=1)),
    ("Yesterday", timedelta(days=1)),
    ("One week ago", timedelta(weeks=1)),
    ("One month ago", timedelta(days=30)),
)
_COLOURS = {
    past.Change.ADDED: "success",
    past.Change.DROPPED: "danger",
    past.Change.RENAMED: "warning",
    past.Change.ADVANCED: "info",
    past.Change.PROPERTIES: "plain",
}


def urls(admin: ReadOnlyAdmin) -> list[URLPattern]:
    """The route of the page, included in the URLs of the namespace admin."""

    def view(request: HttpRequest) -> HttpResponseBase:
        return _view(admin, request)

    return [path("history/", admin.admin_site.admin_view(view), name="catalog_history")]


def url(**parameters: str) -> str:
    address = reverse("admin:catalog_history")
    return f"{address}?{urlencode(parameters)}" if parameters else address


def may_see(request: HttpRequest) -> bool:
    """True for staff users. The page shows what the user may browse."""
    return bool(request.user.is_active and request.user.is_staff)


@dataclass(frozen=True)
class _Parameters:
    """Parameters of the form."""

    at: str
    to: str
    namespace: str
    token: str | None


def _view(admin: ReadOnlyAdmin, request: HttpRequest) -> HttpResponseBase:
    if not may_see(request):
        raise PermissionDenied
    parameters = _Parameters(
        at=word(request, "at").strip() or _spell(timezone.now() - timedelta(days=1)),
        to=word(request, "to").strip(),
        namespace=word(request, "namespace").strip(),
        token=word(request, "page") or None,
    )
    context: dict[str, Any] = {
        "title": "History",
        "parameters": parameters,
        "ago": [
            (text, query(request, at=_spell(timezone.now() - span), page=None))
            for text, span in _AGO
        ],
        "url": url(),
        "panels": [],
    }
    status = 200
    try:
        context |= _results(request, actor(request), parameters)
    except CatalogError as error:
        status = 404 if isinstance(error, NotFound) else 400
        context["refused"] = error.message
    return admin.render(request, "admin/catalog/history.html", context, status)


def _results(request: HttpRequest, principal: Principal, parameters: _Parameters) -> dict[str, Any]:
    where = typed(parameters.namespace)
    moment = past.parse_moment(parameters.at)
    if parameters.to:
        return _changes(request, principal, parameters, where, moment)
    page = history.catalog_at(
        actor=principal,
        moment=moment,
        namespace=where,
        limit=PANEL_SIZE,
        page_token=parameters.token,
    )
    now = _spell(timezone.now())
    compare = query(request, at=parameters.at, to=now, page=None)
    panels = []
    if page.namespaces or not parameters.token:
        panels.append(_namespaces(page.namespaces))
    last = _tables(page.tables, is_last=page.next_page is None)
    if page.tables or page.next_page is None:
        panels.append(last)
    return {
        "summary": format_html("Contents of the catalog at {}.", cells.moment(page.at)),
        "compare": compare,
        "panels": panels,
        **_pages(request, parameters, page.next_page),
    }


def _changes(
    request: HttpRequest,
    principal: Principal,
    parameters: _Parameters,
    where: Identifier,
    since: history.Moment,
) -> dict[str, Any]:
    until = past.parse_moment(parameters.to)
    page = history.changes_between(
        actor=principal,
        since=since,
        until=until,
        namespace=where,
        limit=PANEL_SIZE,
        page_token=parameters.token,
    )
    counts = None
    if not parameters.token:
        totals = history.count_changes(actor=principal, since=since, until=until, namespace=where)
        counts = [
            ("namespaces added", totals.namespaces_added),
            ("namespaces dropped", totals.namespaces_dropped),
            ("tables added", totals.tables_added),
            ("tables dropped", totals.tables_dropped),
            ("tables renamed", totals.tables_renamed),
            ("tables advanced", totals.tables_advanced),
            ("commits", totals.commits),
        ]
    panels = []
    if page.namespaces:
        panels.append(_namespace_changes(page.namespaces))
    if page.tables or not page.namespaces:
        panels.append(_table_changes(page.tables, page.next_page is not None))
    span = (cells.moment(page.since), cells.moment(page.until))
    return {
        "summary": format_html("Changes from {} to {}.", *span),
        "counts": counts,
        "panels": panels,
        **_pages(request, parameters, page.next_page),
    }


def _pages(
    request: HttpRequest, parameters: _Parameters, following: str | None
) -> dict[str, str | None]:
    # The links repeat the time that this page resolved, so that all pages show the same state.
    return {
        "first": query(request, at=parameters.at, page=None) if parameters.token else None,
        "following": query(request, at=parameters.at, page=following) if following else None,
    }


def _spell(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- contents at a time --------------------------------------------------------------------------


def _namespaces(rows: Sequence[past.NamespaceState]) -> Panel:
    return Panel(
        title="Namespaces",
        columns=("Namespace", "Created"),
        rows=[
            (_link(Namespace, row.id, label(row.identifier)), cells.moment(row.created_at))
            for row in rows
        ],
        empty="No namespaces at this time.",
    )


def _tables(rows: Sequence[past.TableState], *, is_last: bool) -> Panel:
    return Panel(
        title="Tables and views",
        columns=("Name", "Format", "Kind", "Versions", "Committed", "Metadata", "Transaction"),
        rows=[_table(row) for row in rows],
        empty="No tables or views at this time." if is_last else "See the next page.",
    )


def _table(row: past.TableState) -> tuple[object, ...]:
    branches = row.branches[:_BRANCHES]
    more = len(row.branches) - len(branches)
    versions: list[object] = [_version(branch.branch, branch.version) for branch in branches]
    if more or row.has_more_branches:
        versions.append(cells.muted(f"and {more}{'+' if row.has_more_branches else ''} branches"))
    return (
        _link(Table, row.id, label(row.identifier)),
        TableFormat(row.format).label,
        "materialized view" if row.is_materialized else row.kind,
        cells.lines(versions),
        cells.lines(cells.moment(branch.committed_at) for branch in branches),
        cells.lines(cells.code(branch.metadata_location) for branch in branches),
        cells.lines(_transaction(branch) for branch in branches),
    )


def _version(branch: str, version: int | str) -> SafeString | str:
    return cells.spaced([cells.muted(branch), version]) if branch else str(version)


def _transaction(branch: past.BranchState) -> SafeString:
    if branch.transaction_id is None:
        return cells.NOTHING
    short = cells.code(str(branch.transaction_id)[:13], branch.transaction_id)
    return _link(Transaction, branch.transaction_id, short)


def _link(model: type[Namespace | Table | Transaction], pk: object, text: object) -> SafeString:
    return cells.anchor(reverse(f"admin:catalog_{model._meta.model_name}_change", args=[pk]), text)


# --- changes between two times -------------------------------------------------------------------


def _namespace_changes(rows: Sequence[past.NamespaceChange]) -> Panel:
    return Panel(
        title="Changed namespaces",
        columns=("Namespace", "Change", "Properties", "Last actor"),
        rows=[
            (
                _link(Namespace, row.id, label(row.identifier)),
                _badges(row.changes),
                _properties(row.properties),
                cells.who(row.actor),
            )
            for row in rows
        ],
        empty="No changed namespaces.",
    )


def _table_changes(rows: Sequence[past.TableChange], leads_on: bool) -> Panel:
    return Panel(
        title="Changed tables and views",
        columns=("Name", "Change", "Versions", "Commits", "Properties", "Last actor"),
        rows=[_table_change(row) for row in rows],
        empty="No changes on this page. See the next page." if leads_on else "No changes.",
    )


def _table_change(row: past.TableChange) -> tuple[object, ...]:
    name: list[object] = [_link(Table, row.id, label(row.identifier))]
    if past.Change.RENAMED in row.changes:
        name.append(cells.muted(f"formerly {label(row.before or ())}"))
    branches = row.branches[:_BRANCHES]
    more = len(row.branches) - len(branches)
    versions: list[object] = [_ends(branch) for branch in branches]
    if more or row.has_more_branches:
        versions.append(cells.muted(f"and {more}{'+' if row.has_more_branches else ''} branches"))
    return (
        cells.lines(name),
        _badges(row.changes),
        cells.lines(versions),
        cells.lines(f"{branch.commits:,}" for branch in branches),
        _properties(row.properties),
        cells.who(row.actor),
    )


def _ends(branch: past.BranchChange) -> SafeString | str:
    before, after = (end.version if end else "–" for end in (branch.before, branch.after))
    return _version(branch.branch, f"{before} → {after}")


def _badges(changes: Sequence[past.Change]) -> SafeString:
    return cells.spaced(cells.badge(change.value, _COLOURS[change]) for change in changes)


def _properties(change: past.PropertyChange | None) -> SafeString:
    if change is None:
        return cells.NOTHING
    if change.before is None or change.after is None:
        return cells.muted("changed")
    lines = []
    for key in sorted(change.before.keys() | change.after.keys()):
        old, new = change.before.get(key), change.after.get(key)
        if old != new:
            lines.append(cells.spaced([cells.muted(key), cells.delta(new, old)]))
    return cells.lines(lines)
