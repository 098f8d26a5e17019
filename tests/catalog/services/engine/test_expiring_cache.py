"""Values that are made once for each key, and again when they are to be renewed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from catalog.errors import ServiceUnavailable
from catalog.services.engine.expiring_cache import ExpiringCache


@dataclass(frozen=True)
class Value:
    renew_at: float


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_value_is_made_again_when_it_is_to_be_renewed_and_after_a_clear():
    clock = Clock()
    cache: ExpiringCache[str, Value] = ExpiringCache(10, clock=clock)
    first, second, third = Value(1010), Value(1020), Value(1030)
    assert cache.get("a", lambda: first) is first
    assert cache.get("b", lambda: second) is second
    clock.now = 1009
    assert cache.get("a", pytest.fail) is first
    clock.now = 1010
    assert cache.get("a", lambda: third) is third
    assert cache.get("b", pytest.fail) is second
    cache.clear()
    assert cache.get("b", lambda: third) is third


def test_the_cache_is_bounded():
    cache: ExpiringCache[int, Value] = ExpiringCache(2, clock=Clock())
    for key in range(3):
        cache.get(key, lambda: Value(2000))
    again = Value(2000)
    assert cache.get(0, lambda: again) is again
    assert cache.get(2, pytest.fail) == again


def test_a_failure_is_not_cached():
    cache: ExpiringCache[str, Value] = ExpiringCache(2, clock=Clock())

    def fail() -> Value:
        raise KeyError("not there")

    for _ in range(2):
        with pytest.raises(KeyError, match="not there"):
            cache.get("a", fail)
    value = Value(2000)
    assert cache.get("a", lambda: value) is value


@pytest.mark.parametrize("error", [None, KeyError("not there"), ServiceUnavailable("later")])
def test_threads_that_wait_share_the_value_or_the_failure(error: Exception | None):
    cache: ExpiringCache[str, Value] = ExpiringCache(2, clock=Clock())
    is_making, ends, waits, has_waited = (threading.Event() for _ in range(4))
    value = Value(2000)

    def make() -> Value:
        is_making.set()
        assert ends.wait(30)
        if error is not None:
            raise error
        return value

    @contextmanager
    def waiting():
        waits.set()
        try:
            yield
        finally:
            has_waited.set()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get, "a", make)
        assert is_making.wait(30)
        second = threads.submit(cache.get, "a", pytest.fail, waiting=waiting)
        assert waits.wait(30)
        assert not has_waited.is_set()
        other = Value(2000)
        assert cache.get("b", lambda: other) is other  # other keys do not wait
        ends.set()
        if error is None:
            assert first.result(30) is second.result(30) is value
        else:
            assert first.exception(30) is error
            failure = second.exception(30)
            assert (type(failure), str(failure)) == (type(error), str(error))
            # Requests add details to their errors.
            assert (failure is error) is not isinstance(error, ServiceUnavailable)
    assert has_waited.is_set()


def test_a_thread_that_may_not_wait_is_refused():
    cache: ExpiringCache[str, Value] = ExpiringCache(2, clock=Clock())

    @contextmanager
    def waiting():
        raise ServiceUnavailable("too many wait")
        yield

    def make() -> Value:
        with pytest.raises(ServiceUnavailable, match="too many wait"):
            cache.get("a", pytest.fail, waiting=waiting)
        return Value(2000)

    assert cache.get("a", make) == Value(2000)
