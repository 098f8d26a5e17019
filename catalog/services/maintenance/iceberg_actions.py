"""Maintenance of Iceberg tables: measuring them, and the jobs that Iceberg's procedures do on Spark.

The procedures come back to this catalog as any client does, with a token of the job. So each of
their commits goes through the commit engine, and none counts once the job has lost its lease.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from django.db.models import Q
from django.utils import timezone
from pyiceberg.manifest import DataFileContent, ManifestFile

from catalog import storage
from catalog.errors import Unsupported
from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.reading import Document
from catalog.models import (
    IcebergMetadata,
    IcebergPath,
    Job,
    JobKind,
    Table,
    TableFormat,
    TableState,
    TableVersion,
)
from catalog.models.versions import file_name
from catalog.planning import Statistics, has_many_equality_deletes
from catalog.policies import EffectivePolicy, Value
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import Report, Spark
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.files import TableFileIO, require_readable
from catalog.services.maintenance import policies
from catalog.services.recovery import purge
from catalog.services.storage import file_references
from catalog.services.storage.table_files import NOBODY, TableFiles
from catalog.services.tables import cleanup_operations

log = logging.getLogger(__name__)

SCRIPT = "iceberg"
_MAX_FILES = 200_000
"""So many live files are looked at; of larger tables the rest is taken to be alike."""
_MIN_FILES = 5
"""Iceberg's own: so many files of one partition are worth being rewritten."""
_DELETED_PATH = 2_147_483_546  # the id of file_path in position delete files
_KNOWN_TABLES = 256
_ORPHAN_AGE = 86_400  # no policy and no parameter goes below
_SHOWN = 1000
_RETIRED_AT_ONCE = 10_000
_RECORDED = 100  # paths of removed files in an audit event

_Key = tuple[int, int, tuple[Any, ...]]
_measured: "OrderedDict[_Key, Statistics]" = OrderedDict()


@dataclass(frozen=True, slots=True)
class _Current:
    """A table's metadata as it is now."""

    sequence: int
    location: str
    document: Document
    size: int

    @property
    def snapshot(self) -> Mapping[str, Any] | None:
        current = self.document.get("current-snapshot-id")
        for snapshot in self.document.get("snapshots") or []:
            if snapshot["snapshot-id"] == current:
                found: Mapping[str, Any] = snapshot
                return found
        return None

    @property
    def metadata_files(self) -> set[str]:
        """Those that the metadata's log has, and the current one."""
        log = self.document.get("metadata-log") or []
        return {self.location, *(entry["metadata-file"] for entry in log)}


def measure(table: Table, policy: EffectivePolicy) -> Statistics | None:
    """What the metadata says of a table; None: there is none.

    Reads the manifests, and of very large tables a part of them. Raises InvalidMetadata for those
    that cannot be read, and ForeignFile for those that may not.
    """
    current = _current(table)
    if current is None:
        return None
    rules = (*_compaction(policy).items(), policy["min_delete_files"])
    key: _Key = (table.pk, current.sequence, rules)
    statistics = _measured.get(key)
    if statistics is None:
        statistics = _measured[key] = _measure(_reader(table), current, policy)
        if len(_measured) > _KNOWN_TABLES:
            _measured.popitem(last=False)
    return replace(
        statistics, old_versions=len(_expiring(current.document, policy, _older_than(policy)))
    )


def _reader(table: Table) -> TableFileIO:
    return TableFileIO(TableFiles(table), NOBODY)


def compact(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Rewrite small files and deleted rows, partition by partition (rewrite_data_files)."""
    policy = _policy(job)
    before = _statistics(job, policy)
    planned = {
        "rewritten_data_files_count": before.rewrite_files,
        "added_data_files_count": before.rewritten_files,
        "rewritten_bytes_count": before.rewrite_bytes,
    }
    if job.is_dry_run:
        return {"before": before.as_json(), "planned": planned}
    if not before.rewrite_files:
        return {"before": before.as_json(), "note": "there was nothing to rewrite"}
    require_readable(job.table, _require_current(job.table).document, JobKind.COMPACT)
    report(0, before.rewrite_files)
    procedure_result = _run(
        job,
        report,
        spark,
        options=_options(before, policy),
        total=before.rewrite_files,
    )
    rewritten = procedure_result.get("rewritten_data_files_count", 0)
    report(rewritten, max(rewritten, 1))
    return _outcome(job, policy, before, procedure_result) | {"planned": planned}


def _options(before: Statistics, policy: EffectivePolicy) -> dict[str, str]:
    options = iceberg_maintenance.compaction_options(**_compaction(policy))
    if has_many_equality_deletes(
        files=before.equality_delete_files,
        keys=before.equality_deletes,
        rows=before.rows,
        policy=policy,
    ):
        # Of equality deletes the procedure counts files alone: any that applies to a data file.
        options["delete-file-threshold"] = "1"
    return options


def clean_up(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Remove snapshots that the policy keeps no longer, and their files (expire_snapshots).

    As many bytes are told as the files had of which the metadata said that they would go, and which
    went; of more than 200,000 files none. The ledger forgets old versions whose metadata files the
    metadata's log has forgotten.
    """
    policy = _policy(job)
    before = _statistics(job, policy)
    current = _require_current(job.table)
    _require_gc(current.document)
    older_than = _older_than(policy)
    expiring = _expiring(current.document, policy, older_than)
    require_no_dependents(job)
    reader = _reader(job.table)
    require_readable(job.table, current.document, JobKind.CLEAN_UP)
    expiring_files = iceberg_maintenance.files_of(
        current.document, set(expiring), reader, _MAX_FILES
    )
    own_files = None if expiring_files is None else reader.files.own_paths(expiring_files)
    sizes = None if own_files is None else _sizes(own_files.values())
    forgotten = _forgotten_versions(job.table, current, policy)
    planned: dict[str, Any] = {
        "snapshots_count": len(expiring),
        "snapshots": expiring[:_SHOWN],
        "forgotten_versions": len(forgotten),
    }
    if sizes is not None:
        planned |= {"files": len(sizes), "bytes": sum(sizes.values())}
    if (
        expiring_files is not None
        and own_files is not None
        and len(expiring_files) > len(own_files)
    ):
        planned |= {"foreign_files": len(expiring_files) - len(own_files)}
    if job.is_dry_run:
        return {"before": before.as_json(), "planned": planned}
    _retire(job, report, forgotten)
    if not expiring:
        note = "every snapshot is to be kept"
        return {"before": before.as_json(), "planned": planned, "note": note}
    procedure_result = _run(
        job,
        report,
        spark,
        older_than_ms=older_than,
        retain_last=policy["keep_versions"],
        **_prefixes(job.table),
    )
    removed = sum(
        count or 0
        for name, count in procedure_result.items()
        if name.startswith("deleted_") and name.endswith("_count")
    )
    report(removed, max(removed, 1))
    _record_removed(job, procedure_result, removed)
    outcome = _outcome(job, policy, before, procedure_result) | {
        "planned": planned,
        "files": removed,
    }
    if sizes is not None:
        outcome["bytes"] = sum(
            size for path, size in sizes.items() if storage.file_size(path) is None
        )
    return outcome


def remove_orphans(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Remove files below the table's location that no snapshot has (remove_orphan_files).

    Metadata files that the ledger names stay. Refused where another table owns anything there. Raises
    Unsupported.
    """
    policy = _policy(job)
    before = _statistics(job, policy)
    current = _require_current(job.table)
    _require_gc(current.document)
    require_alone(job.table, current.document)
    require_no_dependents(job)
    require_readable(job.table, current.document, JobKind.REMOVE_ORPHANS)
    age = max(policy["orphan_age"], _ORPHAN_AGE)
    procedure_result = _run(
        job,
        report,
        spark,
        older_than_ms=int((time.time() - age) * 1000),
        is_dry_run=job.is_dry_run,
        kept_metadata=_metadata_of_ledger(job.table),
        **_prefixes(job.table),
    )
    if job.is_dry_run:
        return {"before": before.as_json(), "planned": procedure_result}
    removed = {
        "files": procedure_result["orphan_files_count"],
        "bytes": procedure_result["orphan_bytes"],
    }
    report(removed["files"], max(removed["files"], 1))
    if removed["files"]:
        record = cleanup_operations.RecordOrphans(
            table=jobs.identify(job),
            format=TableFormat.ICEBERG,
            facts={"job": job.pk, **removed, "paths": procedure_result["orphan_files"][:_RECORDED]},
        )
        commit([record], actor=jobs.principal(job))
    return _outcome(job, policy, before, procedure_result) | removed


def rewrite_manifests(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Make few manifests of many small ones, sorted by partition (rewrite_manifests)."""
    return _simple(job, report, spark, _planned_manifests)


def rewrite_position_deletes(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Merge position delete files, without those of files that are gone."""
    options = {"partial-progress.enabled": "true", "min-input-files": "2"}
    return _simple(job, report, spark, _planned_deletes, options=options)


def compute_statistics(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Compute the distinct values of the columns, into a Puffin file (compute_table_stats)."""
    return _simple(job, report, spark, lambda s: {"rows": s.rows})


Work = Callable[..., dict[str, Any]]
WORK: Mapping[JobKind, Work] = {
    JobKind.COMPACT: compact,
    JobKind.CLEAN_UP: clean_up,
    JobKind.REMOVE_ORPHANS: remove_orphans,
    JobKind.REWRITE_MANIFESTS: rewrite_manifests,
    JobKind.REWRITE_POSITION_DELETES: rewrite_position_deletes,
    JobKind.COMPUTE_STATISTICS: compute_statistics,
}


def require_alone(table: Table, document: Document) -> None:
    """Refuse to look for orphans where files may be another table's. Raises Unsupported."""
    locations = {table.location, storage.iceberg_path(document["location"])}
    for location in locations:
        above = [location, *storage.parents(location)]
        others = Table.objects.exclude(pk=table.pk)
        holder = others.needed().meeting(location).select_related("namespace").first()
        paths = IcebergPath.objects.exclude(table=table).exclude(table__state=TableState.DROPPED)
        used = (
            paths.filter(Q(path__in=above) | Q(path__startswith=location + "/"))
            .select_related("table__namespace")
            .first()
        )
        if holder is None and used is not None:
            holder = used.table
        # A table that was dropped keeps its files, unless they were to be purged.
        dropped_tables = others.filter(
            state=TableState.DROPPED, location__startswith=location + "/"
        )
        if holder is None:
            holder = next(
                (
                    dropped
                    for dropped in dropped_tables.iterator()
                    if Path(dropped.location).exists()
                ),
                None,
            )
        if holder is None:
            holder = purge.holder(table)  # by its metadata files
        if holder is not None:
            # Whoever may see the job may not be one who may see that table.
            log.warning("Files in %s of '%s' may belong to table '%s'", location, table, holder)
            raise Unsupported(
                f"Orphans of '{table}' are not removed: files at its location may belong to another"
                " table"
            )


# --- jobs --------------------------------------------------------------------------------------


def _policy(job: Job) -> EffectivePolicy:
    """What was asked for with the job, else what holds for the table."""
    effective = policies.effective_policy(job.table)
    overrides = job.parameters.get("policy") or {}
    return EffectivePolicy(
        {**effective.values, **{name: Value(value, "the job") for name, value in overrides.items()}}
    )


def _require_current(table: Table) -> _Current:
    current = _current(table)
    if current is None:
        raise Unsupported(f"'{table}' has no metadata")
    return current


def _statistics(job: Job, policy: EffectivePolicy) -> Statistics:
    statistics = measure(job.table, policy)
    if statistics is None:
        raise Unsupported(f"'{job.table}' has no metadata")
    return statistics


def _simple(
    job: Job,
    report: Report,
    spark: Spark | None,
    planned: Callable[[Statistics], dict[str, Any]],
    **request: Any,
) -> dict[str, Any]:
    policy = _policy(job)
    before = _statistics(job, policy)
    if job.is_dry_run:
        return {"before": before.as_json(), "planned": planned(before)}
    if not _has_snapshots(before):
        return {"before": before.as_json(), "note": "the table is empty"}
    require_readable(job.table, _require_current(job.table).document, JobKind(job.kind))
    return _outcome(job, policy, before, _run(job, report, spark, **request))


def _planned_manifests(statistics: Statistics) -> dict[str, Any]:
    return {
        "manifests": statistics.manifests,
        "rewritten_manifests": statistics.rewritten_manifests,
    }


def _planned_deletes(statistics: Statistics) -> dict[str, Any]:
    return {
        "delete_files": statistics.delete_files,
        "rewritten_delete_files": statistics.rewritten_delete_files,
    }


def _has_snapshots(statistics: Statistics) -> bool:
    return statistics.versions > 0


def _run(job: Job, report: Report, spark: Spark | None, **request: Any) -> dict[str, Any]:
    if spark is None:
        raise Unsupported("Maintenance of Iceberg tables needs a worker that runs Spark")
    arguments = {"action": str(job.kind), "table": list(jobs.identify(job)), **request}
    return spark(job, SCRIPT, arguments, report, needs_iceberg=True)


def _outcome(
    job: Job, policy: EffectivePolicy, before: Statistics, procedure_result: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "before": before.as_json(),
        "after": _statistics(job, policy).as_json(),
        "done": dict(procedure_result),
    }


def _require_gc(document: Document) -> None:
    """A table with ``gc.enabled=false`` shares its files with others, whatever catalog has them."""
    if str((document.get("properties") or {}).get("gc.enabled", "true")).lower() == "false":
        raise Unsupported("The table says gc.enabled=false: files of it are not removed")


def require_no_dependents(job: Job) -> None:
    """Refuse to remove files to which other tables may refer. Raises Unsupported."""
    names = file_references.names_of_dependents(jobs.principal(job), job.table)
    if names:
        raise Unsupported(
            f"Table '{job.table}' has dependents: {', '.join(names)}. They refer to its files, so none"
            " of them are removed"
        )


def _prefixes(table: Table) -> dict[str, list[str]]:
    """What the process that deletes files needs to know whose they are."""
    own, foreign = TableFiles(table).prefixes()
    return {"own_prefixes": own, "foreign_prefixes": foreign}


def _record_removed(job: Job, procedure_result: Mapping[str, Any], removed: int) -> None:
    """What was removed stands in the audit trail of the table; all of it was this table's own."""
    if not removed:
        return
    paths = list(procedure_result.get("deleted_files") or [])[:_RECORDED]
    details = {"job": job.pk, "files": removed, "paths": paths}
    record = cleanup_operations.RecordCleanUp(
        table=jobs.identify(job), format=TableFormat.ICEBERG, facts=details
    )
    commit([record], actor=jobs.principal(job))


def _sizes(paths: Collection[str]) -> dict[str, int]:
    """The files that are there, by path, and how large each is."""
    sizes = {}
    for path in paths:
        size = storage.file_size(path)
        if size is not None:
            sizes[path] = size
    return sizes


def _forgotten_versions(table: Table, current: _Current, policy: EffectivePolicy) -> list[int]:
    """Versions of the ledger that the metadata's log has forgotten and the policy does not keep."""
    before = timezone.now() - timedelta(seconds=policy["keep_for"])
    rows = TableVersion.objects.visible().on("").filter(table=table).with_end()
    old = rows.filter(ended_at__lt=before).values_list("version", "manifest_path")
    newest, logged = current.sequence - policy["keep_versions"], current.metadata_files
    return [
        version
        for version, location in old.iterator()
        if version <= newest and location not in logged
    ]


def _retire(job: Job, report: Report, forgotten: Sequence[int]) -> None:
    """Leave tombstones in the ledger; the files go with the orphans, once they are old enough."""
    for begin in range(0, len(forgotten), _RETIRED_AT_ONCE):
        report(0, None)
        operation = cleanup_operations.RetireVersions(
            table=jobs.identify(job),
            format=TableFormat.ICEBERG,
            versions=tuple(forgotten[begin : begin + _RETIRED_AT_ONCE]),
            facts={"job": job.pk},
        )
        commit([operation], actor=jobs.principal(job))


def _metadata_of_ledger(table: Table) -> list[str]:
    """The names of the metadata files that the ledger has.

    Those that the metadata's log has too: it may forget them before Spark looks at it.
    """
    rows = (
        TableVersion.objects.visible().filter(table=table).values_list("manifest_path", flat=True)
    )
    return sorted({file_name(location) for location in rows.iterator()})


# --- measuring ---------------------------------------------------------------------------------


def _current(table: Table) -> _Current | None:
    row = IcebergMetadata.objects.filter(table=table).first()
    if row is None:
        return None
    content = bytes(row.answer)
    return _Current(
        row.sequence,
        row.metadata_location,
        metadata_files.read_answer(content),
        len(metadata_files.decompress(content)),
    )


def _compaction(policy: EffectivePolicy) -> dict[str, Any]:
    return {
        "target": policy["target_bytes"],
        "small_ratio": policy["small_ratio"],
        "min_files": min(policy["min_small_files"], _MIN_FILES),
        "deleted_ratio": policy["deleted_ratio"],
    }


def _older_than(policy: EffectivePolicy) -> int:
    return int((time.time() - policy["keep_for"]) * 1000)


def _expiring(document: Document, policy: EffectivePolicy, older_than: int) -> list[int]:
    return iceberg_maintenance.expiring(
        document,
        older_than=older_than,
        retain_last=policy["keep_versions"],
        now=int(time.time() * 1000),
    )


def _measure(reader: TableFileIO, current: _Current, policy: EffectivePolicy) -> Statistics:
    snapshot = current.snapshot
    contents = _Found([], 0, 0, 0, 0, 0, 0)
    if snapshot is not None and snapshot.get("manifest-list"):
        contents = _read(reader, snapshot["manifest-list"], current.document, policy)
    rewrite = iceberg_maintenance.compaction(contents.files, **_compaction(policy))
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
class _Found:
    """What the manifests of a snapshot say."""

    files: Sequence[iceberg_maintenance.File]
    manifests: int
    rewritten_manifests: int
    delete_files: int
    """Position delete files; deletion vectors are none that could be merged."""
    rewritten_delete_files: int
    deleted_rows: int
    times: float
    """The whole table is so many times what was read."""
    equality_delete_files: int = 0
    equality_deletes: int = 0
    """The keys in them."""


def _read(
    io: TableFileIO, manifest_list: str, document: Document, policy: EffectivePolicy
) -> _Found:
    spec = document.get("default-spec-id", 0)
    every = manifests.read_list(io, manifest_list)
    # Deletes first: they come to few, and tell of the data files.
    every.sort(key=lambda manifest: manifest.content != 1)
    total = sum(map(manifests.live_files, every))
    entries = list(islice(_entries(io, every), _MAX_FILES))
    deleted: dict[str, int] = {}
    deletes: list[iceberg_maintenance.DeleteFile] = []
    deleted_rows = 0
    for entry in entries:
        if entry.file.content != DataFileContent.POSITION_DELETES:
            continue
        deleted_rows += entry.file.record_count
        path = _deletes_of(entry)
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
    times = total / len(entries) if len(entries) == _MAX_FILES else 1.0
    return _Found(
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
            # Of a spec without partitions they apply to the whole table.
            key = (entry.spec_id, *_partition(entry)) if entry.spec_id in partitioned else ()
            self._newest[key] = max(self._newest.get(key, 0), entry.sequence_number)

    def may_apply(self, data: Entry) -> bool:
        """Whether there are any that are newer than a data file, for its partition or for all."""
        keys = ((), (data.spec_id, *_partition(data)))
        return any(self._newest.get(key, 0) > data.sequence_number for key in keys)


def _entries(io: TableFileIO, every: Sequence[ManifestFile]) -> Iterator[Entry]:
    for manifest in every:
        yield from manifests.read_unchecked(io, manifest)


def _partition(entry: Entry) -> tuple[Any, ...]:
    values = entry.file.partition
    return tuple(repr(values[number]) for number in range(len(values)))


def _deletes_of(entry: Entry) -> str | None:
    """The one data file whose rows a delete file deletes, if it is one (Java's isFileScoped)."""
    if entry.referenced_data_file is not None:
        return entry.referenced_data_file
    low = (entry.file.lower_bounds or {}).get(_DELETED_PATH)
    high = (entry.file.upper_bounds or {}).get(_DELETED_PATH)
    return low.decode("utf-8", "replace") if low is not None and low == high else None


def _total(summary: Mapping[str, Any], name: str, otherwise: int) -> int:
    """A total of the snapshot's summary, which writers may leave out."""
    try:
        return max(int(summary[name]), 0)
    except (KeyError, TypeError, ValueError):
        return otherwise
