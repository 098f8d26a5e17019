"""Admission: threads that wait for one table leave other threads free."""

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager

import pytest

from catalog.errors import Busy
from catalog.postgresql import limits
from catalog.services.engine import admission as admission_module
from catalog.services.engine.admission import Admission

A, B = uuid.uuid4(), uuid.uuid4()


@pytest.fixture(autouse=True)
def bounds(monkeypatch) -> limits.RequestLimits:
    bounds = limits.RequestLimits(threads=4, lock_seconds=2, statement_seconds=30)
    monkeypatch.setattr(limits, "requests", bounds)
    return bounds


@pytest.mark.parametrize(
    ("threads", "waiting"), [(1, 1), (2, 1), (3, 2), (4, 3), (6, 5), (16, 12), (64, 48)]
)
def test_admission_keeps_a_quarter_of_the_threads_free(threads, waiting):
    bounds = limits.RequestLimits(threads=threads, lock_seconds=1, statement_seconds=1)
    assert bounds.max_waiting == waiting


class Holders:
    """Threads that stay admitted until they are released."""

    def __init__(self, admission: Admission, names: list[uuid.UUID], count: int) -> None:
        self._go, inside = threading.Event(), threading.Barrier(count + 1)

        def hold() -> None:
            with admission.enter(names, tuple):
                inside.wait(10)
                self._go.wait(10)

        self._threads = [threading.Thread(target=hold) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        inside.wait(10)

    def release(self) -> None:
        self._go.set()
        for thread in self._threads:
            thread.join()


def pass_through(admission: Admission, name: uuid.UUID) -> None:
    with admission.enter([name], tuple):
        pass


def test_a_stalled_name_refuses_further_threads_immediately():
    admission = Admission()
    holders = Holders(admission, [A], 3)
    time.sleep(0.6)
    started = time.monotonic()
    with pytest.raises(Busy) as refused, admission.enter([A], lambda: ("ns", "t")):
        pass
    assert refused.value.message == "Too many requests wait for 'ns.t'; try again"
    assert time.monotonic() - started < 0.2
    with admission.enter([B], tuple):
        pass
    holders.release()
    with admission.enter([A], tuple):
        pass


def test_threads_waiting_before_a_stall_end_when_it_is_detected():
    admission = Admission()
    holders = Holders(admission, [A], 3)
    started = time.monotonic()
    with pytest.raises(Busy), admission.enter([B, A], tuple):
        pass
    assert 0.1 < time.monotonic() - started < 1.0
    holders.release()


def test_a_suspect_name_admits_a_single_thread_until_a_commit_is_quick():
    admission = Admission()
    holders = Holders(admission, [A], 3)
    time.sleep(0.6)
    holders.release()
    holders = Holders(admission, [A], 1)
    started = time.monotonic()
    waiting = threading.Thread(target=pass_through, args=(admission, A))
    waiting.start()
    holders.release()
    waiting.join()
    assert time.monotonic() - started < 0.5
    Holders(admission, [A], 3).release()


def test_several_suspect_names_leave_a_thread_free():
    admission = Admission()
    names = [uuid.uuid4() for _ in range(5)]
    holders = [Holders(admission, [name], 1) for name in names]
    time.sleep(0.6)
    for holder in holders:
        holder.release()
    inside = [Holders(admission, [name], 1) for name in names[:3]]
    started = time.monotonic()
    for name in names[3:]:
        with pytest.raises(Busy), admission.enter([name], tuple):
            pass
    assert time.monotonic() - started < 0.2
    with admission.enter([A], tuple):
        pass
    for holder in inside:
        holder.release()
    with admission.enter(names, tuple):
        pass


def test_a_commit_on_another_suspect_name_replaces_a_waiting_one():
    admission = Admission()
    holders = [Holders(admission, [name], 1) for name in (A, B)]
    time.sleep(0.6)
    for holder in holders:
        holder.release()
    first = Holders(admission, [A], 1)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(pass_through, admission, A) for _ in range(2)]
        time.sleep(0.6)
        second = Holders(admission, [B], 1)
        refused = next(as_completed(waiting, 1.0))
        assert isinstance(refused.exception(), Busy)
        first.release()
        second.release()
    assert [call.exception() for call in waiting if call is not refused] == [None]


def test_no_thread_is_refused_while_commits_proceed():
    admission = Admission()

    def work(number: int) -> int:
        with admission.enter([A], tuple):
            time.sleep(0.01)
        return number

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(work, range(200))) == list(range(200))
    assert (admission._inside, admission._waiting) == ({}, {})


def test_admission_is_reentrant_within_a_thread():
    admission = Admission()
    holders = Holders(admission, [A], 2)
    with admission.enter([A], tuple), admission.enter([A], tuple), admission.enter([A, B], tuple):
        assert {name: len(moments) for name, moments in admission._inside.items()} == {A: 3, B: 1}
    holders.release()
    assert admission._inside == {}


def test_admission_is_unlimited_outside_web_processes(monkeypatch):
    monkeypatch.setattr(limits, "requests", None)
    admission = Admission()
    holders = Holders(admission, [A], 20)
    time.sleep(0.6)
    with admission.enter([A], tuple):
        assert admission._inside == {}
    holders.release()


@contextmanager
def entered_in_turn(admission: Admission, names: list[uuid.UUID]) -> Iterator[None]:
    """Enter the names one after another, as the turns of a transaction do."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(admission.enter([name], tuple))
        yield


def make_suspect(admission: Admission, names: list[uuid.UUID]) -> None:
    with admission.enter(names, tuple):
        time.sleep(0.55)


def test_a_slow_transaction_of_many_tables_does_not_wait_for_itself():
    admission = Admission()
    names = [uuid.uuid4() for _ in range(32)]
    make_suspect(admission, names)
    with entered_in_turn(admission, names):
        pass
    assert admission._suspects == {}


def test_a_transaction_of_many_tables_counts_as_a_single_thread():
    admission = Admission()
    third, *names = [uuid.uuid4() for _ in range(9)]
    make_suspect(admission, [A, B, *names])
    with entered_in_turn(admission, names):
        others = [Holders(admission, [name], 1) for name in (A, B)]
        make_suspect(admission, [third])
        started = time.monotonic()
        with ThreadPoolExecutor(1) as pool, pytest.raises(Busy):
            pool.submit(pass_through, admission, third).result()
        assert time.monotonic() - started < 0.2
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pass_through, admission, third).result()
    for holder in others:
        holder.release()


def test_the_newest_slow_names_are_suspect(monkeypatch):
    monkeypatch.setattr(admission_module, "_STALL_SECONDS", 0.0)
    monkeypatch.setattr(admission_module, "_MAX_SUSPECTS", 2)
    admission = Admission()
    names = [uuid.uuid4() for _ in range(3)]
    for name in names:
        pass_through(admission, name)
    assert list(admission._suspects) == names[1:]
    pass_through(admission, names[1])
    assert list(admission._suspects) == [names[2], names[1]]
    monkeypatch.setattr(admission_module, "_STALL_SECONDS", 60.0)
    pass_through(admission, names[1])
    assert list(admission._suspects) == [names[2]]


def occupy(admission: Admission, name: uuid.UUID, count: int, seconds: float) -> None:
    """Requests that have been inside for so many seconds."""
    since = time.monotonic() - seconds
    stays = [admission_module._Stay(since, admission_module._Request()) for _ in range(count)]
    admission._inside[name] = stays


@pytest.mark.parametrize(
    ("seconds", "lock_seconds"),
    [(0.6, 60), (0.0, 0)],
    ids=["the name is stalled", "the time for locks is over"],
)
def test_a_request_for_a_full_name_is_refused(monkeypatch, seconds, lock_seconds):
    bounds = limits.RequestLimits(threads=4, lock_seconds=lock_seconds, statement_seconds=30)
    monkeypatch.setattr(limits, "requests", bounds)
    admission = Admission()
    occupy(admission, A, 3, seconds)
    for target, subject in (((), "this table"), (("ns", "t"), "'ns.t'")):
        with pytest.raises(Busy) as refused, admission.enter([B, A], lambda target=target: target):
            raise AssertionError("it is inside")
        assert refused.value.message == f"Too many requests wait for {subject}; try again"
    assert (list(admission._inside), admission._waiting) == ([A], {})
    pass_through(admission, B)


def test_requests_for_stalled_names_take_all_places_together():
    admission = Admission()
    for name, count in ((A, 1), (B, 2)):
        occupy(admission, name, count, 0.6)
        admission._suspects[name] = None
    third = uuid.uuid4()
    pass_through(admission, third)
    admission._suspects[third] = None
    with pytest.raises(Busy), admission.enter([third], tuple):
        raise AssertionError("it is inside")
    admission._inside[B].pop()
    pass_through(admission, third)


def test_a_request_that_waits_does_not_wait_for_itself(bounds):
    admission = Admission()
    occupy(admission, B, 2, 0.6)
    occupy(admission, A, 1, 0.6)
    (own,) = admission._inside[A]
    third = uuid.uuid4()
    admission._suspects |= dict.fromkeys([A, B, third])
    with admission._changed:
        admission._wait([third], bounds, tuple, own.request)
        with pytest.raises(Busy):
            admission._wait([third], bounds, tuple, admission_module._Request())
