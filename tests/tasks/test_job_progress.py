"""The progress that a driver reads from Spark's finished jobs."""

import json
from typing import Any

from tasks.jobs.iceberg import progress


class Jobs:
    """Spark's list of jobs, each with its number and the files of its group."""

    def __init__(self, *jobs: tuple[int, int]) -> None:
        self.jobs = jobs

    def jobsList(self, _statuses: None) -> "Jobs":  # noqa: N802 -- as Spark names it
        return self

    def size(self) -> int:
        return len(self.jobs)

    def apply(self, index: int) -> "FinishedJob":
        return FinishedJob(*self.jobs[index])


class FinishedJob:
    def __init__(self, number: int, files: int) -> None:
        self._number, self._files = number, files

    def jobId(self) -> int:  # noqa: N802
        return self._number

    def description(self) -> "FinishedJob":
        return self

    def isDefined(self) -> bool:  # noqa: N802
        return True

    def get(self) -> str:
        return f"Rewriting {self._files} files (group {self._number})"

    def status(self) -> str:
        return "SUCCEEDED"


class Progress(progress.Progress):
    def __init__(self, total: int) -> None:
        self._store: Any = Jobs()
        self._total, self._first, self._reported, self._stage = total, 0, None, ""
        self._groups = {}

    def _bytes_of(self, job: Any) -> int:
        return 100

    def see(self, *jobs: tuple[int, int]) -> None:
        self._store = Jobs(*jobs)
        self._report()


def test_jobs_that_spark_has_forgotten_still_count(capsys):
    """Spark keeps the last 200 jobs; the number of finished files must not decrease."""
    progress = Progress(total=9)
    progress.see((1, 2), (2, 3))
    progress.see((2, 3), (3, 4))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    events = [line for line in lines if line["event"] == "progress"]
    assert [(event["done"], event["bytes"]) for event in events] == [(5, 200), (9, 300)]
    assert [line["name"] for line in lines if line["event"] == "stage"] == [
        "rewriting",
        "committing",
    ]
