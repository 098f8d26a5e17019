"""What every store promises, for local files and for objects."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from catalog.regular_files import NotRegular, TooLarge
from catalog.storage import stores
from catalog.storage.local_store import LocalStore
from catalog.storage.object_store import ObjectStore
from catalog.storage.stores import Move, Store, StoredFile
from tests.stores.fixtures import Storage

WRITERS = 16
SIZES = [0, 1, 100, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 100_000]
NAMES = [
    "a b",
    "a+b",
    "a#b",
    "a?b",
    "a~b",
    "a%2Fb",
    "a%20b",
    "100%",
    "x=a%2Fb.parquet",
    "größe-🧊",
    "e\u0301",
    "a&b=c;d,e@f:g!'()",
    '[a]{b}^`|<>"*$',
]
_FORM_ENCODED = set(" ~*")
"""Moto's signature of a query differs from that of AWS if these were encoded as in forms."""
pytestmark = pytest.mark.django_db


@pytest.fixture
def table(storage: Storage) -> str:
    """The location of a table with a file."""
    storage.write(storage.location("t/data/1.bin"), b"first")
    return storage.location("t")


@pytest.fixture
def store(storage: Storage, table: str) -> Store:
    return stores.store_of(table)


def content_of(size: int) -> bytes:
    return bytes(number * 7 % 251 for number in range(size))


# --- reading


@pytest.mark.parametrize("size", SIZES)
def test_a_whole_file_is_read(storage, store, table, size):
    storage.write(f"{table}/f", content_of(size))
    content, status = store.read(f"{table}/f", max(size, 1))
    assert content == content_of(size)
    assert status.size == size
    assert store.status(f"{table}/f") == status
    assert store.size(f"{table}/f") == size


def test_a_file_above_the_limit_is_refused(storage, store, table):
    storage.write(f"{table}/f", content_of(20_000))
    with pytest.raises(TooLarge):
        store.read(f"{table}/f", 19_999)
    assert len(store.read(f"{table}/f", 20_000)[0]) == 20_000


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", [0, 1, 16 * 1024, 50_000, 10**9])
def test_the_end_of_a_file_is_read(storage, store, table, size, part):
    storage.write(f"{table}/f", content_of(size))
    calls = []

    def start_of(tail: bytes, whole: int) -> int:
        calls.append((tail, whole))
        return max(whole - part, 0)

    content, status = store.read_end(f"{table}/f", start_of, 10**6)
    assert content == content_of(size)[max(size - part, 0) :]
    assert status.size == size
    assert calls == [(content_of(size)[-16 * 1024 :], size)]


def test_the_end_of_a_file_has_a_limit(storage, store, table):
    storage.write(f"{table}/f", content_of(50_000))
    with pytest.raises(TooLarge):
        store.read_end(f"{table}/f", lambda tail, size: 0, 49_999)


@pytest.mark.parametrize(("start", "length"), [(0, 5), (10, 5), (95, 10), (100, 5), (500, 5)])
def test_a_part_of_a_file_is_read(storage, store, table, start, length):
    storage.write(f"{table}/f", content_of(100))
    assert store.read_range(f"{table}/f", start, length) == content_of(100)[start : start + length]
    assert store.read_range(f"{table}/f", start, 0) == b""


def test_a_local_file_is_opened(storage, store, table):
    storage.write(f"{table}/f", content_of(100))
    size, handle = store.open(f"{table}/f")
    assert size == 100
    if handle is None:  # an object store
        assert isinstance(store, ObjectStore)
        return
    try:
        assert os.pread(handle, 200, 0) == content_of(100)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(handle, b"x")
    finally:
        os.close(handle)


def test_links_pipes_and_directories_are_not_opened(tmp_path):
    tmp_path.joinpath("f").write_bytes(b"x")
    tmp_path.joinpath("link").symlink_to("f")
    tmp_path.joinpath("above").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "above/f", "pipe", "."):
        with pytest.raises(NotRegular):
            LocalStore().open(f"{tmp_path}/{name}")


def test_a_missing_file_is_missing(store, table):
    for read in (
        lambda path: store.read(path, 100),
        lambda path: store.read_end(path, lambda tail, size: 0, 100),
        lambda path: store.read_range(path, 0, 10),
        lambda path: store.read_range(path, 0, 0),
        store.open,
        store.status,
    ):
        with pytest.raises(OSError, match=r".") as refused:
            read(f"{table}/none")
        assert stores.is_missing(refused.value)
    assert store.size(f"{table}/none") is None


@pytest.mark.parametrize("expected", [None, -1, 0, 99, 100, 101, 10**20])
def test_files_are_read_ahead(storage, store, table, expected):
    paths = [f"{table}/{name}" for name in ("f", "none", "larger", "empty")]
    for path, size in ((paths[0], 100), (paths[2], 151), (paths[3], 0)):
        storage.write(path, content_of(size))
    sizes = {} if expected is None else dict.fromkeys(paths, expected)
    content, missing, larger, empty = store.read_ahead(paths, 150, sizes).results()
    assert content == content_of(100)
    assert stores.is_missing(missing)
    assert isinstance(larger, TooLarge)
    assert empty == b""
    assert store.sizes_ahead(paths).results() == [100, None, 151, 0]


def test_the_identity_of_a_replaced_file_differs(storage, store, table):
    before = store.status(f"{table}/data/1.bin")
    assert store.status(f"{table}/data/1.bin").identity == before.identity
    storage.write(f"{table}/data/1.bin", b"other")
    after = store.status(f"{table}/data/1.bin")
    assert after.size == before.size
    assert after.identity != before.identity


@pytest.mark.parametrize("name", NAMES)
def test_names_are_literal(storage, store, table, name):
    path = f"{table}/names/{name}"
    store.write_new(path, name.encode())
    assert storage.files(f"{table}/names") == [name]
    assert storage.read(path) == name.encode()
    assert store.read(path, 100)[0] == name.encode()
    assert [file.name for file in store.list_files(table, "names")] == [name]
    assert [file.name for file in store.list_tree(f"{table}/names")] == [name]
    # As a directory, too.
    store.write_new(f"{table}/names/in-{name}/f", b"x")
    assert store.list_directories(table, "names") == [f"in-{name}"]
    if not (storage.store and storage.store.name == "moto" and set(name) & _FORM_ENCODED):
        assert [file.name for file in store.list_files(table, f"names/in-{name}")] == ["f"]
    assert store.remove(path) is True
    assert storage.files(f"{table}/names") == [f"in-{name}/f"]
    assert list(store.remove_many([f"{table}/names/in-{name}/f"])) == [f"{table}/names/in-{name}/f"]
    assert storage.files(f"{table}/names") == []


# --- writing


def test_a_new_file_is_written_with_its_directories(storage, store, table):
    store.write_new(f"{table}/new/deep/f", b"content")
    assert storage.read(f"{table}/new/deep/f") == b"content"


def test_a_file_that_exists_is_not_replaced(storage, store, table):
    with pytest.raises(FileExistsError):
        store.write_new(f"{table}/data/1.bin", b"other")
    assert storage.read(f"{table}/data/1.bin") == b"first"


def in_parallel(function, count: int = WRITERS) -> list[object]:
    """The results, or errors, of a function that threads call at the same time with their number."""
    barrier = threading.Barrier(count)

    def run(number: int) -> object:
        barrier.wait(30)
        try:
            return function(number)
        except OSError as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def test_one_of_many_writers_wins(storage, store, table):
    for turn in range(5):
        path = f"{table}/race/{turn}"
        results = in_parallel(lambda number, path=path: store.write_new(path, b"%d" % number))
        winners = [number for number, result in enumerate(results) if result is None]
        assert len(winners) == 1
        assert storage.read(path) == b"%d" % winners[0]
        losers = [result for result in results if result is not None]
        assert all(isinstance(result, FileExistsError) for result in losers)


# --- moving manifests


def test_a_staged_manifest_moves(storage, store, table):
    storage.write(f"{table}/_versions/staged", b"manifest")
    assert store.move_manifest(table, "_versions/staged", "_versions/1.manifest") is Move.DONE
    assert storage.files(f"{table}/_versions") == ["1.manifest"]
    assert storage.read(f"{table}/_versions/1.manifest") == b"manifest"
    assert store.move_manifest(table, "_versions/staged", "_versions/1.manifest") is Move.DONE
    assert storage.files(f"{table}/_versions") == ["1.manifest"]


def test_a_move_into_a_directory_that_is_not_there(storage, store, table):
    storage.write(f"{table}/staged", b"manifest")
    assert store.move_manifest(table, "staged", "_versions/1.manifest") is Move.DONE
    assert storage.files(table) == ["_versions/1.manifest", "data/1.bin"]


def test_nothing_to_move(storage, store, table):
    assert store.move_manifest(table, "_versions/staged", "_versions/1.manifest") is Move.MISSING
    assert storage.files(table) == ["data/1.bin"]


def test_an_occupied_name_stays(storage, store, table):
    storage.write(f"{table}/_versions/staged", b"manifest")
    storage.write(f"{table}/_versions/1.manifest", b"another1")
    assert store.move_manifest(table, "_versions/staged", "_versions/1.manifest") is Move.OCCUPIED
    assert storage.read(f"{table}/_versions/1.manifest") == b"another1"
    assert storage.read(f"{table}/_versions/staged") == b"manifest"


def test_a_move_that_was_interrupted_ends(storage, store, table):
    storage.write(f"{table}/_versions/staged", b"manifest")
    storage.write(f"{table}/_versions/1.manifest", b"manifest")
    assert store.move_manifest(table, "_versions/staged", "_versions/1.manifest") is Move.DONE
    assert storage.files(f"{table}/_versions") == ["1.manifest"]


def test_many_processes_move_one_manifest(storage, store, table):
    for turn in range(5):
        storage.write(f"{table}/_versions/s{turn}", b"manifest")
        results = in_parallel(
            lambda number, turn=turn: store.move_manifest(
                table, f"_versions/s{turn}", f"_versions/{turn}.manifest"
            ),
            8,
        )
        assert results == [Move.DONE] * 8
        assert storage.read(f"{table}/_versions/{turn}.manifest") == b"manifest"
    assert storage.files(f"{table}/_versions") == [f"{turn}.manifest" for turn in range(5)]


def test_of_many_manifests_for_one_name_one_moves(storage, store, table):
    for number in range(8):
        storage.write(f"{table}/_versions/s{number}", b"manifest %d" % number)
    results = in_parallel(
        lambda number: store.move_manifest(table, f"_versions/s{number}", "_versions/1.manifest"),
        8,
    )
    assert sorted(result.value for result in results) == ["done"] + ["occupied"] * 7
    winner = results.index(Move.DONE)
    assert storage.read(f"{table}/_versions/1.manifest") == b"manifest %d" % winner
    assert storage.files(f"{table}/_versions") == [
        "1.manifest",
        *(f"s{number}" for number in range(8) if number != winner),
    ]


# --- removing


def test_a_file_is_removed(storage, store, table):
    assert store.remove(f"{table}/data/1.bin") is True
    assert store.remove(f"{table}/data/1.bin") is False
    assert store.remove(f"{table}/nowhere/1.bin") is False
    assert storage.files(table) == []


def test_many_files_are_removed(storage, store, table):
    paths = [f"{table}/many/{number}" for number in range(20)]
    for path in paths[:15]:
        storage.write(path, b"x")
    assert list(store.remove_many(paths)) == paths
    assert storage.files(table) == ["data/1.bin"]
    assert list(store.remove_many([])) == []


def test_a_table_is_removed_and_its_neighbours_stay(storage, store, table):
    for name in ("t2/f", "t.lance/f", "t-old/f", "s/f"):
        storage.write(storage.location(name), b"x")
    for number in range(30):
        storage.write(f"{table}/deep/{number % 3}/{number}", b"x")
    aside = store.set_aside(table, "purged-7")
    assert aside is not None
    assert store.set_aside(table, "purged-7") == aside
    counts = list(store.remove_tree(aside))
    assert counts == sorted(counts)
    assert counts[-1] == 31
    assert storage.files() == ["s/f", "t-old/f", "t.lance/f", "t2/f"]
    assert store.set_aside(storage.location("never"), "purged-7") is None


def test_a_removal_may_be_interrupted(storage, store, table):
    storage.write(f"{table}/data/2.bin", b"x")
    aside = store.set_aside(table, "purged-7")
    assert aside is not None
    store.remove_tree(aside).close()
    removal = store.remove_tree(aside)
    next(removal)
    removal.close()
    list(store.remove_tree(aside))
    assert storage.files() == []
    assert sum(store.remove_tree(aside)) == 0


# --- listing


@pytest.fixture
def files(storage: Storage, table: str) -> list[str]:
    names = ["_versions/1.manifest", "_versions/2.manifest", "data/1.bin", "data/sub/2.bin"]
    for name in names:
        storage.write(f"{table}/{name}", name.encode())
    storage.write(storage.location("t2/_versions/9.manifest"), b"x")
    storage.write(storage.location("t/data2/9.bin"), b"x")
    return names


def test_the_files_of_a_directory(store, table, files):
    listed = sorted(store.list_files(table, "_versions"), key=lambda file: file.name)
    assert [(file.name, file.size) for file in listed] == [("1.manifest", 20), ("2.manifest", 20)]
    for file in listed:
        assert isinstance(file, StoredFile)
        status = store.status(f"{table}/_versions/{file.name}")
        assert abs(status.modified_at - file.modified_at) < 1
    assert [file.name for file in store.list_files(table, "data")] == ["1.bin"]
    assert list(store.list_files(table, "none")) == []
    assert list(store.list_files(table, "dat")) == []


def test_the_location_itself_is_a_directory(storage, store, table, files):
    storage.write(f"{table}/f", b"x")
    storage.write(storage.location("g"), b"x")
    assert [file.name for file in store.list_files(table, "")] == ["f"]
    assert sorted(store.list_directories(table, "")) == ["_versions", "data", "data2"]
    assert [file.name for file in store.list_files(storage.root, "")] == ["g"]
    assert sorted(store.list_directories(storage.root, "")) == ["t", "t2"]


def test_all_files_below_a_directory(store, table, files):
    names = sorted(file.name for file in store.list_tree(table))
    assert names == sorted([*files, "data2/9.bin"])
    assert sorted(file.name for file in store.list_tree(f"{table}/data")) == ["1.bin", "sub/2.bin"]
    assert list(store.list_tree(f"{table}/none")) == []


def test_the_directories_of_a_directory(store, table, files):
    assert store.list_directories(table, "data") == ["sub"]
    assert store.list_directories(table, "_versions") == []
    assert store.list_directories(table, "none") == []


def test_the_branches_of_a_table(storage, store, table, files):
    assert store.list_branches(table) == []
    for name in ("b/_versions/1", "b/data/x", "n/c/_versions/1", "n/c/d/_versions/1", "junk/x/y"):
        storage.write(f"{table}/tree/{name}", b"x")
    assert store.list_branches(table) == ["b", "n/c", "n/c/d"]


def test_what_depends_on_the_storage(store, table):
    assert store.can_see(table)
    store.require_reachable(table)
    assert store.find_irregular(table) is None
    assert store.resolve(f"{table}/data/1.bin") == f"{table}/data/1.bin"
    store.make_directory(f"{table}/made/deep")
    list(store.remove_empty_directories(f"{table}/made"))
    assert store.list_directories(table, "made") == []
