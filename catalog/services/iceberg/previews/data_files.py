"""Read rows of the Parquet files of an Iceberg table, without the rows that delete files remove."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# PyIceberg's scan itself reads all rows of a file into memory. Its version is pinned.
from pyiceberg.io.pyarrow import (
    _get_column_projection_values,
    _read_deletes,
    _to_requested_schema,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import ListType, MapType

from catalog.errors import Unsupported
from catalog.formats.iceberg.manifests import Entry
from catalog.services.iceberg.files import TableFileIO
from catalog.storage import stores

_BATCH_BYTES = 4 * 1024**2
_MAX_BATCH_ROWS = 65_536
_BUFFER = 4 * 1024**2
_MAX_FOOTER_STRING = 64 * 1024**2
_MAX_FOOTER_ENTRIES = 1_000_000


@dataclass(frozen=True)
class Layout:
    """What the metadata of a table says about all of its data files."""

    schema: Schema
    specs: dict[int, PartitionSpec]
    name_mapping: NameMapping | None
    format_version: Any


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a file: positions and, by name, the values of columns."""

    positions: Any
    """An array of NumPy."""
    columns: dict[str, Any]


class DataFile:
    """A data file of a snapshot, with the delete files that apply to it.

    Opened through ``TableFileIO``, which refuses files that may not be read for the table.
    """

    def __init__(
        self, files: TableFileIO, layout: Layout, entry: Entry, deletes: Sequence[Entry]
    ) -> None:
        self._files, self._layout = files, layout
        self._entry, self._deletes = entry, deletes
        self.location: str = entry.file.file_path

    def require_readable(self) -> None:
        """Raise Unsupported for a file whose rows cannot be shown, and ForeignFile."""
        if self._entry.file.file_format != FileFormat.PARQUET:
            raise Unsupported("The rows are in files that are not Parquet; only engines read them")
        if self._entry.file.key_metadata is not None:
            raise Unsupported("The data files are encrypted; only engines with the keys read them")
        if any(delete.file.content == DataFileContent.EQUALITY_DELETES for delete in self._deletes):
            raise Unsupported(
                "The snapshot has equality deletes, which only engines apply; compact the table first"
            )
        self._files.require([self.location, *(delete.file.file_path for delete in self._deletes)])

    # -- deleted rows

    @cached_property
    def _deleted(self) -> Any:
        """The positions of deleted rows, in order, as an array of NumPy."""
        positions = []
        for delete in self._deletes:
            by_file = _read_deletes(self._files, delete.file)
            if self.location in by_file:
                positions.append(by_file[self.location].to_numpy())
        return np.unique(np.concatenate(positions)) if positions else np.zeros(0, np.int64)

    def live_positions(self, start: int, count: int) -> tuple[list[int], int]:
        """Positions of rows after the first ``start`` that are not deleted, and the number of all such rows."""
        rows: int = self._entry.file.record_count
        deleted = self._deleted[self._deleted < rows]
        candidates = np.arange(min(rows, start + count + len(deleted)))
        live = np.delete(candidates, deleted[deleted < len(candidates)])
        return live[start : start + count].tolist(), rows - len(deleted)

    # -- rows

    def scan(self, columns: Sequence[str]) -> Iterator[Rows]:
        """The values of columns of all rows that are not deleted, in order, in small batches."""
        with self._open() as opened:
            yield from self._batches(opened, columns, range(opened.metadata.num_row_groups))

    def take(self, columns: Sequence[str], positions: Sequence[int]) -> Iterator[Rows]:
        """The values of columns of the rows at these positions, which are in increasing order."""
        with self._open() as opened:
            chosen = np.array(positions, np.int64)
            first = 0
            for group in range(opened.metadata.num_row_groups):
                end = first + opened.metadata.row_group(group).num_rows
                inside = chosen[(chosen >= first) & (chosen < end)]
                if len(inside):
                    yield from self._batches(opened, columns, [group], inside)
                first = end

    def _batches(
        self,
        opened: pq.ParquetFile,
        columns: Sequence[str],
        groups: Sequence[int],
        chosen: Any = None,
    ) -> Iterator[Rows]:
        project, names = self._projection(opened, columns)
        metadata = opened.metadata
        first = sum(
            metadata.row_group(group).num_rows for group in range(groups[0] if groups else 0)
        )
        batches = opened.iter_batches(
            batch_size=_batch_rows(metadata, names), row_groups=list(groups), columns=names
        )
        for batch in batches:
            positions = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            if chosen is None:
                keep = np.isin(positions, self._deleted, invert=True, assume_unique=True)
            else:
                keep = np.isin(positions, chosen, assume_unique=True)
            if keep.any():
                live = batch if keep.all() else batch.filter(pa.array(keep))
                projected = project(live)
                yield Rows(positions[keep], {name: projected.column(name) for name in columns})
            if chosen is not None and first > chosen[-1]:
                return

    def _projection(
        self, opened: pq.ParquetFile, columns: Sequence[str]
    ) -> tuple[Callable[[pa.RecordBatch], pa.RecordBatch], list[str]]:
        """A function that converts batches of the file to the table's schema, and the columns that it needs.

        The file may be older than the schema (spec: Column Projection).
        """
        layout = self._layout
        requested = layout.schema.select(*columns)
        downcasts = layout.format_version <= 2
        file_schema = pyarrow_to_schema(
            opened.schema_arrow,
            layout.name_mapping,
            downcast_ns_timestamp_to_us=downcasts,
            format_version=layout.format_version,
        )
        missing = _get_column_projection_values(
            self._entry.file,
            requested,
            layout.schema,
            layout.specs.get(self._entry.spec_id),
            file_schema.field_ids,
        )
        leaves = {
            field_id
            for field_id in requested.field_ids
            if not isinstance(requested.find_type(field_id), MapType | ListType)
        }
        selected = prune_columns(file_schema, leaves, select_full_types=False)

        def project(batch: pa.RecordBatch) -> pa.RecordBatch:
            return _to_requested_schema(
                requested,
                selected,
                batch,
                downcast_ns_timestamp_to_us=downcasts,
                projected_missing_fields=missing,
                allow_timestamp_tz_mismatch=True,
            )

        names = [column.name for column in selected.columns]
        # Without any column, a batch would not have its number of rows.
        return project, names or opened.schema_arrow.names[:1]

    def _open(self) -> pq.ParquetFile:
        return pq.ParquetFile(
            pa.PythonFile(_StoredFile(self._files.real_path(self.location)), mode="r"),
            buffer_size=_BUFFER,
            pre_buffer=False,
            thrift_string_size_limit=_MAX_FOOTER_STRING,
            thrift_container_size_limit=_MAX_FOOTER_ENTRIES,
        )


def _batch_rows(metadata: pq.FileMetaData, names: Sequence[str]) -> int:
    """The number of rows whose values of these columns take about ``_BATCH_BYTES``."""
    if not metadata.num_row_groups:
        return 1
    group = metadata.row_group(0)
    tops = set(names)
    size = sum(
        group.column(index).total_uncompressed_size
        for index in range(group.num_columns)
        if group.column(index).path_in_schema.partition(".")[0] in tops
    )
    row_bytes = max(size // max(group.num_rows, 1), 1)
    return int(max(1, min(_BATCH_BYTES // row_bytes, _MAX_BATCH_ROWS)))


class _StoredFile(io.RawIOBase):
    """A file that may be read, as a seekable stream that reads parts of it from its store."""

    def __init__(self, path: str) -> None:
        self._path, self._store = path, stores.store_of(path)
        self._size = self._store.status(path).size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        remaining = max(self._size - self._position, 0)
        length = remaining if size < 0 else min(size, remaining)
        if not length:
            return b""
        content = self._store.read_range(self._path, self._position, length)
        self._position += len(content)
        return content
