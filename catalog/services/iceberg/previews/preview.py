"""Preview a page of rows of a snapshot of an Iceberg table, or profile a column of it.

Files that may have matching rows are planned here, and the privilege READ and all files are checked each time.
Data files are decoded in another process (``catalog.row_reader``).
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import parse_mapping_from_json

from catalog.access import Principal
from catalog.errors import InvalidInput, TableNotFound, Unsupported
from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.rows.data_files import Layout
from catalog.formats.iceberg.rows.row_scans import reading
from catalog.formats.iceberg.scans import scans
from catalog.formats.iceberg.scans.planning import Planner
from catalog.formats.rows import profiles
from catalog.formats.rows.conditions import Kind, kind
from catalog.formats.rows.previews import (
    BUSY,
    MOST_BYTES,
    THREADS,
    Preview,
    Request,
    select_columns,
)
from catalog.formats.rows.profiles import Profile
from catalog.identifiers import Identifier
from catalog.models import Table
from catalog.row_reader import client
from catalog.row_reader.messages import DataFileEntries, Job
from catalog.services.iceberg import tables
from catalog.services.iceberg.files import TableFileIO
from catalog.services.storage.table_files import TableFiles
from catalog.storage import stores

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
    with reading("The metadata"):
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
    if not _slots.acquire(timeout=request.seconds):
        return Preview(names, [], BUSY)
    try:
        job = Job(opened.layout, selected, request, request.seconds, MOST_BYTES)
        return client.preview(job, _SnapshotFiles(opened, request))
    finally:
        _slots.release()


def profile(opened: OpenedSnapshot, column: str) -> Profile:
    """The profile of a column, of the rows that can be read in time.

    Raises ColumnNotFound, InvalidInput for a column without a profile, and the errors of ``preview``.
    """
    (chosen,) = select_columns(opened.schema, opened.table, [column])
    if not profiles.has_profile(chosen):
        raise InvalidInput(f"Column '{column[:200]}' of type {chosen.type} has no profile")
    if opened.snapshot_id is None:
        return profiles.Profiler(chosen).profile()
    if not _slots.acquire(timeout=profiles.SECONDS):
        return profiles.Profiler(chosen).profile(BUSY)
    try:
        job = Job(opened.layout, [chosen], None, profiles.SECONDS, MOST_BYTES)
        return client.profile(job, _SnapshotFiles(opened, Request()))
    finally:
        _slots.release()


def _referenced(document: Document, ref: str) -> int:
    refs: Mapping[str, Any] = document.get("refs") or {}
    entry = refs.get(ref)
    if not isinstance(entry, dict) or not isinstance(entry.get("snapshot-id"), int):
        raise InvalidInput(f"There is no branch or tag '{ref[:200]}'")
    return int(entry["snapshot-id"])


class _SnapshotFiles:
    """The files that may have matching rows. Each error is a CatalogError."""

    def __init__(self, opened: OpenedSnapshot, request: Request) -> None:
        self._opened, self._request = opened, request
        self._planned = self._plan()

    def next_file(self) -> DataFileEntries | None:
        with reading("The metadata"):
            entries = next(self._planned, None)
        if entries is not None:
            data, deletes = entries
            _require_parquet(data, deletes)
            locations = [data.file.file_path, *(delete.file.file_path for delete in deletes)]
            with reading(f"'{data.file.file_path}'"):
                self._opened.files.require(locations)
        return entries

    def open(self, location: str) -> tuple[int, int | None]:
        with reading(f"'{location}'"):
            path = self._opened.files.real_path(location)
            return stores.store_of(path).open(path)

    def read(self, location: str, start: int, length: int) -> bytes:
        with reading(f"'{location}'"):
            path = self._opened.files.real_path(location)
            return stores.store_of(path).read_range(path, start, length)

    def _plan(self) -> Iterator[DataFileEntries]:
        scan = scans.settle(self._opened.document, scans.read_request(self._scan_request()))
        planner = Planner(scan, self._opened.files)
        for group in planner.groups():
            yield from planner.files(group)

    def _scan_request(self) -> Document:
        """The request of a scan; its filter skips files, and the conditions select the rows."""
        combined: Any = True
        for condition in self._request.conditions:
            if kind(self._opened.schema.field(condition.column).type) is Kind.OTHER:
                continue
            if (predicate := condition.iceberg_filter()) is not None:
                combined = (
                    predicate
                    if combined is True
                    else {"type": "and", "left": combined, "right": predicate}
                )
        return {
            "snapshot-id": self._opened.snapshot_id,
            "use-snapshot-schema": self._opened.has_own_schema,
            "filter": combined,
        }


def _require_parquet(data: Entry, deletes: Sequence[Entry]) -> None:
    """Raise Unsupported for a file whose rows cannot be shown."""
    if data.file.file_format != FileFormat.PARQUET:
        raise Unsupported("The rows are in files that are not Parquet; only engines read them")
    if data.file.key_metadata is not None:
        raise Unsupported("The data files are encrypted; only engines with the keys read them")
    if any(delete.file.content == DataFileContent.EQUALITY_DELETES for delete in deletes):
        raise Unsupported(
            "The snapshot has equality deletes, which only engines apply; compact the table first"
        )
    if not {delete.file.file_format for delete in deletes} <= {
        FileFormat.PARQUET,
        FileFormat.PUFFIN,
    }:
        raise Unsupported("The delete files are not Parquet; only engines read them")
