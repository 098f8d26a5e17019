"""The periodic tasks of django-celery-beat, in the look of the other pages."""

from typing import Any

from django.contrib import admin
from django_celery_beat import admin as beat
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)
from unfold.admin import ModelAdmin, TabularInline
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from catalog.admin.actor import AdministratorsOnly
from catalog.admin.pages import InfinitePaginator

for model in (PeriodicTask, IntervalSchedule, CrontabSchedule, SolarSchedule, ClockedSchedule):
    admin.site.unregister(model)


class TaskSelectWidget(UnfoldAdminSelectWidget, beat.TaskSelectWidget):  # type: ignore[misc]
    pass


class PeriodicTaskForm(beat.PeriodicTaskForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["task"].widget = UnfoldAdminTextInputWidget()
        self.fields["regtask"].widget = TaskSelectWidget()


class PeriodicTaskInline(beat.PeriodicTaskInline, TabularInline):  # type: ignore[misc]
    pass


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(AdministratorsOnly, beat.PeriodicTaskAdmin, ModelAdmin):  # type: ignore[misc]
    form = PeriodicTaskForm
    show_full_result_count = False
    paginator = InfinitePaginator


class ScheduleAdmin(AdministratorsOnly, beat.ScheduleAdmin, ModelAdmin):  # type: ignore[misc]
    inlines = [PeriodicTaskInline]
    show_full_result_count = False
    paginator = InfinitePaginator


@admin.register(IntervalSchedule)
class IntervalScheduleAdmin(ScheduleAdmin):
    pass


@admin.register(SolarSchedule)
class SolarScheduleAdmin(ScheduleAdmin):
    pass


@admin.register(ClockedSchedule)
class ClockedScheduleAdmin(beat.ClockedScheduleAdmin, ScheduleAdmin):  # type: ignore[misc]
    inlines = [PeriodicTaskInline]


@admin.register(CrontabSchedule)
class CrontabScheduleAdmin(beat.CrontabScheduleAdmin, ScheduleAdmin):  # type: ignore[misc]
    inlines = [PeriodicTaskInline]
