"""The files that metadata names, each before the file that names it."""

from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

from catalog.formats.iceberg.metadata.references import Kind, Reference, referenced
from tests.catalog.formats.iceberg.written import POSITION, Written

SCHEMA = {"fields": [{"id": 1, "name": "id", "required": True, "type": "long"}]}


@pytest.fixture
def table(tmp_path):
    return Written(tmp_path / "t", SCHEMA)


def local(location):
    return Path(location.removeprefix("file://"))


def read(location):
    path = local(location)
    return path.read_bytes() if path.exists() else None


def files_of(table, kind):
    return [r.location for r in referenced(table.document, read) if r.kind is kind]


def test_data_files_come_before_manifests_and_these_before_their_list(table):
    first, second = table.file([{"id": 1}]), table.file([{"id": 2}])
    deletes = table.file([{"id": 1}], content=POSITION)
    table.commit([first, second], [deletes])
    first_manifest, second_manifest = (written.manifest_path for written in table.manifests)
    table.document |= {
        "statistics": [{"statistics-path": "file:///s"}],
        "partition-statistics": [{"statistics-path": "file:///p"}],
        "metadata-log": [{"metadata-file": "file:///m1"}, {"metadata-file": "file:///m2"}],
    }
    assert list(referenced(table.document, read)) == [
        Reference(Kind.DATA, first.file_path),
        Reference(Kind.DATA, second.file_path),
        Reference(Kind.MANIFEST, first_manifest),
        Reference(Kind.DATA, deletes.file_path),
        Reference(Kind.MANIFEST, second_manifest),
        Reference(Kind.MANIFEST_LIST, table.document["snapshots"][0]["manifest-list"]),
        Reference(Kind.STATISTICS, "file:///s"),
        Reference(Kind.STATISTICS, "file:///p"),
        Reference(Kind.METADATA, "file:///m1"),
        Reference(Kind.METADATA, "file:///m2"),
    ]


def test_a_manifest_of_several_snapshots_is_read_once(table):
    table.commit([table.file([{"id": 1}])])
    table.commit([table.file([{"id": 2}])])
    reads = []

    def counting(location):
        reads.append(location)
        return read(location)

    kinds = [reference.kind for reference in referenced(table.document, counting)]
    assert kinds == [
        *(Kind.DATA, Kind.MANIFEST, Kind.MANIFEST_LIST),
        *(Kind.DATA, Kind.MANIFEST, Kind.MANIFEST_LIST),
    ]
    assert len(reads) == len(set(reads)) == 4


def test_deleted_entries_are_left_out(table):
    live, deleted = table.file([{"id": 1}]), table.file([{"id": 2}])
    entries = [
        ManifestEntry.from_args(
            _table_format_version=3, status=status, snapshot_id=1, data_file=file,
            sequence_number=1, file_sequence_number=1,
        )
        for status, file in (
            (ManifestEntryStatus.EXISTING, live),
            (ManifestEntryStatus.DELETED, deleted),
        )
    ]  # fmt: skip
    table._add_manifest(entries, 1001, 1)
    table.commit()
    assert files_of(table, Kind.DATA) == [live.file_path]


def test_v1_may_name_manifests_in_the_snapshot(table):
    file = table.file([{"id": 1}])
    table.commit([file])
    snapshot = table.document["snapshots"][0]
    del snapshot["manifest-list"]
    assert list(referenced(table.document, read)) == []
    path = table.manifests[0].manifest_path
    snapshot["manifests"] = [path]
    assert list(referenced(table.document, read)) == [
        Reference(Kind.DATA, file.file_path),
        Reference(Kind.MANIFEST, path),
    ]


def test_a_missing_file_was_removed_before(table):
    table.commit([table.file([{"id": 1}])])
    manifest = table.manifests[0].manifest_path
    manifest_list = table.document["snapshots"][0]["manifest-list"]
    local(manifest).unlink()
    assert list(referenced(table.document, read)) == [
        Reference(Kind.MANIFEST, manifest),
        Reference(Kind.MANIFEST_LIST, manifest_list),
    ]
    local(manifest_list).unlink()
    assert list(referenced(table.document, read)) == [Reference(Kind.MANIFEST_LIST, manifest_list)]


def test_unparsable_files_are_reported(table):
    table.commit([table.file([{"id": 1}])])
    manifest = table.manifests[0].manifest_path
    manifest_list = table.document["snapshots"][0]["manifest-list"]
    # A manifest list is an Avro file, but not a manifest.
    for content in (b"", b"torn", read(manifest_list)):
        local(manifest).write_bytes(content)
        assert list(referenced(table.document, read)) == [
            Reference(Kind.MANIFEST, manifest, is_malformed=True),
            Reference(Kind.MANIFEST_LIST, manifest_list),
        ]
    local(manifest_list).write_bytes(b"torn")
    assert list(referenced(table.document, read)) == [
        Reference(Kind.MANIFEST_LIST, manifest_list, is_malformed=True)
    ]
