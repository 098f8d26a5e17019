"""Periodic tasks in the admin, where they cannot be stopped, rescheduled or added."""

import pytest
from django.conf import settings
from django.contrib import admin
from django.core.management import call_command
from django.urls import NoReverseMatch, reverse
from django_celery_beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)
from django_celery_beat.schedulers import ModelEntry

from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidInput, PermissionDenied
from catalog.models import AuditEvent
from catalog.services.maintenance import schedules
from tasks.celery import app

pytestmark = pytest.mark.django_db
LIST = "/admin/django_celery_beat/periodictask/"
_ALL = (PeriodicTask, IntervalSchedule, CrontabSchedule, SolarSchedule, ClockedSchedule)


@pytest.fixture(autouse=True)
def started() -> None:
    """The rows that beat creates at its start."""
    for name, entry in settings.CELERY_BEAT_SCHEDULE.items():
        ModelEntry.from_entry(name, app=app, **entry)


def rows() -> list[list[dict]]:
    return [list(model.objects.order_by("pk").values()) for model in _ALL]


def task(name: str = "seal-audit") -> PeriodicTask:
    return PeriodicTask.objects.get(name=name)


def make_foreign(**more) -> PeriodicTask:
    interval, _ = IntervalSchedule.objects.get_or_create(every=5, period="seconds")
    fields = {"name": "mine", "task": "tasks.maintenance.run_job", "interval": interval} | more
    return PeriodicTask.objects.create(**fields)


def test_every_task_of_the_settings_is_shown_unchanged(browser):
    page = browser.get(LIST).content.decode()
    for name in settings.CELERY_BEAT_SCHEDULE:
        assert schedules.is_unchanged(task(name)), name
        assert name in page
    assert "disabled" not in page
    assert browser.get(f"{LIST}{task().pk}/change/").status_code == 200


def test_schedules_have_no_pages():
    for model in _ALL[1:]:
        assert not admin.site.is_registered(model)
        with pytest.raises(NoReverseMatch):
            reverse(f"admin:django_celery_beat_{model._meta.model_name}_changelist")


FORMS = {
    "add/": {"name": "mine", "regtask": "", "task": "os.system", "interval": "1", "args": "[]"},
    "{pk}/change/": {"name": "seal-audit", "task": "none", "enabled": "", "interval": "1"},
    "{pk}/delete/": {"post": "yes"},
    "{pk}/delete_task/": {},
    "?action=delete_selected": {"action": "delete_selected", "_selected_action": "{pk}", "post": 1},
    "?action=disable_tasks": {"action": "disable_tasks", "_selected_action": "{pk}"},
    "?action=toggle_tasks": {"action": "toggle_tasks", "_selected_action": "{pk}"},
    "?action=run_tasks": {"action": "run_tasks", "_selected_action": "{pk}"},
    "?action=enable_tasks": {"action": "enable_tasks", "_selected_action": "{pk}"},
}


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("name", ["settle-versions", "seal-audit"])
def test_a_system_task_cannot_be_changed(browser, path, name):
    pk, before = task(name).pk, rows()
    events = AuditEvent.objects.count()
    body = {key: str(text).format(pk=pk) for key, text in FORMS[path].items()}
    browser.post(LIST + path.format(pk=pk), body)
    assert rows() == before
    assert AuditEvent.objects.count() == events


@pytest.mark.parametrize("name", ["celery.backend_cleanup", "seal-audit"])
def test_the_service_does_not_delete_system_tasks(name):
    interval, _ = IntervalSchedule.objects.get_or_create(every=5, period="seconds")
    row, _ = PeriodicTask.objects.get_or_create(name=name, defaults={"interval": interval})
    with pytest.raises(InvalidInput, match="part of Monodon"):
        schedules.delete_task(actor=SYSTEM, task=row)
    assert PeriodicTask.objects.filter(pk=row.pk).exists()


def test_a_foreign_task_is_not_run_and_can_be_deleted(browser):
    row = make_foreign()
    with pytest.raises(InvalidInput, match="not a task of this release"):
        schedules.run_task(actor=SYSTEM, task=row)
    page = browser.get(f"{LIST}{row.pk}/change/").content.decode()
    assert "Delete" in page
    assert browser.post(f"{LIST}{row.pk}/delete_task/").status_code == 302
    assert not PeriodicTask.objects.filter(pk=row.pk).exists()
    event = AuditEvent.objects.get(action="periodic_task.delete")
    assert (event.actor, event.target, event.interface) == ("user:ada", "mine", "admin")
    assert event.before["task"] == "tasks.maintenance.run_job"


def test_a_task_that_was_changed_in_the_database_is_restored(browser):
    slow, _ = IntervalSchedule.objects.get_or_create(every=300, period="days")
    PeriodicTask.objects.filter(name="seal-audit").update(enabled=False, interval=slow)
    assert not schedules.is_unchanged(task())
    assert "disabled" in browser.get(LIST).content.decode()
    assert browser.post(f"{LIST}{task().pk}/restore/").status_code == 302
    assert schedules.is_unchanged(task())
    event = AuditEvent.objects.get(action="periodic_task.restore")
    assert (event.actor, event.target) == ("user:ada", "seal-audit")
    assert event.before == {
        "task": "tasks.maintenance.seal_audit",
        "schedule": "every 300 days",
        "enabled": False,
    }
    assert event.after["enabled"] is True


def test_the_next_start_restores_changed_tasks(settings, tmp_path):
    PeriodicTask.objects.filter(name="seal-audit").update(enabled=False)
    PeriodicTask.objects.filter(name="start-due").update(one_off=True)
    call_command("bootstrap")
    assert schedules.is_unchanged(task())
    assert schedules.is_unchanged(task("start-due"))
    events = AuditEvent.objects.filter(action="periodic_task.restore").order_by("target")
    assert [(e.actor, e.target) for e in events] == [
        ("system", "seal-audit"),
        ("system", "start-due"),
    ]


def test_a_manual_run_of_a_task_is_in_the_trail(browser, monkeypatch):
    sent = []
    monkeypatch.setattr(
        "catalog.services.maintenance.schedules.current_app.send_task",
        lambda name, **options: sent.append((name, options)),
    )
    assert browser.post(f"{LIST}{task().pk}/run_now/").status_code == 302
    assert sent == [("tasks.maintenance.seal_audit", {"retry": False, "expires": 5.0})]
    event = AuditEvent.objects.get(action="periodic_task.run")
    assert (event.actor, event.target) == ("user:ada", "seal-audit")


def test_only_administrators_may_use_the_service():
    reader = Principal("reader")
    before = rows()
    for call in (schedules.run_task, schedules.restore_task, schedules.delete_task):
        with pytest.raises(PermissionDenied):
            call(actor=reader, task=task())
    assert rows() == before
