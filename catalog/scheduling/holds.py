"""Tables and actions that must wait: after failures, useless jobs, and conflicts with writers."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from catalog.maintenance_actions import LastRun, MaintenanceAction

PAUSE = timedelta(hours=1)
"""Minimum time between a job that failed, or changed nothing, and the next one of its kind."""
QUIET = timedelta(minutes=10)
"""The period whose commits show whether the writers of a table are quiet."""
_QUIET_SHARE = 0.5
"""A table is quiet if it had at most this share of its usual commits."""
MAX_WAIT_FOR_QUIET = timedelta(days=1)
"""A table that is never quiet gets a job that long after the last one."""
_FIRST_DELAY = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits to a table by its writers."""

    recent: int
    """Within ``QUIET``."""
    day: int
    """Within a day."""


def retry_delay(attempts: int) -> timedelta:
    """The time before the next attempt of a job that failed, after this number of attempts."""
    return _FIRST_DELAY * (1 << attempts)


def is_on_hold(
    action: MaintenanceAction,
    last: LastRun | None,
    *,
    version: int,
    measured_at: datetime,
    now: datetime,
) -> bool:
    """True if a planned job must not start yet because of the last one of its kind.

    ``version`` of the table and ``measured_at`` are those of the measurement.
    """
    if last is None:
        return False
    if last.finished_at is None:
        return True
    if last.was_useless and action.depends_on_files_only and last.version == version:
        return True  # the files are the same, so the result would be the same
    if last.was_unsuccessful or last.was_useless:
        return now - last.finished_at <= PAUSE
    return measured_at <= last.finished_at  # the plan is from before this job


def needs_quiet(last: LastRun | None, now: datetime) -> bool:
    """True if recent jobs conflicted with writers, so that the next one waits for a quiet period."""
    if last is None or last.finished_at is None or last.attempts <= 1:
        return False
    return now - last.finished_at <= MAX_WAIT_FOR_QUIET


def is_quiet(commits: Commits) -> bool:
    """True if the writers of a table commit less than usual."""
    usual = commits.day * (QUIET / timedelta(days=1))
    return commits.recent <= usual * _QUIET_SHARE
