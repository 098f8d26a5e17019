"""Run a job's script in a driver and follow it."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection

from catalog import tracing
from catalog.access import tokens
from catalog.errors import CommitConflict, ServiceUnavailable, Unsupported
from catalog.models import Job, JobEvent
from catalog.services.engine import job_stages, jobs
from catalog.services.engine.jobs import Report
from catalog.services.maintenance.engine_profiles import engines
from tasks.spark import configuration, libraries, pool
from tasks.spark.driver import Driver

log = logging.getLogger("monodon.jobs")

_TICK = 0.5
_SECRET = re.compile("secret|token|key|sas|credential|password")
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

    engine = engines.engine_of_job(job)
    configuration.environment(engine)  # raises Unsupported before anything is fetched
    if needs_iceberg:
        libraries.require(str(request.get("scheme") or ""), log_download)
    token = tokens.issue_job_token(job.pk, job.attempts)
    message = {
        **request,
        "script": script,
        "job": job.pk,
        "url": settings.MONODON_URL,
        "token": token,
        "traceparent": tracing.traceparent(),
    }
    while True:
        jars = libraries.present()
        driver, is_reused = pool.acquire(engine, jars)
        is_reusable = False
        try:
            driver.send(message, secrets=[token, *_secrets(request)])
            result, is_reusable = _follow(job, driver, report, on_part)
            return result
        except _Failed as failed:
            is_reusable = failed.is_driver_reusable
            raise failed.error from None
        except _NotAccepted:
            if not is_reused:
                raise RuntimeError(_death(job, driver)) from None
            # An idle driver ended at this moment. The job has not begun, so another driver takes it.
        finally:
            if is_reusable:
                pool.release(driver, engine, jars)
            else:
                driver.end()


def _secrets(request: Mapping[str, Any]) -> list[str]:
    """The values with which the request gives access to an object store."""
    options: Mapping[str, str] = request.get("storage_options") or {}
    return [value for name, value in options.items() if _SECRET.search(name) and value]


class _Failed(Exception):
    def __init__(self, error: Exception, *, is_driver_reusable: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_driver_reusable = is_driver_reusable


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
        if not is_accepted:
            # The last events of the previous job may arrive only now.
            is_accepted = event.get("event") == "accepted" and event.get("job") == job.pk
        match event if is_accepted else {}:
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
                return result, not _must_recycle(job, event)
            case {"event": "failed"}:
                raise _failure(job, driver, event, report, finished)
            case _:
                pass
        report(finished, total)  # raises when the job has to stop
    if not is_accepted:
        raise _NotAccepted
    raise RuntimeError(_death(job, driver))


def _must_recycle(job: Job, event: Mapping[str, Any]) -> bool:
    """True if the driver must not run another job, because this one left something in its memory."""
    if reason := event.get("recycle"):
        log.info("The driver of job %s runs no other job: %s", job.pk, reason)
    return bool(reason)


def _death(job: Job, driver: Driver) -> str:
    """The description of a driver that ended without an outcome. Raises Unsupported for packages that
    cannot be fetched."""
    _require_packages(driver)
    text = f"The Spark driver {driver.describe_exit()}"
    if tail := _tail(job, driver):
        text += f": {tail}"
    _log(job, text, JobEvent.Level.ERROR)
    return text


def _failure(
    job: Job, driver: Driver, event: Mapping[str, Any], report: Report, finished: int
) -> _Failed:
    kind, message = str(event.get("kind")), str(event.get("message", ""))
    _require_packages(driver)
    tail = _tail(job, driver)
    _log(job, message, JobEvent.Level.ERROR, {"tail": tail} if tail else None)
    is_reusable = kind in _REUSABLE_AFTER and not _must_recycle(job, event)
    error: Exception
    match kind:
        case "refused":
            error = Unsupported(message)
        case "conflict":
            error = CommitConflict(message)
        case "stopped":
            _wait_for_reason(report, finished)
            error = ServiceUnavailable(message)
        case _:
            error = RuntimeError(f"{message}: {tail}" if tail else message)
    return _Failed(error, is_driver_reusable=is_reusable)


def _tail(job: Job, driver: Driver) -> str:
    """The last lines of a driver's output, for the job's readers; empty if it has run other jobs.

    Threads of Spark may still write lines about the tables of those jobs, which readers of this job may not
    know. Such lines are in the log of the worker only.
    """
    tail = driver.tail()
    if driver.jobs == 1:
        return tail
    log.warning("The last lines of the driver of job %s: %s", job.pk, tail)
    return ""


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
