"""The breaker of a storage profile: when it opens, what it refuses, and how it closes."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from prometheus_client import REGISTRY

from catalog.storage.outages import availability, pools
from catalog.storage.outages.availability import Availability
from catalog.storage.outages.pools import Pool
from catalog.storage.stores import StorageUnavailable

CAUSE = "it does not answer in time"


class StubStore:
    """A store whose probes a test answers; counts those at the same time."""

    def __init__(self) -> None:
        self.cause: str | None = CAUSE
        self.probes = 0
        self.most_at_once = 0
        self._running = 0
        self._lock = threading.Lock()

    def __call__(self) -> str | None:
        with self._lock:
            self.probes += 1
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        time.sleep(0.01)
        with self._lock:
            self._running -= 1
        return self.cause


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "PAUSES", (0.05,))
    monkeypatch.setattr(availability, "SECOND_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(availability, "STALL_SECONDS", 0.2)


@pytest.fixture
def store() -> StubStore:
    return StubStore()


@pytest.fixture
def breaker(store: StubStore, short_pauses: None) -> Iterator[Availability]:
    yield (breaker := Availability("lake", store))
    store.cause = None
    eventually(lambda: "answers" in repr(breaker))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def call(breaker: Availability) -> bool:
    with breaker.calling():
        return True


def refuses(breaker: Availability) -> bool:
    try:
        return not call(breaker)
    except StorageUnavailable:
        return True


@contextmanager
def threads_of(pool: Pool, count: int) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count, initializer=pools.enter, initargs=(pool,)) as threads:
        yield threads


class HangingCalls:
    """Calls that hold their slots until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, breaker: Availability) -> bool:
        with breaker.calling():
            return self.released.wait(20)


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"profile": "lake", **labels}) or 0.0


# --- opening and closing -----------------------------------------------------------------------


def test_opens_after_two_failed_probes_and_closes_when_the_store_answers(store, breaker):
    assert call(breaker)
    breaker.suspect()
    eventually(lambda: refuses(breaker))
    assert store.probes >= 2
    assert metric("monodon_storage_unavailable") == 1
    store.cause = None
    eventually(lambda: not refuses(breaker))
    assert metric("monodon_storage_unavailable") == 0


def test_a_call_is_refused_without_waiting_and_names_profile_cause_and_time(
    store, breaker, monkeypatch
):
    monkeypatch.setattr(availability, "PAUSES", (0.01, 3.0))
    before = metric("monodon_storage_refusals_total", cause="unavailable")
    breaker.suspect()
    eventually(lambda: store.probes >= 3)
    with pytest.raises(StorageUnavailable) as refused:
        call(breaker)
    assert refused.value.strerror == f"storage profile 'lake' is unavailable: {CAUSE}"
    assert 1 <= refused.value.retry_seconds <= 4
    assert metric("monodon_storage_refusals_total", cause="unavailable") > before


def test_a_single_failed_probe_does_not_open(store, breaker):
    def answers_second_time() -> str | None:
        store.probes += 1
        return CAUSE if store.probes == 1 else None

    breaker = Availability("lake", answers_second_time)
    breaker.suspect()
    eventually(lambda: store.probes == 2)
    assert call(breaker)


def test_failed_calls_do_not_open_if_the_store_answers_probes(store, breaker):
    store.cause = None

    def is_probed_often() -> bool:
        breaker.suspect()
        assert call(breaker)
        return store.probes >= 5

    eventually(is_probed_often)


def test_a_configuration_that_is_gone_is_not_probed_any_more(store, short_pauses):
    breaker = Availability("lake", store, "the old endpoint")
    breaker.suspect()
    eventually(lambda: refuses(breaker))
    availability.retire(removed=["the old endpoint"], present=["the new endpoint"])
    eventually(lambda: not refuses(breaker))
    assert metric("monodon_storage_unavailable") == 0
    probes = store.probes
    breaker.suspect()
    assert (breaker._is_probing, store.probes) == (False, probes)
    availability.retire(removed=["the new endpoint"], present=["the old endpoint"])
    breaker.suspect()
    eventually(lambda: refuses(breaker))
    store.cause = None
    eventually(lambda: not refuses(breaker))


def test_the_metric_shows_the_present_configuration(store, breaker, short_pauses):
    earlier = Availability("lake", lambda: CAUSE, "the old endpoint")
    earlier.suspect()
    eventually(lambda: refuses(earlier))
    breaker.suspect()
    eventually(lambda: refuses(breaker))
    availability.retire(removed=["the old endpoint"], present=[])
    eventually(lambda: not refuses(earlier))
    eventually(lambda: metric("monodon_storage_unavailable") == 1)


def test_one_thread_probes(store, breaker):
    with ThreadPoolExecutor(8) as threads:
        for _ in range(200):
            threads.submit(breaker.suspect)
        eventually(lambda: store.probes > 8)
    assert store.most_at_once == 1


def test_a_job_waits_until_the_store_answers(store, breaker):
    breaker.suspect()
    eventually(lambda: refuses(breaker))
    waits = threading.Event()

    def patient_call() -> bool:
        with availability.patient():
            waits.set()
            return call(breaker)

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(patient_call)
        assert waits.wait(20)
        store.cause = None
        assert future.result(20)


def test_the_patience_of_a_job_has_an_end(store, breaker, monkeypatch):
    monkeypatch.setattr(availability, "PATIENCE_SECONDS", 0.1)
    breaker.suspect()
    eventually(lambda: refuses(breaker))
    with availability.patient(), pytest.raises(StorageUnavailable):
        call(breaker)


# --- threads -----------------------------------------------------------------------------------


def test_the_last_threads_of_a_pool_never_wait(store, breaker):
    store.cause = None
    pool, hanging = Pool(limit=3), HangingCalls()
    with threads_of(pool, 4) as threads:
        calls = [threads.submit(hanging, breaker) for _ in range(3)]
        eventually(lambda: len(pool.slots) == 3)
        with pytest.raises(StorageUnavailable, match="too many requests wait"):
            threads.submit(call, breaker).result(20)
        hanging.released.set()
        assert all(each.result(20) for each in calls)
        assert threads.submit(call, breaker).result(20)
    assert not pool.slots


def test_a_call_gets_the_place_of_another_that_ends(store, breaker, monkeypatch):
    monkeypatch.setattr(availability, "STALL_SECONDS", 20)
    pool, hanging = Pool(limit=1), HangingCalls()
    with threads_of(pool, 2) as threads:
        first = threads.submit(hanging, breaker)
        eventually(lambda: len(pool.slots) == 1)
        second = threads.submit(call, breaker)
        hanging.released.set()
        assert first.result(20)
        assert second.result(20)


def test_a_thread_has_one_place_for_a_store(store, breaker):
    pool = Pool(limit=1)

    def nested() -> int:
        breaker.occupy()
        with breaker.calling(), breaker.calling():
            return len(pool.slots)

    with threads_of(pool, 1) as threads:
        assert threads.submit(nested).result(20) == 1
        assert len(pool.slots) == 1  # until the request ends
        threads.submit(pools.release_all).result(20)
    assert not pool.slots


def test_waiting_threads_are_replaced_when_it_opens(store, breaker):
    started, ended = [], []
    pool = Pool(3, lambda: started.append(1), lambda: ended.append(1), max_replaced=2)
    hanging = HangingCalls()
    with threads_of(pool, 3) as threads:
        calls = [threads.submit(hanging, breaker) for _ in range(3)]
        eventually(lambda: len(pool.slots) == 3)
        breaker.suspect()
        eventually(lambda: refuses(breaker))
        assert (len(started), len(pool.slots), pool.replaced) == (2, 1, 2)
        hanging.released.set()
        assert all(each.result(20) for each in calls)
    assert (len(ended), len(pool.slots), pool.replaced) == (2, 0, 0)


def test_other_stores_are_not_affected(store, breaker):
    other = Availability("other", lambda: None)
    breaker.suspect()
    eventually(lambda: refuses(breaker))
    assert call(other)


def test_a_slow_call_is_noticed_while_it_waits(store, breaker, monkeypatch):
    monkeypatch.setattr(availability, "SLOW_SECONDS", 0.1)
    pool, hanging = Pool(limit=3), HangingCalls()
    with threads_of(pool, 1) as threads:
        future = threads.submit(hanging, breaker)
        eventually(lambda: refuses(breaker))
        hanging.released.set()
        assert future.result(20)


def test_a_thread_outside_of_its_pool_holds_no_place(store, breaker):
    pool = Pool(limit=1)

    def stream() -> int:
        breaker.occupy()
        with pools.outside(), breaker.calling():
            return len(pool.slots)

    with threads_of(pool, 1) as threads:
        assert threads.submit(stream).result(20) == 0
