"""Periodic tasks: those of this release cannot be changed, others can only be deleted.

CELERY_BEAT_SCHEDULE defines the tasks and their schedules; the rows of django-celery-beat only
store them. So nobody can stop the sealing of the audit trail, or have Celery run other tasks.
"""

from collections.abc import Mapping
from typing import Any

from celery import current_app
from django.conf import settings
from django.db import transaction
from django_celery_beat.models import PeriodicTask, PeriodicTasks
from django_celery_beat.schedulers import ModelEntry
from kombu.exceptions import OperationalError

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidInput, ServiceUnavailable
from catalog.privileges import Privilege
from catalog.services.engine import audit_records


def is_of_system(task: PeriodicTask) -> bool:
    """True if this release, or Celery itself, defines the task."""
    return task.name in settings.CELERY_BEAT_SCHEDULE or task.name.startswith("celery.")


def is_unchanged(task: PeriodicTask) -> bool:
    """True if a task is enabled and, for a task of this release, matches CELERY_BEAT_SCHEDULE."""
    entry = settings.CELERY_BEAT_SCHEDULE.get(task.name)
    if entry is None:
        return bool(task.enabled)
    every = task.schedule.run_every.total_seconds() if task.interval else None
    return (task.enabled, task.task, every, task.one_off, task.start_time, task.expires) == (
        *(True, entry["task"], entry["schedule"], False),
        *(None, None),
    )


def run_task(*, actor: Principal, task: PeriodicTask) -> None:
    """Send a task of this release to a worker now, in addition to its schedule.

    Raises PermissionDenied, InvalidInput for another task, and ServiceUnavailable without a broker.
    """
    access.require(actor, Privilege.ALL)
    entry = _entry(task)
    with transaction.atomic():
        audit_records.record(actor, "periodic_task.run", task.name)
        try:
            current_app.send_task(entry["task"], retry=False, **entry.get("options", {}))
        except OperationalError:
            raise ServiceUnavailable(
                f"Task '{task.name}' was not started: the broker is unavailable"
            ) from None


def restore_task(*, actor: Principal, task: PeriodicTask) -> None:
    """Enable a task of this release and reset its schedule.

    Raises PermissionDenied, and InvalidInput for another task.
    """
    access.require(actor, Privilege.ALL)
    entry = _entry(task)
    with transaction.atomic():
        before = _state(task)
        PeriodicTask.objects.filter(pk=task.pk).update(
            enabled=True, one_off=False, start_time=None, expires=None
        )
        ModelEntry.from_entry(task.name, app=current_app, **entry)
        task.refresh_from_db()
        PeriodicTasks.update_changed()
        audit_records.record(
            actor, "periodic_task.restore", task.name, before=before, after=_state(task)
        )


def delete_task(*, actor: Principal, task: PeriodicTask) -> None:
    """Delete a task that this release does not define.

    Raises PermissionDenied, and InvalidInput for a task of this release.
    """
    access.require(actor, Privilege.ALL)
    if is_of_system(task):
        raise InvalidInput(f"Periodic task '{task.name}' is part of Monodon and cannot be deleted")
    with transaction.atomic():
        audit_records.record(actor, "periodic_task.delete", task.name, before=_state(task))
        task.delete()


def restore_changed_tasks() -> int:
    """Restore the tasks of this release that were changed in the database; returns the number."""
    rows = PeriodicTask.objects.filter(name__in=list(settings.CELERY_BEAT_SCHEDULE))
    changed = [task for task in rows if not is_unchanged(task)]
    for task in changed:
        restore_task(actor=SYSTEM, task=task)
    return len(changed)


def _entry(task: PeriodicTask) -> Mapping[str, Any]:
    """The entry of a task in CELERY_BEAT_SCHEDULE. Raises InvalidInput for another task."""
    entry: Mapping[str, Any] | None = settings.CELERY_BEAT_SCHEDULE.get(task.name)
    if entry is None:
        raise InvalidInput(f"Periodic task '{task.name}' is not a task of this release")
    return entry


def _state(task: PeriodicTask) -> dict[str, Any]:
    return {"task": task.task, "schedule": str(task.scheduler), "enabled": task.enabled}
