"""What the simulation remembers: the last jobs of tables, and figures for the report."""

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulation.fleet import CHANGES, Fleet, Pattern, moment
from benchmarks.simulation.jobs import SimulatedJob
from catalog.maintenance_actions import LastRun

KINDS = ("compact", "clean_up", "rewrite_manifests", "rewrite_position_deletes")
_ATTEMPTS = 3
"""Jobs whose attempts show conflicts with writers."""


@dataclass(frozen=True)
class Size:
    """The size of a simulation."""

    tables: int
    tenants: int
    workers: int
    days: int
    seed: int
    measurements: int
    """Tables that are measured in a round, at most."""
    slowness: float = 1.0

    @classmethod
    def of(cls, tables: int, seed: int, *, days: int = 4, workers: int = 0) -> "Size":
        """A size whose workers are busy most of the time."""
        number = workers or max(tables // 20_000, 1)
        return cls(
            tables=tables,
            tenants=max(8, min(tables // 5000, 200)),
            workers=number,
            days=days,
            seed=seed,
            measurements=max(tables // 500, 40),
        )


class Runs:
    """The last job of each kind and table, as arrays."""

    def __init__(self, tables: int) -> None:
        shape = tables, len(KINDS)
        self._created = np.full(shape, np.nan)
        self._finished = np.full(shape, np.nan)
        self._failed = np.zeros(shape, bool)
        self._version = np.zeros(shape, np.int32)
        self._attempts = np.zeros((*shape, _ATTEMPTS), np.uint8)
        self._has_run = np.zeros(tables, bool)

    def begin(self, job: SimulatedJob, now: float) -> None:
        action = job.table, KINDS.index(job.kind)
        self._has_run[job.table] = True
        self._created[action] = now
        self._finished[action] = np.nan
        attempts = self._attempts[action]
        attempts[1:] = attempts[:-1].copy()
        attempts[0] = 1

    def end(self, job: SimulatedJob, now: float, *, version: int) -> None:
        action = job.table, KINDS.index(job.kind)
        self._finished[action] = now
        self._failed[action] = job.outcome != "done"
        self._version[action] = version
        self._attempts[action][0] = job.attempts

    def of(self, table: int) -> dict[str, LastRun]:
        """The last jobs of a table, by kind."""
        runs: dict[str, LastRun] = {}
        if not self._has_run.item(table):
            return runs
        finished = self._finished[table].tolist()
        for kind, created in enumerate(self._created[table].tolist()):
            if not math.isnan(created):
                failed = self._failed.item(table, kind)
                end = finished[kind]
                runs[KINDS[kind]] = LastRun(
                    created_at=moment(created),
                    finished_at=None if math.isnan(end) else moment(end),
                    was_unsuccessful=failed,
                    was_useless=failed,
                    version=self._version.item(table, kind),
                    attempts=max(self._attempts[table, kind].tolist()),
                )
        return runs


@dataclass
class Records:
    """Figures for the report."""

    fleet: Fleet
    scores: list[float] = field(default_factory=list)
    """The mean score of the measured tables after each hour."""
    scores_by_pattern: dict[str, list[float]] = field(default_factory=dict)
    jobs: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Ended attempts: done, conflict, death."""
    measurements: int = 0
    failed: int = 0
    busy_seconds: float = 0.0
    conflicts: Counter[str] = field(default_factory=Counter)
    """Attempts on tables with change data capture, and their conflicts, by day and by night."""
    waits: dict[str, "array[float]"] = field(
        default_factory=lambda: {"read": array("f"), "unread": array("f")}
    )
    by_tenant: Counter[int] = field(default_factory=Counter)
    """Seconds of workers."""

    def hourly(self, score: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> None:
        is_measured = ~np.isnan(score)
        self.scores.append(float(score[is_measured].mean()))
        for pattern in Pattern:
            chosen = score[is_measured & (self.fleet.pattern == pattern)]
            mean = float(chosen.mean()) if len(chosen) else math.nan
            self.scores_by_pattern.setdefault(pattern.name.lower(), []).append(mean)

    def chosen(self, job: SimulatedJob, now: float) -> None:
        self.jobs[job.kind] += 1
        use = "read" if self.fleet.reads[job.table] > 0 else "unread"
        self.waits[use].append(now - job.due_since)

    def ended(self, job: SimulatedJob, now: float, *, is_busy: bool) -> None:
        self.outcomes[job.outcome] += 1
        self.busy_seconds += job.seconds
        self.by_tenant[job.tenant] += int(job.seconds)
        if self.fleet.pattern[job.table] == CHANGES:
            period = "day" if is_busy else "night"
            self.conflicts[f"attempts by {period}"] += 1
            self.conflicts[f"conflicts by {period}"] += job.outcome == "conflict"
