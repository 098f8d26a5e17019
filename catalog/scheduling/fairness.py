"""The order of namespaces: those that have used the least time of workers come first."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

HISTORY = timedelta(hours=1)
"""Jobs that ended longer ago do not count."""
LEAST_CHARGE = 1.0
"""Seconds that a job counts at least, for starting it."""


class Candidate(Protocol):
    """A table that may need a job."""

    @property
    def turn(self) -> datetime: ...


C = TypeVar("C", bound=Candidate)


def charge(seconds: float, priority: int) -> float:
    """What a job adds to the use of its namespace: a higher priority makes it cheaper."""
    return max(seconds, LEAST_CHARGE) / max(priority, 1)


class FairQueue(Generic[C]):
    """Candidates of many namespaces.

    The next candidate is the first one of the namespace with the least use; of several, of the one
    whose candidate has the earliest turn. Each namespace keeps its own order. ``charge`` adds to the
    use of a namespace when a job is started, so that namespaces take turns within a round, too.
    """

    def __init__(self, sources: Mapping[str, Iterable[C]], used: Mapping[str, float]) -> None:
        self._sources = {name: iter(source) for name, source in sources.items()}
        self._used = dict(used)
        self._heap: list[tuple[float, datetime, str, C]] = []
        for name in self._sources:
            self._push(name)

    def __iter__(self) -> Iterator[tuple[str, C]]:
        while self._heap:
            used, turn, name, candidate = heapq.heappop(self._heap)
            if name not in self._sources:
                continue
            if used < self._used.get(name, 0.0):  # charged since it was pushed
                heapq.heappush(self._heap, (self._used[name], turn, name, candidate))
                continue
            yield name, candidate
            self._push(name)

    def charge(self, name: str, amount: float) -> None:
        self._used[name] = self._used.get(name, 0.0) + amount

    def close(self, name: str) -> None:
        """Leave out the other candidates of a namespace."""
        self._sources.pop(name, None)

    def _push(self, name: str) -> None:
        source = self._sources.get(name)
        candidate = None if source is None else next(source, None)
        if candidate is not None:
            entry = self._used.get(name, 0.0), candidate.turn, name, candidate
            heapq.heappush(self._heap, entry)
