"""Threads for requests: queue limits, and replacement of threads that are busy for long."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from api.front.threads import JobFailed, Results, Threads
from catalog.storage.outages import large_inputs


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def threads() -> Threads:
    threads = Threads("test", 1, max_waiting=2)
    threads.start()
    return threads


def alive() -> int:
    return sum(thread.name.startswith("test-") for thread in threading.enumerate())


def test_jobs_return_results(loop, threads: Threads):
    results = Results(loop)
    futures = [threads.submit(lambda n=n: n * n, results) for n in range(2)]
    assert all(futures)
    assert loop.run_until_complete(asyncio.gather(*futures)) == [0, 1]


def test_the_number_of_queued_jobs_is_limited(loop, threads: Threads):
    results, started, go = Results(loop), threading.Event(), threading.Event()

    def busy() -> int:
        started.set()
        go.wait(10)
        return 1

    futures = [threads.submit(busy, results)]
    assert started.wait(10)
    futures += [threads.submit(busy, results), threads.submit(busy, results)]
    assert threads.submit(busy, results) is None
    go.set()
    assert loop.run_until_complete(asyncio.gather(*futures)) == [1, 1, 1]
    last = threads.submit(busy, results)
    assert last is not None
    assert loop.run_until_complete(last) == 1


def test_only_jobs_of_others_that_wait_count_as_waiting(loop, threads: Threads):
    results, started, go = Results(loop), threading.Event(), threading.Event()

    def busy() -> None:
        started.set()
        go.wait(10)

    futures = [threads.submit(busy, results, owner="bob")]
    assert started.wait(10)
    assert not threads.others_wait("alice")  # it has a thread
    futures.append(threads.submit(busy, results, owner="alice"))
    assert not threads.others_wait("alice")
    assert threads.others_wait("bob")
    futures.append(threads.submit(busy, results, owner="bob"))
    assert threads.others_wait("alice")
    go.set()
    loop.run_until_complete(asyncio.gather(*futures))
    assert not threads.others_wait("alice")


def test_a_thread_that_is_busy_for_long_is_replaced(loop, threads: Threads):
    results, started, go = Results(loop), threading.Event(), threading.Event()
    before = alive()

    def long() -> str:
        with threads.replaced():
            started.set()
            go.wait(10)
        return "long"

    first = threads.submit(long, results)
    assert started.wait(10)
    assert loop.run_until_complete(threads.submit(lambda: "short", results)) == "short"
    assert alive() == before + 1
    go.set()
    assert loop.run_until_complete(first) == "long"
    for _ in range(100):
        if alive() == before:
            break
        threading.Event().wait(0.05)
    assert alive() == before
    assert loop.run_until_complete(threads.submit(lambda: "again", results)) == "again"


def test_the_result_of_a_canceled_job_is_discarded(loop, threads: Threads):
    results, go = Results(loop), threading.Event()
    future = threads.submit(lambda: go.wait(10), results)
    future.cancel()
    go.set()
    assert loop.run_until_complete(threads.submit(lambda: 1, results)) == 1


@pytest.mark.parametrize("failure", [ValueError("bad"), SystemExit(1)])
def test_a_failed_job_does_not_end_its_thread(loop, threads: Threads, failure: BaseException):
    results = Results(loop)
    before = alive()

    def fail() -> None:
        raise failure

    with pytest.raises(JobFailed, match=re.escape(repr(failure))):
        loop.run_until_complete(asyncio.wait_for(threads.submit(fail, results), 5))
    assert loop.run_until_complete(asyncio.wait_for(threads.submit(lambda: 1, results), 5)) == 1
    assert alive() == before


def test_an_answer_that_is_sent_in_pieces_does_not_keep_the_turn(loop, threads: Threads):
    """A client that reads slowly would let all requests for large files of others be refused."""
    results, is_sending, go = Results(loop), threading.Event(), threading.Event()

    def read_large_files() -> None:
        large_inputs.count(large_inputs.FREE_BYTES + 1)

    def send() -> None:
        read_large_files()
        with threads.replaced():
            is_sending.set()
            go.wait(20)

    first = threads.submit(send, results)
    try:
        assert is_sending.wait(10)
        loop.run_until_complete(threads.submit(read_large_files, results))
    finally:
        go.set()
        loop.run_until_complete(first)


def test_the_owner_that_has_taken_the_least_time_comes_next(loop, threads: Threads):
    """A principal with a few requests waits neither behind the many nor behind the long ones of another one."""
    threads._max_waiting = 100
    results, started, go, order = Results(loop), threading.Event(), threading.Event(), list[str]()

    def busy() -> None:
        started.set()
        go.wait(10)

    def work(name: str) -> None:
        time.sleep(0.02 if name == "mallory" else 0.001)
        order.append(name)

    futures = [threads.submit(busy, results, owner="mallory")]
    assert started.wait(10)
    time.sleep(0.05)  # mallory's thread
    names = [*["mallory"] * 20, *["alice"] * 4, "bob"]
    futures += [threads.submit(partial(work, name), results, owner=name) for name in names]
    go.set()
    loop.run_until_complete(asyncio.gather(*futures))
    assert sorted(order[:5]) == [*["alice"] * 4, "bob"]
    assert order[5:] == ["mallory"] * 20
