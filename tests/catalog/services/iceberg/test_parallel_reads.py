"""Reading many files ahead of their use."""

import threading

import pytest

from catalog.regular_files import NotRegular, TooLarge
from catalog.services.iceberg import parallel_reads
from catalog.storage import stores
from catalog.storage.stores import StorageUnavailable
from tests.stores.fixtures import Storage

pytestmark = pytest.mark.django_db


def write(storage: Storage, count: int) -> list[str]:
    paths = [storage.location(f"t/{number}") for number in range(count)]
    for number, path in enumerate(paths):
        storage.write(path, b"x" * number)
    return paths


def test_contents_come_in_order(storage: Storage):
    paths = write(storage, 40)
    contents = list(parallel_reads.contents(paths, 1000))
    assert contents == [b"x" * number for number in range(40)]


def test_an_error_takes_the_place_of_its_file(storage: Storage):
    paths = write(storage, 4)
    paths.insert(2, storage.location("t/missing"))
    first, _, missing, _, large = parallel_reads.contents(paths, 2)
    assert first == b""
    assert isinstance(missing, FileNotFoundError)
    assert isinstance(large, TooLarge)


def test_a_large_file_is_read_when_its_turn_comes(storage: Storage, monkeypatch):
    monkeypatch.setattr(parallel_reads, "_MAX_AHEAD_BYTES", 10)
    paths = write(storage, 14)
    contents = list(parallel_reads.contents(paths, 12))
    assert contents[:13] == [b"x" * number for number in range(13)]
    assert isinstance(contents[13], TooLarge)


def test_an_abandoned_read_leaves_no_thread_waiting(storage: Storage):
    paths = write(storage, 30)
    contents = parallel_reads.contents(paths, 1000)
    assert next(contents) == b""
    contents.close()
    assert list(parallel_reads.contents(paths[:2], 1000)) == [b"", b"x"]


def test_only_files_of_object_stores_are_read_by_other_threads(storage: Storage, monkeypatch):
    paths = write(storage, 5)
    store = stores.store_of(paths[0])
    real, threads = type(store).read, set()

    def read(self: stores.Store, path: str, limit: int) -> object:
        threads.add(threading.current_thread())
        return real(self, path, limit)

    monkeypatch.setattr(type(store), "read", read)
    assert len(list(parallel_reads.contents(paths, 1000))) == 5
    is_parallel = threading.current_thread() not in threads
    assert is_parallel is (storage.kind == "s3")


def test_paths_without_a_profile_are_errors(db):
    first, second = parallel_reads.contents(["s3://nowhere/a", "s3://nowhere/b"], 10)
    assert isinstance(first, StorageUnavailable)
    assert isinstance(second, StorageUnavailable)


def test_sizes_leave_out_missing_files(storage: Storage):
    paths = write(storage, 20)
    sizes = parallel_reads.sizes([*paths, storage.location("t/missing")])
    assert sizes == {path: number for number, path in enumerate(paths)}


def test_sizes_leave_out_directories(tmp_path):
    assert parallel_reads.sizes([str(tmp_path)]) == {}
    with pytest.raises(NotRegular):
        stores.store_of(str(tmp_path)).status(str(tmp_path))
