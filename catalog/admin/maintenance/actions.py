"""Starting maintenance: buttons on the page of a table, and actions of lists."""

from collections.abc import Callable, Sequence
from types import MethodType
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
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog import access, layouts, maintenance_actions
from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.pages import ReadOnlyAdmin, button
from catalog.errors import CatalogError, TableNotFound
from catalog.maintenance_actions import MaintenanceAction
from catalog.models import Job, Table, TableFormat, TableHealth, TableState
from catalog.policies import EffectivePolicy
from catalog.privileges import Privilege
from catalog.services.maintenance import measurements
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.requests import arguments
from catalog.services.maintenance.requests.arguments import NO_OVERRIDES, Overrides
from catalog.services.maintenance.scheduling import candidates

MAX_TABLES = 200
"""Maximum number of tables that an action of a list starts jobs for."""
_SHOWN = 5


_STRATEGIES = [
    ("", "As in the policy"),
    ("binpack", "Keep the order (binpack)"),
    ("sort", "Sort"),
    ("zorder", "Z-order"),
]


class DryRunForm(forms.Form):
    dry_run = forms.BooleanField(
        required=False,
        label="Dry run: show the plan without changing anything",
        widget=UnfoldBooleanSwitchWidget(),
    )


class LayoutForm(DryRunForm):
    """The compaction of an Iceberg table. Empty fields follow the policy."""

    strategy = forms.ChoiceField(
        required=False,
        choices=_STRATEGIES,
        widget=UnfoldAdminSelectWidget(choices=_STRATEGIES),
        help_text="Order of the rows in the new files.",
    )
    sort_order = forms.CharField(
        required=False,
        max_length=layouts.MAX_LENGTH,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text="Columns to sort by, such as country, created_at desc nulls last. A Z-order takes columns"
        " alone. Empty: as in the policy.",
    )
    field_order = ["strategy", "sort_order", "dry_run"]


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


def may_maintain(request: HttpRequest, row: Table) -> bool:
    return access.holds(actor(request), Privilege.MAINTAIN, row)


def start(
    request: HttpRequest,
    row: Table,
    kind: str,
    *,
    is_dry_run: bool,
    indexes: Sequence[str] | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> Job:
    """Start a job as the signed-in user. Raises CatalogError, also for a dropped table."""
    return maintenance_scheduler.start(
        actor=_actor_for(request, row),
        table=row.identifier,
        kind=kind,
        is_dry_run=is_dry_run,
        indexes=indexes,
        overrides=overrides,
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
    title = maintenance_actions.require(job.kind).title
    label = f"{title} (dry run)" if job.is_dry_run else title
    return format_html(
        "{}: {} was started for table '{}'", label, cells.link(job, f"Job {job.pk}"), row
    )


# --- a table's page ----------------------------------------------------------------------------


def _press(action: MaintenanceAction) -> Callable[..., HttpResponseBase]:
    def press(self: ReadOnlyAdmin, request: HttpRequest, row: Table) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            job = start(
                request,
                row,
                action.key,
                is_dry_run=data["dry_run"],
                indexes=data.get("indexes") or None,
                overrides=Overrides(
                    engine_profile=data.get("engine_profile") or None,
                    strategy=data.get("strategy") or None,
                    sort_order=data.get("sort_order") or None,
                ),
            )
            messages.success(request, started_message(job, row))
            return HttpResponseRedirect(cells.page_url(job))

        return self.ask(
            request,
            title=f"{action.title}: table '{row}'",
            text=f"{action.help} The job starts as soon as a worker is free, regardless of the policy's "
            "time window.",
            submit="Start job",
            form=_form(request, row, action),
            call=call,
            back=cells.page_url(row) + "?tab=maintenance",
            original=row,
        )

    press.__name__ = action.key
    return button(action.title, permission="maintain", icon=action.icon)(press)


def _form(request: HttpRequest, row: Table, action: MaintenanceAction) -> forms.Form:
    if not action.accepts_indexes:
        is_sortable = row.format == TableFormat.ICEBERG and action.key == "compact"
        return LayoutForm(sent(request)) if is_sortable else DryRunForm(sent(request))
    try:
        principal = _actor_for(request, row)
        names = arguments.index_names(actor=principal, table=row.identifier)
    except CatalogError:  # starting the job shows the error
        names = []
    return IndexesForm(sent(request), names=names, chosen=request.GET.getlist("index"))


class MaintainActions:
    """The buttons of the table admin, one for each maintenance action, with the name of its key."""

    def __getattr__(self, name: str) -> Callable[..., HttpResponseBase]:
        """The button of an action; Django and Unfold look up buttons as attributes."""
        action = maintenance_actions.find(name)
        if action is None:
            raise AttributeError(name)
        return MethodType(_press(action), self)

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


def menu(offered_actions: Sequence[MaintenanceAction], *, measures: bool = True) -> dict[str, Any]:
    """The buttons as a menu."""
    items = [action.key for action in offered_actions] + ["measure"] * measures
    return {"title": "Maintain", "icon": "build", "items": items}


def press_bar(request: HttpRequest, row: Table, policy: EffectivePolicy) -> SafeString | str:
    """Two buttons for each kind, "now" and "dry run", without a further form."""
    if row.state != TableState.LIVE or not may_maintain(request, row):
        return ""
    base, obstacles = _base(row), candidates.obstacles(row.format, policy)
    pressed = [
        {
            "url": f"{base}{action.key}/",
            "title": action.title,
            "text": action.help,
            "is_offered": action.key not in obstacles,
        }
        for action in maintenance_actions.of_format(row.format)
    ]
    return render_to_string(
        "admin/catalog/maintenance_buttons.html",
        {
            "kinds": pressed,
            "measure_url": f"{base}measure/",
            "reason": next(iter(obstacles.values()), ""),
        },
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
        behind = [("optimize_indexes", "Optimize")] if unindexed_rows else []
        which = urlencode({"index": name})
        return cells.spaced(
            cells.anchor(f"{base}{key}/?{which}", text)
            for key, text in [*behind, ("rebuild_indexes", "Rebuild")]
        )

    return links


def _base(row: Table) -> str:
    return cells.page_url(row).removesuffix("change/")


# --- lists -------------------------------------------------------------------------------------


def _bulk(action: MaintenanceAction, *, is_dry_run: bool) -> Callable[..., None]:
    title = f"{action.title} (dry run)" if is_dry_run else action.title

    @admin.action(description=title, permissions=["maintain"])
    def act(_admin: Any, request: HttpRequest, chosen: QuerySet[Any]) -> None:
        start_many(request, _tables(chosen), action, is_dry_run=is_dry_run)

    act.__name__ = f"{action.key}_{'dry_run' if is_dry_run else 'now'}"
    return act


def bulk() -> list[Callable[..., None]]:
    """The actions of lists: each maintenance action, and its dry run."""
    return [
        _bulk(action, is_dry_run=is_dry_run)
        for action in maintenance_actions.registered()
        for is_dry_run in (False, True)
    ]


def _tables(chosen: QuerySet[Any]) -> list[Table]:
    if chosen.model is TableHealth:
        rows = chosen.select_related("table__namespace")[: MAX_TABLES + 1]
        return [row.table for row in rows]
    return list(chosen.select_related("namespace")[: MAX_TABLES + 1])


def start_many(
    request: HttpRequest, rows: Sequence[Table], action: MaintenanceAction, *, is_dry_run: bool
) -> None:
    """Start a job for each table. An error becomes a message that names the table."""
    if len(rows) > MAX_TABLES:
        text = f"No job was started. Select at most {MAX_TABLES} tables, or enable a maintenance policy."
        messages.error(request, text)
        return
    started, refused = [], []
    for row in rows:
        try:
            started.append((start(request, row, action.key, is_dry_run=is_dry_run), row))
        except CatalogError as error:
            refused.append(f"{row}: {error.message}")
    if len(started) == 1:
        messages.success(request, started_message(*started[0]))
    elif started:
        run = " (dry run)" if is_dry_run else ""
        url = cells.list_url(Job, f"kind__exact={action.key}")
        jobs = cells.anchor(url, f"{len(started)} jobs")
        messages.success(request, format_html("{}{}: {} were started", action.title, run, jobs))
    for text in refused[:_SHOWN]:
        messages.warning(request, text)
    if len(refused) > _SHOWN:
        messages.warning(request, cells.not_changed(len(refused) - _SHOWN))
