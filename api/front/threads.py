"""Threads that run Django, and the transfer of their results to the event loop."""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any

from django.db import connections

from api.front.limits import Owner
from catalog.storage.outages import large_inputs, pools
from catalog.storage.outages.pools import Pool

Job = Callable[[], Any]
_PERIOD_SECONDS = 1.0
_LOOK_SECONDS = 0.02
"""The time between looks for results that may wait. While no job is pending, there are none."""


class JobFailed(Exception):
    """Raised at the place that awaits the result of a job."""


class Results:
    """Sets results of futures of the event loop, many with one wake-up.

    Waking the loop for a result takes as long as a tenth of a read. So a result that nobody waits for, of a job that
    has sent its answer itself, is set when the loop is awake in any case: with the next request, or at the next look.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._is_waking = False
        self._pending = 0
        """The number of futures without a result."""
        self._looks = False
        """True if a look is scheduled."""

    def new_future(self) -> asyncio.Future[Any]:
        self._pending += 1
        if not self._looks:
            self._looks = True
            self._loop.call_later(_LOOK_SECONDS, self._look)
        return self._loop.create_future()

    def put(
        self,
        future: asyncio.Future[Any],
        result: Any,
        error: Exception | None = None,
        *,
        may_wait: bool = False,
    ) -> None:
        """Set a result, from any thread. ``may_wait``: within 20 ms."""
        self._ready.append((future, result, error))
        if not self._is_waking and not may_wait:
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False  # before the queue is emptied: later results wake the loop again
        self.deliver()

    def _look(self) -> None:
        self.deliver()
        self._looks = self._pending > 0
        if self._looks:
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def deliver(self) -> None:
        """Set the results that are ready; in the event loop."""
        while self._ready:
            self._pending -= 1
            future, result, error = self._ready.popleft()
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)


_Entry = tuple[Owner, Job, asyncio.Future[Any], Results, bool]


class _Waiting:
    """Jobs that wait for a thread. Of several owners, the one whose jobs have taken the least time comes next.

    So one with a few requests waits neither behind the many of another one, nor behind its long ones.
    """

    def __init__(self) -> None:
        self._by_owner: OrderedDict[Owner, deque[_Entry]] = OrderedDict()
        """With the same time taken, in this order."""
        self._taken: dict[Owner, float] = {}
        """Seconds of threads, in the present period."""
        self._period_ends = 0.0
        self._lock = threading.Lock()
        self._count: SimpleQueue[None] = SimpleQueue()

    def __len__(self) -> int:
        return self._count.qsize()

    def put(self, entry: _Entry) -> None:
        owner = entry[0]
        with self._lock:
            entries = self._by_owner.get(owner)
            if entries is None:
                self._by_owner[owner] = deque((entry,))
            else:
                entries.append(entry)
        self._count.put(None)

    def get(self) -> _Entry:
        """Wait for a job, and remove it."""
        self._count.get()
        with self._lock:
            if len(self._by_owner) == 1:
                owner = next(iter(self._by_owner))
            else:
                owner = min(self._by_owner, key=lambda owner: self._taken.get(owner, 0.0))
            entries = self._by_owner.pop(owner)
            entry = entries.popleft()
            if entries:
                self._by_owner[owner] = entries
        return entry

    def has_others(self, owner: Owner) -> bool:
        with self._lock:
            return any(other != owner for other in self._by_owner)

    def charge(self, owner: Owner, began: float) -> None:
        """Count the time of a job that has ended."""
        now = time.monotonic()
        with self._lock:
            if now > self._period_ends:
                self._taken.clear()
                self._period_ends = now + _PERIOD_SECONDS
            self._taken[owner] = self._taken.get(owner, 0.0) + now - began


class Threads:
    """A fixed number of threads with a bounded queue, in which owners take turns.

    A thread that is busy for long (see ``replaced``) does not count: another one replaces it, and it
    ends after its job. Each thread keeps its database connection.
    """

    def __init__(
        self, name: str, count: int, *, max_waiting: int, stores: int | None = None
    ) -> None:
        """``stores``: the number of threads that may wait for object stores; None: all of them."""
        self._pool = Pool(stores, self._start_thread, self._end_thread, max_replaced=count)
        self._name = name
        self._count = count
        self._max_waiting = max_waiting
        self._jobs = _Waiting()
        self._lock = threading.Lock()
        self._surplus = 0
        self._started = 0

    def start(self) -> None:
        for _ in range(self._count):
            self._start_thread()

    def submit(
        self, job: Job, results: Results, *, owner: Owner = None, may_wait: bool = False
    ) -> asyncio.Future[Any] | None:
        """Queue a job from the event loop, and return its future; None if too many jobs wait.

        ``may_wait``: the result may be set later (``Results``).
        """
        if len(self._jobs) >= self._max_waiting:
            return None
        future = results.new_future()
        self._jobs.put((owner, job, future, results, may_wait))
        return future

    def others_wait(self, owner: Owner) -> bool:
        """True if jobs of other owners wait for a thread."""
        return self._jobs.has_others(owner)

    def replaced(self) -> AbstractContextManager[None]:
        """Replace the current thread, which must be one of these, by a new one during the block."""
        return self._replaced()

    @contextmanager
    def _replaced(self) -> Any:
        large_inputs.release()  # the answer is made, and may be sent for long
        self._start_thread()
        try:
            with pools.outside():
                yield
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        """Let one thread end after its job."""
        with self._lock:
            self._surplus += 1

    def _start_thread(self) -> None:
        self._started += 1
        name = f"{self._name}-{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        pools.enter(self._pool)
        try:
            while not self._is_superfluous():
                owner, job, future, results, may_wait = self._jobs.get()
                began = time.monotonic()
                self._run(job, future, results, may_wait)
                self._jobs.charge(owner, began)
                del job, future, results  # they refer to a request and its answer
        finally:
            connections.close_all()

    def _run(self, job: Job, future: asyncio.Future[Any], results: Results, may_wait: bool) -> None:
        """Run a job. Its failure ends neither the thread nor the wait for its result."""
        try:
            result = job()
        except BaseException as exc:  # noqa: BLE001 -- a panic of granian is not an Exception
            error = JobFailed(f"A job of the {self._name} threads failed: {exc!r}")
            error.__cause__ = exc
            results.put(future, None, error)
        else:
            results.put(future, result, may_wait=may_wait)
        finally:
            pools.release_all()
            large_inputs.release()

    def _is_superfluous(self) -> bool:
        if not self._surplus:
            return False
        with self._lock:
            if self._surplus:
                self._surplus -= 1
                return True
        return False
