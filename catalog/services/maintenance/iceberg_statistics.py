"""Statistics of an Iceberg table, measured from its metadata and manifests."""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

from pyiceberg.manifest import DataFileContent, ManifestFile

from catalog.errors import ForeignFile
from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.formats.iceberg import manifests, sorted_files
from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.scans import live_deletes
from catalog.formats.iceberg.scans.live_deletes import LiveDeletes
from catalog.models import (
    IcebergMetadata,
    Table,
)
from catalog.planning import (
    LARGEST_PARTITIONS,
    PartitionSize,
    Statistics,
    bounded,
    count_by_size,
    has_many_equality_deletes,
    must_sort_all,
)
from catalog.policies import EffectivePolicy
from catalog.services.engine import database_clock
from catalog.services.iceberg import contents as iceberg_contents
from catalog.services.iceberg import metadata_files, parallel_reads
from catalog.services.iceberg.files import TableFileIO
from catalog.services.maintenance.layouts import table_layouts
from catalog.services.storage.table_files import NOBODY, TableFiles

MAX_FILES = 200_000
"""Maximum number of live files to read; larger tables are extrapolated from these."""
_MIN_INPUT_FILES = 5
"""Iceberg's default: rewrite a partition that has at least this many files."""
_MAX_CACHED_TABLES = 256
_MAX_PARTITION_NAME = 200  # characters

_MAX_PLANNED_SNAPSHOTS = 500
_MAX_PLANNED_FILES = 20_000
"""Live files of the manifests to read for the exact plan of a clean-up, a second of work at most."""

_Key = tuple[int, int, tuple[Any, ...]]
_RemovalKey = tuple[int, int, tuple[int, ...]]
_measured: "OrderedDict[_Key, Statistics]" = OrderedDict()
_removals: "OrderedDict[_RemovalKey, tuple[int, int, bool]]" = OrderedDict()


@dataclass(frozen=True, slots=True)
class CurrentMetadata:
    """Current metadata of a table."""

    sequence: int
    location: str
    document: Document
    size: int

    @property
    def snapshot(self) -> Mapping[str, Any] | None:
        current = self.document.get("current-snapshot-id")
        for snapshot in self.document.get("snapshots") or []:
            if snapshot["snapshot-id"] == current:
                return cast(Mapping[str, Any], snapshot)
        return None

    @property
    def metadata_files(self) -> set[str]:
        """The current metadata file and those in the metadata log."""
        log = self.document.get("metadata-log") or []
        return {self.location, *(entry["metadata-file"] for entry in log)}


def measure(
    table: Table, policy: EffectivePolicy, left_out: frozenset[str] = frozenset()
) -> Statistics | None:
    """Measure a table from its metadata and manifests; None if it has no metadata.

    ``left_out`` are files that a job leaves out: they do not count as files to rewrite.

    Of very large tables only a part of the manifests is read. Raises InvalidMetadata for manifests
    that are malformed, and ForeignFile for manifests that the table may not read.
    """
    current = current_metadata(table)
    if current is None:
        return None
    order = _sorting(table, current, policy)
    rules = (
        *compaction_rules(policy).items(),
        policy["min_delete_files"],
        policy["unsorted_ratio"],
    )
    key: _Key = (table.pk, current.sequence, (*rules, order, left_out))
    statistics = _measured.get(key)
    if statistics is None:
        statistics = _measured[key] = _measure(reader_of(table), current, policy, order, left_out)
        if len(_measured) > _MAX_CACHED_TABLES:
            _measured.popitem(last=False)
    expiring = expiring_snapshots(current.document, policy, expire_before_ms(policy))
    return replace(statistics, old_versions=len(expiring), **_removable(table, current, expiring))


def discard_cache() -> None:
    """Measure every table again. For tests, whose tables have equal keys."""
    _measured.clear()
    _removals.clear()


@dataclass(frozen=True, slots=True)
class _Sorting:
    """How to recognize the files that have the sort order of a policy."""

    order_id: int | None
    """The equal sort order of the table."""
    snapshots: frozenset[int]
    """The snapshots in which jobs added files with this order."""

    def has_sorted(self, entry: Entry) -> bool:
        is_marked = self.order_id is not None and entry.file.sort_order_id == self.order_id
        return is_marked or entry.snapshot_id in self.snapshots


def _sorting(table: Table, current: CurrentMetadata, policy: EffectivePolicy) -> _Sorting | None:
    """None if the policy requires no order, or one that the table cannot have."""
    layout = table_layouts.layout_for(current.document, policy)
    if not layout.is_sorted:
        return None
    order_id = sorted_files.order_id(current.document, layout)
    snapshots = table_layouts.sorted_snapshots(table, current.document, layout, order_id)
    return _Sorting(order_id, snapshots)


def _removable(table: Table, current: CurrentMetadata, expiring: Sequence[int]) -> dict[str, Any]:
    """Files and bytes that a clean-up would remove; an estimate if too many manifests would be read."""
    key: _RemovalKey = (table.pk, current.sequence, tuple(expiring))
    if key not in _removals:
        _removals[key] = _count_removable(table, current, expiring)
        if len(_removals) > _MAX_CACHED_TABLES:
            _removals.popitem(last=False)
    files, size, is_estimate = _removals[key]
    return {
        "removable_files": files,
        "removable_bytes": size,
        "removable_is_estimate": is_estimate,
    }


def _count_removable(
    table: Table, current: CurrentMetadata, expiring: Sequence[int]
) -> tuple[int, int, bool]:
    if not expiring:
        return 0, 0, False
    document = current.document
    files = None
    if len(document.get("snapshots") or []) <= _MAX_PLANNED_SNAPSHOTS:
        reader = reader_of(table)
        # Of snapshots whose manifests may not be read, the files are estimated.
        with suppress(ForeignFile):
            files = iceberg_maintenance.files_of(
                document, set(expiring), reader, _MAX_PLANNED_FILES
            )
    if files is None:
        return *iceberg_maintenance.estimated_files_of(document, set(expiring)), True
    own = reader.files.own_paths(files)
    sizes = {path: size for path, size in files.items() if path in own}
    unknown = sorted(own[path] for path, size in sizes.items() if size is None)
    size = sum(filter(None, sizes.values())) + sum(parallel_reads.sizes(unknown).values())
    return len(sizes), size, False


def reader_of(table: Table) -> TableFileIO:
    return TableFileIO(TableFiles(table), NOBODY)


def current_metadata(table: Table) -> CurrentMetadata | None:
    row = IcebergMetadata.objects.filter(table=table).first()
    if row is None:
        return None
    content = bytes(row.answer)
    return CurrentMetadata(
        row.sequence,
        row.metadata_location,
        metadata_files.read_answer(content),
        len(metadata_files.decompress(content)),
    )


def compaction_rules(policy: EffectivePolicy) -> dict[str, Any]:
    return {
        "target": policy["target_bytes"],
        "small_ratio": policy["small_ratio"],
        "min_files": min(policy["min_small_files"], _MIN_INPUT_FILES),
        "deleted_ratio": policy["deleted_ratio"],
    }


def expire_before_ms(policy: EffectivePolicy) -> int:
    return database_clock.cutoff_ms(policy["keep_for"])


def expiring_snapshots(document: Document, policy: EffectivePolicy, older_than: int) -> list[int]:
    return iceberg_maintenance.expiring(
        document,
        older_than=older_than,
        retain_last=policy["keep_versions"],
        now=database_clock.cutoff_ms(0),
    )


def _measure(
    reader: TableFileIO,
    current: CurrentMetadata,
    policy: EffectivePolicy,
    order: _Sorting | None,
    left_out: frozenset[str] = frozenset(),
) -> Statistics:
    snapshot = current.snapshot
    contents = _Contents([], 0, 0, 0, 1.0, live_deletes.survey((), current.document))
    if snapshot is not None and snapshot.get("manifest-list"):
        contents = _read_manifests(reader, current, policy, order, left_out)
    summary: Mapping[str, Any] = (snapshot or {}).get("summary") or {}
    times, deletes = contents.times, contents.deletes
    deleted, total = deletes.deleted_rows, sum(file.rows for file in contents.files)
    size = sum(file.size for file in contents.files)
    keys, files = deletes.equality_keys, len(contents.files)
    if times > 1:  # the totals of the writer are better than those of a part
        deleted = _total(summary, "total-position-deletes", round(deleted * times))
        total = _total(summary, "total-records", round(total * times))
        size = round(size * times)
        keys = _total(summary, "total-equality-deletes", round(keys * times))
        files = _total(summary, "total-data-files", round(files * times))
    min_rows = round(deletes.min_rows * times)
    # Those that are left out stay unsorted, so they are no reason to rewrite the others.
    unsorted = [file for file in contents.files if not (file.is_sorted or file.is_left_out)]
    unsorted_bytes = round(sum(file.size for file in unsorted) * times)
    size = _total(summary, "total-files-size", size)
    is_all = must_sort_all(files=files, unsorted_bytes=unsorted_bytes, size=size, policy=policy)
    rewrite = iceberg_maintenance.compaction(
        contents.files, **compaction_rules(policy), is_all=is_all
    )
    return Statistics(
        format="iceberg",
        version=current.sequence,
        rows=max(total - deleted, 0),
        min_rows=min_rows if deletes.with_equality or times > 1 else None,
        deleted_rows=deleted,
        files=files,
        bytes=size,
        small_files=round(rewrite.small_files * times),
        rewrite_files=round(rewrite.files * times),
        rewrite_bytes=round(rewrite.bytes * times),
        rewritten_files=round(rewrite.files_after * times),
        versions=len(current.document.get("snapshots") or []),
        old_versions=0,
        unsorted_files=round(len(unsorted) * times),
        unsorted_bytes=unsorted_bytes,
        metadata_bytes=current.size,
        manifests=contents.manifests,
        rewritten_manifests=contents.rewritten_manifests,
        delete_files=round(deletes.position_files * times),
        rewritten_delete_files=round(contents.rewritten_delete_files * times),
        equality_delete_files=round(deletes.equality_files * times),
        equality_deletes=keys,
        deletion_vectors=round(deletes.vectors * times),
        dangling_position_deletes=deletes.dangling_position_files,
        dangling_equality_deletes=deletes.dangling_equality_files,
        dangling_vectors=deletes.dangling_vectors,
        file_sizes=count_by_size(file.size for file in contents.files),
        partitions=contents.partitions,
        largest_partitions=contents.largest_partitions,
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """Files and deletes that the manifests of a snapshot list."""

    files: Sequence[iceberg_maintenance.File]
    manifests: int
    rewritten_manifests: int
    rewritten_delete_files: int
    times: float
    """Ratio of the whole table to the part that was read."""
    deletes: LiveDeletes
    partitions: int = 0
    largest_partitions: tuple[PartitionSize, ...] = ()


def _read_manifests(
    io: TableFileIO,
    current: CurrentMetadata,
    policy: EffectivePolicy,
    order: _Sorting | None,
    left_out: frozenset[str],
) -> _Contents:
    document, snapshot = current.document, current.snapshot or {}
    spec = document.get("default-spec-id", 0)
    every = manifests.read_list(io, snapshot["manifest-list"])
    # Delete manifests first: they are few, and the data files are judged by them.
    every.sort(key=lambda manifest: manifest.content != 1)
    total = sum(map(manifests.live_files, every))
    entries = list(islice(_live_entries(io, every), MAX_FILES))
    is_complete = len(entries) < MAX_FILES
    data = [entry for entry in entries if entry.file.content == DataFileContent.DATA]
    deletes = live_deletes.survey(entries, document, is_complete=is_complete, left_out=left_out)
    is_worth_it = has_many_equality_deletes(
        files=deletes.equality_files - deletes.dangling_equality_files,
        keys=deletes.equality_keys,
        rows=sum(entry.file.record_count for entry in data) - deletes.deleted_rows,
        policy=policy,
    )
    files = [
        iceberg_maintenance.File(
            (spec, *_partition(entry)) if entry.spec_id == spec else (),
            entry.file.file_size_in_bytes,
            entry.file.record_count,
            min(deletes.deleted.get(entry.file.file_path, 0), entry.file.record_count),
            is_worth_it and entry.file.file_path in deletes.with_equality,
            order is None or order.has_sorted(entry),
            entry.file.file_path in deletes.left_out,
        )
        for entry in data
    ]
    position_deletes = [
        iceberg_maintenance.DeleteFile(
            (entry.spec_id, *_partition(entry)),
            entry.file.file_size_in_bytes,
            live_deletes.single_data_file(entry),
            entry.file.file_path in left_out,
        )
        for entry in entries
        if entry.file.content == DataFileContent.POSITION_DELETES
        and not entry.is_deletion_vector
        and live_deletes.key_of(entry) not in deletes.dangling
    ]
    live = {
        entry.file.file_path: (entry.spec_id, *_partition(entry))
        for entry in data
        if position_deletes
    }
    properties = document.get("properties") or {}
    return _Contents(
        files,
        len(every),
        iceberg_maintenance.rewritten_manifests(every, spec, properties),
        iceberg_maintenance.rewritten_delete_files(position_deletes, live, properties),
        1.0 if is_complete else max(total / len(entries), 1.0),
        deletes,
        *_partitions(data, document),
    )


def _partitions(data: Sequence[Entry], document: Document) -> tuple[int, tuple[PartitionSize, ...]]:
    """The number of partitions with files, and the largest ones; none if no file has a partition."""
    members: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in data:
        members.setdefault((entry.spec_id, *_partition(entry)), []).append(entry)
    sizes = {
        key: sum(entry.file.file_size_in_bytes for entry in entries)
        for key, entries in members.items()
    }
    largest = heapq.nlargest(LARGEST_PARTITIONS, sizes, key=sizes.__getitem__)
    partitions = tuple(
        PartitionSize(
            iceberg_contents.partition_text(members[key][0], document)[:_MAX_PARTITION_NAME],
            len(members[key]),
            bounded(sizes[key]),
        )
        for key in largest
    )
    if not any(partition.name for partition in partitions):
        return 0, ()
    return len(members), partitions


def _live_entries(io: TableFileIO, every: Sequence[ManifestFile]) -> Iterator[Entry]:
    for entries in manifests.read_each_unchecked(io, every):
        yield from entries


def _partition(entry: Entry) -> tuple[Any, ...]:
    values = entry.file.partition
    return tuple(repr(values[number]) for number in range(len(values)))


def _total(summary: Mapping[str, Any], name: str, otherwise: int) -> int:
    """A total from the snapshot summary, or ``otherwise`` if the writer left it out."""
    try:
        return max(int(summary[name]), 0)
    except (KeyError, TypeError, ValueError):
        return otherwise
