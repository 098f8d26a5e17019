"""Whether the store of a storage profile answers: a circuit breaker for each profile in a process.

    closed ──a call fails for lack of an answer, or takes long──▶ probed, by one thread
    probed ──the store answers──▶ closed        ──it does not, twice──▶ open
    open ──refuses calls at once; one thread probes in growing pauses, until the store answers──▶ closed

Only probes open and close it, so that no client can close a store for others by requests that fail. A
probe is a request for an object that does not exist, with short time limits and no retries: any answer
but 429 and 5xx shows that the store works. Requests never wait for a probe.

In a process that serves requests, the threads that wait for stores are counted. The last quarter of a
pool never waits for stores: a call that finds the other threads waiting gets a slot when one of them
is done, or is refused if none is done for STALL_SECONDS. When a breaker opens, the threads that wait
for its store are replaced. A job is ``patient``: its calls wait for a while until the store answers.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakSet

from prometheus_client import Counter, Gauge

from catalog.storage.outages import pools
from catalog.storage.outages.pools import Slot, changed
from catalog.storage.stores import StorageUnavailable

log = logging.getLogger(__name__)

STALL_SECONDS = 2.0
SLOW_SECONDS = 2.0
"""A store is probed when a request waits for it for this time."""
PATIENCE_SECONDS = 30.0
"""Jobs wait this long for a store that does not answer."""
PAUSES = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds between the probes of an open breaker; the last one is repeated."""
SECOND_PROBE_SECONDS = 0.3

UNAVAILABLE = Gauge(
    "monodon_storage_unavailable",
    "1 if the store of a storage profile does not answer, else 0.",
    ["profile"],
    multiprocess_mode="mostrecent",
)
REFUSALS = Counter(
    "monodon_storage_refusals",
    "Calls of object stores that were refused at once, by storage profile and cause.",
    ["profile", "cause"],
)

Probe = Callable[[], str | None]
"""Returns None if the store answers, else why it is unavailable."""

does_serve_requests = False
_retired: set[Hashable] = set()
"""The configurations of profiles that were changed or deleted."""
_patience: ContextVar[float] = ContextVar("patience", default=0.0)


def serve_requests() -> None:
    """State that this process serves requests, so that its calls of stores get short time limits."""
    global does_serve_requests  # noqa: PLW0603 -- set once per process
    does_serve_requests = True


def serves_requests() -> bool:
    """True if this process serves requests, which wait less than jobs."""
    return does_serve_requests


@contextmanager
def patient() -> Iterator[None]:
    """Let calls within the block wait for a store that does not answer, for PATIENCE_SECONDS each."""
    token = _patience.set(PATIENCE_SECONDS)
    try:
        yield
    finally:
        _patience.reset(token)


def retire(removed: Collection[Hashable], present: Collection[Hashable]) -> None:
    """State which configurations no profile has any more, and which ones profiles have.

    A store is no longer probed with a removed configuration: it may never answer again.
    """
    with changed:
        _retired.update(removed)
        _retired.difference_update(present)


class Availability:
    """The breaker of one storage profile in this process. Safe for threads."""

    def __init__(self, profile: str, probe: Probe, configuration: Hashable = None) -> None:
        """``configuration``: the configuration with which the store is probed (``retire``)."""
        self.profile = profile
        self._probe = probe
        self._configuration = configuration
        self._cause: str | None = None
        """Why the store is unavailable; None while the breaker is closed."""
        self._retry_at = 0.0
        self._is_probing = False
        self._probed_at = float("-inf")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of storage profile '{self.profile}': {self._cause or 'answers'}>"

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Hold a slot during a call of the store. Raises StorageUnavailable instead of waiting for it."""
        slot = self._enter()
        if slot is None:
            yield
            return
        pools.held_slots()[self] = slot
        try:
            yield
        finally:
            if pools.held_slots().pop(self, None) is not None:
                slot.release()

    def occupy(self) -> None:
        """Hold a slot until the request of the current thread ends, for calls that a library makes.

        Raises as ``calling`` does.
        """
        slot = self._enter()
        if slot is not None:
            pools.held_slots()[self] = slot

    def suspect(self) -> None:
        """Probe the store in another thread, because a call got no answer."""
        with changed:
            if self._is_probing or self._is_retired:
                return
            self._is_probing = True
        threading.Thread(target=self._watch, name=f"probe of {self.profile}", daemon=True).start()

    def suspect_if_slow(self, now: float) -> None:
        """Probe the store unless that was done within SLOW_SECONDS."""
        if now - self._probed_at >= SLOW_SECONDS:
            self.suspect()

    @property
    def _is_retired(self) -> bool:
        return self._configuration in _retired

    # -- entering

    def _enter(self) -> Slot | None:
        """Take a slot; None if the thread needs none, or has one already."""
        pool = pools.current()
        if self._cause is not None:
            self._refuse_or_wait()
        if pool is None or self in pools.held_slots():
            return None
        with changed:
            while pool.is_full:
                stalled_at = pool.changed_at + STALL_SECONDS
                if time.monotonic() >= stalled_at:
                    REFUSALS.labels(self.profile, "stalled").inc()
                    raise StorageUnavailable(
                        self.profile, "too many requests wait for object stores"
                    )
                changed.wait(stalled_at - time.monotonic())
                if self._cause is not None:
                    raise self._refusal()
            slot = Slot(pool, self)
            slot.acquire()
        _watcher.observe(pool)
        return slot

    def _refuse_or_wait(self) -> None:
        with changed:
            if patience := _patience.get():
                changed.wait_for(lambda: self._cause is None, patience)
            if self._cause is not None:
                raise self._refusal()

    def _refusal(self) -> StorageUnavailable:
        REFUSALS.labels(self.profile, "unavailable").inc()
        seconds = max(1, round(self._retry_at - time.monotonic() + 0.5))
        return StorageUnavailable(self.profile, self._cause or "", retry_seconds=seconds)

    # -- probing, by one thread at a time

    def _watch(self) -> None:
        cause: str | None = "it cannot be probed"
        try:
            cause = self._probe()
            if cause is not None:
                time.sleep(SECOND_PROBE_SECONDS)
                cause = self._probe()
            for pause in _pauses():
                self._probed_at = time.monotonic()
                if cause is None or self._is_retired:
                    return
                self._open(cause, pause)
                time.sleep(pause)
                cause = self._probe()
        finally:
            self._close(cause)

    def _open(self, cause: str, pause: float) -> None:
        with changed:
            self._retry_at = time.monotonic() + pause
            is_new, self._cause = self._cause is None, cause
            # Each time: the breaker of an earlier configuration of the profile may have cleared it.
            UNAVAILABLE.labels(self.profile).set(1)
            if not is_new:
                return
            waiting = [slot for pool in _watcher.pools for slot in pool.slots if slot.store is self]
            for slot in waiting:
                slot.replace()
            changed.notify_all()
        log.error(
            "Storage profile '%s' is unavailable: %s. %d threads wait for it",
            self.profile,
            cause,
            len(waiting),
        )

    def _close(self, cause: str | None) -> None:
        with changed:
            was_open, self._cause = self._cause is not None, None
            self._is_probing = False
            changed.notify_all()
        if was_open:
            UNAVAILABLE.labels(self.profile).set(0)
            outcome = "was changed or deleted" if self._is_retired else "answers again"
            log.warning("Storage profile '%s' %s", self.profile, outcome)


class AlwaysTried(Availability):
    """For tests of a profile: every call is made, and none changes the state of the profile."""

    def __init__(self) -> None:
        super().__init__("", lambda: None)

    @contextmanager
    def calling(self) -> Iterator[None]:
        yield

    def suspect(self) -> None:
        pass


def _pauses() -> Iterator[float]:
    yield from PAUSES
    while True:
        yield PAUSES[-1]


def suspect_held() -> list[str]:
    """Probe the stores for which the current thread holds slots: a library got no answer.

    Returns their profiles.
    """
    stores = [store for store in pools.held_slots() if isinstance(store, Availability)]
    for store in stores:
        store.suspect()
    return [store.profile for store in stores]


class _Watcher:
    """Finds requests that wait long for a store, by a look every second from the first such request on."""

    def __init__(self) -> None:
        self.pools: WeakSet[pools.Pool] = WeakSet()
        self._is_running = False

    def observe(self, pool: pools.Pool) -> None:
        """A thread of the pool is about to wait for a store."""
        if self._is_running and pool in self.pools:
            return
        with changed:
            self.pools.add(pool)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._watch, name="slow stores", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(SLOW_SECONDS / 2)
            with changed:
                now = time.monotonic()
                slow = {
                    slot.store
                    for pool in self.pools
                    for slot in pool.slots
                    if now - slot.since >= SLOW_SECONDS
                }
            for store in slow:
                if isinstance(store, Availability):
                    store.suspect_if_slow(now)


_watcher = _Watcher()
