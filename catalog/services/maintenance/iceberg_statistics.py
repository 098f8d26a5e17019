"""Statistics of an Iceberg table, measured from its metadata and manifests."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

from pyiceberg.manifest import DataFileContent, ManifestFile

from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.reading import Document
from catalog.models import (
    IcebergMetadata,
    Table,
)
from catalog.planning import Statistics, has_many_equality_deletes
from catalog.policies import EffectivePolicy
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.files import TableFileIO
from catalog.services.storage.table_files import NOBODY, TableFiles

MAX_FILES = 200_000
"""Maximum number of live files to read; larger tables are extrapolated from these."""
_MIN_INPUT_FILES = 5
"""Iceberg's default: rewrite a partition that has at least this many files."""
_DELETED_PATH = 2_147_483_546  # the id of file_path in position delete files
_MAX_CACHED_TABLES = 256

_Key = tuple[int, int, tuple[Any, ...]]
_measured: "OrderedDict[_Key, Statistics]" = OrderedDict()


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


def measure(table: Table, policy: EffectivePolicy) -> Statistics | None:
    """Measure a table from its metadata and manifests; None if it has no metadata.

    Of very large tables only a part of the manifests is read. Raises InvalidMetadata for manifests
    that are malformed, and ForeignFile for manifests that the table may not read.
    """
    current = current_metadata(table)
    if current is None:
        return None
    rules = (*compaction_rules(policy).items(), policy["min_delete_files"])
    key: _Key = (table.pk, current.sequence, rules)
    statistics = _measured.get(key)
    if statistics is None:
        statistics = _measured[key] = _measure(reader_of(table), current, policy)
        if len(_measured) > _MAX_CACHED_TABLES:
            _measured.popitem(last=False)
    return replace(
        statistics,
        old_versions=len(expiring_snapshots(current.document, policy, expire_before_ms(policy))),
    )


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
    return int((time.time() - policy["keep_for"]) * 1000)


def expiring_snapshots(document: Document, policy: EffectivePolicy, older_than: int) -> list[int]:
    return iceberg_maintenance.expiring(
        document,
        older_than=older_than,
        retain_last=policy["keep_versions"],
        now=int(time.time() * 1000),
    )


def _measure(reader: TableFileIO, current: CurrentMetadata, policy: EffectivePolicy) -> Statistics:
    snapshot = current.snapshot
    contents = _Contents([], 0, 0, 0, 0, 0, 0)
    if snapshot is not None and snapshot.get("manifest-list"):
        contents = _read_manifests(reader, snapshot["manifest-list"], current.document, policy)
    rewrite = iceberg_maintenance.compaction(contents.files, **compaction_rules(policy))
    summary: Mapping[str, Any] = (snapshot or {}).get("summary") or {}
    times = contents.times
    deleted = _total(summary, "total-position-deletes", round(contents.deleted_rows * times))
    rows = _total(
        summary, "total-records", round(sum(file.rows for file in contents.files) * times)
    )
    size = _total(
        summary, "total-files-size", round(sum(file.size for file in contents.files) * times)
    )
    return Statistics(
        format="iceberg",
        version=current.sequence,
        rows=max(rows - deleted, 0),
        deleted_rows=deleted,
        files=_total(summary, "total-data-files", round(len(contents.files) * times)),
        bytes=size,
        small_files=round(rewrite.small_files * times),
        rewrite_files=round(rewrite.files * times),
        rewrite_bytes=round(rewrite.bytes * times),
        rewritten_files=round(rewrite.files_after * times),
        versions=len(current.document.get("snapshots") or []),
        old_versions=0,
        metadata_bytes=current.size,
        manifests=contents.manifests,
        rewritten_manifests=contents.rewritten_manifests,
        delete_files=round(contents.delete_files * times),
        rewritten_delete_files=round(contents.rewritten_delete_files * times),
        equality_delete_files=round(contents.equality_delete_files * times),
        equality_deletes=_total(
            summary, "total-equality-deletes", round(contents.equality_deletes * times)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """Files and deletes that the manifests of a snapshot list."""

    files: Sequence[iceberg_maintenance.File]
    manifests: int
    rewritten_manifests: int
    delete_files: int
    """Position delete files, without deletion vectors, which cannot be merged."""
    rewritten_delete_files: int
    deleted_rows: int
    times: float
    """Ratio of the whole table to the part that was read."""
    equality_delete_files: int = 0
    equality_deletes: int = 0
    """Rows in the equality delete files."""


def _read_manifests(
    io: TableFileIO, manifest_list: str, document: Document, policy: EffectivePolicy
) -> _Contents:
    spec = document.get("default-spec-id", 0)
    every = manifests.read_list(io, manifest_list)
    # Delete manifests first: they are few, and the data files are judged by them.
    every.sort(key=lambda manifest: manifest.content != 1)
    total = sum(map(manifests.live_files, every))
    entries = list(islice(_live_entries(io, every), MAX_FILES))
    deleted: dict[str, int] = {}
    deletes: list[iceberg_maintenance.DeleteFile] = []
    deleted_rows = 0
    for entry in entries:
        if entry.file.content != DataFileContent.POSITION_DELETES:
            continue
        deleted_rows += entry.file.record_count
        path = _single_data_file(entry)
        if path:
            deleted[path] = deleted.get(path, 0) + entry.file.record_count
        if not entry.is_deletion_vector:
            group = (entry.spec_id, *_partition(entry))
            deletes.append(
                iceberg_maintenance.DeleteFile(group, entry.file.file_size_in_bytes, path)
            )
    data = [entry for entry in entries if entry.file.content == DataFileContent.DATA]
    equality = _EqualityDeletes(entries, document)
    is_worth_it = has_many_equality_deletes(
        files=equality.files,
        keys=equality.keys,
        rows=sum(entry.file.record_count for entry in data) - deleted_rows,
        policy=policy,
    )
    files = [
        iceberg_maintenance.File(
            (spec, *_partition(entry)) if entry.spec_id == spec else (),
            entry.file.file_size_in_bytes,
            entry.file.record_count,
            min(deleted.get(entry.file.file_path, 0), entry.file.record_count),
            is_worth_it and equality.may_apply(entry),
        )
        for entry in data
    ]
    live = {entry.file.file_path: (entry.spec_id, *_partition(entry)) for entry in data if deletes}
    properties = document.get("properties") or {}
    times = total / len(entries) if len(entries) == MAX_FILES else 1.0
    return _Contents(
        files,
        len(every),
        iceberg_maintenance.rewritten_manifests(every, spec, properties),
        len(deletes),
        iceberg_maintenance.rewritten_delete_files(deletes, live, properties),
        deleted_rows,
        max(times, 1.0),
        equality.files,
        equality.keys,
    )


class _EqualityDeletes:
    """The equality deletes of a snapshot (spec: Scan Planning)."""

    def __init__(self, entries: Sequence[Entry], document: Document) -> None:
        deletes = [
            entry for entry in entries if entry.file.content == DataFileContent.EQUALITY_DELETES
        ]
        self.files = len(deletes)
        self.keys = sum(entry.file.record_count for entry in deletes)
        self._newest: dict[tuple[Any, ...], int] = {}
        partitioned = {
            spec.get("spec-id", 0)
            for spec in document.get("partition-specs") or []
            if any(field["transform"] != "void" for field in spec["fields"])
        }
        for entry in deletes:
            # Deletes of an unpartitioned spec apply to the whole table.
            key = (entry.spec_id, *_partition(entry)) if entry.spec_id in partitioned else ()
            self._newest[key] = max(self._newest.get(key, 0), entry.sequence_number)

    def may_apply(self, data: Entry) -> bool:
        """True if a newer equality delete covers the file's partition or the whole table."""
        keys = ((), (data.spec_id, *_partition(data)))
        return any(self._newest.get(key, 0) > data.sequence_number for key in keys)


def _live_entries(io: TableFileIO, every: Sequence[ManifestFile]) -> Iterator[Entry]:
    for entries in manifests.read_each_unchecked(io, every):
        yield from entries


def _partition(entry: Entry) -> tuple[Any, ...]:
    values = entry.file.partition
    return tuple(repr(values[number]) for number in range(len(values)))


def _single_data_file(entry: Entry) -> str | None:
    """The only data file that a delete file refers to, if there is one (Java's isFileScoped)."""
    if entry.referenced_data_file is not None:
        return entry.referenced_data_file
    low = (entry.file.lower_bounds or {}).get(_DELETED_PATH)
    high = (entry.file.upper_bounds or {}).get(_DELETED_PATH)
    return low.decode("utf-8", "replace") if low is not None and low == high else None


def _total(summary: Mapping[str, Any], name: str, otherwise: int) -> int:
    """A total from the snapshot summary, or ``otherwise`` if the writer left it out."""
    try:
        return max(int(summary[name]), 0)
    except (KeyError, TypeError, ValueError):
        return otherwise
