"""What a commit reads of the files that it brings in, what that refers to, and files that cannot be read.

The stand-ins for files count what is read; real manifests are in ``tests/security``.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import ForeignFile, InvalidMetadata, ServiceUnavailable, Unsupported
from catalog.models import Table
from catalog.services.iceberg import files, parallel_reads
from catalog.services.iceberg.files import TableFileIO
from catalog.services.iceberg.jobs import files as job_files
from catalog.services.storage import recorded_references
from catalog.services.storage.file_owners import References
from catalog.services.storage.table_files import NOBODY, TableFiles
from catalog.storage import stores
from catalog.storage.stores import AccessDenied, StorageUnavailable
from tests.factories import make_iceberg_table

# --- what a commit reads -----------------------------------------------------------------------

MISSING = OSError(errno.ENOENT, "missing")


class Storage:
    """Manifest lists and manifests by name: lists have manifests with their snapshots, manifests have files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pk: int) -> None:
        self.table = SimpleNamespace(pk=pk)
        self.lists: dict[str, list[tuple[str, int | None]] | Exception] = {}
        self.manifests: dict[str, list[tuple[str, bool]] | Exception] = {}
        self.checked: list[set[str]] = []
        self.read: list[str] = []
        self.limits: list[int] = []
        monkeypatch.setattr(parallel_reads, "contents", self._contents)
        monkeypatch.setattr(files.manifests, "paths_in_list", self._paths_in_list)
        monkeypatch.setattr(files.manifests, "paths_in_manifest", self._paths_in_manifest)
        monkeypatch.setattr(recorded_references, "require_recorded", lambda *_: None)
        monkeypatch.setattr(access, "readable_tables", lambda _, pks: set(pks) - {99})

    def check(self, _: access.Principal, paths: Sequence[str]) -> tuple[dict[str, str], References]:
        self.checked.append(set(paths))
        return {path: path for path in paths}, References()

    def references(self, paths: Iterator[str]) -> References:
        return References(frozenset((99 if path == "hidden" else 7, path) for path in paths))

    def _contents(self, paths: list[str], limit: int) -> Iterator[bytes | OSError]:
        for path in paths:
            self.read.append(path)
            self.limits.append(limit)
            content = (self.lists | self.manifests)[path]
            yield content if isinstance(content, OSError) else path.encode()

    def _paths_in_list(self, content: bytes, limit: int) -> list[tuple[str, int | None]]:
        listed = self.lists[content.decode()]
        if isinstance(listed, Exception):
            raise listed
        return listed[:limit]

    def _paths_in_manifest(self, content: bytes) -> Iterator[tuple[str, bool]]:
        entries = self.manifests[content.decode()]
        if isinstance(entries, Exception):
            raise entries
        yield from entries


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage(monkeypatch, pk=1)


def snapshot(number: int, *manifests: str, **changed: object) -> dict[str, Any]:
    """A snapshot with a manifest list, or with the manifests that it names itself."""
    where = {"manifests": manifests} if manifests else {"manifest-list": f"list {number}"}
    return {"snapshot-id": number, **where, **changed}


def check(storage: Any, *snapshots: dict[str, Any], is_whole: bool = False) -> References:
    return files._check(SYSTEM, storage, snapshots, ["named"], is_whole=is_whole)


def refers(*own: str, continued: Sequence[str] = (), unread: Sequence[int] = ()) -> References:
    return References(
        frozenset((7, path) for path in own),
        unread=frozenset(unread),
        continued=frozenset((7, path) for path in continued),
    )


def fill(storage: Storage) -> None:
    storage.lists["list 1"] = [("new", 1), ("old", 0), ("unknown", None)]
    storage.manifests |= {
        "new": [("a", True), ("b", False), ("hidden", True)],
        "old": [("c", True)],
        "unknown": [("d", True), ("b", False)],
    }


def test_a_commit_refers_to_the_files_that_its_manifests_add(storage):
    fill(storage)
    assert check(storage, snapshot(1)) == refers("a", continued=["b", "d"])
    assert storage.read == ["list 1", "new", "unknown"]
    assert storage.limits == [files._MAX_LIST_BYTES, *[files._MAX_MANIFEST_BYTES] * 2]
    assert storage.checked == [{"named", "list 1"}, {"new"}, {"old", "unknown"}]


def test_a_new_table_refers_to_all_files_of_its_first_manifests(monkeypatch):
    storage = Storage(monkeypatch, pk=0)
    fill(storage)
    assert check(storage, snapshot(1)) == refers("a", "b", "d")
    assert storage.read == ["list 1", "new", "unknown"]
    assert storage.checked[1:] == [{"new", "old", "unknown"}, set()]


def test_a_registered_document_refers_to_the_files_of_all_manifests(storage):
    fill(storage)
    whole = check(storage, snapshot(1), is_whole=True)
    assert whole == refers("a", "b", "c", "d")
    assert storage.read == ["list 1", "new", "old", "unknown"]


def test_the_files_of_a_cherry_picked_snapshot_are_taken_over(storage):
    fill(storage)
    picked = snapshot(1, summary={"source-snapshot-id": "5"})
    assert check(storage, picked) == refers(continued=["a", "b", "d"])
    named = snapshot(2, "new", summary={"source-snapshot-id": "5"})
    assert check(storage, named) == refers(continued=["a", "b"])
    assert check(storage, picked, is_whole=True) == refers("a", "b", "c", "d")


def test_a_snapshot_without_a_list_refers_to_the_files_of_the_manifests_that_it_names(storage):
    fill(storage)
    assert check(storage, snapshot(2, "new", "old")) == refers("a", "c", continued=["b"])
    assert storage.read == ["new", "old"]


def test_a_file_that_one_manifest_adds_is_not_only_taken_over(storage):
    storage.manifests |= {"one": [("a", False), ("b", True)], "two": [("a", True), ("b", False)]}
    assert check(storage, snapshot(1, "one", "two")) == refers("a", "b")


def test_the_newest_lists_are_read_and_the_older_ones_noted(storage, monkeypatch):
    monkeypatch.setattr(files, "_MAX_LISTS", 2)
    storage.lists |= {f"list {number}": [] for number in (1, 2, 3)}
    assert check(storage, *map(snapshot, (1, 2, 3))) == refers(unread=[1])
    assert storage.read == ["list 3", "list 2"]
    assert check(storage, *map(snapshot, (2, 3))) == refers()


@pytest.mark.parametrize(
    ("content", "unread"), [(MISSING, [1]), (InvalidMetadata("torn"), []), ([], [])]
)
def test_lists_and_manifests_that_cannot_be_read_are_noted(storage, content, unread):
    """A damaged manifest names no files. A request that uses it gets an error."""
    storage.lists["list 1"] = content
    assert check(storage, snapshot(1)) == refers(unread=unread)
    storage.lists["list 1"] = [("new", 1)]
    storage.manifests["new"] = content
    assert check(storage, snapshot(1)) == refers(unread=unread)


@pytest.mark.parametrize(("limit", "unread"), [(3, []), (2, [1]), (1, [1])])
def test_snapshots_with_too_many_manifests_are_noted(storage, monkeypatch, limit, unread):
    monkeypatch.setattr(files, "_MAX_MANIFESTS", limit)
    storage.lists["list 1"] = [("m", 1), ("n", 1)]
    storage.manifests |= {"m": [], "n": []}
    assert check(storage, snapshot(1)) == refers(unread=unread)
    assert storage.read == ["list 1", "m", "n"][: limit + 1]


def test_manifests_of_all_lists_count_together(storage, monkeypatch):
    monkeypatch.setattr(files, "_MAX_MANIFESTS", 3)
    storage.lists |= {"list 1": [("m", 1)], "list 2": [("n", 2), ("o", 2)]}
    storage.manifests |= {"m": [], "n": [], "o": []}
    assert check(storage, snapshot(1), snapshot(2)) == refers(unread=[1])


@pytest.mark.parametrize(
    ("limit", "own", "unread"),
    [
        (4, ["a", "b", "c"], []),
        (3, ["a", "b", "c"], [2]),
        (2, ["a", "b"], [1, 2]),
        (1, ["a"], [1, 2]),
    ],
)
def test_snapshots_with_too_many_files_are_noted(storage, monkeypatch, limit, own, unread):
    monkeypatch.setattr(files, "_MAX_ENTRIES", limit)
    storage.manifests |= {"m": [("a", True), ("b", True)], "n": [("c", True)]}
    assert check(storage, snapshot(1, "m"), snapshot(2, "n")) == refers(*own, unread=unread)


def test_empty_manifests_count_like_files(storage, monkeypatch):
    monkeypatch.setattr(files, "_MAX_ENTRIES", 2)
    storage.manifests |= {"m": [], "n": [], "o": []}
    numbered = [snapshot(number, name) for number, name in enumerate("mno", 1)]
    assert check(storage, *numbered) == refers(unread=[3])
    assert storage.read == ["m", "n"]


def test_updates_are_checked_as_far_as_they_bring_in_files(storage):
    storage.lists["list 1"] = []
    check_updates = files.check_updates
    assert check_updates(SYSTEM, storage, [{"action": "set-properties"}]) == References()
    assert storage.checked == []
    check_updates(
        SYSTEM,
        storage,
        [
            {"action": "add-snapshot", "snapshot": snapshot(1)},
            {"action": "set-statistics", "statistics": {"statistics-path": "a.stats"}},
            {
                "action": "set-partition-statistics",
                "partition-statistics": {"statistics-path": "b.stats"},
            },
        ],
    )
    assert storage.checked[0] == {"list 1", "a.stats", "b.stats"}


def test_a_job_refers_to_nothing_new(storage):
    fill(storage)
    job = access.Principal("job", job_kind="compact")
    added = [{"action": "add-snapshot", "snapshot": snapshot(1)}]
    assert files.check_updates(SYSTEM, storage, added) == refers("a", continued=["b", "d"])
    assert files.check_updates(job, storage, added) == References()


# --- files that cannot be read -----------------------------------------------------------------


@pytest.fixture
def table(db: None, warehouse: object) -> Table:
    make_iceberg_table("ns", "t")
    row = Table.objects.select_related("namespace").named(("ns", "t")).get()
    Path(row.location, "data").mkdir()
    return row


def failing(error: OSError) -> Callable[[str], SimpleNamespace]:
    """A store whose files have no size, but this error."""

    def status(_: str) -> None:
        raise error

    return lambda _: SimpleNamespace(status=status)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(AccessDenied("lake", "403"), 1), (StorageUnavailable("lake", "503", retry_seconds=9), 9)],
)
def test_files_of_a_store_that_fails_may_be_read_later(table, monkeypatch, error, seconds):
    reader = TableFileIO(TableFiles(table), NOBODY)
    location = f"{table.location}/data/1.parquet"
    reader.require([location])
    monkeypatch.setattr(stores, "store_of", failing(error))
    with pytest.raises(ServiceUnavailable) as refused:
        reader.size(location)
    assert refused.value.message == error.strerror
    assert refused.value.retry_seconds == seconds


def test_files_that_are_none_or_too_large_are_named(table, monkeypatch):
    monkeypatch.setattr(files, "_MAX_FILE_BYTES", 9)
    reader = TableFileIO(TableFiles(table), NOBODY)
    at = f"{table.location}/data"
    for name, size in (("small", 9), ("large", 10), ("pipe", 1)):
        with open(f"{at}/{name}", "wb") as file:  # noqa: PTH123 -- the path is a text
            file.write(b"x" * size)
    assert list(reader.contents([f"{at}/small"])) == [b"x" * 9]
    assert reader.size(f"{at}/large") == 10
    reader.require([f"file://{at}/pipe"])
    os.unlink(f"{at}/pipe")  # noqa: PTH108 -- the path is a text
    os.mkfifo(f"{at}/pipe")  # somebody replaces the file after the check
    for name, message in (("large", "is larger than 9 bytes"), ("pipe", "is no file")):
        with pytest.raises(InvalidMetadata) as refused:
            list(reader.contents([f"file://{at}/small", f"file://{at}/{name}"]))
        assert refused.value.message == f"'file://{at}/{name}' {message}"
    with pytest.raises(FileNotFoundError):
        reader.size(f"{at}/missing")
    with pytest.raises(InvalidMetadata) as refused:
        list(files.data_files(reader, [f"{at}/missing"]))
    message = f"Manifest '{at}/missing' cannot be read: No such file or directory"
    assert refused.value.message == message


# --- the files of jobs -------------------------------------------------------------------------


@pytest.fixture
def document(table: Table, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two snapshots. Of the current one, one manifest, one data file and one delete file belong to another table."""
    other = make_iceberg_table("ns", "other").location
    own = table.location
    lists = {
        f"{own}/1.avro": [(f"{own}/old.avro", 0)],
        f"{own}/2.avro": [(f"{own}/m.avro", 0), (f"{own}/d.avro", 1), (f"{other}/m.avro", 0)],
    }
    manifests = {
        f"{own}/old.avro": [f"{own}/data/0.parquet", f"{other}/data/0.parquet"],
        f"{own}/m.avro": [f"{own}/data/1.parquet", f"{other}/data/1.parquet"],
        f"{own}/d.avro": [f"{own}/data/d.parquet", f"{other}/data/d.parquet"],
        f"{own}/named.avro": [f"{other}/data/named.parquet"],
    }

    def read_lists(_: Any, locations: list[str]) -> Iterator[list[SimpleNamespace]]:
        for location in locations:
            yield [
                SimpleNamespace(manifest_path=path, content=content)
                for path, content in lists[location]
            ]

    def data_files(_: Any, paths: list[str]) -> Iterator[Iterator[tuple[str, bool]]]:
        return (iter([(file, True) for file in manifests[path]]) for path in paths)

    monkeypatch.setattr(job_files.manifests, "read_lists_unchecked", read_lists)
    monkeypatch.setattr(job_files, "data_files", data_files)
    return {
        "current-snapshot-id": 2,
        "snapshots": [
            {"snapshot-id": 1, "manifest-list": f"{own}/1.avro"},
            {"snapshot-id": 2, "manifest-list": f"{own}/2.avro"},
            {"snapshot-id": 3, "manifests": [f"{own}/named.avro", f"{other}/named.avro"]},
            {"snapshot-id": 4, "manifest-list": f"{other}/4.avro"},
        ],
    }


@pytest.mark.parametrize(
    ("kind", "snapshots", "names"),
    [
        ("compact", {2: "m.avro"}, {"1.parquet", "d.parquet"}),
        ("rewrite_position_deletes", {2: "m.avro"}, {"d.parquet"}),
        ("rewrite_manifests", {2: "m.avro"}, set()),
        ("unknown", {2: "m.avro"}, set()),
        ("clean_up", {2: "m.avro", 3: "named.avro", 4: "4.avro"}, set()),
    ],
)
def test_the_files_that_a_job_may_not_read_are_surveyed(table, document, kind, snapshots, names):
    other = Table.objects.get(name="other").location
    surveyed = job_files.survey(table, document, kind)
    assert surveyed.snapshots == {id_: (f"{other}/{name}",) for id_, name in snapshots.items()}
    assert surveyed.metadata == {f"{other}/{name}" for name in snapshots.values()}
    assert surveyed.files == {f"{other}/data/{name}" for name in names}


def test_a_snapshot_without_a_list_is_surveyed(table, document):
    other = Table.objects.get(name="other").location
    surveyed = job_files.survey(table, document | {"current-snapshot-id": 3}, "compact")
    assert surveyed.snapshots == {3: (f"{other}/named.avro",)}
    assert surveyed.files == {f"{other}/data/named.parquet"}
    assert job_files.survey(table, {}, "compact") == job_files.Unreadable({}, frozenset())


@pytest.mark.parametrize(
    ("kind", "names"), [("compact", {"0.parquet"}), ("rewrite_manifests", set())]
)
def test_a_job_that_leaves_out_files_needs_all_manifests(table, document, kind, names):
    """Of every snapshot, if it removes files."""
    other = Table.objects.get(name="other").location
    document |= {"current-snapshot-id": 1, "snapshots": document["snapshots"][:2]}
    left_out = job_files.left_out(table, document, kind)
    assert left_out == {f"{other}/data/{name}" for name in names}
    with pytest.raises(ForeignFile, match=f"{other}/m.avro"):
        job_files.left_out(table, document, "clean_up")
    if names:
        with pytest.raises(ForeignFile, match=f"{other}/data/0.parquet"):
            job_files.require_readable(table, document, kind)
    else:
        job_files.require_readable(table, document, kind)


def test_a_file_whose_checksum_is_no_file_may_not_be_read(table, document):
    """Hadoop opens the checksum beside each local file."""
    os.mkfifo(f"{table.location}/data/.1.parquet.crc")
    os.symlink("/etc/passwd", f"{table.location}/.d.avro.crc")  # noqa: PTH211 -- the path is a text
    with open(f"{table.location}/.m.avro.crc", "wb"):  # noqa: PTH123 -- the path is a text
        pass
    other = Table.objects.get(name="other").location
    surveyed = job_files.survey(table, document, "compact")
    assert surveyed.snapshots == {2: tuple(sorted([f"{table.location}/d.avro", f"{other}/m.avro"]))}
    assert surveyed.files == {
        f"{table.location}/data/1.parquet",
        f"{other}/data/1.parquet",
    }


def test_the_metadata_of_a_job_has_a_regular_checksum_too(table):
    metadata = f"file://{table.location}/metadata/1.json"
    job_files.require_readable(table, {}, "compact", metadata)
    os.mkfifo(f"{table.location}/metadata/.1.json.crc")
    for check in (job_files.require_readable, job_files.left_out):
        with pytest.raises(ForeignFile, match=r"\.1\.json\.crc"):
            check(table, {}, "compact", metadata)


def test_jobs_open_files_in_the_kind_of_storage_of_the_table_only(table):
    reader = job_files._JobFileIO(TableFiles(table), NOBODY)
    reader._real = {"s3://lake/1.parquet": "s3://lake/1.parquet"}
    for call in (reader.require, reader.readable):
        with pytest.raises(Unsupported) as refused:
            call(["s3://lake/1.parquet"])
        assert refused.value.message == (
            "File 's3://lake/1.parquet' is in another kind of storage than table 'ns.t',"
            " so jobs do not open it"
        )
