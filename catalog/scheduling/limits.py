"""Limits on the jobs of a policy: how many run, and what they may cost in a window."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

MAX_AHEAD = 500
"""Maximum number of jobs that a round queues in addition to those that run."""


class ActiveJobs:
    """The tables with a running or imminent job, and those whose job waits for an engine profile.

    A table runs one job at a time, so a job that waits for another job of its table does not count.
    Neither does a failed job that waits for its next attempt, which may be hours away. A job that
    waits for a worker counts as imminent, because jobs that are started later would wait too. A job
    whose profile has no room does not: jobs of other profiles could begin.
    """

    def __init__(self, free_drivers: Mapping[str, int] | None = None) -> None:
        self.imminent: Counter[str] = Counter()
        """Number of tables with a running or imminent job, by their limit's key."""
        self.waiting: Counter[tuple[str, str]] = Counter()
        """Number of tables whose job waits for a profile, by their limit's key and the profile."""
        self._free_drivers = dict(free_drivers or {})

    def add_running(self, key: str) -> None:
        """Count a running job, whose driver is not free any more."""
        self.imminent[key] += 1

    def add(self, key: str, profile: str) -> None:
        """Count a queued job."""
        if self._free_drivers.get(profile, 1) <= 0:
            self.waiting[key, profile] += 1
            return
        self.imminent[key] += 1
        if profile in self._free_drivers:
            self._free_drivers[profile] -= 1


def most_jobs(max_jobs: int, ended: int) -> int:
    """The number of jobs to have running or queued, if ``ended`` jobs ended within a round.

    Short jobs then need not wait for the next round, and long jobs are not planned long before they
    run.
    """
    return max_jobs + min(ended, MAX_AHEAD)


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of work: a budget, what was spent of it, or what a job is expected to cost."""

    seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.seconds + other.seconds, self.bytes + other.bytes)


def is_limited(budget: Amount) -> bool:
    return bool(budget.seconds or budget.bytes)


def is_left(budget: Amount, spent: Amount) -> bool:
    """True if something of a budget is left, so that small jobs may start."""
    return (not budget.seconds or spent.seconds < budget.seconds) and (
        not budget.bytes or spent.bytes < budget.bytes
    )


def fits(budget: Amount, spent: Amount, expected: Amount) -> bool:
    """True if a job may start under a budget. A budget of 0 is no limit.

    A job that is larger than the whole budget starts only if nothing was spent in the window, because
    otherwise it would never start.
    """
    return _fits(budget.seconds, spent.seconds, expected.seconds) and _fits(
        budget.bytes, spent.bytes, expected.bytes
    )


def _fits(budget: float, spent: float, expected: float) -> bool:
    return not budget or spent + expected <= budget or not spent
