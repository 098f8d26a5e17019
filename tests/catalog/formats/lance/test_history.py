"""Operations and amounts of versions that Lance wrote, compared with Lance's own counts."""

import contextlib
from itertools import pairwise
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.formats.lance import history
from catalog.formats.lance.history import NO_FRAGMENTS, Change, Fragment, VersionContents
from catalog.formats.lance.manifest import NotAManifest


def ids(count):
    return pa.table({"id": pa.array(range(count), pa.int64())})


def changes(path: Path) -> list[Change]:
    files = sorted((path / "_versions").glob("*.manifest"), reverse=True)  # names descend
    contents = [NO_FRAGMENTS, *(history.read(file.read_bytes()) for file in files)]
    return [history.change(before, after) for before, after in pairwise(contents)]


def test_each_kind_of_write_has_its_operation_and_amounts(tmp_path):
    path = tmp_path / "table"
    lance.write_dataset(ids(10), path)
    lance.write_dataset(ids(10), path, mode="append")
    lance.dataset(path).delete("id = 3")
    lance.dataset(path).add_columns({"twice": "id * 2"})
    lance.dataset(path).drop_columns(["twice"])
    lance.write_dataset(ids(4), path, mode="overwrite")
    assert [
        (c.operation, c.rows, c.rows_added, c.rows_removed, c.files_added, c.files_removed)
        for c in changes(path)
    ] == [
        ("Overwrite", 10, 10, 0, 1, 0),
        ("Append", 20, 10, 0, 1, 0),
        ("Delete", 18, 0, 2, 0, 0),
        ("Merge", 18, 0, 0, 2, 0),
        ("Project", 18, 0, 0, 0, 2),
        ("Overwrite", 4, 4, 18, 1, 2),
    ]


def test_rows_agree_with_lance_after_many_operations(tmp_path):
    path = tmp_path / "table"
    lance.write_dataset(ids(100), path, max_rows_per_file=20)
    dataset = lance.dataset(path)
    dataset.delete("id % 7 = 0")
    dataset.update({"id": "id + 1000"}, where="id < 5")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        ids(30)
    )
    dataset = lance.dataset(path)
    dataset.optimize.compact_files()
    lance.dataset(path, version=2).restore()
    rows = 0
    for number, change in enumerate(changes(path), 1):
        rows += (change.rows_added or 0) - (change.rows_removed or 0)
        assert rows == change.rows == lance.dataset(path, version=number).count_rows()


def test_an_overwrite_of_as_many_rows_replaces_all(tmp_path):
    path = tmp_path / "table"
    lance.write_dataset(ids(10), path)
    lance.write_dataset(ids(10), path, mode="overwrite")
    assert changes(path)[1] == Change("Overwrite", 10, 10, 10, 1, 1)


def test_without_the_previous_version_only_the_rows_are_known():
    contents = VersionContents({0: Fragment(0, 10, 3, frozenset({"a"}))}, "Append")
    assert history.change(None, contents) == Change("Append", 7)


def test_a_deletion_that_is_undone_adds_rows():
    before = VersionContents({0: Fragment(0, 10, 3, frozenset({"a"}))}, "Delete")
    after = VersionContents({0: Fragment(0, 10, 0, frozenset({"a"}))}, "Restore")
    assert history.change(before, after) == Change("Restore", 10, 3, 0, 0, 0)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "table"
    lance.write_dataset(ids(10), path)
    [file] = (path / "_versions").glob("*.manifest")
    data = file.read_bytes()
    for damaged in (b"", data[:-1], data[-40:], b"\xff" * len(data), data[: len(data) // 2]):
        with pytest.raises(NotAManifest):
            history.read(damaged)


def test_every_cut_and_changed_byte_is_read_or_refused(tmp_path):
    path = tmp_path / "table"
    lance.write_dataset(ids(10), path)
    [file] = (path / "_versions").glob("*.manifest")
    data = file.read_bytes()
    for position in range(len(data)):
        for byte in (0, 127, 255):
            changed = data[:position] + bytes([byte]) + data[position + 1 :]
            with contextlib.suppress(NotAManifest):
                history.read(changed)
