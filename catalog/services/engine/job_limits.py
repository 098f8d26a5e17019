"""Limits on the number of running jobs that the scheduler started under one policy."""

import logging

from celery import current_app
from kombu.exceptions import OperationalError

from catalog.models import Job, JobStatus
from catalog.services.engine import locks

log = logging.getLogger(__name__)

_ROUND_SECONDS = 60  # beat starts the scheduler that often


def has_room(pk: int) -> bool:
    """Whether fewer jobs with the same key run than their limit allows. Call it in a transaction.

    The lock on the key is held until the transaction ends, so two workers cannot both take the last
    place.
    """
    row = Job.objects.filter(pk=pk).exclude(limit_key="").values_list("limit_key", "limit").first()
    key, limit = row or ("", None)
    if limit is None:
        return True
    locks.lock_key(f"jobs of {key}")
    return Job.objects.filter(limit_key=key, status=JobStatus.RUNNING).count() < limit


def send_scheduler() -> None:
    """Start the scheduler now, because a policy has no queued job left."""
    try:
        current_app.send_task(
            "tasks.maintenance.start_due", args=[], retry=False, expires=_ROUND_SECONDS
        )
    except OperationalError:
        log.warning("The broker is unavailable; the scheduler starts in beat's next round")
