"""A least-recently-used cache with a share of the memory for Lance, and its metrics."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import prometheus_client
from django.conf import settings

T = TypeVar("T")
REQUESTS = prometheus_client.Counter(
    "monodon_lance_cache_requests",
    "Lookups in the caches of opened tables and of answers to queries, by result.",
    ["cache", "result"],
)
BYTES = prometheus_client.Gauge(
    "monodon_lance_cache_bytes",
    "Memory of the caches of opened tables, their indexes and metadata, and answers to queries.",
    ["cache"],
    multiprocess_mode="livesum",
)
SIZES: list[Callable[[], dict[str, int]]] = []
"""Functions that return the sizes of further caches by their names, in bytes."""
PUBLISH_SECONDS = 1.0
"""A search looks into three caches. To change metrics at each lookup would take 2 % of its time."""

_lock = threading.Lock()
_lookups: Counter[tuple[str, str]] = Counter()
_costs: dict[str, int] = {}
_published_at = 0.0


def publish() -> None:
    """Set the metrics to the present values."""
    global _published_at  # noqa: PLW0603 -- one time for all caches
    with _lock:
        _published_at = time.monotonic()
        lookups, sizes = dict(_lookups), dict(_costs)
        _lookups.clear()
    for (name, result), number in lookups.items():
        REQUESTS.labels(name, result).inc(number)
    for function in SIZES:
        sizes |= function()
    for name, size in sizes.items():
        BYTES.labels(name).set(size)


def _record(name: str, result: str, cost: int) -> None:
    with _lock:
        _lookups[name, result] += 1
        _costs[name] = cost
    if time.monotonic() - _published_at > PUBLISH_SECONDS:
        publish()


class SizedCache(Generic[T]):
    """A least-recently-used cache, bounded by its share of the memory budget."""

    def __init__(self, name: str, share: float) -> None:
        self._name = name
        self._share = share
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._cost = 0

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        _record(self._name, "miss" if entry is None else "hit", self._cost)
        return None if entry is None else entry[0]

    def take(self, key: Hashable) -> T | None:
        """Return an entry and remove it from the cache."""
        with self._lock:
            value, cost = self._entries.pop(key, (None, 0))
            self._cost -= cost
        _record(self._name, "miss" if value is None else "hit", self._cost)
        return value

    def put(self, key: Hashable, value: T, *, cost: int) -> None:
        limit = settings.MONODON_LANCE_CACHE_BYTES * self._share
        with self._lock:
            if key not in self._entries:
                self._cost += cost
                self._entries[key] = (value, cost)
            while self._cost > limit and self._entries:
                _, (_, freed) = self._entries.popitem(last=False)
                self._cost -= freed

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._cost = 0
