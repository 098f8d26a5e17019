"""Clean-up of Lance tables: remove old versions, and the files that only they refer to.

Lance removes files without telling the catalog, but the ledger decides which versions exist. So,
branch by branch:

    1. choose    old versions that nothing holds; Lance says which of them it would remove
    2. retire    one commit replaces them with tombstones: readers no longer get these versions, and
                 no commit is based on them, because a commit checks its base (WriteVersion.base)
    3. settle    every manifest gets its final name, by which Lance finds the files others need
    4. remove    Lance removes exactly these versions, with the files that no other version has; on
                 Spark, Lance lists these files, and executors remove them, the manifests last
    5. record    another commit records the removal; a version that was tagged, or got another holder,
                 between 1 and 4 is restored

Who makes a holder, such as a tag or a branch, afterwards requires in a commit that the version is in the
ledger, so either that commit is refused or step 4 leaves the version out.

A job that is killed after step 2 leaves tombstones whose manifests still exist. The next run removes
them, as it removes versions that a client deleted from the ledger, which leaves their files. No
version is in the ledger without its files, unless they were removed outside the catalog; such
versions get tombstones as well.

A version is old when it has not been the newest for as long as the policy retains versions. So a
reader that opened the newest version has that much time to read it, whenever it was written.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from catalog.errors import InvalidTableState
from catalog.models import Job, JobEvent, Table, TableVersion
from catalog.services.audit import removed_files
from catalog.services.engine import database_clock, jobs, locks
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import Report, Spark
from catalog.services.iceberg import references
from catalog.services.lance.errors import no_panic
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.ledger.needed_files import NeededFiles
from catalog.services.lance.refs import ref_files
from catalog.services.maintenance.lance_compaction import policy_values
from catalog.services.maintenance.lance_retention import count_versions, held_versions, old_versions
from catalog.services.maintenance.removals import lance_files, spark_removal
from catalog.services.maintenance.removals.lance_files import (
    explain,
    newest_versions,
    not_settled,
    open_branch,
    version_of,
    versions_in_storage,
)
from catalog.services.maintenance.removals.spark_removal import Removed, SparkRemoval
from catalog.services.storage import file_references
from catalog.services.storage.file_references import RETIRED
from catalog.services.tables import cleanup_operations
from catalog.storage import stores

Versions = Mapping[str, Collection[int]]
"""By branch; the empty one is main."""


def clean_up(job: Job, report: Report, *, spark: Spark | None = None) -> Mapping[str, Any]:
    """Remove the versions that the job's policy no longer retains, here or on Spark.

    Raises ServiceUnavailable while a manifest cannot be renamed to its final name.
    """
    return _Cleaner(job, report, spark).run()


def find_misplaced_manifest(table: Table) -> str:
    """A version whose manifest is not where Lance looks for it, or an empty string.

    Nothing may be removed from such a table: Lance does not know the files of that version.
    """
    rows = TableVersion.objects.visible().filter(table=table)
    for row in rows.only("branch", "version", "manifest_path").iterator():
        if version_of(table, row.branch, row.manifest_path) != row.version:
            return str(row)
    return ""


@dataclass(slots=True)
class _Removal:
    """Versions and files to remove from a branch."""

    branch: str
    versions: tuple[int, ...]
    """Versions that Lance would remove."""
    visible: tuple[int, ...]
    """Of these, and of versions without a manifest, those that are visible in the ledger."""
    missing: tuple[int, ...]
    """Versions in the ledger whose manifests no longer exist."""
    files: int
    bytes: int

    def figures(self) -> dict[str, Any]:
        return {
            "branch": self.branch,
            "versions": cleanup_operations.ranges(self.versions),
            "missing": cleanup_operations.ranges(self.missing),
            "files": self.files,
            "bytes": self.bytes,
        }


class _Cleaner:
    def __init__(self, job: Job, report: Report, spark: Spark | None) -> None:
        self._job, self._report, self._spark = job, report, spark
        self._on_spark: SparkRemoval | None = None
        self._policy = policy_values(job)
        self._table = Table.objects.select_related("namespace").get(pk=job.table_id)
        self._actor = jobs.principal(job)
        self._store = stores.store_of(self._table.location)
        self._files = self._bytes = self._retained = 0
        self._needed = NeededFiles(self._table, report=partial(jobs.renew_or_stop, job))
        """Files of this table that other tables need."""

    def run(self) -> dict[str, Any]:
        jobs.identify(self._job)
        self._store.require_reachable(self._table.location)
        for branch, retired in (self._job.result or {}).get(RETIRED, {}).items():
            self._restore(branch, retired)
        before = count_versions(self._table, self._policy).figures()
        if not lance_versions.settle(self._table):
            raise not_settled()
        misplaced = find_misplaced_manifest(self._table)
        if misplaced:
            note = (
                f"nothing removed: the manifest of version {misplaced} is not at its expected path"
            )
            return {"before": before, "after": before, "note": note}
        fault = ref_files.find_fault(self._table.location)
        if fault:
            return {"before": before, "after": before, "note": f"nothing removed: {fault}"}
        try:
            self._update_needed()
        except InvalidTableState as unknown:
            return {"before": before, "after": before, "note": f"nothing removed: {unknown}"}
        removals = [removal for branch in self._branches() if (removal := self._choose(branch))]
        outcome: dict[str, Any] = {
            "plan": [removal.figures() for removal in removals],
            "before": before,
        }
        if self._retained:
            dependents = file_references.describe_dependents(self._table)
            outcome["note"] = f"{self._retained} versions retained: {dependents} to their files"
        if self._job.is_dry_run:
            removed = sum(len(removal.visible) for removal in removals)
            expected = {"versions": before["versions"] - removed, "old_versions": 0}
            return {**outcome, "after": expected}
        total = sum(removal.files for removal in removals)
        outcome["planned"] = {
            "files": total,
            "bytes": sum(removal.bytes for removal in removals),
        }
        self._report(0, total)
        self._on_spark = spark_removal.choose(
            self._job,
            self._table,
            self._policy,
            files=total,
            report=self._report,
            spark=self._spark,
        )
        for removal in removals:
            self._report(self._files, total)
            self._remove(removal)
        after = count_versions(self._table, self._policy).figures()
        return {**outcome, "after": after, "files": self._files, "bytes": self._bytes}

    def _update_needed(self) -> None:
        references.require_read(self._table, partial(jobs.renew_or_stop, self._job))
        self._needed.update()

    def _branches(self) -> list[str]:
        """Branches, newest first, so that a branch comes before the one it was created from."""
        names = self._table.branches.order_by("-created_at").values_list("name", flat=True)
        return [*names, ""]

    def _choose(self, branch: str) -> _Removal | None:
        table = self._table
        rows = TableVersion.objects.on(branch).filter(table=table)
        ended = list(rows.with_end().values_list("version", "deleted_at", "ended_at"))
        visible = {version for version, deleted_at, _ in ended if deleted_at is None}
        if not visible:
            return None
        newest = max(visible)
        in_storage = versions_in_storage(table, branch)  # after the rows, whose files exist by then
        if newest not in in_storage:
            text = f"The newest manifest of {branch or 'main'}, version {newest}, is not in storage"
            jobs.log_event(self._job, text, JobEvent.Level.ERROR)
            return None
        old = old_versions(table, self._policy).get(branch, set())
        before = database_clock.cutoff(self._policy["keep_for"])
        tombstones = {
            version
            for version, deleted_at, ended_at in ended
            if deleted_at is not None and version < newest and ended_at is not None
            if ended_at < before
        }
        if tombstones & in_storage:
            old |= tombstones - held_versions(table).get(branch, set())
        missing = visible - in_storage
        requested = sorted(old & in_storage)
        if self._needed:
            requested = self._unneeded(branch, requested)
        removed, files = explain(table, branch, requested, self._needed)
        if not removed and not missing:
            return None
        return _Removal(
            branch,
            tuple(removed),
            tuple(sorted((set(removed) & visible) | missing)),
            tuple(sorted(missing)),
            len(files),
            sum(size for _, _, size in files),
        )

    def _unneeded(self, branch: str, versions: list[int]) -> list[int]:
        """The versions without files that other tables refer to."""
        unneeded = self._needed.unneeded(branch, versions)
        retained = len(versions) - len(unneeded)
        if retained:
            text = f"{retained} versions of {branch or 'main'} retained: other tables refer to their files"
            jobs.log_event(self._job, text, data={"kept": retained})
            self._retained += retained
        return unneeded

    def _remove(self, removal: _Removal) -> None:
        table, branch = jobs.identify(self._job), removal.branch
        job = {"job": self._job.pk}
        # Before dependents are looked for again: later ones are refused (``file_references.require_no_removal``).
        self._job.result = {RETIRED: {branch: list(removal.visible)}}
        jobs.save_result(self._job)
        if removal.visible:
            details = (
                {**job, "missing": cleanup_operations.ranges(removal.missing)}
                if removal.missing
                else job
            )
            retire = cleanup_operations.RetireVersions(
                table=table, branch=branch, versions=removal.visible, facts=details
            )
            commit([retire], actor=self._actor)
        if not removal.versions:
            return
        try:
            # If this worker stalled, another one may have restored versions that were tagged meanwhile.
            jobs.renew_or_stop(self._job)
            if not lance_versions.settle(self._table) or find_misplaced_manifest(self._table):
                # A version that was committed after step 1 may need these files, and Lance does not
                # see it.
                raise not_settled()
            fault = ref_files.find_fault(self._table.location)
            if fault:
                raise InvalidTableState(f"Nothing was removed: {fault}")
            removed = self._remove_files(self._still_removable(removal))
        except Exception:
            self._restore(branch, removal.visible)
            raise
        self._files, self._bytes = self._files + removed.files, self._bytes + removed.bytes
        figures = {
            "versions": removed.versions,
            "files": removed.files,
            "bytes": removed.bytes,
        }
        restored = self._restorable(branch, removal.visible)
        record = cleanup_operations.RecordCleanUp(
            table=table, branch=branch, kept_versions=restored, facts={**job, **figures}
        )
        commit([record], actor=removed_files.witness(self._job))
        level = JobEvent.Level.WARNING if removed.failed else JobEvent.Level.INFO
        text = f"removed {removed.versions} versions of {branch or 'main'}"
        if removed.failed:
            text += f"; {removed.failed} files could not be removed"
        jobs.log_event(self._job, text, level, data=figures)

    def _still_removable(self, removal: _Removal) -> _Removal:
        """The removal without versions that got a holder, or a dependent table, before they were retired.

        Lance knows tags and branches by their files only, of which some are written after the commit.
        """
        branch, table = removal.branch, self._table
        free = set(removal.versions) - held_versions(table).get(branch, set())
        locks.await_commits(table.pk)  # later ones that need files of the table are refused
        self._update_needed()
        if self._needed:  # the removal from another branch may have learned of it
            free.intersection_update(self._needed.unneeded(branch, free))
        return replace(removal, versions=tuple(sorted(free)))

    def _remove_files(self, removal: _Removal) -> Removed:
        """Remove the files that only retired versions refer to, by Lance or by Spark executors."""
        if not removal.versions:
            return Removed(0, 0, 0)
        if self._needed:
            return self._remove_listed(removal)
        if self._on_spark is not None:
            newest = newest_versions(self._table, removal.branch)
            return self._on_spark.remove_versions(removal.branch, removal.versions, newest)
        with no_panic():
            stats = open_branch(self._table, removal.branch).cleanup_old_versions(
                versions=list(removal.versions), error_if_tagged_old_versions=False
            )
        files = stats.old_versions + sum(
            getattr(stats, f"{kind}_files_removed")
            for kind in ("data", "transaction", "index", "deletion")
        )
        return Removed(stats.old_versions, files, stats.bytes_removed, stats.failed_deletes)

    def _remove_listed(self, removal: _Removal) -> Removed:
        """The same where other tables need files: Lance does not know which."""
        _, files = explain(self._table, removal.branch, removal.versions, self._needed)
        if self._on_spark is not None:
            return self._on_spark.remove_listed(files)
        return lance_files.remove(self._table, files, partial(jobs.renew_or_stop, self._job))

    def _restorable(self, branch: str, retired: Collection[int]) -> tuple[int, ...]:
        """Retired versions that were tagged, or became the parent of a branch, meanwhile."""
        present = versions_in_storage(self._table, branch) & set(retired)
        return (
            tuple(sorted(present & held_versions(self._table).get(branch, set())))
            if present
            else ()
        )

    def _restore(self, branch: str, retired: Collection[int]) -> None:
        """Restore versions after an attempt that ended between retirement and removal."""
        if restored := self._restorable(branch, retired):
            table = jobs.identify(self._job)
            record = cleanup_operations.RecordCleanUp(
                table=table, branch=branch, kept_versions=restored, facts={"job": self._job.pk}
            )
            commit([record], actor=removed_files.witness(self._job))
