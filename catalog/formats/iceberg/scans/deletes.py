"""The delete files that apply to a data file (spec: Scan Planning).

deletion vector   applies to the data file it references; then no position delete file applies
position deletes  apply to the data file they reference, otherwise to files of their spec and
                  partition
equality deletes  apply to older files of their spec and partition, or of the whole table if their
                  spec is unpartitioned
"""

import struct
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, UUIDType

from catalog.formats.iceberg.manifests import Entry

_PATH_ID = 2147483546  # spec: Reserved Field IDs, file_path
# Bounds of these types prove nothing: they never include NaN, and writers order UUIDs differently.
_UNORDERED = (FloatType, DoubleType, UUIDType)

PartitionKey = tuple[int, tuple[object, ...]]


def partition_key(spec_id: int, partition: Iterable[object]) -> PartitionKey:
    """A key for a file's partition, in which NaN equals itself and -0.0 differs from 0.0."""
    return spec_id, tuple(
        ("float", struct.pack("<d", value)) if isinstance(value, float) else value
        for value in partition
    )


class DeleteIndex:
    """The delete files of a snapshot, indexed for lookup by data file."""

    def __init__(self, unpartitioned: Container[int], types: Mapping[int, PrimitiveType]) -> None:
        """``unpartitioned`` are the ids of unpartitioned specs, ``types`` the column types by id."""
        self._unpartitioned = unpartitioned
        self._types = types
        self._vectors: defaultdict[str, list[Entry]] = defaultdict(list)
        self._by_path: defaultdict[str, list[Entry]] = defaultdict(list)
        self._by_partition: defaultdict[PartitionKey, list[Entry]] = defaultdict(list)
        self._equality: defaultdict[PartitionKey, list[Entry]] = defaultdict(list)
        self._global: list[Entry] = []
        self.comparisons = 0
        """The number of delete files, and of their columns, that were compared with a data file."""

    def add(self, entry: Entry, key: PartitionKey) -> None:
        if entry.file.content == DataFileContent.EQUALITY_DELETES:
            if entry.spec_id in self._unpartitioned:
                self._global.append(entry)
            else:
                self._equality[key].append(entry)
            return
        path = _referenced_path(entry)
        if path is None:
            self._by_partition[key].append(entry)
        elif entry.is_deletion_vector:
            self._vectors[path].append(entry)
        else:
            self._by_path[path].append(entry)

    def for_file(self, entry: Entry, key: PartitionKey) -> list[Entry]:
        number, path = entry.sequence_number, entry.file.file_path
        vectors = self._vectors.get(path, ())
        by_position = (*self._by_path.get(path, ()), *self._by_partition.get(key, ()))
        by_value = (*self._global, *self._equality.get(key, ()))
        self.comparisons += len(vectors) + len(by_position) + len(by_value)
        positions = [vector for vector in vectors if vector.sequence_number >= number]
        if not positions:
            positions = [
                delete
                for delete in by_position
                if delete.sequence_number >= number and _may_name(delete.file, path)
            ]
        equality = [
            delete
            for delete in by_value
            if delete.sequence_number > number and self._may_equal(delete.file, entry.file)
        ]
        return positions + equality

    def _may_equal(self, deletes: DataFile, data: DataFile) -> bool:
        """True if a row of the data file may equal a deleted row in all columns."""
        self.comparisons += len(deletes.equality_ids or ())
        for id_ in deletes.equality_ids or ():
            if _may_hold_null(deletes, id_) and _may_hold_null(data, id_):
                continue
            type_ = self._types.get(id_)
            if type_ is None or isinstance(type_, _UNORDERED):
                continue
            if _are_apart(type_, deletes, data, id_) or _are_apart(type_, data, deletes, id_):
                return False
        return True


def _referenced_path(entry: Entry) -> str | None:
    """The data file that a position delete file references, if it references exactly one."""
    if entry.referenced_data_file is not None:
        return entry.referenced_data_file
    lower = (entry.file.lower_bounds or {}).get(_PATH_ID)
    if lower is None or lower != (entry.file.upper_bounds or {}).get(_PATH_ID):
        return None
    return lower.decode("utf-8", "replace")


def _may_name(deletes: DataFile, path: str) -> bool:
    lower = (deletes.lower_bounds or {}).get(_PATH_ID)
    upper = (deletes.upper_bounds or {}).get(_PATH_ID)
    name = path.encode()
    return (lower is None or lower <= name) and (upper is None or name <= upper)


def _may_hold_null(file: DataFile, id_: int) -> bool:
    return (file.null_value_counts or {}).get(id_) != 0


def _are_apart(type_: PrimitiveType, lower_file: DataFile, upper_file: DataFile, id_: int) -> bool:
    """True if all values of ``lower_file`` are below those of ``upper_file``."""
    highest = (lower_file.upper_bounds or {}).get(id_)
    lowest = (upper_file.lower_bounds or {}).get(id_)
    if highest is None or lowest is None:
        return False
    try:
        upper: Any = from_bytes(type_, highest)
        lower: Any = from_bytes(type_, lowest)
        return bool(upper < lower)
    except (struct.error, TypeError, ValueError):
        return False
