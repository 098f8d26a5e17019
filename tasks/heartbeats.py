"""Heartbeats of this worker or beat, and the download of Spark's libraries when a worker starts."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.db import Error, connections
from django.db.models.functions import Now

from catalog.errors import Unsupported
from catalog.models import Heartbeat, ProcessRole
from catalog.services.engine import processes

log = logging.getLogger("monodon.worker")
_FETCH_AGAIN_SECONDS = 300.0


class Reporter:
    """Reports a process every few seconds, in its own thread."""

    def __init__(self, name: str, role: ProcessRole, concurrency: int = 1) -> None:
        self._name = name
        self._role = role
        self._concurrency = concurrency
        self._ended = threading.Event()
        self._libraries = _Libraries() if role in {"jobs", "worker"} else None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._libraries is not None:
            threading.Thread(
                target=self._libraries.keep_fetching, name="libraries", daemon=True
            ).start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        is_first = True
        while not self._ended.is_set():
            is_first = not self._try(partial(self._report, is_first)) and is_first
            self._ended.wait(processes.SECONDS)
        self._try(lambda: processes.forget(self._name))

    def _report(self, is_first: bool) -> None:
        facts = self._libraries.facts() if self._libraries is not None else {}
        heartbeat = Heartbeat(
            name=self._name,
            role=self._role,
            concurrency=self._concurrency,
            seen_at=Now(),
            started_at=Now(),
            **facts,
        )
        processes.report(heartbeat, is_first=is_first)

    def _try(self, work: Callable[[], None]) -> bool:
        """Use a connection for a moment only: processes that fork must not share one."""
        try:
            work()
        except Error as error:
            log.warning("The heartbeat of %s could not be stored: %s", self._name, error)
            return False
        finally:
            connections.close_all()
        return True


class _Libraries:
    """The Iceberg runtime of this worker, which is fetched while no job needs it yet."""

    def __init__(self) -> None:
        self._error = ""
        self._is_downloading = False

    def facts(self) -> dict[str, Any]:
        from catalog.services.maintenance.engine_profiles import engines
        from tasks.spark import requirements

        return {
            "missing_for_spark": requirements.missing(),
            "missing_for_iceberg": requirements.missing_for_iceberg() or self._error,
            "missing_for_profiles": engines.problems(),
            "is_downloading": self._is_downloading,
        }

    def keep_fetching(self) -> None:
        """Fetch the runtime; after a failure, try again every five minutes."""
        from tasks.spark import libraries, requirements

        while not requirements.missing_for_iceberg():
            self._is_downloading = True
            try:
                libraries.require("", log.info)
            except Unsupported as error:
                if error.message != self._error:
                    log.warning("%s", error.message)
                self._error = error.message
            else:
                self._error = ""
                return
            finally:
                self._is_downloading = False
            time.sleep(_FETCH_AGAIN_SECONDS)


_reporters: list[Reporter] = []


def report_worker(consumer: Any) -> None:
    """Start the heartbeats of a worker that takes messages now."""
    queues = set(consumer.app.amqp.queues.consume_from)
    tasks_queue = settings.CELERY_TASK_DEFAULT_QUEUE
    has_jobs, has_tasks = f"{tasks_queue}.jobs" in queues, tasks_queue in queues
    role = ProcessRole.WORKER
    if not (has_jobs and has_tasks):
        role = ProcessRole.JOB_WORKER if has_jobs else ProcessRole.TASK_WORKER
    _start(Reporter(consumer.hostname, role, int(consumer.controller.concurrency or 1)))


def report_beat() -> None:
    """Start the heartbeats of beat."""
    _start(Reporter(f"beat@{socket.gethostname()}", ProcessRole.BEAT))


def stop() -> None:
    """End the heartbeats, and remove the process from those that run."""
    for reporter in _reporters:
        reporter.stop()
    _reporters.clear()


def _start(reporter: Reporter) -> None:
    _reporters.append(reporter)
    reporter.start()
