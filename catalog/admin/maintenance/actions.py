"""Starting maintenance: buttons on the page of a table, and actions of lists."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldBooleanSwitchWidget

from catalog import access
from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import ReadOnlyAdmin, button, sent
from catalog.errors import CatalogError, TableNotFound
from catalog.models import Job, JobKind, Table, TableFormat, TableHealth, TableState
from catalog.privileges import Privilege
from catalog.services.maintenance import measurements
from catalog.services.maintenance import scheduler as maintenance_scheduler

MAX_TABLES = 200
"""Maximum number of tables that an action of a list starts jobs for."""
_SHOWN = 5
TITLES: Mapping[JobKind, str] = {
    JobKind.COMPACT: "Compact",
    JobKind.CLEAN_UP: "Clean up",
    JobKind.REMOVE_ORPHANS: "Remove orphans",
    JobKind.OPTIMIZE_INDEXES: "Optimize indexes",
    JobKind.REBUILD_INDEXES: "Rebuild indexes",
    JobKind.REWRITE_MANIFESTS: "Rewrite manifests",
    JobKind.REWRITE_POSITION_DELETES: "Rewrite position deletes",
    JobKind.COMPUTE_STATISTICS: "Compute statistics",
}
_ICONS: Mapping[JobKind, str] = {
    JobKind.COMPACT: "compress",
    JobKind.CLEAN_UP: "cleaning_services",
    JobKind.REMOVE_ORPHANS: "folder_delete",
    JobKind.OPTIMIZE_INDEXES: "manage_search",
    JobKind.REBUILD_INDEXES: "construction",
    JobKind.REWRITE_MANIFESTS: "receipt_long",
    JobKind.REWRITE_POSITION_DELETES: "rule",
    JobKind.COMPUTE_STATISTICS: "query_stats",
}
_TEXTS: Mapping[JobKind, str] = {
    JobKind.COMPACT: "Rewrites small files as fewer large files without deleted rows. "
    "Readers and writers are not blocked.",
    JobKind.CLEAN_UP: "Removes expired versions, according to the policy, and their files. "
    "This cannot be undone. Tags and branches are kept.",
    JobKind.REMOVE_ORPHANS: "Removes files that no version references and that are older than the "
    "policy's age limit. This cannot be undone.",
    JobKind.OPTIMIZE_INDEXES: "Adds unindexed rows to the indexes.",
    JobKind.REBUILD_INDEXES: "Rebuilds indexes from all rows with their current type and "
    "parameters. Readers use the old index until the new one is complete.",
    JobKind.REWRITE_MANIFESTS: "Rewrites small manifests as fewer large ones.",
    JobKind.REWRITE_POSITION_DELETES: "Rewrites position delete files as fewer files.",
    JobKind.COMPUTE_STATISTICS: "Reads the columns and computes their statistics.",
}


class DryRunForm(forms.Form):
    dry_run = forms.BooleanField(
        required=False,
        label="Dry run: show the plan without changing anything",
        widget=UnfoldBooleanSwitchWidget(),
    )


class IndexesForm(DryRunForm):
    indexes = forms.MultipleChoiceField(
        required=False,
        label="Indexes",
        help_text="Indexes to process. Default: all.",
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
    )
    field_order = ["indexes", "dry_run"]

    def __init__(self, data: Any, *, names: Sequence[str], chosen: Sequence[str]) -> None:
        super().__init__(data, initial={"indexes": [name for name in names if name in chosen]})
        field = cast(forms.MultipleChoiceField, self.fields["indexes"])
        field.choices = [(name, name) for name in names]


def kinds(table_format: str) -> list[JobKind]:
    """Kinds of maintenance for a table format."""
    return [kind for kind in TITLES if table_format in maintenance_scheduler.FORMATS[kind]]


def may_maintain(request: HttpRequest, row: Table) -> bool:
    return access.holds(actor(request), Privilege.MAINTAIN, row)


def start(
    request: HttpRequest,
    row: Table,
    kind: JobKind,
    *,
    is_dry_run: bool,
    indexes: Sequence[str] | None = None,
) -> Job:
    """Start a job as the signed-in user. Raises CatalogError, also for a dropped table."""
    return maintenance_scheduler.start(
        actor=_actor_for(request, row),
        table=row.identifier,
        kind=kind,
        is_dry_run=is_dry_run,
        indexes=indexes,
    )


def retry(request: HttpRequest, row: Job) -> Job:
    """Start a new job in place of one that failed or was canceled. Raises CatalogError."""
    return maintenance_scheduler.retry(actor=actor(request), job=row.pk)


def _actor_for(request: HttpRequest, row: Table) -> Principal:
    """The signed-in user as the actor. Raises TableNotFound for a dropped row."""
    if row.state == TableState.DROPPED:
        # Services look up by name, and another table may have the name now.
        raise TableNotFound(row.identifier)
    return actor(request)


def started_message(job: Job, row: Table) -> SafeString:
    label = f"{TITLES[JobKind(job.kind)]}{' (dry run)' if job.is_dry_run else ''}"
    return format_html(
        "{}: {} was started for table '{}'", label, cells.link(job, f"Job {job.pk}"), row
    )


# --- a table's page ----------------------------------------------------------------------------


def _press(kind: JobKind) -> Callable[..., HttpResponseBase]:
    def press(self: ReadOnlyAdmin, request: HttpRequest, row: Table) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            job = start(
                request,
                row,
                kind,
                is_dry_run=data["dry_run"],
                indexes=data.get("indexes") or None,
            )
            messages.success(request, started_message(job, row))
            return HttpResponseRedirect(cells.page_url(job))

        return self.ask(
            request,
            title=f"{TITLES[kind]}: table '{row}'",
            text=f"{_TEXTS[kind]} The job starts as soon as a worker is free, regardless of the policy's "
            "time window.",
            submit="Start job",
            form=_form(request, row, kind),
            call=call,
            back=cells.page_url(row) + "?tab=maintenance",
            original=row,
        )

    press.__name__ = kind.value
    return button(TITLES[kind], permission="maintain", icon=_ICONS[kind])(press)


def _form(request: HttpRequest, row: Table, kind: JobKind) -> forms.Form:
    if kind not in maintenance_scheduler.OF_INDEXES:
        return DryRunForm(sent(request))
    try:
        principal = _actor_for(request, row)
        names = maintenance_scheduler.index_names(actor=principal, table=row.identifier)
    except CatalogError:  # starting the job shows the error
        names = []
    return IndexesForm(sent(request), names=names, chosen=request.GET.getlist("index"))


class MaintainActions:
    """The buttons of the table admin, one for each kind of maintenance, with the name of the kind."""

    compact = _press(JobKind.COMPACT)
    clean_up = _press(JobKind.CLEAN_UP)
    remove_orphans = _press(JobKind.REMOVE_ORPHANS)
    optimize_indexes = _press(JobKind.OPTIMIZE_INDEXES)
    rebuild_indexes = _press(JobKind.REBUILD_INDEXES)
    rewrite_manifests = _press(JobKind.REWRITE_MANIFESTS)
    rewrite_position_deletes = _press(JobKind.REWRITE_POSITION_DELETES)
    compute_statistics = _press(JobKind.COMPUTE_STATISTICS)

    @button("Measure", permission="maintain", icon="monitor_heart")
    def measure(self, request: HttpRequest, row: Table) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            health = measurements.measure(actor=_actor_for(request, row), table=row.identifier)
            messages.success(request, f"Table '{row}' was measured: health {health.score} of 100")
            return HttpResponseRedirect(cells.page_url(row) + "?tab=maintenance")

        return cast(ReadOnlyAdmin, self).ask(
            request,
            title=f"Measure table '{row}'?",
            text="Reads the metadata of the table and stores its figures. The scheduler also measures "
            "tables that have changed.",
            submit="Measure",
            call=call,
            back=cells.page_url(row) + "?tab=maintenance",
            original=row,
        )

    def has_maintain_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return cast(ReadOnlyAdmin, self).may(request, Privilege.MAINTAIN, object_id)


def menu(of: Sequence[JobKind]) -> dict[str, Any]:
    """The buttons as a menu."""
    items = [kind.value for kind in of] + ["measure"] * bool(of)
    return {"title": "Maintain", "icon": "build", "items": items}


MENU = menu(list(TITLES))


def press_bar(request: HttpRequest, row: Table) -> SafeString | str:
    """Two buttons for each kind, "now" and "dry run", without a further form."""
    if row.state != TableState.LIVE or not may_maintain(request, row):
        return ""
    base = _base(row)
    pressed = [
        {"url": f"{base}{kind.value}/", "title": TITLES[kind], "text": _TEXTS[kind]}
        for kind in kinds(row.format)
    ]
    return render_to_string(
        "admin/catalog/maintenance_buttons.html",
        {"kinds": pressed, "measure_url": f"{base}measure/"},
        request=request,
    )


def index_links(request: HttpRequest, row: Table) -> Callable[[str, int | None], SafeString] | None:
    """Function from the name and unindexed rows of an index to links; None if the user may not maintain.

    The links open the forms of the buttons with the index selected.
    """
    if row.state != TableState.LIVE or not may_maintain(request, row):
        return None
    base = _base(row)

    def links(name: str, unindexed_rows: int | None) -> SafeString:
        behind = [(JobKind.OPTIMIZE_INDEXES, "Optimize")] if unindexed_rows else []
        which = urlencode({"index": name})
        return cells.spaced(
            cells.anchor(f"{base}{kind.value}/?{which}", text)
            for kind, text in [*behind, (JobKind.REBUILD_INDEXES, "Rebuild")]
        )

    return links


def _base(row: Table) -> str:
    return cells.page_url(row).removesuffix("change/")


# --- lists -------------------------------------------------------------------------------------


def _bulk(kind: JobKind, *, is_dry_run: bool) -> Callable[..., None]:
    title = f"{TITLES[kind]} (dry run)" if is_dry_run else TITLES[kind]

    @admin.action(description=title, permissions=["maintain"])
    def act(_admin: Any, request: HttpRequest, chosen: QuerySet[Any]) -> None:
        start_many(request, _tables(chosen), kind, is_dry_run=is_dry_run)

    act.__name__ = f"{kind.value}_{'dry_run' if is_dry_run else 'now'}"
    return act


BULK = [_bulk(kind, is_dry_run=is_dry_run) for kind in TITLES for is_dry_run in (False, True)]


def _tables(chosen: QuerySet[Any]) -> list[Table]:
    if chosen.model is TableHealth:
        rows = chosen.select_related("table__namespace")[: MAX_TABLES + 1]
        return [row.table for row in rows]
    return list(chosen.select_related("namespace")[: MAX_TABLES + 1])


def start_many(
    request: HttpRequest, rows: Sequence[Table], kind: JobKind, *, is_dry_run: bool
) -> None:
    """Start a job for each table. An error becomes a message that names the table."""
    if len(rows) > MAX_TABLES:
        text = f"No job was started. Select at most {MAX_TABLES} tables, or enable a maintenance policy."
        messages.error(request, text)
        return
    started, refused = [], []
    for row in rows:
        try:
            started.append((start(request, row, kind, is_dry_run=is_dry_run), row))
        except CatalogError as error:
            refused.append(f"{row}: {error.message}")
    if len(started) == 1:
        messages.success(request, started_message(*started[0]))
    elif started:
        run = " (dry run)" if is_dry_run else ""
        url = cells.list_url(Job, f"kind__exact={kind.value}")
        jobs = cells.anchor(url, f"{len(started)} jobs")
        messages.success(request, format_html("{}{}: {} were started", TITLES[kind], run, jobs))
    for text in refused[:_SHOWN]:
        messages.warning(request, text)
    if len(refused) > _SHOWN:
        messages.warning(request, f"and {len(refused) - _SHOWN} more tables were not changed")


def offered(row: Table) -> list[JobKind]:
    """Kinds of maintenance on the page of a table; none for a table without data."""
    return kinds(TableFormat(row.format)) if row.state == TableState.LIVE else []
