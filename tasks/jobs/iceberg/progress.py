"""The progress of a job, from the Spark jobs that it starts."""

import contextlib
import re
import threading
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from .events import emit

_GROUP = re.compile(r"Rewriting (\d+) (?:position delete )?files")


class Progress:
    """Reports the files and bytes that finished Spark jobs rewrote, from the descriptions of the jobs."""

    def __init__(self, spark: SparkSession, total: int | None) -> None:
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
        self._total = total
        self._first = self._newest() + 1
        """The application may have run other jobs before."""
        self._groups: dict[str, tuple[int, int]] = {}
        """Files and bytes of the finished groups. Spark itself forgets jobs when it has run many."""
        self._reported: tuple[int, int] | None = None
        self._stage = ""

    def watch(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            with contextlib.suppress(Py4JError):
                self._report()

    def _newest(self) -> int:
        jobs = self._store.jobsList(None)
        return max((jobs.apply(number).jobId() for number in range(jobs.size())), default=-1)

    def _report(self) -> None:
        is_rewriting = False
        jobs = self._store.jobsList(None)
        for number in range(jobs.size()):
            job = jobs.apply(number)
            if job.jobId() < self._first:
                continue
            text = job.description().get() if job.description().isDefined() else ""
            match = _GROUP.search(text)
            if match is None:
                continue
            is_rewriting = True
            if str(job.status()) == "SUCCEEDED":
                self._groups[text] = int(match[1]), self._bytes_of(job)
        if is_rewriting:
            finished = sum(files for files, _ in self._groups.values())
            size = sum(size for _, size in self._groups.values())
            is_last = bool(self._total) and finished >= (self._total or 0)
            self._begin("committing" if is_last else "rewriting")
            if (finished, size) != self._reported:
                emit("progress", done=finished, total=self._total, bytes=size)
                self._reported = finished, size

    def _begin(self, stage: str) -> None:
        if stage != self._stage:
            self._stage = stage
            emit("stage", name=stage)

    def _bytes_of(self, job: Any) -> int:
        """The bytes that a job read."""
        stages = job.stageIds()
        numbers = [int(stages.apply(number)) for number in range(stages.size())]
        return sum(int(self._store.lastStageAttempt(number).inputBytes()) for number in numbers)
