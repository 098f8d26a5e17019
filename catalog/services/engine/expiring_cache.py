"""A bounded cache of values that are to be renewed at some time, made once for each key."""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

from cachetools import TLRUCache

from catalog.errors import ServiceUnavailable


class Renewable(Protocol):
    @property
    def renew_at(self) -> float:
        """When the value is to be replaced, in seconds since 1970."""


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Renewable)


class ExpiringCache(Generic[K, V]):
    """Values by key, until their ``renew_at``.

    Threads that need the same missing value at the same time wait for the first one, which makes it,
    and share its result or its failure.
    """

    def __init__(self, size: int, *, clock: Callable[[], float] = time.time) -> None:
        self._lock = threading.Lock()
        self._values: Any = TLRUCache(size, ttu=_renew_at, timer=clock)
        self._running: dict[K, Future[V]] = {}

    def get(
        self,
        key: K,
        make: Callable[[], V],
        *,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> V:
        """The value of a key; ``make`` makes it if none is cached. Raises the errors of ``make``.

        A thread that waits for another one to make it does so in the context ``waiting``, whose errors
        are raised as well.
        """
        with self._lock:
            cached: V | None = self._values.get(key)
            if cached is not None:
                return cached
            running = self._running.get(key)
            if running is None:
                own = self._running[key] = Future()
        if running is not None:
            with waiting():
                return _result_of(running)
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._running[key]
            own.set_exception(error)
            raise
        with self._lock:
            self._values[key] = value
            del self._running[key]
        own.set_result(value)
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


def _renew_at(_key: object, value: Renewable, _now: float) -> float:
    return value.renew_at


def _result_of(running: Future[V]) -> V:
    try:
        return running.result()
    except ServiceUnavailable as error:
        # Every request needs an error of its own: requests add details to theirs.
        raise ServiceUnavailable(error.message, retry_seconds=error.retry_seconds) from None
