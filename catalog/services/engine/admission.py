"""A limit on the threads of a web process that wait for the same namespaces and tables.

In PostgreSQL every commit to a table waits for the transaction that has it locked. A process has a
few threads; once all of them wait, it answers no request, whatever it is about. So a commit first
enters the admission under the names that it locks:

- At most ``most_waiting`` threads are inside for one name; the others wait here.
- A name is stalled when a commit has been inside for ``_STALL_SECONDS``. Once ``most_waiting``
  threads wait for stalled names, further ones are refused at once. Commits that finish quickly
  cause no refusals.

Processes that answer no requests (jobs, commands) pass without waiting.
"""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from catalog.errors import Busy
from catalog.identifiers import Identifier
from catalog.postgresql import limits

_STALL_SECONDS = 0.5


class Admission:
    """The running commits of one process, by the names that they lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[uuid.UUID, list[float]] = {}
        """The times at which the commits entered, the oldest first."""
        self._waiting: dict[uuid.UUID, int] = {}
        self._own = threading.local()

    @contextmanager
    def enter(
        self, names: Collection[uuid.UUID], target: Callable[[], Identifier]
    ) -> Iterator[None]:
        """Hold a place for these names; reentrant in a thread. Raises Busy, naming ``target``."""
        bounds = limits.requests
        entered: set[uuid.UUID] = getattr(self._own, "names", set())
        new = [name for name in names if name not in entered] if entered else names
        if bounds is None or not new:
            yield
            return
        with self._changed:
            if any(len(self._inside.get(name, ())) >= bounds.max_waiting for name in new):
                self._wait(new, bounds, target)
            since = time.monotonic()
            for name in new:
                self._inside.setdefault(name, []).append(since)
        self._own.names = entered.union(new)
        try:
            yield
        finally:
            self._own.names = entered
            with self._changed:
                for name in new:
                    moments = self._inside[name]
                    moments.remove(since)
                    if not moments:
                        del self._inside[name]
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
            full = [n for n in names if len(self._inside.get(n, ())) >= bounds.max_waiting]
            if not full:
                return
            now, name = time.monotonic(), full[0]
            stalls_at = self._inside[name][0] + _STALL_SECONDS
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

    def _held_up(self, now: float) -> int:
        """The number of threads that are inside or wait for stalled names."""
        stalled = now - _STALL_SECONDS
        held_up = {
            moment
            for moments in self._inside.values()
            if moments[0] <= stalled
            for moment in moments
        }
        return len(held_up) + sum(
            count
            for name, count in self._waiting.items()
            if name in self._inside and self._inside[name][0] <= stalled
        )


admission = Admission()
