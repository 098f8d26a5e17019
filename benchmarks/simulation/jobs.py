"""The jobs of the simulation: what they really cost, and when they fail."""

import math
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from benchmarks.simulation.fleet import CHANGES, DAY, MIB, Fleet
from catalog.scheduling.rounds import Choice

_TRUE_COSTS = {
    ("compact", "lance"): (1.5, 0.02),
    ("compact", "iceberg"): (6.0, 0.03),
    ("clean_up", "lance"): (1.0, 0.0),
    ("clean_up", "iceberg"): (4.0, 0.0),
    ("rewrite_manifests", "iceberg"): (5.0, 0.0),
    ("rewrite_position_deletes", "iceberg"): (8.0, 0.0),
}
"""Seconds of a job, and of each MiB that it rewrites; unknown to the scheduler."""
_NOISE = 0.4
_FOREIGN_SHARE = 0.5
"""The share of concurrent changes that touch the files of a job."""
_DEATHS = 0.001
LEASE = 120.0
"""Seconds after which the job of a dead worker is repeated."""


@dataclass(slots=True)
class SimulatedJob:
    """A job of the simulated queue."""

    pk: int
    table: int
    tenant: int
    kind: str
    format: str
    choice: Choice
    limit_key: str
    limit: int | None
    engine_profile: str
    priority: int
    created: float
    created_at: datetime
    due_since: float
    attempts: int = 0
    started: float = math.nan
    seconds: float = 0.0
    """The duration of the attempt that runs."""
    outcome: str = ""
    """``done``, ``conflict`` or ``death`` of that attempt."""


class TrueCosts:
    """Durations and outcomes of attempts."""

    def __init__(self, fleet: Fleet, slowness: float) -> None:
        self._fleet = fleet
        self._slowness = slowness
        """A factor of all durations, by which few tables occupy the workers."""

    def expected(self, kind: str, table_format: str, size: int) -> float:
        fixed, per_mib = _TRUE_COSTS[kind, table_format]
        return self._slowness * (fixed + per_mib * size / MIB)

    def attempt(self, job: SimulatedJob, now: float) -> None:
        """Decide how long the attempt takes, and how it ends."""
        random = self._fleet.random
        mean = self.expected(job.kind, job.format, job.choice.expected.bytes)
        job.started = now
        job.attempts += 1
        job.seconds = float(mean * random.lognormal(-(_NOISE**2) / 2, _NOISE))
        job.outcome = "done"
        if random.random() < _DEATHS:
            job.outcome = "death"
            job.seconds += LEASE
        elif self._fleet.pattern[job.table] == CHANGES and job.kind != "clean_up":
            commits = self._fleet.commits(job.table, now, now + job.seconds)
            if random.random() < -np.expm1(-commits * _FOREIGN_SHARE):
                job.outcome = "conflict"


def is_busy_hour(now: float) -> bool:
    """True from 06:00 to 22:00, when change data capture is at work."""
    return DAY / 4 <= now % DAY < 22 * DAY / 24
