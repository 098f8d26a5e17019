"""Periodic tasks. Tasks and their shared schedules are read-only."""

from typing import Any

import django_celery_beat.admin  # noqa: F401 -- registers the pages that are replaced below
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import Page, ReadOnlyAdmin, button
from catalog.privileges import Privilege
from catalog.services.maintenance import schedules

# Tasks share schedule rows: a change of a row would change system tasks.
for model in (PeriodicTask, IntervalSchedule, CrontabSchedule, SolarSchedule, ClockedSchedule):
    admin.site.unregister(model)


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(ReadOnlyAdmin):
    list_display = ["name", "task", "times", "state", "last_run"]
    list_display_links = ["name"]
    list_select_related = ("interval", "crontab", "solar", "clocked")
    page_related = list_select_related
    search_fields = ["name", "task"]
    ordering = ["name"]
    empty_text = "No periodic tasks. The scheduler adds the tasks of this release when it starts."
    actions_detail = ["run_now", "restore", "delete_task"]

    @admin.display(description="Schedule")
    def times(self, row: PeriodicTask) -> str:
        return _times(row)

    @admin.display(description="State")
    def state(self, row: PeriodicTask) -> SafeString:
        return _state(row)

    @admin.display(description="Last run")
    def last_run(self, row: PeriodicTask) -> SafeString:
        return cells.when(row.last_run_at)

    def has_administer_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.ALL)

    def offered_actions(self, row: PeriodicTask) -> list[str | dict[str, Any]]:
        if not schedules.is_of_system(row):
            return ["delete_task"]
        return ["run_now"] if schedules.is_unchanged(row) else ["run_now", "restore"]

    def page(self, request: HttpRequest, row: PeriodicTask) -> Page:
        return Page(
            facts=(
                ("Name", row.name),
                ("Task", cells.code(row.task)),
                ("Schedule", _times(row)),
                ("State", _state(row)),
                ("Part of Monodon", "yes" if schedules.is_of_system(row) else "no"),
                ("Last run", cells.when(row.last_run_at)),
                ("Runs", f"{row.total_run_count:,}"),
            )
        )

    @button("Run", permission="administer", icon="play_arrow")
    def run_now(self, request: HttpRequest, row: PeriodicTask) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            schedules.run_task(actor=actor(request), task=row)
            messages.success(request, f"Task '{row.name}' was started")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request, title=f"Run task '{row.name}'?", submit="Run", call=call, original=row
        )

    @button("Restore", permission="administer", icon="settings_backup_restore")
    def restore(self, request: HttpRequest, row: PeriodicTask) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            schedules.restore_task(actor=actor(request), task=row)
            messages.success(request, f"Task '{row.name}' was restored")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title=f"Restore task '{row.name}'?",
            text="Enables the task and resets its schedule to the one of this release.",
            submit="Restore",
            call=call,
            original=row,
        )

    @button("Delete", permission="administer", icon="delete", danger=True)
    def delete_task(self, request: HttpRequest, row: PeriodicTask) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            schedules.delete_task(actor=actor(request), task=row)
            messages.success(request, f"Task '{row.name}' was deleted")
            return HttpResponseRedirect(cells.list_url(PeriodicTask))

        return self.ask(
            request,
            title=f"Delete task '{row.name}'?",
            text="The task is not part of this release. Nothing depends on it.",
            submit="Delete",
            danger=True,
            call=call,
            original=row,
        )


def _times(row: PeriodicTask) -> str:
    return str(row.scheduler) if row.scheduler else cells.NOTHING


def _state(row: PeriodicTask) -> SafeString:
    if not row.enabled:
        return cells.badge("disabled", "danger")
    if not schedules.is_unchanged(row):
        return cells.badge("modified", "warning")
    return cells.badge("enabled", "success")
