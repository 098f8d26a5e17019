"""Reading many files ahead of their use."""

import pytest

from catalog.regular_files import NotRegular, TooLarge
from catalog.services.iceberg import parallel_reads
from catalog.storage import stores
from catalog.storage.object_store import ObjectStore
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


def test_reading_may_be_abandoned(storage: Storage):
    paths = write(storage, 30)
    contents = parallel_reads.contents(paths, 1000)
    assert next(contents) == b""
    contents.close()
    assert list(parallel_reads.contents(paths[:2], 1000)) == [b"", b"x"]


def test_only_files_of_object_stores_are_read_ahead(storage: Storage, monkeypatch):
    paths = write(storage, 40)
    kind = type(stores.store_of(paths[0]))
    read, read_ahead = kind.read, kind.read_ahead
    read_paths: list[str] = []
    fetched: list[str] = []

    def counted_read(self: stores.Store, path: str, limit: int) -> object:
        read_paths.append(path)
        return read(self, path, limit)

    def counted_read_ahead(self, batch, limit, sizes):
        fetched.extend(batch)
        return read_ahead(self, batch, limit, sizes)

    monkeypatch.setattr(kind, "read", counted_read)
    monkeypatch.setattr(kind, "read_ahead", counted_read_ahead)
    contents = parallel_reads.contents(paths, 1000)
    assert next(contents) == b""
    if storage.kind == "s3":
        assert fetched == paths[:24]  # the batch in use, and two ahead
        assert read_paths == []
    else:
        assert read_paths == paths[:1]


def test_each_file_is_read_with_the_key_of_its_own_profile(s3_profile, make_profile, monkeypatch):
    """Two profiles in one bucket, and a file in it that is below the roots of neither."""
    bucket = s3_profile.roots[0].rpartition("/")[0]
    make_profile(
        name="other",
        roots=[f"{bucket}/other"],
        endpoint="http://127.0.0.1:9",
        key_id="k",
        secret="secret",
        identity="key",
        region="us-east-1",
        path_style=True,
    )
    batches = []

    def read_ahead(self, batch, limit, sizes):
        batches.append((self._client.profile, list(batch)))
        return stores.Pending(lambda: [b"x"] * len(batch))

    monkeypatch.setattr(ObjectStore, "read_ahead", read_ahead)
    own, other, neither = (
        [f"{bucket}/{root}/{number}" for number in range(2)] for root in ("root", "other", "rest")
    )
    results = list(parallel_reads.contents([*own, *other, *neither, *own], 10))
    assert batches == [("lake", own), ("other", other), ("lake", own)]
    assert [isinstance(result, StorageUnavailable) for result in results] == (
        [False] * 4 + [True] * 2 + [False] * 2
    )


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
