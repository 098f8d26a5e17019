"""Manifest lists and manifests, of any format version (spec: Manifests, Manifest Lists).

PyIceberg's own functions read only the fields of v2, and cache manifests by path for the life of the
process. This module reads the fields of v3 and caches nothing itself
(see ``CheckedIO.manifests``).
"""

import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyiceberg.exceptions import ResolveError
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import avro

_REQUIRED = {500, 501, 502}  # path, length, spec; later versions added the others
_LIST_SCHEMA = Schema(
    *(
        NestedField(
            manifest_field.field_id,
            manifest_field.name,
            manifest_field.field_type,
            manifest_field.field_id in _REQUIRED,
            initial_default=manifest_field.initial_default,
        )
        for manifest_field in MANIFEST_LIST_FILE_SCHEMAS[3].fields
    )
)
_LIST_FIELDS: avro.Fields = (500, 503)
"""manifest_path, added_snapshot_id"""
_ENTRY_FIELDS: avro.Fields = (0, (2, (100, 143)))
"""status, data_file.file_path, data_file.referenced_data_file"""
_ENTRY_SCHEMA = MANIFEST_ENTRY_SCHEMAS[3]
_FIRST_ROW_ID, _REFERENCED, _OFFSET, _SIZE = 16, 17, 18, 19
_LIST_FIRST_ROW_ID = 15
BROKEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    ResolveError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""Errors of ``avro`` for a file that is truncated, overwritten or not Avro."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A live file of a manifest, with the values that it inherits from the manifest."""

    file: DataFile
    spec_id: int
    sequence_number: int
    """The data sequence number."""
    snapshot_id: int | None
    is_added: bool
    first_row_id: int | None

    @property
    def referenced_data_file(self) -> str | None:
        path: str | None = self.file[_REFERENCED]
        return path

    @property
    def content_offset(self) -> int | None:
        offset: int | None = self.file[_OFFSET]
        return offset

    @property
    def content_size(self) -> int | None:
        size: int | None = self.file[_SIZE]
        return size

    @property
    def is_deletion_vector(self) -> bool:
        return self.file.file_format == FileFormat.PUFFIN


class CheckedIO(ABC):
    """Reads, and names in messages, only the files that the table may refer to."""

    @abstractmethod
    def require(self, locations: Iterable[str]) -> None:
        """Raise ForeignFile unless all of these files may be read. Opens no file."""

    @abstractmethod
    def canonical(self, locations: Iterable[str]) -> dict[str, str]:
        """The path by which each file is compared with others: of one spelling, with links followed."""

    @abstractmethod
    def contents(self, locations: Sequence[str]) -> Iterator[bytes]:
        """The content of each of these files, in this order. Implementations may read ahead.

        Raises ForeignFile, and the errors of reading.
        """

    def manifests(self, listed: Sequence[ManifestFile]) -> Iterator[bytes]:
        """The content of each of these manifests, as ``contents``. Implementations may cache them."""
        return self.contents([manifest.manifest_path for manifest in listed])


def read_list(io: CheckedIO, location: str) -> list[ManifestFile]:
    """The manifests of a snapshot. Raises the errors of ``read_lists``."""
    return next(read_lists(io, [location]))


def read_lists(io: CheckedIO, locations: Sequence[str]) -> Iterator[list[ManifestFile]]:
    """The manifests in each of several manifest lists.

    Raises InvalidMetadata if a list cannot be read, and ForeignFile if it, or a manifest that it
    names, may not be read.
    """
    for listed in read_lists_unchecked(io, locations):
        io.require(manifest.manifest_path for manifest in listed)
        yield listed


def read_lists_unchecked(io: CheckedIO, locations: Sequence[str]) -> Iterator[list[ManifestFile]]:
    """The same without a check of the manifests: callers must check them before they open them."""
    contents = io.contents(locations)
    for location in locations:
        try:
            listed = list(
                avro.read(
                    next(contents),
                    _LIST_SCHEMA,
                    records={-1: ManifestFile, 508: PartitionFieldSummary},
                    enums={517: ManifestContent},
                )
            )
        except BROKEN as error:
            raise _unreadable("Manifest list", location, error) from error
        yield listed


def paths_in_list(content: bytes, limit: int) -> list[tuple[str, int | None]]:
    """The first manifests that a manifest list names, each with the snapshot that added it.

    Raises InvalidMetadata if the content is not a manifest list.
    """
    try:
        rows = list(islice(avro.read_fields(content, _LIST_FIELDS), limit))
    except BROKEN as error:
        raise InvalidMetadata("The manifest list is torn, or none at all") from error
    return [(path, added) for path, added in rows if isinstance(path, str)]


def paths_in_manifest(content: bytes) -> Iterator[tuple[str, bool]]:
    """The live files that a manifest names, and whether it adds them rather than takes them over.

    Raises InvalidMetadata if it is not a manifest.
    """
    try:
        for status, path, referenced in avro.read_fields(content, _ENTRY_FIELDS):
            if status == ManifestEntryStatus.DELETED.value:
                continue
            is_added = status == ManifestEntryStatus.ADDED.value
            yield from ((file, is_added) for file in (path, referenced) if isinstance(file, str))
    except BROKEN as error:
        raise InvalidMetadata("The manifest is torn, or none at all") from error


def live_files(manifest: ManifestFile) -> int:
    """The number of live files of a manifest; an estimate if the writer did not record it."""
    if manifest.added_files_count is None or manifest.existing_files_count is None:
        return max(manifest.manifest_length // 100, 1)
    return manifest.added_files_count + manifest.existing_files_count


def read(io: CheckedIO, manifest: ManifestFile) -> list[Entry]:
    """The live files of a manifest. Raises the errors of ``read_each``."""
    return next(read_each(io, [manifest]))


def read_each(io: CheckedIO, listed: Sequence[ManifestFile]) -> Iterator[list[Entry]]:
    """The live files of each of several manifests.

    Raises InvalidMetadata if a manifest cannot be read, and ForeignFile if it, or a file that it
    names, may not be read.
    """
    for entries in read_each_unchecked(io, listed):
        io.require(paths_of(entries))
        yield entries


def paths_of(entries: Iterable[Entry]) -> Iterator[str]:
    """The paths of the files that entries name."""
    for entry in entries:
        yield entry.file.file_path
        if entry.referenced_data_file is not None:
            yield entry.referenced_data_file


def read_each_unchecked(io: CheckedIO, listed: Sequence[ManifestFile]) -> Iterator[list[Entry]]:
    """The live files of each of several manifests without a check of their paths.

    Only for counting and comparing: callers must not open these files or name them in a response.
    """
    contents = io.manifests(listed)
    for manifest in listed:
        try:
            entries = avro.read(
                next(contents),
                _ENTRY_SCHEMA,
                records={-1: ManifestEntry, 2: DataFile},
                enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
            )
            live = list(_inherit(entries, manifest))
        except BROKEN as error:
            raise _unreadable("Manifest", manifest.manifest_path, error) from error
        yield live


def _inherit(entries: Iterable[Any], manifest: ManifestFile) -> Iterator[Entry]:
    """Spec: Sequence Number Inheritance; First Row ID Inheritance."""
    next_row_id: int | None = manifest[_LIST_FIRST_ROW_ID]
    for entry in entries:
        if entry.status == ManifestEntryStatus.DELETED:
            continue
        file: DataFile = entry.data_file
        first_row_id: int | None = file[_FIRST_ROW_ID]
        if first_row_id is None and next_row_id is not None:
            first_row_id, next_row_id = next_row_id, next_row_id + file.record_count
        sequence_number = entry.sequence_number
        if sequence_number is None:  # only for added files, and in v1
            sequence_number = manifest.sequence_number or 0
        yield Entry(
            file,
            manifest.partition_spec_id,
            sequence_number,
            manifest.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
            entry.status == ManifestEntryStatus.ADDED,
            first_row_id,
        )


def _unreadable(subject: str, location: str, error: BaseException) -> InvalidMetadata:
    cause = getattr(error, "strerror", None) or "it is torn, or none at all"
    return InvalidMetadata(f"{subject} '{location}' cannot be read: {cause}")
