"""Remove files of Iceberg tables: those of expired snapshots, and orphans."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from catalog.errors import Unsupported
from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.formats.iceberg.reading import Document
from catalog.models import (
    IcebergPath,
    Job,
    Table,
    TableFormat,
    TableState,
    TableVersion,
)
from catalog.models.versions import file_name
from catalog.policies import EffectivePolicy
from catalog.services.audit import removed_files
from catalog.services.engine import database_clock, jobs, locks
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import Report, Spark
from catalog.services.iceberg import parallel_reads, references
from catalog.services.maintenance import iceberg_skips, iceberg_statistics
from catalog.services.maintenance.iceberg_procedures import (
    outcome_of,
    policy_of,
    require_metadata,
    run_procedure,
    statistics_of,
)
from catalog.services.maintenance.iceberg_statistics import (
    CurrentMetadata,
    expire_before_ms,
    expiring_snapshots,
    reader_of,
)
from catalog.services.maintenance.removals import iceberg_snapshots
from catalog.services.recovery import purge
from catalog.services.storage import file_references
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import cleanup_operations
from catalog.storage import locations, stores

log = logging.getLogger(__name__)
_MIN_ORPHAN_AGE = 86_400  # no policy and no parameter goes below
_MAX_LISTED_SNAPSHOTS = 1000
_RETIRE_BATCH = 10_000


def clean_up(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Expire snapshots that the policy no longer retains, and remove their files (expire_snapshots).

    ``bytes`` in the result is the total size of the files that the metadata listed for removal and
    that were removed; it is left out above 200,000 files. Old versions whose metadata files are no
    longer in the metadata log get tombstones in the ledger.

    If manifests of snapshots that expire may not be read for the table, the worker removes these snapshots
    itself, with the files that readable manifests name. If manifests of other snapshots may not be read, any
    file may be needed, so nothing is removed.
    """
    policy = policy_of(job)
    current = require_metadata(job.table)
    _require_gc(current.document)
    older_than = expire_before_ms(policy)
    expiring_ids = expiring_snapshots(current.document, policy, older_than)
    require_no_dependents(job)
    unreadable = iceberg_skips.survey(job)
    retained = unreadable.snapshots.keys() - set(expiring_ids)
    if retained:
        unknown = iceberg_skips.in_snapshots(unreadable, retained)
        reason = f"{unknown}, so the files that these snapshots need are unknown"
        return iceberg_skips.nothing(job, unreadable, "No snapshots were removed", reason)
    if expiring_ids and not unreadable.snapshots:
        _require_manifest_lists(job.table, current.document)
    before = statistics_of(job, policy)
    reader = reader_of(job.table)
    expiring_files = iceberg_maintenance.files_of(
        current.document,
        set(expiring_ids),
        reader,
        iceberg_statistics.MAX_FILES,
        unreadable.metadata,
    )
    own_files = None if expiring_files is None else reader.files.own_paths(expiring_files)
    sizes = None if own_files is None else parallel_reads.sizes(sorted(set(own_files.values())))
    unlogged = _unlogged_versions(job.table, current, policy)
    planned: dict[str, Any] = {
        "snapshots_count": len(expiring_ids),
        "snapshots": expiring_ids[:_MAX_LISTED_SNAPSHOTS],
        "forgotten_versions": len(unlogged),
    }
    if sizes is not None:
        planned |= {"files": len(sizes), "bytes": sum(sizes.values())}
    if (
        expiring_files is not None
        and own_files is not None
        and len(expiring_files) > len(own_files)
    ):
        planned |= {"foreign_files": len(expiring_files) - len(own_files)}
    if unreadable.snapshots and sizes is None:
        reason = (
            "some manifests may not be read for this table, and the files of the others are too many to list, or"
            " a snapshot has no manifest list"
        )
        return iceberg_skips.nothing(job, unreadable, "No snapshots were removed", reason)
    skipped = iceberg_skips.removed_partly(job, unreadable) if unreadable.snapshots else {}
    if job.is_dry_run:
        return {"before": before.as_json(), "planned": planned, **skipped}
    _retire_versions(job, report, unlogged)
    if not expiring_ids:
        note = "no snapshots to expire"
        return {"before": before.as_json(), "planned": planned, "note": note}
    kept_metadata = _metadata_names_in_ledger(job.table)
    if unreadable.snapshots:
        procedure_result = iceberg_snapshots.remove(
            job, current.document, expiring_ids, unreadable.metadata, kept_metadata
        )
    else:
        procedure_result = run_procedure(
            job,
            report,
            spark,
            older_than_ms=older_than,
            retain_last=policy["keep_versions"],
            kept_metadata=kept_metadata,
            on_part=partial(_record_paths, job),
            **_prefixes(job.table),
        )
    removed = sum(
        count or 0
        for name, count in procedure_result.items()
        if name.startswith("deleted_") and name.endswith("_count")
    )
    report(removed, max(removed, 1))
    if removed:
        facts = {"job": job.pk, "files": removed}
        record = cleanup_operations.RecordCleanUp(
            table=jobs.identify(job), format=TableFormat.ICEBERG, facts=facts
        )
        commit([record], actor=removed_files.witness(job))
    outcome = outcome_of(job, policy, before, procedure_result) | {
        "planned": planned,
        "files": removed,
        **skipped,
    }
    if sizes is not None:
        remaining_files = parallel_reads.sizes(list(sizes))
        outcome["bytes"] = sum(size for path, size in sizes.items() if path not in remaining_files)
    return outcome


def remove_orphans(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Remove files below the table's location that no snapshot refers to (remove_orphan_files).

    Metadata files that the ledger names stay. While manifests of a snapshot may not be read for the table,
    any file may be needed, so none is removed. Raises Unsupported if another table may have files there.
    """
    policy = policy_of(job)
    current = require_metadata(job.table)
    _require_gc(current.document)
    require_exclusive_location(job.table, current.document)
    require_no_dependents(job)
    unreadable = iceberg_skips.survey(job)
    if unreadable.snapshots:
        unknown = iceberg_skips.in_snapshots(unreadable, unreadable.snapshots)
        reason = f"{unknown}, so the files that these snapshots need are unknown"
        return iceberg_skips.nothing(job, unreadable, "No orphans were removed", reason)
    _require_manifest_lists(job.table, current.document)
    _require_regular_files(job.table, current.document)
    before = statistics_of(job, policy)
    age = max(policy["orphan_age"], _MIN_ORPHAN_AGE)
    procedure_result = run_procedure(
        job,
        report,
        spark,
        older_than_ms=database_clock.cutoff_ms(age),
        is_dry_run=job.is_dry_run,
        kept_metadata=_metadata_names_in_ledger(job.table),
        on_part=partial(_record_paths, job),
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
            facts={"job": job.pk, **removed},
        )
        commit([record], actor=removed_files.witness(job))
    return outcome_of(job, policy, before, procedure_result) | removed


def require_exclusive_location(table: Table, document: Document) -> None:
    """Raise Unsupported if files at the table's location may belong to another table."""
    held = {table.location, locations.iceberg_path(document["location"])}
    for location in held:
        others = Table.objects.exclude(pk=table.pk)
        holder = others.needed().meeting(location).select_related("namespace").first()
        paths = IcebergPath.objects.exclude(table=table).exclude(table__state=TableState.DROPPED)
        used = paths.meeting(location).select_related("table__namespace").first()
        if holder is None and used is not None:
            holder = used.table
        # A dropped table keeps its files unless it was purged.
        dropped_tables = others.filter(
            state=TableState.DROPPED, location__startswith=location + "/"
        )
        if holder is None:
            holder = next(
                (dropped for dropped in dropped_tables.iterator() if _has_files(dropped.location)),
                None,
            )
        if holder is None:
            holder = purge.holder(table)  # by its metadata files
        if holder is not None:
            # The message does not name the other table: readers of the job may not browse it.
            log.warning("Files in %s of '%s' may belong to table '%s'", location, table, holder)
            raise Unsupported(
                f"Orphans of '{table}' are not removed: files at its location may belong to another"
                " table"
            )


def _has_files(location: str) -> bool:
    store = stores.store_of(location)
    if locations.is_object(location):
        return any(True for _ in store.list_tree(location))
    return store.can_see(location)


def _require_regular_files(table: Table, document: Document) -> None:
    """Raise Unsupported for symbolic links, pipes and devices at the table's location.

    Spark follows links when it lists the location, and its result would name files elsewhere.
    """
    for location in sorted({table.location, locations.iceberg_path(document["location"])}):
        path = stores.store_of(location).find_irregular(location)
        if path is not None:
            raise Unsupported(
                f"Orphans of '{table}' are not removed: '{path}' at its location is not a regular file"
            )


def _require_manifest_lists(table: Table, document: Document) -> None:
    """Raise Unsupported for snapshots that name their manifests themselves, as those of old tables may.

    Spark fails with an internal error when it optimizes the queries of Iceberg's actions for them, and ``clean_up``
    fails only after the snapshots have expired.
    """
    for snapshot in document.get("snapshots") or ():
        if not snapshot.get("manifest-list"):
            raise Unsupported(
                f"Snapshot {snapshot['snapshot-id']} of table '{table}' has no manifest list, so Iceberg's actions"
                " on Spark cannot determine its files. Expire it with another client"
            )


def _require_gc(document: Document) -> None:
    """Raise Unsupported for ``gc.enabled=false``: tables of any catalog may share the files."""
    if str((document.get("properties") or {}).get("gc.enabled", "true")).lower() == "false":
        raise Unsupported("The table has gc.enabled=false, so its files are not removed")


def require_no_dependents(job: Job) -> None:
    """Raise Unsupported if other tables may refer to the table's files.

    Raises ServiceUnavailable and OSError while unread snapshots may refer to them
    (``references.require_read``). While the job runs, no other table may begin to refer to them.
    """
    locks.await_commits(job.table_id)
    references.require_read(job.table, partial(jobs.renew_or_stop, job))
    dependents = file_references.describe_dependents(job.table)
    if dependents:
        raise Unsupported(f"{dependents} to files of '{job.table}', so no files are removed")


def _prefixes(table: Table) -> dict[str, list[str]]:
    """Locations by which the process that deletes files tells the table's files from others."""
    own, foreign = TableFiles(table).prefixes()
    return {"own_prefixes": own, "foreign_prefixes": foreign}


def _record_paths(job: Job, part: Mapping[str, Any]) -> None:
    """Record the files that the driver has removed; all of them belonged to this table."""
    removed_files.record(job, part["removed"])


def _unlogged_versions(
    table: Table, current: CurrentMetadata, policy: EffectivePolicy
) -> list[int]:
    """Versions that are neither in the metadata log nor retained by the policy."""
    before = database_clock.cutoff(policy["keep_for"])
    rows = TableVersion.objects.visible().on("").filter(table=table).with_end()
    old = rows.filter(ended_at__lt=before).values_list("version", "manifest_path")
    newest, logged = current.sequence - policy["keep_versions"], current.metadata_files
    return [
        version
        for version, location in old.iterator()
        if version <= newest and location not in logged
    ]


def _retire_versions(job: Job, report: Report, unlogged: Sequence[int]) -> None:
    """Replace versions with tombstones; the files are removed as orphans once they are old enough."""
    for begin in range(0, len(unlogged), _RETIRE_BATCH):
        report(0, None)
        operation = cleanup_operations.RetireVersions(
            table=jobs.identify(job),
            format=TableFormat.ICEBERG,
            versions=tuple(unlogged[begin : begin + _RETIRE_BATCH]),
            facts={"job": job.pk},
        )
        commit([operation], actor=jobs.principal(job))


def _metadata_names_in_ledger(table: Table) -> list[str]:
    """Names of the metadata files in the ledger.

    Includes those in the metadata log, because they may leave the log before Spark reads it.
    """
    rows = (
        TableVersion.objects.visible().filter(table=table).values_list("manifest_path", flat=True)
    )
    return sorted({file_name(location) for location in rows.iterator()})
