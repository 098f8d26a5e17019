"""A limit on the threads of a web process that wait for the same namespaces and tables.

In PostgreSQL every commit to a table waits for the transaction that has it locked. A process has a
few threads; once all of them wait, it answers no request, whatever it is about. So a commit first
enters the admission under the names that it locks:

- At most ``max_waiting`` threads are inside for one name; the others wait here.
- A name is stalled when a commit has been inside for ``_STALL_SECONDS``. Once ``max_waiting``
  threads wait for stalled names, further ones are refused at once. Commits that finish quickly
  cause no refusals.
- A request counts as one thread, however many names it has entered: a transaction enters the names of its
  tables one after another, and must not wait for itself.
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
from dataclasses import dataclass

from catalog.errors import Busy
from catalog.identifiers import Identifier
from catalog.postgresql import limits

_STALL_SECONDS = 0.5
_MAX_SUSPECTS = 10_000


@dataclass(eq=False, frozen=True, slots=True)
class _Request:
    """A request that is inside, or waits. Lance's threads commit in its context."""


@dataclass(frozen=True, slots=True)
class _Stay:
    """The presence of a request inside for some names."""

    since: float
    request: _Request


_Entered = tuple[_Request, frozenset[uuid.UUID]]


class Admission:
    """The running commits of one process, by the names that they lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[uuid.UUID, list[_Stay]] = {}
        """The commits inside, the oldest first."""
        self._waiting: dict[uuid.UUID, list[_Request]] = {}
        self._suspects: dict[uuid.UUID, None] = {}
        """The names whose last commit was slow, the oldest first."""
        self._own: ContextVar[_Entered | None] = ContextVar("entered", default=None)
        """The request of the context, and the names that it has entered."""

    @contextmanager
    def enter(
        self, names: Collection[uuid.UUID], target: Callable[[], Identifier]
    ) -> Iterator[None]:
        """Hold a place for these names; reentrant in a context. Raises Busy, naming ``target``."""
        bounds = limits.requests
        own = self._own.get()
        new = [name for name in names if name not in own[1]] if own else names
        if bounds is None or not new:
            yield
            return
        request, entered = own or (_Request(), frozenset())
        with self._changed:
            if self._full(new, bounds, request) is not None:
                self._wait(new, bounds, target, request)
            stay = _Stay(time.monotonic(), request)
            for name in new:
                self._inside.setdefault(name, []).append(stay)
            if self._waiting and not self._suspects.keys().isdisjoint(new):
                self._changed.notify_all()  # this thread may take the place of a waiting one
        token = self._own.set((request, entered.union(new)))
        try:
            yield
        finally:
            self._own.reset(token)
            with self._changed:
                is_slow = time.monotonic() >= stay.since + _STALL_SECONDS
                for name in new:
                    stays = self._inside[name]
                    stays.remove(stay)
                    if not stays:
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
        request: _Request,
    ) -> None:
        deadline = time.monotonic() + bounds.lock_seconds
        while True:
            name, now = self._full(names, bounds, request), time.monotonic()
            if name is None:
                return
            stalls_at = self._stalls_at(name)
            if now >= deadline or (
                now >= stalls_at and len(self._held_up(now) - {request}) >= bounds.max_waiting
            ):
                identifier = target()
                if not identifier:
                    raise Busy("Too many requests wait for this table; try again")
                raise Busy("Too many requests wait for '{target}'; try again", target=identifier)
            self._waiting.setdefault(name, []).append(request)
            try:
                self._changed.wait((stalls_at if now < stalls_at else deadline) - now)
            finally:
                self._waiting[name].remove(request)
                if not self._waiting[name]:
                    del self._waiting[name]

    def _full(
        self, names: Collection[uuid.UUID], bounds: limits.RequestLimits, request: _Request
    ) -> uuid.UUID | None:
        """The first name for which the request may not enter now."""
        suspects = self._suspects.keys() & names if self._suspects else ()
        if suspects:
            others = self._inside_stalled(time.monotonic()) - {request}
            if len(others) >= bounds.max_waiting:
                return next(iter(suspects))
        for name in names:
            limit = 1 if name in suspects else bounds.max_waiting
            if len(self._inside.get(name, ())) >= limit:
                return name
        return None

    def _stalls_at(self, name: uuid.UUID) -> float:
        """The time at which threads that wait for this name count as held up."""
        inside = self._inside.get(name)
        return inside[0].since + _STALL_SECONDS if inside else 0.0

    def _inside_stalled(self, now: float) -> set[_Request]:
        """The requests that are inside for suspect or stalled names."""
        return {
            stay.request
            for name, stays in self._inside.items()
            if name in self._suspects or stays[0].since <= now - _STALL_SECONDS
            for stay in stays
        }

    def _held_up(self, now: float) -> set[_Request]:
        """The requests that are inside or wait for suspect or stalled names."""
        return self._inside_stalled(now).union(
            *(
                requests
                for name, requests in self._waiting.items()
                if name in self._suspects or self._stalls_at(name) <= now
            )
        )


admission = Admission()
