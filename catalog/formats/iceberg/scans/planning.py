"""Scan planning: from a scan and its manifests to the files that may have matching rows.

groups  the manifests to read, in groups of bounded work
plan    the file scan tasks of a group, as JSON of the protocol
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.types import PrimitiveType

from catalog.errors import InvalidMetadata, Unsupported
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.manifests import CheckedIO, Entry
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.scans import expressions, filter_parsing, metrics
from catalog.formats.iceberg.scans.deletes import DeleteIndex, partition_key
from catalog.formats.iceberg.scans.expressions import Expression
from catalog.formats.iceberg.scans.filter_parsing import Names
from catalog.formats.iceberg.scans.partitions import Partitions
from catalog.formats.iceberg.scans.scans import Scan
from catalog.formats.iceberg.schema import schemas, single_values

FILES_AT_ONCE = 2_000
"""Approximate live files per group: 0.5 s of planning with 5 columns, 1 s with 50."""
MAX_FILES_AT_ONCE = 250_000
"""Live data files, and as many delete files, that are in memory for a group: lists may count wrongly."""
MAX_COMPARISONS = 10_000_000
"""Pairs of a data file and a delete file of a group."""
MAX_TESTS = 1_000_000
"""Predicates that are tested in a plan, which takes about 10 s: further files and manifests are planned without tests."""
MAX_RESIDUAL_BYTES = 64 << 20
"""The size of the filters of all tasks of an answer."""
MANIFESTS_AT_ONCE = 100
SNAPSHOTS_AT_ONCE = 20

_CONTENT = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}
_UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError,
    struct.error,
)  # fmt: skip

Group = list[list[Any]]
"""JSON: for each snapshot its index in the scan, and the positions of manifests in its list. Null
instead of positions stands for all manifests that the snapshot added."""


@dataclass
class _Tasks:
    """The tasks and delete files of a plan while it is built."""

    tasks: list[Document] = field(default_factory=list)
    deletes: list[Document] = field(default_factory=list)
    positions: dict[tuple[str, int | None], int] = field(default_factory=dict)
    residual: tuple[Expression, bool | Document, int] | None = None
    """The filter of the last task, its JSON, and its size."""
    residual_bytes: int = 0
    sure_rows: int = 0
    """The number of rows that match for certain, without reading the files."""


class Planner:
    """Plans a scan. Reads manifests through ``io``, which restricts the readable files."""

    def __init__(self, scan: Scan, io: CheckedIO) -> None:
        self._scan = scan
        self._io = io
        columns = schemas.index(scan.schema, "schema")
        self._filter = filter_parsing.parse(
            scan.filter, Names(columns, case_sensitive=scan.case_sensitive)
        )
        named: dict[int, object] = {int(key): name for key, name in scan.source_types.items()}
        named |= {column.id: column.type for column in columns.values()}
        parsed = {id_: single_values.parse_type(name) for id_, name in named.items()}
        self._types: dict[int, PrimitiveType] = {
            id_: type_ for id_, type_ in parsed.items() if type_ is not None
        }
        self._partitions = {
            partitions.spec_id: partitions
            for partitions in (Partitions(spec, self._types, self._filter) for spec in scan.specs)
        }
        self._lists: dict[str, list[ManifestFile]] = {}
        fields = max((len(spec.get("fields") or ()) for spec in scan.specs), default=0)
        number = sum(1 for _ in expressions.predicates(self._filter.expression))
        self._tests_per_file = number * (1 + fields // 10)
        self._remaining_tests = MAX_TESTS

    # -- groups

    def groups(self) -> list[Group]:
        """The manifests to read, in groups of bounded work; empty if no file can match."""
        if self._filter.expression is False:
            return []
        if self._scan.appended_only:
            indices = range(len(self._scan.snapshots))
            return [
                [[index, None] for index in indices[start : start + SNAPSHOTS_AT_ONCE]]
                for start in range(0, len(indices), SNAPSHOTS_AT_ONCE)
            ]
        groups: list[Group] = []
        files = FILES_AT_ONCE
        for index in range(len(self._scan.snapshots)):
            for position, manifest in enumerate(self._list(index)):
                if manifest.content != ManifestContent.DATA or not self._may_hold(manifest):
                    continue
                files += manifests.live_files(manifest)
                if files > FILES_AT_ONCE or len(groups[-1][0][1]) >= MANIFESTS_AT_ONCE:
                    groups.append([[index, []]])
                    files = manifests.live_files(manifest)
                groups[-1][0][1].append(position)
        return groups

    # -- tasks

    def plan(self, groups: list[Group]) -> Document:
        """The file scan tasks of groups, and the delete files that they refer to.

        Raises InvalidMetadata if a manifest cannot be read, and Unsupported for too many files.
        """
        gathered = _Tasks()
        for index, positions in (group_part for group in groups for group_part in group):
            entries = self._data(index, positions)
            deletes = self._deletes(index, entries)
            for entry in entries:
                if self._scan.min_rows is not None and gathered.sure_rows >= self._scan.min_rows:
                    break
                self._add(gathered, entry, deletes)
        answer: Document = {"file-scan-tasks": gathered.tasks}
        if gathered.deletes:
            answer["delete-files"] = gathered.deletes
        return answer

    def files(self, group: Group) -> Iterator[tuple[Entry, list[Entry]]]:
        """The data files of a group that may have matching rows, each with the delete files that apply.

        Raises InvalidMetadata if a manifest cannot be read, and Unsupported for too many files.
        """
        for index, positions in group:
            entries = self._data(index, positions)
            deletes = self._deletes(index, entries)
            for entry in entries:
                residual, applied = self._applied(entry, deletes)
                if residual is not False:
                    yield entry, applied

    def _applied(self, entry: Entry, deletes: DeleteIndex) -> tuple[Expression, list[Entry]]:
        """The residual filter of a data file, false if no row can match, and its delete files."""
        partitions = self._spec(entry.spec_id)
        values = partitions.values(entry.file)
        residual = self._filter.expression
        if self._may_test():
            residual = partitions.residual(values)
            if residual is False or not self._may_match(entry.file):
                return False, []
        applied = deletes.for_file(entry, partition_key(entry.spec_id, values))
        if deletes.comparisons > MAX_COMPARISONS:
            raise _too_many("delete files")
        return residual, applied

    def _add(self, gathered: _Tasks, entry: Entry, deletes: DeleteIndex) -> None:
        residual, applied = self._applied(entry, deletes)
        if residual is False:
            return
        references = []
        for delete in applied:
            key = (delete.file.file_path, delete.content_offset)
            if key not in gathered.positions:
                gathered.positions[key] = len(gathered.deletes)
                gathered.deletes.append(self._delete_file(delete))
            references.append(gathered.positions[key])
        if not references and residual is True:
            gathered.sure_rows += entry.file.record_count
        gathered.tasks.append(self._task(entry, _residual(gathered, residual), references))

    # -- reading

    def _data(self, index: int, positions: list[int] | None) -> list[Entry]:
        listed = self._list(index)
        if positions is None:
            # A snapshot writes the files that it adds into manifests of its own.
            added = self._scan.snapshots[index][0]
            needed = [
                manifest
                for manifest in listed
                if manifest.content == ManifestContent.DATA
                and manifest.added_snapshot_id == added
                and self._may_hold(manifest)
            ]
            return [
                entry
                for _, entries in self._read(needed, "data files")
                for entry in entries
                if entry.is_added and entry.snapshot_id == added
            ]
        if any(position >= len(listed) for position in positions):
            raise InvalidMetadata("The manifest list of the planned snapshot has changed")
        needed = [listed[position] for position in positions]
        return [entry for _, entries in self._read(needed, "data files") for entry in entries]

    def _read(
        self, listed: list[ManifestFile], subject: str
    ) -> Iterator[tuple[ManifestFile, list[Entry]]]:
        """Manifests with their live files. Raises Unsupported for too many in all."""
        count = 0
        for manifest, entries in zip(listed, manifests.read_each(self._io, listed), strict=True):
            count += len(entries)
            if count > MAX_FILES_AT_ONCE:
                raise _too_many(subject)
            yield manifest, entries

    def _deletes(self, index: int, entries: list[Entry]) -> DeleteIndex:
        """The delete files that may apply to these files."""
        unpartitioned = {
            spec.spec_id for spec in self._partitions.values() if spec.is_unpartitioned
        }
        delete_index = DeleteIndex(unpartitioned, self._types)
        if self._scan.appended_only or not entries:
            return delete_index
        oldest = min(entry.sequence_number for entry in entries)
        needed = [
            manifest
            for manifest in self._list(index)
            if manifest.content == ManifestContent.DELETES
            and (manifest.sequence_number or 0) >= oldest
            and self._may_hold(manifest)
        ]
        for manifest, deletes in self._read(needed, "delete files"):
            partitions = self._spec(manifest.partition_spec_id)
            for entry in deletes:
                key = partition_key(entry.spec_id, partitions.values(entry.file))
                delete_index.add(entry, key)
        return delete_index

    def _list(self, index: int) -> list[ManifestFile]:
        location = self._scan.snapshots[index][1]
        if location not in self._lists:
            self._lists = {location: manifests.read_list(self._io, location)}
        return self._lists[location]

    def _spec(self, spec_id: int) -> Partitions:
        partitions = self._partitions.get(spec_id)
        if partitions is None:
            raise InvalidMetadata(f"A manifest is of partition spec {spec_id}, which is not there")
        return partitions

    def _may_hold(self, manifest: ManifestFile) -> bool:
        if not (manifest.has_added_files() or manifest.has_existing_files()):
            return False
        spec = self._spec(manifest.partition_spec_id)
        return not self._may_test() or spec.may_hold(manifest)

    def _may_test(self) -> bool:
        """Count the tests of a file or a manifest; False if there are too many in all."""
        self._remaining_tests -= self._tests_per_file
        return self._remaining_tests >= 0

    @cached_property
    def _metrics(self) -> metrics.Evaluator:
        test = expressions.to_test(
            self._filter.expression, lambda term: term.test if term.is_ordered else AlwaysTrue()
        )
        return metrics.Evaluator(expressions.schema_of(self._filter.types), test)

    def _may_match(self, file: DataFile) -> bool:
        """True unless the metrics of a file exclude a matching row."""
        try:
            return self._metrics.may_match(file)
        except _UNREADABLE:
            return True  # bounds of a type that the column no longer has

    # -- JSON

    def _task(self, entry: Entry, residual: bool | Document, references: list[int]) -> Document:
        task: Document = {
            "data-file": self._data_file(entry),
            # Always written: some clients treat a missing filter as true.
            "residual-filter": residual,
        }
        if references:
            task["delete-file-references"] = references
        return task

    def _data_file(self, entry: Entry) -> Document:
        described = self._content_file(entry)
        if entry.first_row_id is not None:
            described["first-row-id"] = entry.first_row_id
            described["data-sequence-number"] = entry.sequence_number
        if self._scan.stats:
            described.update(_metrics_json(entry.file, set(self._scan.stats)))
        return described

    def _delete_file(self, entry: Entry) -> Document:
        described = self._content_file(entry)
        if entry.file.content == DataFileContent.EQUALITY_DELETES:
            described["equality-ids"] = list(entry.file.equality_ids or ())
            return described
        optional = {
            "referenced-data-file": entry.referenced_data_file,
            "content-offset": entry.content_offset,
            "content-size-in-bytes": entry.content_size,
        }
        return described | {key: value for key, value in optional.items() if value is not None}

    def _content_file(self, entry: Entry) -> Document:
        file = entry.file
        partitions = self._spec(entry.spec_id)
        described: Document = {
            "content": _CONTENT[file.content],
            "file-path": file.file_path,
            "file-format": file.file_format.lower(),
            "spec-id": entry.spec_id,
            "partition": partitions.to_json(partitions.values(file)),
            "file-size-in-bytes": file.file_size_in_bytes,
            "record-count": file.record_count,
        }
        if file.key_metadata is not None:
            described["key-metadata"] = file.key_metadata.hex().upper()
        if file.split_offsets is not None:
            described["split-offsets"] = list(file.split_offsets)
        if file.sort_order_id is not None:
            described["sort-order-id"] = file.sort_order_id
        return described


def _residual(gathered: _Tasks, residual: Expression) -> bool | Document:
    """The JSON of the filter of a task. Raises Unsupported if those of all tasks are too large."""
    if gathered.residual is None or gathered.residual[0] is not residual:
        described = expressions.to_json(residual)
        gathered.residual = residual, described, len(orjson.dumps(described))
    _, described, size = gathered.residual
    gathered.residual_bytes += size
    if gathered.residual_bytes > MAX_RESIDUAL_BYTES:
        raise Unsupported(
            "The filter is too long to be repeated for each file: compact the table, or plan the scan in the client"
        )
    return described


def _too_many(subject: str) -> Unsupported:
    return Unsupported(
        f"The snapshot has too many {subject} to be planned by the catalog: compact the table, or plan"
        " the scan in the client"
    )


def _metrics_json(file: DataFile, columns: set[int]) -> Iterator[tuple[str, Document]]:
    maps: dict[str, dict[int, Any] | None] = {
        "column-sizes": file.column_sizes,
        "value-counts": file.value_counts,
        "null-value-counts": file.null_value_counts,
        "nan-value-counts": file.nan_value_counts,
        "lower-bounds": file.lower_bounds,
        "upper-bounds": file.upper_bounds,
    }
    for name, values in maps.items():
        selected = {id_: value for id_, value in (values or {}).items() if id_ in columns}
        if selected:
            # Bounds are in binary form: Java's client refuses any other.
            yield (
                name,
                {
                    "keys": list(selected),
                    "values": [
                        metric.hex().upper() if isinstance(metric, bytes) else metric
                        for metric in selected.values()
                    ],
                },
            )
