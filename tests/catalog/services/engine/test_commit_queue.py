"""Commits to one table take turns, among the threads of a process and the processes of a machine."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings

from catalog.access import SYSTEM
from catalog.errors import Busy, CommitConflict
from catalog.identifiers import digest
from catalog.models import TableVersion
from catalog.services.engine import commit_queue
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg.changes import TableChange
from tests.factories import make_iceberg_table, make_root

T = ("ns", "t")
NAME = digest(T)
PLACE = NAME.int % 256

# Another process: takes the lock, reports it, and holds it until its input ends.
_HOLD = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
except OSError:
    print("taken", flush=True)
else:
    print("mine", flush=True)
    sys.stdin.read()
"""


def start_other() -> subprocess.Popen[str]:
    file = settings.MONODON_HOME / "run" / "turns"
    file.parent.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(file), str(PLACE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def is_free() -> bool:
    """True if another process could take the turn."""
    with start_other() as other:
        output = other.communicate("")[0].strip()
    return output == "mine"


@contextmanager
def held_by_another() -> Iterator[subprocess.Popen[str]]:
    with start_other() as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        try:
            yield other
        finally:
            other.kill()


@pytest.fixture(autouse=True)
def _home(tmp_path, settings) -> Iterator[None]:
    settings.MONODON_HOME = tmp_path
    commit_queue._file.cache_clear()
    yield
    commit_queue._file.cache_clear()


def test_a_new_queue_is_empty_and_free():
    queue = commit_queue._Queue(PLACE)
    assert (queue.number, queue.last, queue.latest) == (PLACE, None, {})
    queue.wait()
    assert queue.lock.locked()
    assert not is_free()
    queue.lock.release()
    queue.leave()
    assert is_free()


def test_a_turn_excludes_other_processes_until_it_ends():
    with commit_queue.turns([NAME]):
        assert not is_free()
    assert is_free()
    with pytest.raises(CommitConflict), commit_queue.turns([NAME]):
        raise CommitConflict("refused")
    assert is_free()


@pytest.mark.django_db(transaction=True)
def test_a_stopped_waiter_is_skipped(warehouse, monkeypatch, caplog):
    monkeypatch.setattr(commit_queue, "_PASS_BY_SECONDS", 0.05)
    make_root()
    make_iceberg_table(*T)
    with held_by_another():
        updates = [{"action": "set-properties", "updates": {"key": "value"}}]
        change = TableChange(table=T, requirements=[], updates=updates)
        iceberg_commits.commit_table(actor=SYSTEM, change=change)
    assert TableVersion.objects.filter(version=1).exists()
    (message,) = caplog.messages
    assert message == (
        "The commit proceeds without its turn in the queue: another process has held the lock for"
        " more than 0.05 seconds"
    )


def test_a_dead_waiter_does_not_block_others(caplog):
    with held_by_another() as other:
        other.kill()
        other.wait()
        with commit_queue.turns([NAME]):
            assert not is_free()
    assert caplog.text == ""


def test_the_wait_for_a_turn_in_the_same_process_times_out(monkeypatch):
    monkeypatch.setattr(commit_queue, "_WAIT_SECONDS", 0.05)
    refused = pytest.raises(Busy, match="Too many commits")
    with commit_queue.turns([NAME]), refused, commit_queue.turns([NAME]):
        raise AssertionError("two turns at once")
    with commit_queue.turns([NAME]):
        pass


def test_a_process_keeps_its_turn_for_a_waiting_thread(start, monkeypatch):
    monkeypatch.setattr(commit_queue, "_KEEP_SECONDS", 60.0)
    queue, results = commit_queue._queue(NAME), []
    real, is_waiting, may_proceed = commit_queue._acquire, threading.Event(), threading.Event()

    def acquire(lock: threading.Lock) -> None:
        is_waiting.set()
        assert may_proceed.wait(30)
        real(lock)

    def second() -> None:
        with commit_queue.turn(NAME):
            results.append(is_free())

    with commit_queue.turn(NAME):
        monkeypatch.setattr(commit_queue, "_acquire", acquire)
        thread = start(second)
        assert is_waiting.wait(30)
    assert not is_free()
    may_proceed.set()
    thread.join(30)
    assert (results, queue._waiting) == ([False], 0)
    assert is_free()


def test_a_process_releases_its_turn_when_the_waiting_thread_gives_up(start, monkeypatch):
    monkeypatch.setattr(commit_queue, "_KEEP_SECONDS", 60.0)
    is_waiting, may_proceed = threading.Event(), threading.Event()

    def acquire(lock: threading.Lock) -> None:
        is_waiting.set()
        assert may_proceed.wait(30)
        raise Busy("Too many commits wait for this table; try again")

    def second() -> None:
        with pytest.raises(Busy), commit_queue.turn(NAME):
            raise AssertionError("it has a turn")

    with commit_queue.turn(NAME):
        monkeypatch.setattr(commit_queue, "_acquire", acquire)
        thread = start(second)
        assert is_waiting.wait(30)
    assert not is_free()
    may_proceed.set()
    thread.join(30)
    assert is_free()


def test_a_process_does_not_keep_its_turn_for_long(start, monkeypatch):
    monkeypatch.setattr(commit_queue, "_KEEP_SECONDS", 0.0)
    queue = commit_queue._queue(NAME)
    with commit_queue.turn(NAME):
        monkeypatch.setattr(queue, "_waiting", 1)
    assert is_free()
    monkeypatch.setattr(queue, "_waiting", 0)


# --- turns that overlap ------------------------------------------------------------------------


@pytest.fixture
def queue_(monkeypatch) -> commit_queue._Queue:
    queue = commit_queue._queue(NAME)
    monkeypatch.setattr(queue, "_count", 0)
    return queue


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], None]], threading.Thread]]:
    threads = []

    def start(call: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=call)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("fails", [False, True])
def test_the_next_commit_uses_the_result_of_the_previous(queue_, start, fails):
    prepared, results, threads = threading.Event(), [], []

    def second() -> None:
        with commit_queue.turn(NAME) as own:
            results.append(own.latest)
            own.prepared("second")
            prepared.set()
            results.append(own.is_next())
            results.append(is_free())

    def first() -> None:
        with commit_queue.turn(NAME) as own:
            assert own.latest is None
            own.prepared("first")
            threads.append(start(second))
            assert prepared.wait(30)
            assert results == ["first"]
            if fails:
                raise CommitConflict("it came to nothing")

    if fails:
        with pytest.raises(CommitConflict):
            first()
    else:
        first()
    threads[0].join(30)
    # The machine's lock and the prepared results are kept until both have ended.
    assert results == ["first", not fails, False]


def test_the_queue_is_empty_after_all_commits(queue_):
    with commit_queue.turn(NAME) as own:
        own.prepared("made")
    assert is_free()
    assert (queue_.latest, queue_.last) == ({}, None)
    with commit_queue.turn(NAME) as own:
        assert own.latest is None


def test_exclusive_turns_do_not_overlap_with_shared_turns(queue_, start):
    ended = threading.Event()

    def whole() -> None:
        with commit_queue.turns([NAME]):
            assert ended.is_set()

    with commit_queue.turn(NAME) as own:
        own.prepared("made")
        thread = start(whole)
        thread.join(0.1)
        assert thread.is_alive()
        ended.set()
    thread.join(30)
    with commit_queue.turn(NAME) as own:
        assert own.latest is None


def test_a_process_yields_to_other_processes(queue_, start, monkeypatch):
    monkeypatch.setattr(queue_, "_count", commit_queue._STEP_BACK_EVERY - 2)
    order = []

    def second() -> None:
        with commit_queue.turn(NAME) as own:
            order.append(own.latest)

    with commit_queue.turn(NAME) as own:
        own.prepared("made")
        thread = start(second)
        thread.join(0.1)
        assert order == []  # otherwise turns might overlap without end
    thread.join(30)
    assert order == [None]


def test_waiting_for_a_stuck_commit_times_out(queue_, start, monkeypatch):
    monkeypatch.setattr(commit_queue, "_WAIT_SECONDS", 0.05)
    order: list[object] = []

    def time_out() -> None:
        with commit_queue.turn(NAME) as own:
            order.append(own.latest)
            own.prepared("other")
            own.is_next()

    def other() -> None:
        try:
            time_out()
        except Busy as error:
            order.append(error.message)

    with commit_queue.turn(NAME) as own:
        own.prepared("made")
        start(other).join(30)
        assert order == ["made", "Too many commits wait for this table; try again"]
        assert queue_.latest == {}  # the next commit must read the table
    assert is_free()
