"""Jobs: work that goes on after a commit. The row is the truth, the broker only a hint."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from celery import current_app
from django.db import transaction
from django.db.models import Case, F, Q, TextField, Value, When
from django.db.models.functions import Now
from django.utils import timezone
from kombu.exceptions import OperationalError

from catalog import storage
from catalog.models import (
    Job,
    JobStatus,
    Table,
    TableFormat,
    TableState,
    Transaction,
    TransactionStatus,
)
from catalog.services import locks, purge

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 8  # the last one about two hours after the first
_BACK_OFF = timedelta(seconds=15)
_SENT_AT_ONCE = 100
_LEASE = timedelta(minutes=2)
_RENEW_EVERY = 500  # files between two looks at the row
_ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)


class JobCanceled(Exception):
    """The running job has to stop; the text says why."""


class JobLost(Exception):
    """Another worker has taken the job over."""


def send_jobs(jobs: Sequence[Job]) -> None:
    """Tell the workers about jobs. A broker that is away loses nothing: beat sends them again."""
    try:
        for job in jobs[:_SENT_AT_ONCE]:  # the rest follows in beat's next rounds
            current_app.send_task(
                "tasks.maintenance.run_job", args=[job.pk], retry=False, expires=600
            )
    except OperationalError:
        log.warning("The broker is away; %d jobs wait for the next round", len(jobs))


def send_waiting_jobs() -> int:
    """Send every job that is due again, and requeue what a dead worker held; returns how many."""
    now = timezone.now()
    Job.objects.filter(status=JobStatus.RUNNING, lease_until__lt=now).update(
        status=JobStatus.QUEUED, lease_until=None
    )
    jobs = list(
        Job.objects.filter(_due(now), status=JobStatus.QUEUED).order_by("created_at")[
            :_SENT_AT_ONCE
        ]
    )
    send_jobs(jobs)
    return len(jobs)


def run_job(pk: int) -> None:
    """Take a queued job, do its work, and record how it ended. Safe to call twice at once."""
    job = _take(pk)
    if job is None:
        return
    try:
        left = _purge_table(job)
    except JobCanceled as reason:
        _finish(job, JobStatus.CANCELED, str(reason))
    except JobLost:
        log.warning("Job %s was taken over by another worker", job.pk)
    except Exception as error:  # a task's outermost frame
        again = job.attempts < MAX_ATTEMPTS
        log.exception("Job %s failed in attempt %s", job.pk, job.attempts)
        _finish(job, JobStatus.QUEUED if again else JobStatus.FAILED, str(error))
    else:
        _finish(job, JobStatus.SUCCEEDED, f"left in place: {left}" if left else "")


def cancel_jobs_of(owner: Transaction) -> None:
    """Cancel what waits and ask what runs to stop. Call it inside the caller's transaction."""
    waits = Q(status=JobStatus.QUEUED)
    owner.jobs.filter(status__in=_ACTIVE).update(
        cancel_requested=True,
        finished_at=Case(When(waits, then=Now()), default=F("finished_at")),
        status=Case(
            When(waits, then=Value(JobStatus.CANCELED, output_field=TextField())),
            default=F("status"),
        ),
    )


def _due(now: datetime) -> Q:
    return Q(lease_until=None) | Q(lease_until__lt=now)


def _take(pk: int) -> Job | None:
    now = timezone.now()
    with transaction.atomic():
        # The transaction before its job, as everywhere.
        owner = locks.lock_transaction_of_job(pk)
        taken = Job.objects.filter(_due(now), pk=pk, status__in=_ACTIVE).update(
            status=JobStatus.RUNNING,
            attempts=F("attempts") + 1,
            started_at=now,
            lease_until=now + _LEASE,
            error="",
        )
        if not taken:
            return None
        if owner is not None and owner.status == TransactionStatus.QUEUED:
            owner.status = TransactionStatus.RUNNING
            owner.save(update_fields=["status"])
        return Job.objects.select_related("table").get(pk=pk)


def _renew(job: Job) -> bool:
    """Prolong the lease; returns whether the job is to stop. Raises JobLost."""
    mine = Job.objects.filter(pk=job.pk, status=JobStatus.RUNNING, attempts=job.attempts)
    if not mine.update(lease_until=timezone.now() + _LEASE, progress=job.progress):
        raise JobLost
    return mine.filter(cancel_requested=True).exists()


def _finish(job: Job, status: JobStatus, error: str = "") -> None:
    now = timezone.now()
    waits = status == JobStatus.QUEUED
    with transaction.atomic():
        # One job at a time decides what the transaction's end is.
        owner = locks.lock_transaction_of_job(job.pk)
        mine = Job.objects.filter(pk=job.pk, status=JobStatus.RUNNING, attempts=job.attempts)
        finished = mine.update(
            status=status,
            error=error,
            progress=job.progress,
            finished_at=None if waits else now,
            # A failed job waits longer each time before it is tried again.
            lease_until=now + _BACK_OFF * 2**job.attempts if waits else None,
        )
        if finished and owner is not None:
            _close_transaction(owner)


def _close_transaction(owner: Transaction) -> None:
    """Give a transaction its final status once none of its jobs is active."""
    statuses = set(owner.jobs.values_list("status", flat=True))
    if statuses & set(_ACTIVE):
        return
    if JobStatus.FAILED in statuses:
        owner.status = TransactionStatus.FAILED
    elif JobStatus.CANCELED in statuses:
        owner.status = TransactionStatus.CANCELED
    else:
        owner.status = TransactionStatus.SUCCEEDED
    owner.save(update_fields=["status"])


def _purge_table(job: Job) -> str:
    """Remove the files of a dropped table; returns what was left in place, and why.

    Raises OSError when the storage fails.
    """
    with transaction.atomic():
        table = locks.lock_table_row(job.table_id)
        if table.state != TableState.DROPPED:
            raise JobCanceled("the table was brought back")
        holder = purge.holder(table)
    if holder is not None:
        raise JobCanceled(f"its files belong to the table '{holder}' too")
    if _renew(job):
        raise JobCanceled("canceled on request")
    if table.format == TableFormat.ICEBERG:
        return _purge_referenced(job, table)
    _purge_directory(job, table)
    return ""


def _purge_directory(job: Job, table: Table) -> None:
    """Remove all that lies at a Lance table's location.

    The directory is first set aside under a name of this job's own. From then on nothing that is
    removed can belong to anybody else, however long this worker was stopped in between.
    """
    aside = storage.set_aside(table.location, f"purged-{job.pk}")
    if aside is None:
        return
    for removed in storage.remove_tree(aside):
        job.progress = removed
        if removed % _RENEW_EVERY == 0:
            _renew(job)


def _purge_referenced(job: Job, table: Table) -> str:
    """Remove what an Iceberg table's metadata refers to; returns what was left in place, and why.

    Its files may lie anywhere and among others', so they go one by one.
    """

    def renew(removed: int) -> None:
        job.progress += removed  # over all attempts: what is gone is not met again
        _renew(job)

    return purge.remove_files(table, renew)
