"""Read rows of the Parquet files of an Iceberg table, without the rows that delete files remove."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import RawIOBase
from itertools import pairwise
from time import monotonic
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# PyIceberg's scan itself reads all rows of a file into memory. Its version is pinned.
from pyiceberg.io.pyarrow import (
    _get_column_projection_values,
    _to_requested_schema,
    pyarrow_to_schema,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import ListType, MapType

from catalog.errors import Unsupported
from catalog.formats.iceberg import deletion_vectors
from catalog.formats.iceberg.deletion_vectors import TooManyPositions
from catalog.formats.iceberg.manifests import Entry

_BATCH_BYTES = 4 * 1024**2
_MAX_BATCH_ROWS = 65_536
_BUFFER = 4 * 1024**2
_MAX_FOOTER_STRING = 64 * 1024**2
_MAX_FOOTER_ENTRIES = 1_000_000
_MAX_DELETED_ROWS = 10_000_000
"""Rows of all delete files of a data file, and positions in a deletion vector."""
_MAX_VECTOR_BYTES = 16 * 1024**2
_TOO_MANY_DELETES = (
    "The snapshot has too many deleted rows, which only engines apply; compact the table first"
)


_Project = Callable[[pa.RecordBatch], pa.RecordBatch]


class Files(Protocol):
    """Opens files of a table, by the locations in its manifests."""

    def open(self, location: str) -> RawIOBase:
        """A seekable stream."""

    def read_range(self, location: str, start: int, length: int) -> bytes:
        """A part of a file; shorter if the file ends before."""


@dataclass(frozen=True)
class Layout:
    """What the metadata of a table says about all of its data files."""

    schema: Schema
    specs: dict[int, PartitionSpec]
    name_mapping: NameMapping | None
    format_version: Any


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a file: positions and, by name, the values of columns.

    None of the rows that were read may be among them; then there are no columns either.
    """

    positions: Any
    """An array of NumPy."""
    columns: dict[str, Any]


class DataFile:
    """A Parquet file of a snapshot, with the delete files that apply to it."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        entry: Entry,
        deletes: Sequence[Entry],
        ends_at: float,
    ) -> None:
        """``ends_at``: when to stop reading the delete files, as a monotonic clock says it."""
        self._files, self._layout = files, layout
        self._entry, self._deletes = entry, deletes
        self._ends_at = ends_at
        self.location: str = entry.file.file_path

    # -- deleted rows

    @cached_property
    def _deleted(self) -> Any:
        """The positions of deleted rows, in order, as an array of NumPy."""
        parts, rows = [np.zeros(0, np.int64)], 0
        for delete in self._deletes:
            for size, positions in (
                self._vector(delete)
                if delete.is_deletion_vector
                else self._position_deletes(delete)
            ):
                rows += size
                if rows > _MAX_DELETED_ROWS or monotonic() > self._ends_at:
                    raise Unsupported(_TOO_MANY_DELETES)
                parts.append(positions)
        return np.unique(np.concatenate(parts))

    def _vector(self, delete: Entry) -> Iterator[tuple[int, Any]]:
        start, size = delete.content_offset, delete.content_size
        if start is None or size is None or min(start, size) < 0:
            raise ValueError("A deletion vector has no valid offset and size")
        if size > _MAX_VECTOR_BYTES:
            raise Unsupported(_TOO_MANY_DELETES)
        blob = self._files.read_range(delete.file.file_path, start, size)
        rows: int = self._entry.file.record_count
        try:
            positions = deletion_vectors.positions(blob, rows=rows, limit=_MAX_DELETED_ROWS)
        except TooManyPositions as error:
            raise Unsupported(_TOO_MANY_DELETES) from error
        yield len(positions), positions

    def _position_deletes(self, delete: Entry) -> Iterator[tuple[int, Any]]:
        """For each batch of a delete file, its number of rows, and the positions in this data file."""
        with self._open(delete.file.file_path, encoded=["file_path"]) as opened:
            for batch in opened.iter_batches(_MAX_BATCH_ROWS, columns=["file_path", "pos"]):
                # Compares each distinct path once, however many rows have it.
                paths = batch.column("file_path")
                is_own = pc.equal(paths.dictionary, pa.scalar(self.location, paths.dictionary.type))
                own = batch.column("pos").filter(is_own.take(paths.indices))
                yield batch.num_rows, own.drop_null().to_numpy(zero_copy_only=False)

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
        yield from self._read(columns)

    def take(self, columns: Sequence[str], positions: Sequence[int]) -> Iterator[Rows]:
        """The values of columns of the rows at these positions, which are in increasing order."""
        yield from self._read(columns, np.array(positions, np.int64))

    def _read(self, columns: Sequence[str], chosen: Any = None) -> Iterator[Rows]:
        """Yields something for each batch, so that the caller can stop after any."""
        with self._open(self.location) as opened:
            project, names = self._projection(opened, columns)
            texts = _texts(opened.schema_arrow, names)
            metadata = opened.metadata
        with self._open(self.location, metadata=metadata, encoded=texts) as opened:
            first = 0
            for group in range(metadata.num_row_groups):
                end = first + metadata.row_group(group).num_rows
                inside = None if chosen is None else chosen[(chosen >= first) & (chosen < end)]
                if inside is None or len(inside):
                    for positions, batch in _batches(opened, group, names, first):
                        yield self._rows(columns, positions, batch, inside, project)
                        if inside is not None and positions[-1] >= inside[-1]:
                            break
                first = end

    def _rows(
        self,
        columns: Sequence[str],
        positions: Any,
        batch: pa.RecordBatch,
        chosen: Any,
        project: _Project,
    ) -> Rows:
        if chosen is None:
            keep = np.isin(positions, self._deleted, invert=True, assume_unique=True)
        else:
            keep = np.isin(positions, chosen, assume_unique=True)
        if not keep.any():
            return Rows(positions[:0], {})
        projected = project(batch if keep.all() else batch.filter(pa.array(keep)))
        return Rows(positions[keep], {name: projected.column(name) for name in columns})

    def _projection(
        self, opened: pq.ParquetFile, columns: Sequence[str]
    ) -> tuple[_Project, list[str]]:
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

    def _open(
        self,
        location: str,
        metadata: pq.FileMetaData | None = None,
        encoded: Sequence[str] = (),
    ) -> pq.ParquetFile:
        """Open a file; ``encoded`` are the columns to read as dictionaries."""
        return pq.ParquetFile(
            pa.PythonFile(self._files.open(location), mode="r"),
            metadata=metadata,
            read_dictionary=list(encoded),
            buffer_size=_BUFFER,
            pre_buffer=False,
            thrift_string_size_limit=_MAX_FOOTER_STRING,
            thrift_container_size_limit=_MAX_FOOTER_ENTRIES,
        )


def _texts(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The columns of texts and binary data among these."""
    return [name for name in names if _is_text(schema.field(name).type)]


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
    )


def _batches(
    opened: pq.ParquetFile, group: int, names: Sequence[str], first: int
) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """The rows of a row group in small batches, with their positions."""
    batch_rows = _batch_rows(opened.metadata.row_group(group), names)
    for batch in opened.iter_batches(batch_rows, row_groups=[group], columns=list(names)):
        for piece in _decoded(batch) if batch.num_rows else ():
            yield np.arange(first, first + piece.num_rows), piece
            first += piece.num_rows


def _batch_rows(group: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """The number of rows whose values of these columns take about ``_BATCH_BYTES``, as stored."""
    tops = set(names)
    size = 0
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema.partition(".")[0] in tops:
            # Equal values are stored once; a list may have many.
            size += max(column.total_uncompressed_size, 8 * column.num_values)
    row_bytes = max(size // max(group.num_rows, 1), 1)
    return int(max(1, min(_BATCH_BYTES // row_bytes, _MAX_BATCH_ROWS)))


def _decoded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch without dictionaries, in parts of about ``_BATCH_BYTES``.

    A text that many rows have is stored once, so the file does not tell the size of its values.
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += lengths.fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.flatnonzero(np.diff(sizes.cumsum() // _BATCH_BYTES)) + 1
    for start, end in pairwise([0, *ends.tolist(), batch.num_rows]):
        piece = batch.slice(start, end - start)
        columns = [
            column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            for column in piece.columns
        ]
        yield pa.RecordBatch.from_arrays(columns, names=piece.schema.names)
