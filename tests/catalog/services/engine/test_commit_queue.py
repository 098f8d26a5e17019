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

# Another process: takes the lock, says so, and holds it until its input ends.
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
    """Whether another process could have the turn."""
    with start_other() as other:
        found = other.communicate("")[0].strip()
    return found == "mine"


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


def test_a_turn_keeps_other_processes_out_until_it_ends():
    with commit_queue.turns([NAME]):
        assert not is_free()
    assert is_free()
    with pytest.raises(CommitConflict), commit_queue.turns([NAME]):
        raise CommitConflict("refused")
    assert is_free()


@pytest.mark.django_db(transaction=True)
def test_who_stops_is_passed_by(warehouse, monkeypatch, caplog):
    monkeypatch.setattr(commit_queue, "_PASS_BY_SECONDS", 0.05)
    make_root()
    make_iceberg_table(*T)
    with held_by_another():
        updates = [{"action": "set-properties", "updates": {"key": "value"}}]
        change = TableChange(table=T, requirements=[], updates=updates)
        iceberg_commits.commit_table(actor=SYSTEM, change=change)
    assert TableVersion.objects.filter(version=1).exists()
    assert "proceeds without its turn in the queue" in caplog.text


def test_who_dies_holds_nobody_up(caplog):
    with held_by_another() as other:
        other.kill()
        other.wait()
        with commit_queue.turns([NAME]):
            assert not is_free()
    assert caplog.text == ""


def test_a_turn_in_the_same_process_does_not_come(monkeypatch):
    monkeypatch.setattr(commit_queue, "_WAIT_SECONDS", 0.05)
    refused = pytest.raises(Busy, match="Too many commits")
    with commit_queue.turns([NAME]), refused, commit_queue.turns([NAME]):
        raise AssertionError("two turns at once")
    with commit_queue.turns([NAME]):
        pass


# --- turns that overlap ------------------------------------------------------------------------


@pytest.fixture
def place(monkeypatch) -> commit_queue._Queue:
    found = commit_queue._queue(NAME)
    monkeypatch.setattr(found, "_count", 0)
    return found


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
def test_the_next_goes_by_what_the_one_before_makes(place, start, fails):
    prepared, found, threads = threading.Event(), [], []

    def second() -> None:
        with commit_queue.turn(NAME) as own:
            found.append(own.latest)
            own.prepared("second")
            prepared.set()
            found.append(own.is_next())
            found.append(is_free())

    def first() -> None:
        with commit_queue.turn(NAME) as own:
            assert own.latest is None
            own.prepared("first")
            threads.append(start(second))
            assert prepared.wait(30)
            assert found == ["first"]
            if fails:
                raise CommitConflict("it came to nothing")

    if fails:
        with pytest.raises(CommitConflict):
            first()
    else:
        first()
    threads[0].join(30)
    # The machine's lock is kept until both have ended, and what they made as long.
    assert found == ["first", not fails, False]


def test_when_all_have_ended_nothing_is_left(place):
    with commit_queue.turn(NAME) as own:
        own.prepared("made")
    assert is_free()
    assert (place.latest, place.last) == ({}, None)
    with commit_queue.turn(NAME) as own:
        assert own.latest is None


def test_whole_turns_and_what_overlaps_keep_apart(place, start):
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


def test_a_process_steps_back_for_the_others(place, start, monkeypatch):
    monkeypatch.setattr(place, "_count", commit_queue._STEP_BACK_EVERY - 2)
    found = []

    def second() -> None:
        with commit_queue.turn(NAME) as own:
            found.append(own.latest)

    with commit_queue.turn(NAME) as own:
        own.prepared("made")
        thread = start(second)
        thread.join(0.1)
        assert found == []  # else turns might overlap for ever
    thread.join(30)
    assert found == [None]


def test_who_waits_for_one_that_does_not_end(place, start, monkeypatch):
    monkeypatch.setattr(commit_queue, "_WAIT_SECONDS", 0.05)
    found: list[object] = []

    def wait_in_vain() -> None:
        with commit_queue.turn(NAME) as own:
            found.append(own.latest)
            own.prepared("other")
            own.is_next()

    def other() -> None:
        try:
            wait_in_vain()
        except Busy as error:
            found.append(error.message)

    with commit_queue.turn(NAME) as own:
        own.prepared("made")
        start(other).join(30)
        assert found == ["made", "Too many commits wait for this table; try again"]
        assert place.latest == {}  # the next one is to look at the table
    assert is_free()
