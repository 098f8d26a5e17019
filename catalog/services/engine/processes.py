"""Heartbeats of workers and beat: which of them run, and what they can do."""

from datetime import timedelta

from django.db.models import F, QuerySet
from django.db.models.functions import Now

from catalog.models import Heartbeat, ProcessRole

SECONDS = 10.0
"""Interval between two heartbeats of a process."""
ALIVE = timedelta(seconds=60)
"""Maximum age of the last heartbeat of a process that counts as running."""
_FORGOTTEN = timedelta(days=1)
_JOB_ROLES = (ProcessRole.JOB_WORKER, ProcessRole.WORKER)
_TASK_ROLES = (ProcessRole.TASK_WORKER, ProcessRole.WORKER)


def report(heartbeat: Heartbeat, *, is_first: bool = False) -> None:
    """Store the heartbeat of a process. The first one forgets processes that were not seen for a day."""
    updated = [
        "role",
        "seen_at",
        "concurrency",
        "missing_for_spark",
        "missing_for_iceberg",
        "missing_for_profiles",
        "is_downloading",
    ]
    if is_first:
        updated.append("started_at")
        Heartbeat.objects.filter(seen_at__lt=Now() - _FORGOTTEN).delete()
    Heartbeat.objects.bulk_create(
        [heartbeat], update_conflicts=True, unique_fields=["name"], update_fields=updated
    )


def forget(name: str) -> None:
    """Remove a process that ends."""
    Heartbeat.objects.filter(name=name).delete()


def alive() -> "QuerySet[Heartbeat]":
    return Heartbeat.objects.filter(seen_at__gt=Now() - ALIVE)


def background() -> dict[str, str]:
    """For each kind of background process ``ok``, or the reason why it counts as missing."""
    roles = set(alive().values_list("role", flat=True))
    needed = {"worker": _JOB_ROLES, "tasks": _TASK_ROLES, "beat": (ProcessRole.BEAT,)}
    missing = f"no heartbeat within {ALIVE.seconds} s"
    return {
        name: "ok" if roles & {str(role) for role in accepted} else missing
        for name, accepted in needed.items()
    }


def missing_for_iceberg() -> str:
    """Why no running worker can maintain Iceberg tables. Empty: one can, or no worker runs now."""
    return _common_reason(list(_job_workers().values_list("missing_for_iceberg", flat=True)))


def missing_for_profiles() -> dict[str, str]:
    """The engine profiles that no running worker can use, each with the reason. One statement."""
    workers = list(_job_workers().values_list("missing_for_profiles", flat=True))
    names = {name for reasons in workers for name in reasons}
    common = {
        name: _common_reason([str(reasons.get(name, "")) for reasons in workers]) for name in names
    }
    return {name: reason for name, reason in common.items() if reason}


def can_use_profile(name: str) -> bool:
    """True if a running worker reports that it can use an engine profile. One statement."""
    workers = _job_workers().values_list("missing_for_profiles", flat=True)
    return any(not reasons.get(name) for reasons in workers)


def _job_workers() -> "QuerySet[Heartbeat]":
    """The running workers that take jobs, the last one seen first."""
    return alive().filter(role__in=_JOB_ROLES).order_by(F("seen_at").desc())


def _common_reason(reasons: list[str]) -> str:
    """The first of the workers' reasons, if each of them has one; else empty."""
    return reasons[0] if reasons and all(reasons) else ""
