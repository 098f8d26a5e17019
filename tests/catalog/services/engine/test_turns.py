"""Turns of one thread inside each other: what the next turn gets, and in which order turns are taken."""

import threading
import uuid
from collections.abc import Iterator

import pytest

from catalog.errors import Busy, CommitConflict
from catalog.services.engine import commit_queue
from catalog.services.engine.commit_queue import turn, turns

NAME, OTHER, THIRD = (uuid.UUID(int=7 + 256 * number) for number in range(3))
"""Names of one queue."""


@pytest.fixture(autouse=True)
def queue(tmp_path, settings) -> Iterator[commit_queue._Queue]:
    settings.MONODON_HOME = tmp_path
    commit_queue._file.cache_clear()
    queue = commit_queue._queue(NAME)
    queue._count = 0
    yield queue
    commit_queue._file.cache_clear()
    assert (queue.last, queue.latest, queue._waiting, queue._inside) == (None, {}, 0, 0)
    assert not queue.lock.locked()


def test_names_are_distributed_among_the_queues(queue):
    assert queue.number == 7
    assert commit_queue._queue(OTHER) is queue
    assert commit_queue._queue(uuid.UUID(int=255)).number == 255


def test_the_next_turn_of_a_table_gets_its_latest_result():
    with turn(NAME) as first:
        assert first.latest is None
        first.prepared("a")
        with turn(OTHER) as other:
            assert other.latest is None
            other.prepared("b")
            with turn(NAME) as second:
                assert second.latest == "a"
                second.prepared("c")
                with turn(NAME) as third:
                    assert third.latest == "c"


def test_after_a_turn_without_a_result_the_table_is_read():
    with turn(NAME) as first:
        first.prepared(None)
        with turn(NAME) as second:
            assert second.latest is None


def fail_with_result() -> None:
    with turn(NAME) as own:
        own.prepared("a")
        raise CommitConflict("refused")


def test_the_result_of_a_failed_turn_is_withdrawn(queue):
    with turn(OTHER) as other:
        other.prepared("b")
        with pytest.raises(CommitConflict):
            fail_with_result()
        assert queue.latest == {OTHER: other}
        with turn(NAME) as again:
            assert again.latest is None


def test_a_turn_that_fails_without_a_result_keeps_that_of_the_preceding_one():
    with turn(NAME) as first:
        first.prepared("a")
        with pytest.raises(CommitConflict), turn(NAME):
            raise CommitConflict("refused")
        with turn(NAME) as again:
            assert again.latest == "a"


def test_a_table_that_is_read_has_no_earlier_result(queue):
    with turn(NAME) as first:
        first.prepared("a")
        with pytest.raises(CommitConflict), turn(OTHER):
            raise CommitConflict("refused")  # the last turn has ended, but not the first one
        with turn(NAME) as own:
            own.settle()
            assert own.latest is None
            own.prepared(None)
            with turn(NAME) as again:
                assert again.latest is None
            assert own.is_next()


def test_a_change_of_several_tables_withdraws_their_results(queue):
    with turn(NAME) as first:
        first.prepared("a")
        with turn(OTHER) as other:
            other.prepared("b")
            with turn(THIRD) as third:
                third.prepared("c")
                with pytest.raises(CommitConflict), turn(NAME):
                    raise CommitConflict("refused")
                with turns([NAME, OTHER]):
                    assert queue.latest == {THIRD: third}


def test_turns_of_several_tables_are_taken_in_one_order_and_once_for_a_queue(monkeypatch):
    numbers: list[int] = []
    wait = commit_queue._Queue.wait

    def record(queue: commit_queue._Queue) -> None:
        numbers.append(queue.number)
        wait(queue)

    monkeypatch.setattr(commit_queue._Queue, "wait", record)
    with turns([uuid.UUID(int=9), NAME, OTHER, uuid.UUID(int=8)]):
        assert numbers == [7, 8, 9]
        assert all(commit_queue._QUEUES[number].lock.locked() for number in numbers)


def test_the_file_of_the_turns_belongs_to_its_user(tmp_path):
    with turn(NAME):
        pass
    assert (tmp_path / "run" / "turns").stat().st_mode & 0o777 == 0o600


class Lock:
    """A lock that another thread holds."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self.timeouts.append(timeout)
        return False


def test_the_third_thread_that_waits_gives_up_sooner(monkeypatch):
    lock = Lock()
    for others in ([], [1], [1, 1], [1, 1, 1]):
        waiting = list(others)
        monkeypatch.setattr(commit_queue, "_waiting", waiting)
        with pytest.raises(Busy) as refused:
            commit_queue._acquire(lock)  # type: ignore[arg-type]
        assert refused.value.message == "Too many commits wait for this table; try again"
        assert waiting == others
    assert lock.timeouts == [10, 10, 2, 2]


def test_a_free_lock_is_taken_at_once(monkeypatch):
    monkeypatch.setattr(commit_queue, "_waiting", ())  # nothing is added
    lock = threading.Lock()
    commit_queue._acquire(lock)
    assert lock.locked()


def test_a_turn_that_cannot_be_taken_leaves_the_queue_to_others(monkeypatch):
    def fail(_: int) -> bool:
        raise OSError("no locks available")

    with monkeypatch.context() as patch:
        patch.setattr(commit_queue, "_take_in_time", fail)
        with pytest.raises(OSError, match="no locks"), turn(NAME):
            raise AssertionError("it has a turn")
    with turn(NAME) as own:
        assert own.latest is None
