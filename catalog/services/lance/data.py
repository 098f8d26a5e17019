"""Create Lance tables with data, and change their rows."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import lance
import pyarrow as pa
from django.conf import settings
from lance.dataset import LanceDataset

from catalog import access
from catalog.access import On, Principal
from catalog.errors import DataTooLarge, InvalidInput, TableHasNoData
from catalog.formats.lance import paths as lance_paths
from catalog.formats.lance import sql as lance_sql
from catalog.formats.lance import sql_growth
from catalog.identifiers import Identifier, check_table
from catalog.models import Table, TableFormat
from catalog.privileges import Privilege
from catalog.services.lance import commits, data_operations, datasets, describe, time_limits
from catalog.services.lance.commits import NewDataset, Written
from catalog.services.lance.errors import refusing
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.rehearsals import rehearse
from catalog.services.tables import table_operations, tables
from catalog.storage import locations

Data: TypeAlias = "pa.Table | pa.RecordBatchReader"
_UPDATED_BYTES = 512 << 20
"""The most that long values may take in all updated rows."""
_ONCE: Any = {"conflict_retries": 0}
"""Lance would repeat work that reads rows on a newer version that nobody has checked. ``commits`` repeats it."""


@dataclass(frozen=True, slots=True)
class CreatedTable:
    """A table after CreateTable, created by it or existing before."""

    location: str
    version: int
    properties: dict[str, str]
    transaction_id: str | None


@dataclass(frozen=True, slots=True)
class MergeClauses:
    """The clauses of a merge insert (spec: MergeInsertIntoTableRequest)."""

    on: tuple[str, ...]
    when_matched_update_all: bool = False
    when_matched_update_all_filt: str | None = None
    when_not_matched_insert_all: bool = False
    when_not_matched_by_source_delete: bool = False
    when_not_matched_by_source_delete_filt: str | None = None
    use_index: bool | None = None
    timeout: timedelta | None = None


def create_table(
    *,
    actor: Principal,
    table: Identifier,
    data: Data,
    mode: str = "create",
    properties: Mapping[str, str] | None = None,
) -> CreatedTable:
    """Create a table from the data; an empty stream creates an empty table of its schema.

    ``mode`` applies to an existing table of this name: ``create`` raises TableAlreadyExists,
    ``exist_ok`` keeps it and reads no data, ``overwrite`` drops it in the same transaction.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    holder = Table.objects.named(table).select_related("namespace").first()
    if holder is None:
        tables.require_namespace(table[:-1])
    elif mode == "exist_ok":
        return _existing(actor, table)
    elif mode != "overwrite":
        raise table_operations.already_exists(table, holder)
    lance_paths.check_names(data.schema)
    rows = _Counted(data)
    written = commits.create(
        actor=actor,
        table=table,
        work=lambda new: _write(rows, new),
        properties=properties,
        overwrite=mode == "overwrite",
    )
    row = written.operation_result
    return CreatedTable(row.location, written.version, row.properties, written.transaction_id)


def clone_table(
    *,
    actor: Principal,
    table: Identifier,
    location: str,
    version: int | None = None,
    tag: str | None = None,
) -> CreatedTable:
    """Create a table with the rows of a version, by default the newest, of the table at a location.

    The new table has files of its own, and no indexes. Raises InvalidInput if the actor sees no table at the
    location, PermissionDenied if it may not read it, DataTooLarge for a version with more data than a request may send, ServiceUnavailable if it takes too long,
    and the errors of ``create_table``.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    source = _find_source(actor, location)
    branch, version = describe.resolve(actor=actor, table=source, version=version, tag=tag)
    snapshot = datasets.find_snapshot(actor=actor, table=source, version=version, branch=branch)
    dataset = datasets.open_dataset(snapshot)
    # The readers of the new table may not read what others have put into this version.
    lance_files.require_committed(snapshot, datasets.check(snapshot))
    with refusing(source):
        if _size(dataset) > settings.MONODON_MAX_DATA_BYTES:
            raise DataTooLarge(settings.MONODON_MAX_DATA_BYTES)
        reader = dataset.scanner().to_reader()
    return time_limits.write_all(
        reader, lambda rows: create_table(actor=actor, table=table, data=rows)
    )


def insert(
    *,
    actor: Principal,
    table: Identifier,
    data: Data,
    overwrite: bool = False,
    branch: str = "",
) -> Written[int]:
    """Append rows, or replace all rows; the result is the number of written rows.

    The first data of a declared table creates its first version. Raises SchemaMismatch.
    """
    if overwrite:
        lance_paths.check_names(data.schema)
    rows = _Counted(data)
    # A stream may take long.
    write = commits.write_in_turn if isinstance(data, pa.Table) else commits.write
    try:
        return write(
            actor=actor,
            table=table,
            branch=branch,
            operation=data_operations.InsertIntoTable,
            work=lambda dataset: _append(rows, dataset, "overwrite" if overwrite else "append"),
            summary={"mode": "overwrite"} if overwrite else None,
            can_repeat=False,
            keep_open=True,
        )
    except TableHasNoData:
        return _create_first_version(actor, table, rows, data_operations.InsertIntoTable)


def merge_insert(
    *,
    actor: Principal,
    table: Identifier,
    data: Data,
    clauses: MergeClauses,
    branch: str = "",
) -> Written[dict[str, int]]:
    """Update, insert and delete rows by a key; the result has their numbers.

    In a declared table all rows are new. Raises ColumnNotFound, SchemaMismatch, InvalidInput for
    rows that match ambiguously, CommitConflict.
    """
    if not clauses.on:
        raise InvalidInput("A merge insert needs the columns to match on: 'on'")
    lance_sql.check(clauses.when_matched_update_all_filt or "")
    lance_sql.check(clauses.when_not_matched_by_source_delete_filt or "")
    rows = _Repeatable(data)
    try:
        return commits.write(
            actor=actor,
            table=table,
            branch=branch,
            operation=data_operations.MergeInsertIntoTable,
            work=lambda dataset: _merge(rows, dataset, clauses),
            summary={"on": list(clauses.on)},
            timeout=clauses.timeout,
            limited_since=lambda: rows.read_at,
        )
    except TableHasNoData:
        first = _create_first_version(actor, table, rows, data_operations.MergeInsertIntoTable)
        counts = {"num_inserted_rows": first.result, "num_updated_rows": 0, "num_deleted_rows": 0}
        return Written(counts, first.version, first.transaction_id, first.commit)


def update(
    *,
    actor: Principal,
    table: Identifier,
    updates: Sequence[Sequence[str]],
    predicate: str | None = None,
    properties: Mapping[str, str] | None = None,
    branch: str = "",
) -> Written[int]:
    """Set columns to SQL expressions in matching rows; the result is the number of rows."""
    changes: dict[str, str] = {}
    for pair in updates:
        if len(pair) != 2:
            raise InvalidInput("An update is a pair: the field's path and its SQL expression")
        if pair[0] in changes:
            raise InvalidInput(f"Column '{pair[0]}' is updated twice")
        changes[pair[0]] = pair[1]
    if not changes:
        raise InvalidInput("There is nothing to update: 'updates' is empty")
    for expression in (*changes.values(), predicate or ""):
        lance_sql.check(expression)
    return commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.UpdateTable,
        work=lambda dataset: _update(dataset, changes, predicate or None),
        summary={"columns": list(changes), "predicate": predicate},
        limited_since=time_limits.of_write(*changes.values(), predicate or ""),
        fields={"properties": dict(properties)} if properties else None,
    )


def delete(
    *, actor: Principal, table: Identifier, predicate: str, branch: str = ""
) -> Written[int]:
    """Delete the rows that match the predicate; the result is their number."""
    if not predicate.strip():
        raise InvalidInput("A predicate says what to delete; 'true' is for all rows")
    lance_sql.check(predicate)
    return commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.DeleteFromTable,
        work=lambda dataset: int(dataset.delete(predicate, **_ONCE)["num_deleted_rows"]),
        summary={"predicate": predicate},
        limited_since=time_limits.of_write(predicate),
    )


class _Counted:
    """The rows of a table, or the batches of a stream, with a count of the rows read so far."""

    def __init__(self, data: Data) -> None:
        self.schema = data.schema
        self.rows = data.num_rows if isinstance(data, pa.Table) else 0
        self.read_at = 0.0
        """The monotonic time of the last rows of a stream, or of its end; infinite while it is read."""
        self._data = data

    def reader(self) -> pa.RecordBatchReader:
        if isinstance(self._data, pa.Table):
            return self._data.to_reader()
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        batches = iter(self._data)
        while True:
            self.read_at = math.inf
            batch = next(batches, None)
            self.read_at = time.monotonic()
            if batch is None:
                return
            self.rows += batch.num_rows
            yield batch


class _Repeatable(_Counted):
    """The same, kept in memory for a repetition; Lance holds them there as well."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self._read_batches: list[pa.RecordBatch] = []

    def _batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._read_batches
        for batch in super()._batches():
            self._read_batches.append(batch)
            yield batch


def _write(rows: _Counted, new: NewDataset) -> int:
    lance.write_dataset(rows.reader(), **new.options)
    return rows.rows


def _append(rows: _Counted, dataset: LanceDataset, mode: str) -> int:
    dataset.insert(rows.reader(), mode=mode)
    return rows.rows


def _update(dataset: LanceDataset, changes: dict[str, str], predicate: str | None) -> int:
    rehearse(dataset, [*changes.values(), predicate or ""])
    size = sql_growth.values_size(changes.values())
    if size > sql_growth.MAX_VALUES_BUILT:
        # Lance builds the values of 8192 rows at once.
        rows = dataset.count_rows(predicate)
        if rows * size > _UPDATED_BYTES:
            raise InvalidInput(
                f"The values of {rows} rows, of {size} bytes each, take too much memory",
                detail="Update fewer rows at once, or insert the rows with merge_insert.",
            )
    return int(dataset.update(changes, where=predicate, **_ONCE)["num_rows_updated"])


def _merge(rows: _Counted, dataset: LanceDataset, clauses: MergeClauses) -> dict[str, int]:
    builder = dataset.merge_insert(list(clauses.on)).conflict_retries(0)
    if clauses.when_matched_update_all or clauses.when_matched_update_all_filt:
        builder.when_matched_update_all(clauses.when_matched_update_all_filt)
    if clauses.when_not_matched_insert_all:
        builder.when_not_matched_insert_all()
    if clauses.when_not_matched_by_source_delete or clauses.when_not_matched_by_source_delete_filt:
        rehearse(dataset, [clauses.when_not_matched_by_source_delete_filt or ""])
        builder.when_not_matched_by_source_delete(clauses.when_not_matched_by_source_delete_filt)
    if clauses.use_index is not None:
        builder.use_index(clauses.use_index)
    if clauses.timeout is not None:
        builder.retry_timeout(clauses.timeout)
    counts: dict[str, int] = builder.execute(rows.reader())
    return counts


def _create_first_version(
    actor: Principal,
    table: Identifier,
    rows: _Counted,
    operation: type[data_operations.WriteVersion],
) -> Written[int]:
    """Write the first version of a declared table."""
    lance_paths.check_names(rows.schema)
    description = tables.describe_table(actor=actor, table=table)
    return commits.create_first_version(
        actor=actor,
        table=table,
        location=description.location,
        operation=operation,
        work=lambda new: _write(rows, new),
    )


def _existing(actor: Principal, table: Identifier) -> CreatedTable:
    description = tables.describe_table(actor=actor, table=table)
    version = 0
    if not description.is_only_declared:
        version = datasets.find_snapshot(actor=actor, table=table).version
    return CreatedTable(description.location, version, description.properties, None)


def _size(dataset: LanceDataset) -> int:
    """The size of a version's rows in storage, in bytes."""
    columns: Any = dataset.stats.data_stats().fields
    by_fragment = (fragment.metadata.files for fragment in dataset.get_fragments())
    sizes = (file.file_size_bytes or 0 for files in by_fragment for file in files)
    # The columns of files in Lance's legacy format have no sizes, and manifests may omit those of files.
    of_columns: int = sum(column.bytes_on_disk for column in columns)
    return max(of_columns, sum(sizes))


def _find_source(actor: Principal, location: str) -> Identifier:
    path = locations.lance_path(location)
    row = (
        Table.objects.present()
        .filter(location=path, format=TableFormat.LANCE)
        .select_related("namespace")
        .first()
    )
    if row is None or not access.holds(actor, Privilege.BROWSE, row):
        raise InvalidInput(f"There is no table at '{location}' that you may read")
    access.require(actor, Privilege.READ, row)
    return tuple(row.identifier)
