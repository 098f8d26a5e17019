"""The stages of running jobs, and the engine that does their work.

    queued ──▶ starting Spark ──▶ planning ──▶ rewriting ──▶ committing

A job passes those stages that it has. Each one is recorded in the job's row with its beginning, in the
job's log, and in the log of the worker.
"""

import logging
from typing import Any

from django.db import DatabaseError, connection
from django.utils import timezone

from catalog import tracing
from catalog.models import Engine, Job, JobStatus
from catalog.services.engine import jobs

log = logging.getLogger("monodon.jobs")


def begin(job: Job, name: str) -> None:
    """Record that a stage begins. Does nothing if the job is in this stage already."""
    if job.stages and job.stages[-1]["name"] == name:
        return
    job.stages = [*job.stages, {"name": name, "began_at": timezone.now().isoformat()}]
    log.info("Job %s: %s", job.pk, name, extra=_facts(job))
    _save(job, stages=job.stages)
    _log_event(job, name)
    tracing.add_event(name)


def count_bytes(job: Job, size: int) -> None:
    """Record the number of bytes that the current stage has processed so far."""
    if job.stages and size and job.stages[-1].get("bytes") != size:
        job.stages[-1]["bytes"] = size
        _save(job, stages=job.stages)


def choose_engine(job: Job, engine: Engine, reason: str) -> None:
    """Record which engine does the work, and why."""
    job.engine, job.engine_reason = engine, reason
    log.info("Job %s uses the engine '%s': %s", job.pk, engine, reason, extra=_facts(job))
    _save(job, engine=engine, engine_reason=reason)
    _log_event(job, f"engine {engine}: {reason}")


def record_ui(job: Job, url: str) -> None:
    """Record the URL of Spark's own pages; empty if there are none."""
    if job.spark_ui != url:
        job.spark_ui = url
        _save(job, spark_ui=url)


def _facts(job: Job) -> dict[str, Any]:
    return {"job": job.pk, "kind": job.kind, "table": job.table_id, "attempt": job.attempts}


def _save(job: Job, **values: Any) -> None:
    """Store values of a running attempt. A database that is unavailable for a moment is ignored."""
    mine = Job.objects.filter(pk=job.pk, status=JobStatus.RUNNING, attempts=job.attempts)
    try:
        mine.update(**values)
    except DatabaseError:
        connection.close()


def _log_event(job: Job, message: str) -> None:
    try:
        jobs.log_event(job, message)
    except DatabaseError:
        connection.close()
