"""The order in which workers take queued jobs, within the limits of policies and engine profiles."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, TypeVar

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class QueuedJob(Protocol):
    """The facts of a job on which its place in the queue depends."""

    engine_profile: str
    limit_key: str
    limit: int | None


J = TypeVar("J", bound=QueuedJob)


class Use(NamedTuple):
    """The use of an engine profile by the jobs of a policy or a principal."""

    running: int = 0
    last_start: datetime = _NEVER


class Rank(NamedTuple):
    """The place of a job in the queue; the lowest comes first."""

    turn: int
    """The number of jobs of the same policy and principal that come before, and that run."""
    last_start: datetime
    created_at: datetime
    pk: int


def rank(number: int, use: Use, created_at: datetime, pk: int) -> Rank:
    """The rank of a job that is the ``number``-th of its policy and principal."""
    return Rank(number + use.running, use.last_start, created_at, pk)


class Places:
    """The places for further jobs under policies and on engine profiles."""

    def __init__(self, running: Mapping[str, int], free_drivers: Mapping[str, int]) -> None:
        self._running = dict(running)
        self.free_drivers = dict(free_drivers)

    def select(self, jobs: Iterable[J], number: int) -> list[J]:
        """The first jobs, at most ``number``, that may begin; they use up the places."""
        selected: list[J] = []
        for job in jobs:
            if self.take(job):
                selected.append(job)
                if len(selected) == number:
                    break
        return selected

    def take(self, job: QueuedJob) -> bool:
        """Count a job as running; False if its limit or its profile does not allow it to begin."""
        if job.limit_key and job.limit is not None:
            running = self._running.get(job.limit_key, 0)
            if running >= job.limit:
                return False
        if self.free_drivers.get(job.engine_profile, 1) <= 0:
            return False
        if job.limit_key:
            self._running[job.limit_key] = self._running.get(job.limit_key, 0) + 1
        if job.engine_profile in self.free_drivers:
            self.free_drivers[job.engine_profile] -= 1
        return True
