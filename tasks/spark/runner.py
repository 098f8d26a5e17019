"""Run a job's script in a driver and follow it."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection

from catalog.access import tokens
from catalog.errors import CommitConflict, ServiceUnavailable, Unsupported
from catalog.models import Job, JobEvent
from catalog.services.engine import job_stages, jobs
from catalog.services.engine.jobs import Report
from tasks.spark import configuration, libraries, pool
from tasks.spark.driver import Driver

log = logging.getLogger("monodon.jobs")

_TICK = 0.5
_NOTICE_SECONDS = 5.0  # until the lease's thread has seen why the catalog refuses the token
_REUSABLE_AFTER = {"refused", "conflict", "stopped"}
"""Kinds of failures after which the driver runs further jobs."""


class _NotAccepted(Exception):
    """The driver ended before it began the job."""


def run(
    job: Job,
    script: str,
    request: Mapping[str, Any],
    report: Report,
    *,
    needs_iceberg: bool = False,
    on_part: Callable[[Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run ``tasks/jobs/<script>.py`` for a job; see ``jobs.Spark``."""

    def log_download(text: str) -> None:
        report(0, None)  # raises when the job has to stop
        _log(job, text)

    configuration.environment()  # raises Unsupported before anything is fetched
    if needs_iceberg:
        libraries.require(str(request.get("scheme") or ""), log_download)
    token = tokens.issue_job_token(job.pk, job.attempts)
    message = {
        **request,
        "script": script,
        "job": job.pk,
        "url": settings.MONODON_URL,
        "token": token,
    }
    while True:
        jars = libraries.present()
        driver, is_reused = pool.acquire(jars)
        is_reusable = False
        try:
            driver.send(message, secret=token)
            result, is_reusable = _follow(job, driver, report, on_part)
            return result
        except _Failed as failed:
            is_reusable = failed.kind in _REUSABLE_AFTER
            raise failed.error from None
        except _NotAccepted:
            if not is_reused:
                raise RuntimeError(_death(job, driver)) from None
            # An idle driver ended at this moment. The job has not begun, so another driver takes it.
        finally:
            if is_reusable:
                pool.release(driver, jars)
            else:
                driver.end()


class _Failed(Exception):
    def __init__(self, kind: str, error: Exception) -> None:
        super().__init__(str(error))
        self.kind = kind
        self.error = error


def _follow(
    job: Job,
    driver: Driver,
    report: Report,
    on_part: Callable[[Mapping[str, Any]], None] | None,
) -> tuple[dict[str, Any], bool]:
    """Follow a driver until the job has ended. Returns the result, and whether to use the driver again.

    Raises _Failed, _NotAccepted, RuntimeError if the driver dies, and the exceptions of ``report``.
    """
    finished, total = 0, job.total
    is_accepted = False
    for event in driver.events():
        is_accepted |= bool(event)
        match event:
            case {"event": "progress", "done": int(finished)}:
                total = event.get("total") or total
                job_stages.count_bytes(job, int(event.get("bytes") or 0))
            case {"event": "stage", "name": str(name)}:
                job_stages.begin(job, name)
            case {"event": "spark", "application": str(application)}:
                job_stages.record_ui(job, str(event.get("ui") or ""))
                _log(job, f"Spark {event.get('version')} runs as {application}")
            case {"event": "part", "data": dict(part)} if on_part is not None:
                on_part(part)
            case {"event": "log", "message": str(message)}:
                level = JobEvent.Level(event.get("level", JobEvent.Level.INFO))
                _log(job, message, level, event.get("data"))
            case {"event": "result", "data": dict(result)}:
                report(finished, total)
                if reason := event.get("recycle"):
                    log.info("The driver of job %s runs no other job: %s", job.pk, reason)
                return result, not reason
            case {"event": "failed"}:
                raise _failure(job, driver, event, report, finished)
            case _:
                pass
        report(finished, total)  # raises when the job has to stop
    if not is_accepted:
        raise _NotAccepted
    raise RuntimeError(_death(job, driver))


def _death(job: Job, driver: Driver) -> str:
    """The description of a driver that ended without an outcome. Raises Unsupported for packages that
    cannot be fetched."""
    _require_packages(driver)
    text = f"The Spark driver {driver.describe_exit()}: {driver.tail()}"
    _log(job, text, JobEvent.Level.ERROR)
    return text


def _failure(
    job: Job, driver: Driver, event: Mapping[str, Any], report: Report, finished: int
) -> _Failed:
    kind, message = str(event.get("kind")), str(event.get("message", ""))
    _require_packages(driver)
    _log(job, message, JobEvent.Level.ERROR, {"tail": driver.tail()})
    match kind:
        case "refused":
            return _Failed(kind, Unsupported(message))
        case "conflict":
            return _Failed(kind, CommitConflict(message))
        case "stopped":
            _wait_for_reason(report, finished)
            return _Failed(kind, ServiceUnavailable(message))
    return _Failed(kind, RuntimeError(f"{message}: {driver.tail()}"))


def _require_packages(driver: Driver) -> None:
    if driver.has_printed("unresolved dependency"):
        raise Unsupported(
            f"Spark cannot fetch {', '.join(settings.MONODON_SPARK_PACKAGES)}: correct"
            " MONODON_SPARK_PACKAGES or, if Maven Central cannot be reached, set"
            " MONODON_SPARK_JARS to the path of the jar"
        )


def _wait_for_reason(report: Report, done: int) -> None:
    """The catalog takes no commit of the job any more: let the thread of its lease see why."""
    deadline = time.monotonic() + _NOTICE_SECONDS
    while time.monotonic() < deadline:
        report(done, None)
        time.sleep(_TICK)


def _log(
    job: Job,
    message: str,
    level: JobEvent.Level = JobEvent.Level.INFO,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write to the job's log. A database that is unavailable for a moment must not end the driver."""
    try:
        jobs.log_event(job, message, level, data)
    except DatabaseError:
        connection.close()
