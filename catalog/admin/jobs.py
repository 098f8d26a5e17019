"""Jobs: the work that goes on after a commit."""

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, button
from catalog.errors import InvalidInput
from catalog.models import Job, JobKind, JobStatus, TransactionStatus
from catalog.services.transactions import SetStatus, alter_transaction


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = ["job", "table_link", "status_badge", "done", "attempts", "created", "problem"]
    list_display_links = ["job"]
    list_filter = [("status", ChoicesDropdownFilter), ("kind", ChoicesDropdownFilter)]
    list_select_related = ["table__namespace"]
    search_fields = ["table__name"]
    search_help_text = "The name of a table"
    ordering = ["-pk"]
    actions_detail = ["cancel"]
    page_related = ["table__namespace", "transaction"]

    @admin.display(description="Job")
    def job(self, row: Job) -> str:
        return title(row)

    @admin.display(description="Table")
    def table_link(self, row: Job) -> SafeString:
        return cells.link(row.table)

    @admin.display(description="Status")
    def status_badge(self, row: Job) -> SafeString:
        return status(row)

    @admin.display(description="Progress")
    def done(self, row: Job) -> SafeString | str:
        return progress(row)

    @admin.display(description="Created")
    def created(self, row: Job) -> SafeString:
        return cells.moment(row.created_at)

    @admin.display(description="Error")
    def problem(self, row: Job) -> SafeString:
        return cells.code(row.error)

    def has_cancel_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, "change")

    def offers_actions(self, row: Job) -> bool:
        return row.status in {JobStatus.QUEUED, JobStatus.RUNNING}

    def page(self, request: HttpRequest, row: Job) -> Page:
        return Page(
            facts=(
                ("Kind", row.get_kind_display()),
                ("Table", cells.link(row.table)),
                ("Location", cells.code(row.table.location)),
                ("Transaction", cells.link(row.transaction)),
                ("Status", status(row)),
                ("Progress", progress(row)),
                ("Asked", cells.mapping(row.parameters)),
                ("By", cells.who(row.transaction.actor if row.transaction else "")),
                ("Attempts", row.attempts),
                ("Result", cells.mapping(row.result or {})),
                ("Error", cells.value(row.error)),
                ("Created", cells.moment(row.created_at)),
                ("Started", cells.moment(row.started_at)),
                ("Finished", cells.moment(row.finished_at)),
                ("Lease until", cells.moment(row.lease_until)),
            )
        )

    @button("Cancel", permission="cancel", icon="cancel", danger=True)
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        row = self.find(request, object_id)
        if row is None:
            return self.missing(request, object_id)

        def call(_data: dict[str, Any]) -> HttpResponseBase:
            if row.transaction_id is None:
                raise InvalidInput(f"Job {row.pk} belongs to no transaction and cannot be canceled")
            alter_transaction(
                actor=actor(request, self.permission("change")),
                transaction=(str(row.transaction_id),),
                actions=[SetStatus(TransactionStatus.CANCELED)],
            )
            messages.success(request, "Canceled; what runs stops at its next step")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Cancel {title(row)}?",
            text="A job is canceled with its transaction, and so with all jobs of the transaction. "
            "Data that is removed already does not come back.",
            submit="Cancel the transaction's jobs",
            danger=True,
            call=call,
            back=cells.page_url(row),
            original=row,
        )


def title(row: Job) -> str:
    return f"Job {row.pk}: {row.get_kind_display()}"


def status(row: Job) -> SafeString:
    if row.cancel_requested and row.status == JobStatus.RUNNING:
        return cells.lines([cells.badge(row.status), cells.muted("asked to stop")])
    return cells.badge(row.status)


def progress(row: Job) -> SafeString | str:
    """How far a job is, as a bar where its end is known."""
    unit = row.unit[:-1] if row.progress == 1 and row.total is None else row.unit
    if row.total is not None:
        done = min(row.progress, row.total)  # rows are added meanwhile
        return cells.meter(done, row.total, f"{row.progress:,} of {row.total:,} {unit}")
    if row.kind == JobKind.PURGE_TABLE:
        return f"{row.progress:,} {unit} removed"
    return f"{row.progress:,} {unit}" if row.progress else cells.NOTHING


def panel(rows: Iterable[Job], empty: str, *, title: str = "") -> Panel:
    return Panel(
        title=title,
        columns=("Job", "Table", "Status", "Progress", "Created", "Error"),
        rows=[
            (
                cells.link(row, f"{row.pk}: {row.get_kind_display()}"),
                cells.link(row.table),
                status(row),
                progress(row),
                cells.moment(row.created_at),
                cells.code(row.error),
            )
            for row in rows
        ],
        empty=empty,
    )
