"""Remove snapshots of an Iceberg table without Spark, with those of their files that are known.

For tables with manifests that may not be read: Iceberg's own action would open them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from catalog.errors import CommitConflict, ForeignFile, RequirementFailed
from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.formats.iceberg.reading import Document
from catalog.models import Job
from catalog.services.audit import removed_files
from catalog.services.engine import jobs
from catalog.services.iceberg import commits
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.shared_files import foreign_files
from catalog.services.maintenance import iceberg_statistics
from catalog.services.recovery import purge
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations

_AT_ONCE = 500
_MAX_LISTED = 1000
_STATISTICS = ("statistics", "partition-statistics")


def remove(
    job: Job,
    document: Document,
    snapshots: Sequence[int],
    unreadable: Collection[str],
    kept_metadata: Collection[str],
) -> dict[str, Any]:
    """Remove snapshots, then those of their own files that no remaining snapshot refers to.

    ``unreadable`` are manifest lists and manifests of these snapshots that are not opened; the files that
    only they name stay. ``kept_metadata`` are names of metadata files, which stay, too. Raises CommitConflict if a
    branch or tag was changed meanwhile. If another snapshot with such manifests was committed meanwhile, no
    files are removed.
    """
    remaining = _commit(job, document, snapshots)
    paths = _files(job, document, remaining, snapshots, unreadable)
    paths = [path for path in paths if not _is_metadata(path, kept_metadata)]
    removal = purge.Removed()
    deleted: list[str] = []
    for begin in range(0, len(paths), _AT_ONCE):
        batch = paths[begin : begin + _AT_ONCE]
        jobs.renew_or_stop(job)
        # Read again, because other tables may have come.
        own = TableFiles(job.table).own_paths(batch)
        try:
            purge.remove_paths(sorted(set(own.values())), removal)
        finally:
            removed = removal.take_paths()
            removed_files.record(job, removed)
            deleted += removed[: max(_MAX_LISTED - len(deleted), 0)]
    return {"deleted_files_count": removal.files, "deleted_files": deleted}


def _commit(job: Job, document: Document, snapshots: Sequence[int]) -> Document:
    """Remove the snapshots from the metadata, and branches and tags that expired with them."""
    refs: Mapping[str, Mapping[str, Any]] = document.get("refs") or {}
    expired = {name: ref for name, ref in refs.items() if ref["snapshot-id"] in snapshots}
    requirements: list[dict[str, Any]] = [
        {"type": "assert-table-uuid", "uuid": document["table-uuid"]}
    ]
    requirements += [
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": ref["snapshot-id"]}
        for name, ref in expired.items()
    ]
    updates: list[dict[str, Any]] = [
        {"action": "remove-snapshot-ref", "ref-name": name} for name in expired
    ]
    updates.append({"action": "remove-snapshots", "snapshot-ids": list(snapshots)})
    change = TableChange(table=jobs.identify(job), requirements=requirements, updates=updates)
    # As the process of a job: the commit is refused if a branch or tag refers to a snapshot by now.
    actor = replace(jobs.principal(job), job_kind=job.kind)
    try:
        return commits.commit_table(actor=actor, change=change).document
    except RequirementFailed as changed:
        raise CommitConflict(changed.message) from changed


def _files(
    job: Job,
    document: Document,
    remaining: Document,
    snapshots: Sequence[int],
    unreadable: Collection[str],
) -> list[str]:
    """The table's own files that only the removed snapshots refer to, as far as they are known.

    Without those that the metadata names through a link: another name of the file may be needed.
    """
    removed = [s for s in document["snapshots"] if s["snapshot-id"] in set(snapshots)]
    both = {
        **remaining,
        "snapshots": [*removed, *(remaining.get("snapshots") or [])],
        **{key: _statistics(document, remaining, key, snapshots) for key in _STATISTICS},
    }
    reader = iceberg_statistics.reader_of(job.table)
    limit = iceberg_statistics.MAX_FILES
    try:
        files = iceberg_maintenance.files_of(both, set(snapshots), reader, limit, unreadable)
    except ForeignFile:
        return []
    own = reader.files.own_paths(files or ())
    needed_elsewhere = foreign_files(job.table, {*own, *own.values()})
    return sorted(
        path
        for path, real in own.items()
        if real not in needed_elsewhere and _literal(path) == real
    )


def _is_metadata(path: str, kept_metadata: Collection[str]) -> bool:
    """True for a metadata file. Whoever names one as a data file does not remove it."""
    name = path.rpartition("/")[2]
    return ".metadata.json" in name or name in kept_metadata


def _statistics(
    document: Document, remaining: Document, key: str, removed: Sequence[int]
) -> list[Mapping[str, Any]]:
    """The statistics of the removed snapshots, and those that the table has now."""
    expired = [file for file in document.get(key) or [] if file["snapshot-id"] in set(removed)]
    return [*expired, *(remaining.get(key) or [])]


def _literal(path: str) -> str:
    """The canonical path of a file as it is written: links are not followed."""
    directory, _, name = path.rpartition("/")
    return f"{locations.literal_directory(directory)}/{name}"
