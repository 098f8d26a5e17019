"""Calls of Lance that take too long are given up, and change nothing."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import pytest
from django.db import DEFAULT_DB_ALIAS, connections
from lance.dataset import LanceDataset

from catalog.access import SYSTEM
from catalog.errors import ServiceUnavailable
from catalog.services.lance import commits, data, data_operations, queries, time_limits
from catalog.storage.outages import availability
from tests.catalog.storage.outages.test_availability import eventually
from tests.factories import make_lance_table, unchanged


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """An event that ends the slow calls of a test."""
    event = threading.Event()
    yield event
    event.set()
    eventually(lambda: not time_limits._abandoned)


@pytest.fixture(autouse=True)
def _short(settings) -> None:
    settings.MONODON_LANCE_SECONDS = 0.05


def test_results_and_errors_are_passed_on(settings):
    settings.MONODON_LANCE_SECONDS = 600
    assert time_limits.run(lambda: 5, principal="user:ada") == 5
    for error in (TimeoutError("of the store"), ValueError("of Lance"), SystemExit("a panic")):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            time_limits.run(fail, principal="user:ada")
        assert raised.value is error


def test_a_slow_call_is_given_up_and_counted_until_it_ends(release):
    before = time_limits.ABANDONED._value.get()
    with pytest.raises(ServiceUnavailable, match=r"longer than 0.05 seconds .* changed nothing"):
        time_limits.run(release.wait, principal="user:ada")
    assert len(time_limits._abandoned) == 1
    assert time_limits.ABANDONED._value.get() == before + 1
    release.set()
    eventually(lambda: not time_limits._abandoned)


def test_too_many_abandoned_calls_refuse_others_without_starting_them(release, monkeypatch):
    monkeypatch.setattr(time_limits, "MAX_ABANDONED", 2)
    for name in ("user:ada", "user:bob"):
        with pytest.raises(ServiceUnavailable, match="took longer"):
            time_limits.run(release.wait, principal=name)
    calls: list[int] = []
    with pytest.raises(ServiceUnavailable, match="2 requests that took too long") as refused:
        time_limits.run(lambda: calls.append(1), principal="user:eve")
    assert refused.value.retry_seconds == 60
    assert calls == []
    release.set()
    eventually(lambda: not time_limits._abandoned)
    time_limits.run(lambda: calls.append(1), principal="user:eve")
    assert calls == [1]


def test_one_principal_cannot_refuse_the_calls_of_others(release):
    for _ in range(time_limits.MAX_ABANDONED // 2):
        with pytest.raises(ServiceUnavailable, match="took longer"):
            time_limits.run(release.wait, principal="user:ada")
    with pytest.raises(ServiceUnavailable, match="still occupy the server"):
        time_limits.run(lambda: 5, principal="user:ada")
    assert time_limits.run(lambda: 5, principal="user:bob") == 5


def test_calls_that_a_principal_abandons_at_once_do_not_refuse_those_of_others(release):
    for _ in range(time_limits.MAX_ABANDONED):
        time_limits._abandoned[Future()] = "user:ada"
    try:
        assert time_limits.run(lambda: 5, principal="user:bob") == 5
    finally:
        time_limits._abandoned.clear()


def test_a_stream_that_has_begun_is_not_refused(release, monkeypatch):
    monkeypatch.setattr(availability, "does_serve_requests", True)
    batches = time_limits.batches(Large(), "user:bob", Reader(None))
    assert next(batches) == 1
    for name in ("user:ada", "user:ada", "user:eve", "user:eve"):
        with pytest.raises(ServiceUnavailable, match="took longer"):
            time_limits.run(release.wait, principal=name)
    assert list(batches) == [2]
    with pytest.raises(ServiceUnavailable, match="still occupy the server"):
        next(time_limits.batches(Large(), "user:bob", Reader(None)))


def test_the_time_in_which_a_client_sends_rows_does_not_count(release):
    """The limit begins when the rows have arrived."""
    sent_at = [math.inf]
    waits: list[float] = []

    def since() -> float:
        waits.append(sent_at[0])
        if len(waits) > 4:
            sent_at[0] = 0.0
        return sent_at[0]

    with pytest.raises(ServiceUnavailable, match="took longer"):
        time_limits.run(release.wait, principal="user:ada", since=since)
    assert waits[:4] == [math.inf] * 4


def test_a_call_that_may_not_be_abandoned_is_waited_for(release):
    def may_abandon() -> bool:
        release.set()
        return False

    assert time_limits.run(release.wait, principal="user:ada", may_abandon=may_abandon)
    assert not time_limits._abandoned


def test_a_connection_of_the_thread_is_closed(db, settings):
    settings.MONODON_LANCE_SECONDS = 600
    opened = []

    def work() -> None:
        opened.append(connections[DEFAULT_DB_ALIAS])
        opened[0].ensure_connection()

    time_limits.run(work, principal="user:ada")
    eventually(lambda: opened[0].connection is None)


def test_no_limit_is_possible(settings):
    settings.MONODON_LANCE_SECONDS = 0
    assert time_limits.run(lambda: 5, principal="user:ada") == 5


@pytest.fixture
def table(db, warehouse, monkeypatch):
    monkeypatch.setattr(availability, "does_serve_requests", True)
    return make_lance_table(("ns", "t"), pa.table({"id": [1, 2, 3]}))


def test_a_write_that_is_given_up_commits_nothing_later(table, release):
    ended = threading.Event()

    def work(dataset) -> None:
        try:
            release.wait()
            dataset.delete("true")
        finally:
            ended.set()

    with unchanged(), pytest.raises(ServiceUnavailable, match="was given up; it changed nothing"):
        commits.write(
            actor=SYSTEM,
            table=("ns", "t"),
            operation=data_operations.DeleteFromTable,
            work=work,
            limited_since=float,
        )
    with unchanged():
        release.set()
        assert ended.wait(30)
    assert queries.count_rows(actor=SYSTEM, table=("ns", "t")) == 3


def test_a_write_that_has_committed_is_not_given_up(table, monkeypatch):
    decisions: list[bool] = []

    def run_and_decide(work, *, may_abandon, **_options):
        result = work()
        decisions.append(may_abandon())
        return result

    monkeypatch.setattr(time_limits, "run", run_and_decide)
    written = commits.write(
        actor=SYSTEM,
        table=("ns", "t"),
        operation=data_operations.DeleteFromTable,
        work=lambda dataset: dataset.delete("id = 1")["num_deleted_rows"],
        limited_since=float,
    )
    assert (written.result, decisions) == (1, [False])
    assert queries.count_rows(actor=SYSTEM, table=("ns", "t")) == 2


def test_a_clone_that_takes_too_long_is_given_up(table, settings):
    settings.MONODON_LANCE_SECONDS = 1e-9
    with unchanged(), pytest.raises(ServiceUnavailable, match="was given up; it changed nothing"):
        data.clone_table(actor=SYSTEM, table=("ns", "copy"), location=table.location)
    assert sorted(Path(table.location).parent.iterdir()) == [Path(table.location)]
    settings.MONODON_LANCE_SECONDS = 600
    data.clone_table(actor=SYSTEM, table=("ns", "copy"), location=table.location)
    assert queries.count_rows(actor=SYSTEM, table=("ns", "copy")) == 3


class Reader:
    """A reader of two batches, whose second one is slow."""

    def __init__(self, release: threading.Event | None) -> None:
        self._release = release
        self._number = 0
        self.is_closed = False

    def __iter__(self) -> "Reader":
        return self

    def __next__(self) -> int:
        self._number += 1
        if self._number == 2 and self._release is not None:
            self._release.wait()
        if self._number > 2:
            raise StopIteration
        return self._number

    def close(self) -> None:
        self.is_closed = True


class Large:
    def count_rows(self) -> int:
        return time_limits.SMALL_ROWS


def test_a_reader_is_not_closed_while_another_thread_reads_it(release, settings, monkeypatch):
    monkeypatch.setattr(availability, "does_serve_requests", True)
    settings.MONODON_LANCE_SECONDS = 600
    complete = Reader(None)
    assert list(time_limits.batches(Large(), "user:ada", complete)) == [1, 2]
    assert complete.is_closed
    stopped = Reader(None)
    batches = time_limits.batches(Large(), "user:ada", stopped)
    assert next(batches) == 1
    batches.close()
    assert stopped.is_closed

    slow = Reader(release)
    batches = time_limits.batches(Large(), "user:ada", slow)
    assert next(batches) == 1
    settings.MONODON_LANCE_SECONDS = 0.05
    with pytest.raises(ServiceUnavailable, match="took longer"):
        next(batches)
    assert not slow.is_closed


def test_reads_of_large_tables_are_refused_while_calls_are_abandoned(table, monkeypatch):
    monkeypatch.setattr(time_limits, "SMALL_ROWS", 3)
    for name in ("user:ada", "user:bob"):
        for _ in range(2):
            time_limits._abandoned[Future()] = name
    try:
        with pytest.raises(ServiceUnavailable, match="4 requests that took too long"):
            queries.count_rows(actor=SYSTEM, table=("ns", "t"), predicate="id > 1")
        monkeypatch.setattr(time_limits, "SMALL_ROWS", 4)
        assert queries.count_rows(actor=SYSTEM, table=("ns", "t"), predicate="id > 1") == 2
    finally:
        time_limits._abandoned.clear()


def test_reads_of_small_tables_have_a_time_limit(table, release, settings, monkeypatch):
    """A damaged file can make Lance read for minutes."""
    settings.MONODON_LANCE_SECONDS = 0.1

    def count(*_) -> int:
        release.wait()
        return 3

    monkeypatch.setattr(LanceDataset, "count_rows", count)
    monkeypatch.setattr(time_limits, "may_take_long", lambda *_: False)
    with pytest.raises(ServiceUnavailable, match="was given up"):
        queries.count_rows(actor=SYSTEM, table=("ns", "t"), predicate="id > 1")
    release.set()
