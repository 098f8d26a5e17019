"""Job runner: take a queued job, do its work and record the result."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from catalog import access, maintenance_actions, tracing
from catalog.errors import (
    CatalogError,
    CommitConflict,
    OutcomeUnknown,
    ServiceUnavailable,
    Unsupported,
)
from catalog.models import (
    Job,
    JobEvent,
    JobKind,
    JobStatus,
    Table,
    TableFormat,
    TableState,
    TrashItem,
)
from catalog.policies import require_runnable
from catalog.privileges import Privilege
from catalog.services.audit import removed_files
from catalog.services.engine import audit_records, jobs, locks
from catalog.services.engine.jobs import JobCanceled, JobFailedInPart, JobLost, Report, Spark
from catalog.services.iceberg import references
from catalog.services.lance import backfill as lance_backfill
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.materialized_views import refreshes
from catalog.services.maintenance.engine_profiles import engines
from catalog.services.maintenance.plans import promises
from catalog.services.recovery import purge, remaining_files
from catalog.services.storage import file_references
from catalog.storage import locations, stores
from catalog.storage.outages import availability

log = logging.getLogger("monodon.jobs")

_RENEW_EVERY = 500  # files between two renewals of the lease
_RETRYABLE = (CommitConflict, OutcomeUnknown, ServiceUnavailable)

Work = Callable[[Job, Report], Mapping[str, Any] | None]
"""Function that does a job and returns its result as JSON; ``note`` in it is shown as a remark.

A CatalogError fails the job at once, because a retry would fail the same way. Errors that may pass
(a conflict, unavailable storage) and all other exceptions are retried, so the work may run twice.
"""


def run_job(pk: int, spark: Spark | None = None) -> None:
    """Take a queued job, do its work, and record the result. Safe to call twice at the same time.

    ``spark`` runs work that requires Spark; without it such a job fails with an error that says so.
    A job whose engine profile only other workers can use stays queued: beat sends it again.
    """
    if reason := engines.reason_to_decline(pk):
        log.info("Job %s is left to another worker: %s", pk, reason)
        return
    job = jobs.take(pk)
    if job is None:
        return
    attributes: tracing.Attributes = {
        "monodon.job": job.pk,
        "monodon.table": str(job.table),
        "attempt": job.attempts,
    }
    request_id = job.transaction.request_id if job.transaction is not None else ""
    with tracing.job(f"job {job.kind}", request_id=request_id, attributes=attributes):
        _run(job, spark)


def _run(job: Job, spark: Spark | None) -> None:
    """Do the work of a job that was taken, and record the result."""
    pk, began = job.pk, time.monotonic()
    log.info("Job %s (%s) of table '%s' started, attempt %s", pk, job.kind, job.table, job.attempts)
    try:
        with jobs.LeaseHeartbeat(job) as heartbeat, availability.patient():
            result = dict(_work(job, spark)(job, heartbeat.report) or {})
    except JobCanceled as reason:
        log.info("Job %s was canceled: %s", pk, reason)
        jobs.finish(job, JobStatus.CANCELED, str(reason))
    except JobFailedInPart as failed:
        log.warning("Job %s %s", job.pk, failed)
        _judge_plan(job, failed.result)
        job.result = failed.result
        jobs.finish(job, JobStatus.FAILED, str(failed))
    except JobLost:
        log.warning("Job %s was taken over by another worker", job.pk)
    except CatalogError as refused:
        again = isinstance(refused, _RETRYABLE) and job.attempts < jobs.MAX_ATTEMPTS
        log.warning("Job %s was refused in attempt %s: %s", job.pk, job.attempts, refused)
        jobs.finish(job, JobStatus.QUEUED if again else JobStatus.FAILED, refused.message)
    except Exception as error:  # a task's outermost frame
        again = job.attempts < jobs.MAX_ATTEMPTS
        log.exception("Job %s failed in attempt %s", job.pk, job.attempts)
        jobs.finish(job, JobStatus.QUEUED if again else JobStatus.FAILED, str(error))
    else:
        note = result.pop("note", "")
        _judge_plan(job, result)
        job.result = result or None
        jobs.finish(job, JobStatus.SUCCEEDED, note)
        log.info(
            "Job %s succeeded in %.1f s: %s", pk, time.monotonic() - began, note or job.summary
        )


def _judge_plan(job: Job, result: dict[str, Any]) -> None:
    """Add to the result whether it kept the plan, and log the figures that differ."""
    action = maintenance_actions.find(job.kind)
    if action is None or job.is_dry_run:
        return
    promise = promises.judge(action.implementations[job.table.format], result)
    if promise is None:
        return
    result["promise"] = promise
    if not promise["kept"]:
        text = f"the result differs from the plan: {promises.describe(promise)}"
        jobs.log_event(job, text, JobEvent.Level.WARNING, promise["figures"])


def _work(job: Job, spark: Spark | None) -> Work:
    if work := _WORK.get(job.kind):
        return work
    action = maintenance_actions.find(job.kind)
    if action is None or job.table.format not in action.formats:
        raise Unsupported(f"This worker runs no jobs of the kind '{job.label}'")
    # Some actions remove files before their first commit, which would check it.
    access.require(jobs.principal(job), Privilege.MAINTAIN, job.table)
    require_runnable(job.parameters.get("policy") or {})
    implementation = action.implementations[job.table.format]
    run = implementation.load()
    return partial(run, spark=spark) if implementation.takes_spark else run


def _purge_table(job: Job, _report: Report) -> dict[str, Any]:
    """Remove the files of a dropped table; ``note`` names files left in place, with the reason.

    Raises OSError when the storage fails.
    """
    locks.await_commits(job.table_id)  # later ones that refer to files of the table are refused
    references.require_read(job.table, partial(jobs.renew_or_stop, job))
    with transaction.atomic():
        table = locks.lock_table_row(job.table_id)
        if table.state != TableState.DROPPED:
            raise JobCanceled("the table was undropped")
        locks.lock_locations()  # others may be getting its location, as it had no active job before
        holder = purge.holder(table)
        if holder is not None:
            # The reason does not name the other table: readers of the job may not browse it.
            log.warning("Job %s: files of '%s' also belong to table '%s'", job.pk, table, holder)
            raise JobCanceled("its files also belong to another table")
        if file_references.dependents(table).exists():
            raise JobCanceled("other tables refer to its files")
        jobs.renew_or_stop(job)
        # From here on the table cannot be undropped.
        TrashItem.objects.filter(table=table, purge_begun_at=None).update(purge_begun_at=Now())
    if table.format == TableFormat.ICEBERG:
        removed = _purge_referenced(job, table)
        if removed.files:
            after = {"job": job.pk, "files": removed.files}
            with transaction.atomic():
                audit_records.record(
                    jobs.principal(job), "table.purge", str(table), table=table, after=after
                )
        notes = [f"left in place: {removed.remaining}"] if removed.remaining else []
    else:
        _purge_directory(job, table)
        notes = []
    if remaining_files.record(table, partial(jobs.renew, job)):
        notes.append("files remain in its directories")
    return {"note": "; ".join(notes)} if notes else {}


def _purge_directory(job: Job, table: Table) -> None:
    """Remove everything at a Lance table's location.

    A local directory is first renamed to a name that only this job uses. After that, no removed file
    can belong to another table, however long this worker was suspended in between. An object store
    cannot rename: the location stays reserved while the job is queued or runs, and a worker that has
    lost the job stops before the next page of files.
    """
    store = stores.store_of(table.location)
    aside = store.set_aside(table.location, f"purged-{job.pk}")
    if aside is None:
        return
    renewed = 0
    for removed in store.remove_tree(aside):
        job.progress = removed
        if removed - renewed >= _RENEW_EVERY or locations.is_object(aside):
            jobs.renew(job)
            renewed = removed


def _purge_referenced(job: Job, table: Table) -> purge.Removed:
    """Remove the files that an Iceberg table's metadata refers to.

    The files may lie anywhere, next to files of other tables, so they are removed one by one.
    """

    def report(paths: Sequence[str]) -> None:
        removed_files.record(job, paths)
        job.progress += len(paths)  # over all attempts: removed files are not listed again
        jobs.renew(job)

    return purge.remove_files(table, report)


_WORK: dict[str, Work] = {
    JobKind.PURGE_TABLE: _purge_table,
    JobKind.BUILD_INDEX: lance_indexes.build_index,
    JobKind.BACKFILL_COLUMN: lance_backfill.fill,
    JobKind.REFRESH_VIEW: refreshes.refresh_view,
}
"""The work of jobs that are not maintenance."""
