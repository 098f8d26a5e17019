"""Manifest lists and manifests: their files, and inherited values."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import manifests
from tests.catalog.formats.iceberg.written import POSITION, AnyIO, Written

SCHEMA = {"fields": [{"id": 1, "name": "id", "required": True, "type": "long"}]}
IO = AnyIO()


@pytest.fixture
def table(tmp_path):
    return Written(tmp_path / "t", SCHEMA, version=3)


def content(location):
    return Path(location.removeprefix("file://")).read_bytes()


def list_of(table):
    return table.document["snapshots"][-1]["manifest-list"]


def test_the_manifests_in_a_list_with_their_snapshots(table):
    first = table.commit([table.file([{"id": 1}])])
    second = table.commit([table.file([{"id": 2}])], [table.file([{"id": 3}])])
    paths = [manifest.manifest_path for manifest in table.manifests]
    expected = list(zip(paths, [first, second, second], strict=True))
    written = content(list_of(table))
    assert manifests.paths_in_list(written, 9) == expected
    assert manifests.paths_in_list(written, 2) == expected[:2]
    assert [m.manifest_path for m in manifests.read_list(IO, list_of(table))] == paths
    with pytest.raises(InvalidMetadata) as refusal:
        manifests.paths_in_list(written[:-1], 9)
    assert refusal.value.message == "The manifest list is torn, or none at all"


def write(table, *entries):
    """A manifest with these statuses and files."""
    rows = [
        ManifestEntry.from_args(
            _table_format_version=3,
            status=status,
            snapshot_id=1001,
            sequence_number=number,
            file_sequence_number=number,
            data_file=file,
        )
        for status, number, file in entries
    ]
    manifest = table._add_manifest(rows, 1001, 4)
    table.commit()
    return manifest


ADDED, EXISTING, DELETED = (
    ManifestEntryStatus.ADDED,
    ManifestEntryStatus.EXISTING,
    ManifestEntryStatus.DELETED,
)


def test_the_live_files_of_a_manifest_and_those_that_they_reference(table):
    deletes = [
        table.file([{"id": 1}], content=POSITION, referenced_data_file=f"file:///data/{n}")
        for n in range(3)
    ]
    plain = table.file([{"id": 1}], content=POSITION)
    manifest = write(
        table,
        (EXISTING, 2, deletes[0]),
        (DELETED, 2, deletes[1]),
        (ADDED, None, deletes[2]),
        (ADDED, None, plain),
    )
    expected = [
        *(deletes[0].file_path, "file:///data/0"),
        *(deletes[2].file_path, "file:///data/2"),
        plain.file_path,
    ]
    written = content(manifest.manifest_path)
    are_added = [False, False, True, True, True]
    assert list(manifests.paths_in_manifest(written)) == list(zip(expected, are_added, strict=True))
    entries = manifests.read(IO, manifest)
    assert list(manifests.paths_of(entries)) == expected
    assert [entry.sequence_number for entry in entries] == [2, 4, 4]
    assert [entry.is_added for entry in entries] == [False, True, True]
    with pytest.raises(InvalidMetadata) as refusal:
        list(manifests.paths_in_manifest(written[:-1]))
    assert refusal.value.message == "The manifest is torn, or none at all"


def test_rows_are_numbered_from_the_first_of_the_manifest(table):
    files = [table.file([{"id": n}] * (n + 1)) for n in range(4)]
    manifest = write(
        table,
        (ADDED, None, files[0]),
        (DELETED, 1, files[1]),
        (ADDED, None, files[2]),
        (ADDED, None, files[3]),
    )
    listed = manifests.read_list(IO, list_of(table))
    (same,) = [m for m in listed if m.manifest_path == manifest.manifest_path]
    assert [entry.first_row_id for entry in manifests.read(IO, same)] == [0, 1, 4]


def test_the_number_of_live_files_may_be_an_estimate(table):
    table.commit([table.file([{"id": 1}]), table.file([{"id": 2}])])
    (manifest,) = manifests.read_list(IO, list_of(table))
    assert manifests.live_files(manifest) == 2
    for added, existing in ((None, 0), (0, None)):
        for length, expected in ((1, 1), (199, 1), (250, 2)):
            unrecorded = SimpleNamespace(
                added_files_count=added, existing_files_count=existing, manifest_length=length
            )
            assert manifests.live_files(unrecorded) == expected


@pytest.mark.parametrize("read", [manifests.read_list, "manifest"])
def test_files_that_cannot_be_read_are_named(table, read):
    table.commit([table.file([{"id": 1}])])
    (manifest,) = table.manifests
    if read == "manifest":
        kind, location = "Manifest", manifest.manifest_path

        def call():
            return manifests.read(IO, manifest)

    else:
        kind, location = "Manifest list", list_of(table)

        def call():
            return manifests.read_list(IO, location)

    Path(location.removeprefix("file://")).write_bytes(b"torn")
    with pytest.raises(InvalidMetadata) as refusal:
        call()
    assert kind in refusal.value.message
    assert location in refusal.value.message
