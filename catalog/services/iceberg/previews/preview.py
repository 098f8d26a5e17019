"""Preview a page of rows of a snapshot of an Iceberg table.

The work is bounded for every table, filter and order. The first step scans only the columns of the conditions
and of the order, in files that may have matching rows. The second step reads the rows of the page. The
privilege READ, and the files, are checked each time.
"""

import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import parse_mapping_from_json

from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput, InvalidMetadata, TableNotFound
from catalog.formats import arrow_values
from catalog.formats.arrow_values import Shown
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.scans import scans
from catalog.formats.iceberg.scans.planning import Planner
from catalog.formats.rows import profiles
from catalog.formats.rows.conditions import Kind, kind
from catalog.formats.rows.previews import (
    BUSY,
    MOST_BYTES,
    SECONDS,
    THREADS,
    Preview,
    Request,
    late,
    select_columns,
)
from catalog.formats.rows.profiles import Profile
from catalog.identifiers import Identifier
from catalog.models import Table
from catalog.services.iceberg import tables
from catalog.services.iceberg.files import TableFileIO
from catalog.services.iceberg.previews.data_files import DataFile, Layout
from catalog.services.storage.table_files import TableFiles

_BROKEN = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    ResolveError,
    UnsupportedPyArrowTypeException,
    pa.ArrowException,
    struct.error,
    zlib.error,
)
_FILE_SHIFT = 40
"""The address of a row is the number of its file, shifted by these bits, plus its position in the file."""
_slots = threading.BoundedSemaphore(THREADS)


@dataclass(frozen=True)
class OpenedSnapshot:
    """A snapshot of a table, of which the actor may read the rows."""

    table: Identifier
    document: Document
    snapshot_id: int | None
    """None: the table has no snapshot."""
    has_own_schema: bool
    """True if the schema is that of the snapshot; the current snapshot has the table's current schema."""
    layout: Layout
    schema: pa.Schema
    files: TableFileIO


def open_snapshot(
    *, actor: Principal, table: Table, snapshot_id: int | None = None, ref: str = ""
) -> OpenedSnapshot:
    """Open a snapshot of exactly this table, by default main's; an older one with its own schema.

    Raises TableNotFound, InvalidInput for an unknown snapshot or reference, InvalidMetadata.
    """
    loaded = tables.load_table(actor=actor, table=table.identifier)
    if loaded.pk != table.pk:  # the table was dropped and another one has its name
        raise TableNotFound(table.identifier)
    with _reading("The metadata"):
        document = loaded.document
        if ref:
            snapshot_id = _referenced(document, ref)
        has_own_schema = snapshot_id not in {None, document.get("current-snapshot-id")}
        request = scans.read_request(
            {"snapshot-id": snapshot_id, "use-snapshot-schema": has_own_schema}
        )
        scan = scans.settle(document, request)
        schema = Schema.model_validate(scan.schema)
        specs = [PartitionSpec.model_validate(spec) for spec in scan.specs]
        mapping = (document.get("properties") or {}).get("schema.name-mapping.default")
        layout = Layout(
            schema,
            {spec.spec_id: spec for spec in specs},
            parse_mapping_from_json(mapping) if mapping else None,
            document.get("format-version", 2),
        )
        arrow_schema = schema_to_pyarrow(schema, include_field_ids=False)
    chosen = scan.snapshots[0][0] if scan.snapshots else None
    files = TableFileIO(TableFiles(loaded), actor)
    return OpenedSnapshot(
        table=table.identifier,
        document=document,
        snapshot_id=chosen,
        has_own_schema=has_own_schema,
        layout=layout,
        schema=arrow_schema,
        files=files,
    )


def preview(opened: OpenedSnapshot, request: Request) -> Preview:
    """Return a page of the rows that match the conditions.

    Raises ColumnNotFound; InvalidMetadata for files that cannot be read, ForeignFile for those that may not be
    read, and Unsupported for those that only engines can read.
    """
    selected = select_columns(opened.schema, opened.table, request.columns)
    names = [column.name for column in selected]
    if opened.snapshot_id is None:
        return Preview(names, [])
    if not _slots.acquire(timeout=SECONDS):
        return Preview(names, [], BUSY)
    try:
        scan = _PreviewScan(opened, selected, request)
        rows = scan.run()
    finally:
        _slots.release()
    return Preview(names, rows, scan.reason, scan.has_more)


def profile(opened: OpenedSnapshot, column: str) -> Profile:
    """The profile of a column, of the rows that can be read in time.

    Raises ColumnNotFound, InvalidInput for a column without a profile, and the errors of ``preview``.
    """
    (chosen,) = select_columns(opened.schema, opened.table, [column])
    if not profiles.has_profile(chosen):
        raise InvalidInput(f"Column '{column[:200]}' of type {chosen.type} has no profile")
    profiler = profiles.Profiler(chosen)
    if opened.snapshot_id is None:
        return profiler.profile()
    if not _slots.acquire(timeout=SECONDS):
        return profiler.profile(BUSY)
    try:
        scan = _PreviewScan(opened, [chosen], Request())
        return profiler.profile(scan.read_column(column, profiler))
    finally:
        _slots.release()


def _referenced(document: Document, ref: str) -> int:
    refs: Mapping[str, Any] = document.get("refs") or {}
    entry = refs.get(ref)
    if not isinstance(entry, dict) or not isinstance(entry.get("snapshot-id"), int):
        raise InvalidInput(f"There is no branch or tag '{ref[:200]}'")
    return int(entry["snapshot-id"])


@contextmanager
def _reading(subject: str) -> Iterator[None]:
    try:
        yield
    except CatalogError:
        raise
    except (*_BROKEN, ValidationError) as error:
        cause = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise InvalidMetadata(f"{subject} cannot be read: {cause[:500]}") from error


@dataclass
class _PreviewScan:
    opened: OpenedSnapshot
    columns: Sequence[pa.Field]
    request: Request
    reason: str = ""
    has_more: bool = False
    scanned_rows: int = 0
    files: list[DataFile] = field(default_factory=list)
    """The files so far, by their number."""
    began: float = field(default_factory=time.monotonic)

    def run(self) -> list[list[Shown]]:
        addresses = self._find_plain() if self.request.is_plain else self._find()
        return self._read(addresses)

    def read_column(self, name: str, profiler: profiles.Profiler) -> str:
        """Read a column of all rows; returns why it ended early, or an empty text."""
        for _, file in self._data_files():
            with _reading(f"'{file.location}'"):
                for rows in file.scan([name]):
                    if len(rows.positions):
                        profiler.add(rows.columns[name])
                    if self._is_late():
                        return profiles.late(profiler.rows)
        return profiles.late(profiler.rows) if self.reason else ""

    def _data_files(self) -> Iterator[tuple[int, DataFile]]:
        """The files that may have matching rows, until it is too late."""
        with _reading("The metadata"):
            scan = scans.settle(self.opened.document, scans.read_request(self._scan_request()))
            planner = Planner(scan, self.opened.files)
            for group in planner.groups():
                for entry, deletes in planner.files(group):
                    if self._is_late():
                        self.reason = self._too_long()
                        return
                    file = DataFile(
                        self.opened.files,
                        self.opened.layout,
                        entry,
                        deletes,
                        ends_at=self.began + SECONDS,
                    )
                    file.require_readable()
                    self.files.append(file)
                    yield len(self.files) - 1, file

    def _scan_request(self) -> Document:
        """The request of a scan; its filter skips files, and the conditions select the rows."""
        combined: Any = True
        for condition in self.request.conditions:
            if kind(self.opened.schema.field(condition.column).type) is Kind.OTHER:
                continue
            if (predicate := condition.iceberg_filter()) is not None:
                combined = (
                    predicate
                    if combined is True
                    else {"type": "and", "left": combined, "right": predicate}
                )
        return {
            "snapshot-id": self.opened.snapshot_id,
            "use-snapshot-schema": self.opened.has_own_schema,
            "filter": combined,
        }

    def _find_plain(self) -> list[int]:
        """The addresses of a page of the rows in their stored order. No data is read."""
        skipped, count = self.request.page_start, self.request.page_size + 1
        addresses: list[int] = []
        for number, file in self._data_files():
            with _reading(f"'{file.location}'"):
                positions, live = file.live_positions(skipped, count - len(addresses))
            addresses += [(number << _FILE_SHIFT) + position for position in positions]
            skipped = max(skipped - live, 0)
            if len(addresses) >= count:
                break
        self.has_more = len(addresses) >= count
        return addresses[: self.request.page_size]

    def _find(self) -> list[int]:
        """The addresses of the rows of the page, in order."""
        selection = self.request.selection()
        for number, file in self._data_files():
            with _reading(f"'{file.location}'"):
                for rows in file.scan(selection.columns):
                    if len(rows.positions):
                        addresses = pa.array(rows.positions + (number << _FILE_SHIFT))
                        selection.add(rows.columns, addresses)
                    self.scanned_rows += len(rows.positions)
                    if selection.is_complete:
                        break
                    if self._is_late() or selection.is_too_large:
                        self.reason = self._too_long()
                        break
            if selection.is_complete or self.reason:
                break
        page, self.has_more = selection.page()
        return page

    def _read(self, addresses: Sequence[int]) -> list[list[Shown]]:
        """The rows at these addresses, until they are too many bytes or it is too late."""
        by_file: dict[int, list[int]] = {}
        for address in sorted(addresses):
            position = address & ((1 << _FILE_SHIFT) - 1)
            by_file.setdefault(address >> _FILE_SHIFT, []).append(position)
        names = [column.name for column in self.columns]
        values: dict[int, list[Shown]] = {}
        size = 0
        for number, positions in by_file.items():
            file = self.files[number]
            with _reading(f"'{file.location}'"):
                for rows in file.take(names, positions):
                    size += sum(array.nbytes for array in rows.columns.values())
                    for index, position in enumerate(np.asarray(rows.positions).tolist()):
                        values[(number << _FILE_SHIFT) + position] = [
                            arrow_values.show(rows.columns[column.name][index], column)
                            for column in self.columns
                        ]
                    if size > MOST_BYTES:
                        self.reason = f"Stopped after {round(size / 1024**2)} MiB."
                    elif self._is_late():
                        self.reason = self.reason or self._too_long()
                    else:
                        continue
                    break
            if self.reason:
                break
        return [values[address] for address in addresses if address in values]

    def _is_late(self) -> bool:
        return time.monotonic() - self.began > SECONDS

    def _too_long(self) -> str:
        return late(SECONDS, self.scanned_rows, self.request.order)
