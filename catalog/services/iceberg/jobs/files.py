"""The files of an Iceberg table that a job reads, some of them in a process of its own.

    survey             before the job works: which of its files may not be read for the table?
    require_readable   before the job's process gets the table: all files must be readable
    left_out           the same for a process that leaves out data files and delete files

A job reads on behalf of nobody: of other tables' files only those of recorded references.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import ManifestContent

from catalog import maintenance_actions, regular_files
from catalog.errors import Unsupported
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.reading import Document
from catalog.identifiers import label
from catalog.maintenance_actions import IcebergFiles
from catalog.services.iceberg.files import TableFileIO, data_files
from catalog.services.storage.file_owners import Holder
from catalog.services.storage.table_files import NOBODY, TableFiles
from catalog.storage import locations as storage_locations
from catalog.storage.object_locations import scheme_of


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The files that a job would read, but may not."""

    snapshots: Mapping[int, tuple[str, ...]]
    """By snapshot, its manifest list or its manifests that may not be read. The files that they name are unknown."""
    files: frozenset[str]
    """Data files and delete files, as readable manifests name them."""

    @property
    def metadata(self) -> frozenset[str]:
        """The manifest lists and manifests that may not be read."""
        return frozenset(path for paths in self.snapshots.values() for path in paths)


def survey(table: Holder, document: Document, kind: str) -> Unreadable:
    """Find the files of a job that may not be read. None of them is opened.

    Raises InvalidMetadata for a list or manifest that cannot be read, and Unsupported for a file in another
    kind of storage.
    """
    required = _required(kind)
    reader = _JobFileIO(TableFiles(table), NOBODY)
    snapshots = _snapshots(document, required)
    named: dict[int, list[str]] = {
        snapshot["snapshot-id"]: [snapshot["manifest-list"]]
        if snapshot.get("manifest-list")
        else list(snapshot.get("manifests") or ())
        for snapshot in snapshots
    }
    readable = reader.readable([path for paths in named.values() for path in paths])
    unreadable = {id_: set(paths) - readable for id_, paths in named.items()}
    listed = {
        path: False
        for snapshot in snapshots
        if not snapshot.get("manifest-list")
        for path in named[snapshot["snapshot-id"]]
        if path in readable
    }
    by_list: dict[str, list[int]] = {}
    for snapshot in snapshots:
        if path := snapshot.get("manifest-list"):
            by_list.setdefault(path, []).append(snapshot["snapshot-id"])
    lists = [path for path in by_list if path in readable]
    for path, entries in zip(lists, manifests.read_lists_unchecked(reader, lists), strict=True):
        contents = {entry.manifest_path: _is_deletes(entry) for entry in entries}
        readable = reader.readable(contents)
        unreadable |= dict.fromkeys(by_list[path], contents.keys() - readable)
        listed |= {manifest: contents[manifest] for manifest in contents if manifest in readable}
    return Unreadable(
        {id_: tuple(sorted(paths)) for id_, paths in unreadable.items() if paths},
        _unreadable_files(reader, listed, required),
    )


def require_readable(table: Holder, document: Document, kind: str, metadata: str = "") -> None:
    """Check all files that a job's own process reads, with the server's rights; ``metadata`` is the document's.

    Raises ForeignFile, and InvalidMetadata for a list or manifest that cannot be read.
    """
    required = _required(kind)
    reader = _JobFileIO(TableFiles(table), NOBODY)
    listed = _readable_manifests(reader, document, required, metadata)
    for paths in _files(reader, listed, required):
        reader.require(paths)


def left_out(table: Holder, document: Document, kind: str, metadata: str = "") -> frozenset[str]:
    """The data and delete files that the process of a job must not open. It may read all manifests.

    Raises the errors of ``require_readable``; ForeignFile only for the metadata, lists and manifests.
    """
    required = _required(kind)
    reader = _JobFileIO(TableFiles(table), NOBODY)
    listed = _readable_manifests(reader, document, required, metadata)
    return _unreadable_files(reader, listed, required)


def _required(kind: str) -> IcebergFiles:
    action = maintenance_actions.find(kind)
    return IcebergFiles.MANIFESTS if action is None else action.iceberg_files


def _snapshots(document: Document, required: IcebergFiles) -> list[Mapping[str, Any]]:
    snapshots = document.get("snapshots") or []
    if required is IcebergFiles.ALL_MANIFESTS:
        return list(snapshots)
    current = document.get("current-snapshot-id")
    return [snapshot for snapshot in snapshots if snapshot["snapshot-id"] == current]


def _readable_manifests(
    reader: "_JobFileIO", document: Document, required: IcebergFiles, metadata: str
) -> dict[str, bool]:
    """The manifests that a job reads, each with True if it lists delete files. Raises ForeignFile."""
    reader.require_checksums([storage_locations.iceberg_path(metadata)] if metadata else [])
    snapshots = _snapshots(document, required)
    listed: dict[str, bool] = {}
    for snapshot in snapshots:
        if not snapshot.get("manifest-list"):
            listed.update(dict.fromkeys(snapshot.get("manifests") or (), False))
    reader.require(listed)
    lists = [s["manifest-list"] for s in snapshots if s.get("manifest-list")]
    for entries in manifests.read_lists(reader, lists):
        listed |= {entry.manifest_path: _is_deletes(entry) for entry in entries}
    return listed


def _is_deletes(manifest: Any) -> bool:
    return bool(manifest.content == ManifestContent.DELETES)


def _files(
    reader: TableFileIO, listed: Mapping[str, bool], required: IcebergFiles
) -> Iterator[list[str]]:
    """The files that a job reads of each manifest."""
    if required not in {IcebergFiles.DATA, IcebergFiles.DELETES}:
        return
    paths = [
        path for path, is_deletes in listed.items() if is_deletes or required is IcebergFiles.DATA
    ]
    for files in data_files(reader, paths):
        yield [path for path, _ in files]


def _unreadable_files(
    reader: TableFileIO, listed: Mapping[str, bool], required: IcebergFiles
) -> frozenset[str]:
    unreadable: set[str] = set()
    for paths in _files(reader, listed, required):
        unreadable |= set(paths) - reader.readable(paths)
    return frozenset(unreadable)


class _JobFileIO(TableFileIO):
    """The same for a job, whose process reads local files with Hadoop, and only the table's kind of storage."""

    def require(self, locations: Iterable[str]) -> None:
        locations = list(locations)
        super().require(locations)
        self._require_scheme(locations)
        self.require_checksums(self._real[location] for location in locations)

    def readable(self, locations: Collection[str]) -> set[str]:
        readable = super().readable(locations)
        self._require_scheme(readable)
        return {location for location in readable if not _irregular_checksum(self._real[location])}

    def _require_scheme(self, locations: Iterable[str]) -> None:
        table = self._files.table
        scheme = scheme_of(table.location)
        for location in locations:
            if scheme_of(self._real[location]) != scheme:
                raise Unsupported(
                    f"File '{location}' is in another kind of storage than table '{label(table.identifier)}',"
                    " so jobs do not open it"
                )

    def require_checksums(self, paths: Iterable[str]) -> None:
        """Raise ForeignFile if the checksum file, which Hadoop opens beside each file, is not regular."""
        for path in paths:
            if checksum := _irregular_checksum(path):
                raise self._files.refusal(checksum)


def _irregular_checksum(path: str) -> str:
    """The checksum file beside a local file, if it is not a regular file; otherwise empty."""
    directory, _, name = path.rpartition("/")
    checksum = f"{directory}/.{name}.crc"
    return checksum if directory.startswith("/") and regular_files.is_special(checksum) else ""
