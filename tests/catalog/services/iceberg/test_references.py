"""Reading the references in manifests: what is remembered, which failures last, and what has changed since a commit."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models.functions import Now

from catalog.access import credentials
from catalog.errors import ForeignFile, InvalidMetadata
from catalog.models import (
    ApiKey,
    FileReference,
    Grant,
    IcebergMetadata,
    Principal,
    PrincipalKind,
    UnreadSnapshot,
)
from catalog.privileges import Privilege, closure
from catalog.regular_files import NotRegular
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import metadata_files, references
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.storage.file_owners import References
from catalog.storage import stores
from tests.catalog.services.iceberg.test_snapshots import FIRST, add
from tests.factories import make_iceberg_table

READER: Any = SimpleNamespace(
    files=SimpleNamespace(table=SimpleNamespace(identifier=("ns", "t"))),
    real_path=lambda path: path,
)


def cache(renew: Callable[[], object] = lambda: None, seconds: float = 60) -> references._Cache:
    return references._Cache(renew, time.monotonic() + seconds)


@pytest.fixture
def manifests(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, bool]]]:
    """The files of each manifest, and whether it adds them."""
    contents: dict[str, list[tuple[str, bool]]] = {}

    def data_files(_: Any, locations: list[str]) -> Iterator[Iterator[tuple[str, bool]]]:
        return (iter(contents[location]) for location in locations)

    monkeypatch.setattr(references, "data_files", data_files)
    return contents


def test_a_manifest_is_read_in_parts_and_remembered(db, warehouse, manifests, monkeypatch):
    monkeypatch.setattr(references, "_AT_ONCE", 2)
    a, b = make_iceberg_table("ns", "a"), make_iceberg_table("ns", "b")
    (warehouse / "free").mkdir()
    manifests["m"] = [
        (f"file://{a.location}/data/1.parquet", True),
        (f"file://{b.location}/data/1.parquet", False),
        (f"file://{a.location}/data/2.parquet", True),
        (f"file://{warehouse}/free/1.parquet", True),
        (f"file://{a.location}/old/3.parquet", False),
    ]
    renewals: list[bool] = []
    remembered = cache(lambda: renewals.append(True))
    assert remembered.get("/m") is None
    read, number = remembered.read("/m", READER, "m")
    assert (number, len(renewals)) == (5, 3)
    added = References(frozenset({(a.pk, f"{a.location}/data")}), frozenset({f"{warehouse}/free"}))
    taken_over = References(frozenset({(b.pk, f"{b.location}/data"), (a.pk, f"{a.location}/old")}))
    assert (read.added, read.taken_over) == (added, taken_over)
    assert remembered.get("/m") is read


@pytest.mark.parametrize(("limit", "is_remembered"), [(1, False), (2, True)])
@pytest.mark.usefixtures("db")
def test_references_to_many_directories_are_not_remembered(
    warehouse, manifests, monkeypatch, limit, is_remembered
):
    monkeypatch.setattr(references, "_MAX_REMEMBERED", limit)
    a = make_iceberg_table("ns", "a")
    (warehouse / "free").mkdir()
    manifests["m"] = [
        (f"file://{a.location}/data/1.parquet", True),
        (f"file://{warehouse}/free/1.parquet", True),
    ]
    remembered = cache()
    remembered.read("/m", READER, "m")
    assert (remembered.get("/m") is not None) is is_remembered


def test_a_manifest_is_read_once_for_all_snapshots(db, manifests):
    manifests["m"] = [("/elsewhere/1.parquet", True)]
    reading = references._Reading(None, cache())
    first = reading._references(READER, "m")
    manifests.clear()
    assert first is not None
    assert reading._references(READER, "m") is first


def test_the_oldest_manifests_are_evicted(db, manifests, monkeypatch):
    monkeypatch.setattr(references, "_MAX_REMEMBERED", 2)
    remembered = cache()
    for name in "abc":
        manifests[name] = []
        assert remembered.read(name, READER, name)[1] == 0
    assert [remembered.get(name) is not None for name in "abc"] == [False, True, True]


def test_a_call_ends_after_its_time():
    assert not cache(seconds=60).is_over
    assert cache(seconds=-0.001).is_over


def test_only_files_that_the_writer_of_a_snapshot_chose_are_its_own_references():
    pair, other = (1, "/a"), (2, "/b")
    manifest = references._InManifest(
        References(frozenset({pair}), frozenset({"/free"})), References(frozenset({other}))
    )
    whole = References(frozenset({pair, other}), frozenset({"/free"}))
    assert manifest.in_snapshot(is_whole=True, is_own=True) == whole
    assert manifest.in_snapshot(is_whole=True, is_own=False) == whole
    assert manifest.in_snapshot(is_whole=False, is_own=True) == References(
        frozenset({pair}), frozenset({"/free"}), continued=frozenset({other})
    )
    assert manifest.in_snapshot(is_whole=False, is_own=False) == References(
        continued=frozenset({pair, other})
    )


FAILURE = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("refusal", [InvalidMetadata("torn"), ForeignFile("/m", ("ns", "t"))])
@pytest.mark.parametrize(
    "cause",
    [
        None,
        ValueError("torn"),
        OSError("without a number"),
        OSError(errno.EACCES, "not permitted"),
        OSError(errno.EISDIR, "a directory"),
        OSError(errno.ENOENT, "missing"),
        NotRegular(errno.EIO, "a pipe"),
    ],
)
def test_a_manifest_that_nobody_can_read_names_nothing(monkeypatch, refusal, cause):
    refusal.__cause__ = cause

    def fail(*_: Any) -> Iterator[Any]:
        raise refusal
        yield

    monkeypatch.setattr(references, "data_files", fail)
    assert list(references._batches(READER, "m")) == []


def test_a_manifest_that_cannot_be_read_now_is_read_later(db, monkeypatch):
    refusal = InvalidMetadata("cannot be read")
    refusal.__cause__ = FAILURE

    def fail_in_the_middle(*_: Any) -> Iterator[Iterator[tuple[str, bool]]]:
        def files() -> Iterator[tuple[str, bool]]:
            yield "/a", True
            raise refusal

        yield files()

    monkeypatch.setattr(references, "data_files", fail_in_the_middle)
    remembered = cache()
    with pytest.raises(OSError, match=r"Input/output error") as raised:
        remembered.read("/m", READER, "m")
    assert raised.value is FAILURE
    assert remembered.get("/m") is None


def changed(monkeypatch: pytest.MonkeyPatch, **files: float | OSError) -> bool:
    """Whether one of these files, by the times of their changes, is newer than a commit at 100 s."""

    def status(path: str) -> SimpleNamespace:
        outcome = files[path]
        if isinstance(outcome, OSError):
            raise outcome
        return SimpleNamespace(changed_at=outcome)

    monkeypatch.setattr(stores, "store_of", lambda path: SimpleNamespace(status=status))
    row: Any = SimpleNamespace(created_at=datetime.fromtimestamp(100, UTC))
    return references._is_any_newer(row, READER, files)


def test_files_that_were_changed_after_the_commit_are_newer(monkeypatch):
    assert not changed(monkeypatch)
    assert not changed(monkeypatch, a=99.5, b=100.0)
    assert changed(monkeypatch, a=99.5, b=100.001)
    assert changed(monkeypatch, a=101.0, b=50.0)
    for missing in (OSError(errno.ENOENT, "missing"), NotRegular(errno.EIO, "a pipe")):
        assert changed(monkeypatch, a=99.5, b=missing)
    with pytest.raises(OSError, match="Input/output"):
        changed(monkeypatch, a=99.5, b=FAILURE)


def test_the_metadata_of_a_table_is_read_once_for_its_snapshots(monkeypatch):
    read: list[int] = []

    def get(*, table: int) -> SimpleNamespace:
        read.append(table)
        text = b'{"snapshots":[{"snapshot-id":%d}]}' % (10 * table)
        return SimpleNamespace(answer=metadata_files.answer("l", text))

    stored = SimpleNamespace(objects=SimpleNamespace(get=get))
    monkeypatch.setattr(references, "IcebergMetadata", stored)
    reading = references._Reading(None, cache())
    for table in (1, 1, 2, 2, 1):
        row: Any = SimpleNamespace(table_id=table)
        assert reading._snapshots_of(row) == {10 * table: {"snapshot-id": 10 * table}}
    assert read == [1, 2, 1]


# --- what an unread snapshot leaves --------------------------------------------------------------

MINE = ("ns", "t")


@pytest.fixture
def ada(db: None) -> Principal:
    """A principal that can authenticate."""
    row = Principal.objects.create(name="ada", kind=PrincipalKind.SERVICE)
    ApiKey.objects.create(name="ada", principal=row, digest=credentials.key_digest("mnd_ada"))
    return row


@pytest.fixture
def source(warehouse: object, ada: Principal) -> LoadedTable:
    """A table that the principal may read."""
    loaded = make_iceberg_table("ns", "source")
    mask = closure(Privilege.READ).value
    Grant.objects.create(principal=ada, table_id=loaded.pk, mask=mask)
    return loaded


@pytest.fixture
def note(source: LoadedTable, manifests: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that notes a snapshot of the principal, with one manifest that names a file of the source."""

    def note(added_snapshot_id: int | None = FIRST, table: LoadedTable = source) -> None:
        mine = make_iceberg_table(*MINE)
        directory = f"{mine.location}/metadata"
        for name in (f"snap-{FIRST}.avro", "m.avro"):
            with open(f"{directory}/{name}", "wb"):  # noqa: PTH123 -- the path is a text
                pass
        monkeypatch.setattr(iceberg_files, "_MAX_LIST_BYTES", -1)
        add(FIRST)
        path = f"file://{directory}/m.avro"
        listed = SimpleNamespace(manifest_path=path, added_snapshot_id=added_snapshot_id)
        lists = {f"file://{directory}/snap-{FIRST}.avro": [listed]}
        monkeypatch.setattr(references.manifests, "read_list", lambda _, at: lists[at])
        manifests[path] = [(f"file://{table.location}/data/1.parquet", True)]
        UnreadSnapshot.objects.update(principal="ada", created_at=Now() + timedelta(minutes=1))
        assert UnreadSnapshot.objects.count() == 1

    return note


def recorded() -> list[tuple[str, str, str, list[str]]]:
    """Reads all that is noted; returns the references with the directories that they open."""
    assert references.read_unread() == 0
    columns = ("table__name", "source__name", "principal", "directories")
    return list(FileReference.objects.values_list(*columns))


def test_a_reference_opens_the_directories_that_were_committed(note, source):
    note()
    assert recorded() == [("t", "source", "ada", [f"{source.location}/data"])]


def test_a_reference_of_files_that_were_changed_since_opens_nothing(note):
    note()
    UnreadSnapshot.objects.update(created_at=Now() - timedelta(hours=1))
    assert recorded() == [("t", "source", "ada", [])]


def test_a_reference_of_an_inactive_principal_keeps_the_files(note, source, ada):
    note()
    Principal.objects.filter(pk=ada.pk).update(is_active=False)
    assert recorded() == [("t", "source", "ada", [f"{source.location}/data"])]


def test_a_reference_in_a_manifest_of_an_unknown_snapshot_opens_nothing(note):
    note(added_snapshot_id=None)
    assert recorded() == [("t", "source", "ada", [])]


@pytest.mark.parametrize("case", ["older manifest", "no privilege", "no principal", "removed"])
def test_nothing_is_recorded_in_these_cases(note, ada, case):
    note(added_snapshot_id=5 if case == "older manifest" else FIRST)
    if case == "no privilege":
        Grant.objects.all().delete()
    elif case == "no principal":
        Principal.objects.filter(pk=ada.pk).delete()
    elif case == "removed":
        IcebergMetadata.objects.filter(table__name="t").update(
            answer=metadata_files.answer("x", b'{"snapshots":null}')
        )
    assert recorded() == []
