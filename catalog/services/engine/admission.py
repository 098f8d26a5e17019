"""A limit on the threads of a web process that wait for the same namespaces and tables.

In PostgreSQL every commit to a table waits for the transaction that has it locked. A process has a
few threads; once all of them wait, it answers no request, whatever it is about. So a commit first
enters the admission under the names that it locks:

- At most ``max_waiting`` threads are inside for one name; the others wait here.
- A name is stalled when a commit has been inside for ``_STALL_SECONDS``. Once ``max_waiting``
  threads wait for stalled names, further ones are refused at once. Commits that finish quickly
  cause no refusals.
- A name stays suspect after a commit that long, until a commit on it finishes quickly. Only a single
  thread is inside for a suspect name, and all of them together are at most ``max_waiting``.
  Otherwise the threads that leave one stalled name would be replaced by those of another.

Processes that answer no requests (jobs, commands) pass without waiting.
"""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from catalog.errors import Busy
from catalog.identifiers import Identifier
from catalog.postgresql import limits

_STALL_SECONDS = 0.5
_MAX_SUSPECTS = 10_000


class Admission:
    """The running commits of one process, by the names that they lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[uuid.UUID, list[float]] = {}
        """The times at which the commits entered, the oldest first."""
        self._waiting: dict[uuid.UUID, int] = {}
        self._suspects: dict[uuid.UUID, None] = {}
        """The names whose last commit was slow, the oldest first."""
        self._own: ContextVar[frozenset[uuid.UUID]] = ContextVar("entered", default=frozenset())
        """The names that the request has entered. Lance's threads commit in the context of the request."""

    @contextmanager
    def enter(
        self, names: Collection[uuid.UUID], target: Callable[[], Identifier]
    ) -> Iterator[None]:
        """Hold a place for these names; reentrant in a context. Raises Busy, naming ``target``."""
        bounds = limits.requests
        entered = self._own.get()
        new = [name for name in names if name not in entered] if entered else names
        if bounds is None or not new:
            yield
            return
        with self._changed:
            if self._full(new, bounds) is not None:
                self._wait(new, bounds, target)
            since = time.monotonic()
            for name in new:
                self._inside.setdefault(name, []).append(since)
            if self._waiting and not self._suspects.keys().isdisjoint(new):
                self._changed.notify_all()  # this thread may take the place of a waiting one
        token = self._own.set(entered.union(new))
        try:
            yield
        finally:
            self._own.reset(token)
            with self._changed:
                is_slow = time.monotonic() >= since + _STALL_SECONDS
                for name in new:
                    moments = self._inside[name]
                    moments.remove(since)
                    if not moments:
                        del self._inside[name]
                    self._suspects.pop(name, None)
                    if is_slow:
                        self._suspects[name] = None
                while len(self._suspects) > _MAX_SUSPECTS:
                    del self._suspects[next(iter(self._suspects))]
                if self._waiting:
                    self._changed.notify_all()

    def _wait(
        self,
        names: Collection[uuid.UUID],
        bounds: limits.RequestLimits,
        target: Callable[[], Identifier],
    ) -> None:
        deadline = time.monotonic() + bounds.lock_seconds
        while True:
            name, now = self._full(names, bounds), time.monotonic()
            if name is None:
                return
            stalls_at = self._stalls_at(name)
            if now >= deadline or (now >= stalls_at and self._held_up(now) >= bounds.max_waiting):
                identifier = target()
                if not identifier:
                    raise Busy("Too many requests wait for this table; try again")
                raise Busy("Too many requests wait for '{target}'; try again", target=identifier)
            self._waiting[name] = self._waiting.get(name, 0) + 1
            try:
                self._changed.wait((stalls_at if now < stalls_at else deadline) - now)
            finally:
                self._waiting[name] -= 1
                if not self._waiting[name]:
                    del self._waiting[name]

    def _full(self, names: Collection[uuid.UUID], bounds: limits.RequestLimits) -> uuid.UUID | None:
        """The first name for which no thread may enter now."""
        suspects = self._suspects.keys() & names if self._suspects else ()
        if suspects and self._inside_stalled(time.monotonic()) >= bounds.max_waiting:
            return next(iter(suspects))
        for name in names:
            limit = 1 if name in suspects else bounds.max_waiting
            if len(self._inside.get(name, ())) >= limit:
                return name
        return None

    def _stalls_at(self, name: uuid.UUID) -> float:
        """The time at which threads that wait for this name count as held up."""
        inside = self._inside.get(name)
        return inside[0] + _STALL_SECONDS if inside else 0.0

    def _inside_stalled(self, now: float) -> int:
        """The number of threads that are inside for suspect or stalled names."""
        return len(
            {
                moment
                for name, moments in self._inside.items()
                if name in self._suspects or moments[0] <= now - _STALL_SECONDS
                for moment in moments
            }
        )

    def _held_up(self, now: float) -> int:
        """The number of threads that are inside or wait for suspect or stalled names."""
        return self._inside_stalled(now) + sum(
            count
            for name, count in self._waiting.items()
            if name in self._suspects or self._stalls_at(name) <= now
        )


admission = Admission()
