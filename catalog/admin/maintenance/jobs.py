"""Background jobs: the list, the page of a job, and canceling, retrying and running one."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField, DateTimeField, F, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter, TextFilter

from catalog import access, maintenance_actions
from catalog.access import Principal
from catalog.admin import cells, transaction_links
from catalog.admin.actor import actor, few_tables
from catalog.admin.maintenance import actions, job_results
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, button
from catalog.errors import InvalidInput
from catalog.identifiers import lookup
from catalog.models import Job, JobKind, JobStatus, Table, TransactionStatus, job_kinds
from catalog.privileges import Privilege
from catalog.services.engine.transactions import SetStatus, alter_transaction
from catalog.services.maintenance.requests.arguments import Overrides

SEARCHED = 200_000
"""Number of the newest jobs that a search without an index scans."""
_SINCE = {
    "hour": ("Last hour", timedelta(hours=1)),
    "day": ("Last 24 hours", timedelta(days=1)),
    "week": ("Last 7 days", timedelta(days=7)),
    "month": ("Last 30 days", timedelta(days=30)),
}


class KindFilter(DropdownFilter):  # type: ignore[misc]
    title = "kind"
    parameter_name = "kind__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return list(job_kinds().items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(kind=self.value()) if self.value() in job_kinds() else queryset


class DryRunFilter(DropdownFilter):  # type: ignore[misc]
    title = "dry run"
    parameter_name = "dry_run"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [("yes", "Only dry runs"), ("no", "No dry runs")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.value() not in {"yes", "no"}:
            return queryset
        return queryset.filter(is_dry_run=self.value() == "yes")


class SinceFilter(DropdownFilter):  # type: ignore[misc]
    title = "time of the request"
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [(key, text) for key, (text, _) in _SINCE.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        choice = _SINCE.get(self.value() or "")
        return queryset if choice is None else queryset.filter(created_at__gte=_ago(choice[1]))


class TableFilter(TextFilter):  # type: ignore[misc]
    title = "table, such as nyc.flights"
    parameter_name = "table"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        chosen = (self.value() or "").strip()
        if not chosen:
            return queryset
        return queryset.filter(table__digest=lookup(chosen))


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = [
        "job",
        "table_link",
        "status_badge",
        "progress_cell",
        "attempts",
        "created",
        "problem",
    ]
    list_display_links = ["job"]
    list_filter = [
        ("status", ChoicesDropdownFilter),
        KindFilter,
        DryRunFilter,
        TableFilter,
        SinceFilter,
    ]
    list_select_related = ["table__namespace"]
    search_fields = ["table__name"]
    search_help_text = "Name of a table"
    empty_text = (
        "No jobs. Purges, index builds, refreshes and maintenance run as jobs. Start maintenance on the page of a"
        " table, under Health."
    )
    ordering = ["-pk"]
    actions_detail = ["cancel", "retry", "run"]
    page_related = ["table__namespace", "transaction"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        rows: QuerySet[Job] = super().get_queryset(request)
        if set(request.GET) <= {"p"} or request.GET.get("table"):  # uses the index by table
            return rows
        if request.GET.get("status__exact") == JobStatus.FAILED:
            return _searched_failed(request, rows)
        newest = Job.objects.order_by("-pk").values("pk")[:1]
        none = Value(0, output_field=BigIntegerField())
        return rows.alias(newest=Coalesce(Subquery(newest), none)).filter(
            pk__gt=F("newest") - SEARCHED
        )

    @admin.display(description="Job")
    def job(self, row: Job) -> str:
        return f"{row}{_dry(row)}"

    @admin.display(description="Table")
    def table_link(self, row: Job) -> SafeString:
        return cells.link(row.table)

    @admin.display(description="Status")
    def status_badge(self, row: Job) -> SafeString:
        return status(row)

    @admin.display(description="Progress")
    def progress_cell(self, row: Job) -> SafeString | str:
        return progress(row)

    @admin.display(description="Created")
    def created(self, row: Job) -> SafeString:
        return cells.when(row.created_at)

    @admin.display(description="Error")
    def problem(self, row: Job) -> SafeString:
        return cells.code(row.error)

    def visibility(self, principal: Principal) -> Q:
        return access.visible_tables(principal, "table__")

    def target(self, row: Job) -> Table:
        return row.table

    def has_cancel_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MAINTAIN, object_id)

    def has_maintain_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.MAINTAIN, object_id)

    def offers_actions(self, row: Job) -> bool:
        return bool(self.offered_actions(row))

    def offered_actions(self, row: Job) -> Sequence[str]:
        if row.status in job_results.ACTIVE:
            return ["cancel"]
        if maintenance_actions.find(row.kind) is None:
            return []  # the requester starts it again
        if row.status in {JobStatus.FAILED, JobStatus.CANCELED}:
            return ["retry"]
        return ["run"] if row.is_dry_run else []

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list, without the details of jobs of tables that the user may not read."""
        changes = super().get_changelist_instance(request)
        changes.result_list = access.limit_jobs(actor(request), list(changes.result_list))
        return changes

    def page(self, request: HttpRequest, row: Job) -> Page:
        (row,) = access.limit_jobs(actor(request), [row])
        return Page(
            facts=(
                ("Kind", row.label),
                ("Table", cells.link(row.table)),
                *((("Location", cells.code(row.table.location)),) if row.has_details else ()),
                ("Transaction", transaction_links.link(request, row.transaction)),
                ("Progress", job_results.live_fact(row, status(row), progress(row))),
                ("Engine", job_results.engine(row)),
                *((("Layout", job_results.layout(row)),) if row.kind == "compact" else ()),
                ("Dry run", "yes, without changes" if row.is_dry_run else "no"),
                ("Parameters", job_results.parameters(row)),
                ("Requested by", cells.who(row.transaction.actor if row.transaction else "")),
                ("Attempts", row.attempts),
                ("Summary", row.summary or cells.NOTHING),
                ("Result", job_results.outcome(row)),
                _problem(row),
                ("Created", cells.when(row.created_at)),
                ("Started", cells.when(row.started_at)),
                ("Finished", cells.when(row.finished_at)),
                ("Lease until", cells.when(row.lease_until)),
            ),
            panels=job_results.panels(request, row),
        )

    # -- progress

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.progress_view)
        own = path("<path:object_id>/progress/", view, name="catalog_job_progress")
        return [own, *super().get_urls()]

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Progress of a job as an HTML fragment of its page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = self.find(request, object_id)
        if row is None:
            raise Http404
        (row,) = access.limit_jobs(actor(request), [row])
        return HttpResponse(job_results.live(row, status(row), progress(row)))

    # -- actions

    @button("Cancel", permission="cancel", icon="cancel", danger=True)
    def cancel(self, request: HttpRequest, row: Job) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            if row.transaction_id is None:
                raise InvalidInput(f"Job {row.pk} has no transaction and cannot be canceled")
            alter_transaction(
                actor=actor(request),
                transaction=(str(row.transaction_id),),
                actions=[SetStatus(TransactionStatus.CANCELED)],
            )
            messages.success(request, "Jobs were canceled. A running job stops at its next step.")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Cancel {row}?",
            text="Cancels all jobs of the transaction of this job. "
            "Data that was already removed is not restored.",
            submit="Cancel jobs",
            danger=True,
            call=call,
            original=row,
        )

    @button("Retry", permission="maintain", icon="replay")
    def retry(self, request: HttpRequest, row: Job) -> HttpResponseBase:
        return self._start_again(
            request,
            row,
            title=f"Retry {row}?",
            text=f"Starts a new job for table '{row.table}' with the current policy.",
            ask=lambda: actions.retry(request, row),
        )

    @button("Run", permission="maintain", icon="play_arrow")
    def run(self, request: HttpRequest, row: Job) -> HttpResponseBase:
        return self._start_again(
            request,
            row,
            title=f"Run {row} without dry run?",
            text=f"Starts a new job for table '{row.table}' with the current policy. The job plans "
            "again, and so includes later writes.",
            ask=lambda: actions.start(
                request,
                row.table,
                row.kind,
                is_dry_run=False,
                indexes=row.parameters.get("indexes"),
                overrides=Overrides(**row.parameters.get("overrides") or {}),
            ),
        )

    def _start_again(
        self, request: HttpRequest, row: Job, *, title: str, text: str, ask: Callable[[], Job]
    ) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            job = ask()
            messages.success(request, actions.started_message(job, row.table))
            return HttpResponseRedirect(cells.page_url(job))

        return self.ask(
            request,
            title=title,
            text=text,
            submit="Start job",
            call=call,
            original=row,
        )


def _dry(row: Job) -> str:
    return " (dry run)" if row.is_dry_run else ""


def status(row: Job) -> SafeString:
    if row.cancel_requested and row.status == JobStatus.RUNNING:
        return cells.lines([cells.badge(row.status), cells.muted("cancellation requested")])
    return cells.badge(row.status)


def _problem(row: Job) -> tuple[str, object]:
    """Error of the job; a remark if the job succeeded."""
    if not row.error:
        return ("Error", cells.NOTHING)
    if row.status == JobStatus.SUCCEEDED:
        return ("Remark", cells.expandable(row.error, 1000))
    return (
        "Error",
        format_html('<span class="m-minus">{}</span>', cells.expandable(row.error, 1000)),
    )


def _searched_failed(request: HttpRequest, rows: QuerySet[Job]) -> QuerySet[Job]:
    """The failed jobs among these that a list searches: of the user's tables, whatever fails elsewhere.

    If the user may browse many tables, the newest failed jobs of the catalog.
    """
    tables = few_tables(request, with_dropped=True)
    if tables is not None:
        return rows.filter(table__in=tables)
    failed = Job.objects.filter(status=JobStatus.FAILED).order_by("-created_at")
    oldest = failed.values("created_at")[SEARCHED : SEARCHED + 1]
    beginning = Value(datetime.min.replace(tzinfo=UTC), output_field=DateTimeField())
    return rows.filter(created_at__gte=Coalesce(Subquery(oldest), beginning))


def _ago(span: timedelta) -> datetime:
    return timezone.now() - span


def progress(row: Job) -> SafeString | str:
    """Progress of a job, as a bar if the total is known."""
    unit = row.unit[:-1] if row.progress == 1 and row.total is None else row.unit
    if row.total is not None:
        count = min(row.progress, row.total)  # rows are added meanwhile
        return cells.meter(count, row.total, f"{row.progress:,} of {row.total:,} {unit}")
    if row.kind == JobKind.PURGE_TABLE:
        return f"{row.progress:,} {unit} removed"
    return f"{row.progress:,} {unit}" if row.progress else cells.NOTHING


def panel(request: HttpRequest, rows: Iterable[Job], empty: str, *, title: str = "") -> Panel:
    """The jobs as a panel, without the details of those of tables that the user may not read."""
    return Panel(
        title=title,
        columns=("Job", "Table", "Status", "Progress", "Created", "Error"),
        rows=[
            (
                cells.link(row, f"{row}{_dry(row)}"),
                cells.link(row.table),
                status(row),
                progress(row),
                cells.when(row.created_at),
                cells.code(row.error),
            )
            for row in access.limit_jobs(actor(request), list(rows))
        ],
        empty=empty,
    )
