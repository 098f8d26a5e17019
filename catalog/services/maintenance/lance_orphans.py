"""Removal of orphan files of Lance tables, which failed or refused writes leave behind.

Lance lists the files that no manifest in storage refers to, on any branch, but not their age; a
writer that is about to commit has such files as well. Only files that are older than the policy's
``orphan_age`` are removed, one by one. Lance does not know manifests that were staged for versions
that were never created: the ledger says which of those are still needed. Of transactions and deletion
files, Lance lists only those that are older than the oldest version; the manifests say which of the
others are needed.

Nothing is removed while a manifest does not have its final name, by which Lance finds it, nor where
another table has files, nor if the manifest that a branch was created from is missing, because
Lance reads it to find the files that the branch shares.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

from catalog.errors import InvalidTableState, ServiceUnavailable
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import naming as lance_naming
from catalog.models import Job, Table, TableVersion
from catalog.regular_files import NotRegular
from catalog.services.audit import removed_files
from catalog.services.engine import database_clock, jobs, locks
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import Report, Spark
from catalog.services.iceberg import references
from catalog.services.lance.errors import no_panic
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.ledger.needed_files import NeededFiles
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import ref_files
from catalog.services.maintenance import lance_cleanup, lance_retention
from catalog.services.maintenance.lance_compaction import policy_values
from catalog.services.maintenance.removals import lance_files, spark_removal
from catalog.services.maintenance.removals.spark_removal import File
from catalog.services.recovery import purge
from catalog.services.storage import file_references
from catalog.services.storage.file_references import RETIRED
from catalog.services.tables import cleanup_operations
from catalog.storage import locations, stores

log = logging.getLogger(__name__)

_MAX_FILES = 10_000_000
_MAX_LISTED_PATHS = 1000
_MIN_ORPHAN_AGE = 86_400  # lower limit for every job: a slow writer may not have committed yet
_REPORT_EVERY = 100
_ANY_AGE = timedelta(days=36500)
_VERSIONS = "_versions"
_NAMED_BY_MANIFESTS = {"_transactions": "transaction", "_deletions": "deletion"}
"""The directories whose files each manifest names, and the kind of these files for Lance."""
_MANIFESTS_AT_ONCE = 16
_MAX_MANIFEST = 512 * 1024**2  # as the ledger reads them
_STAGED = re.compile(r"[0-9]{1,20}\.manifest-.+")


@dataclass(frozen=True, slots=True)
class _Orphan:
    path: str
    """Relative to the table."""
    kind: str
    size: int


def remove_orphans(job: Job, report: Report, *, spark: Spark | None = None) -> Mapping[str, Any]:
    """Remove orphan files of the job's table, here or on Spark. The job may stop at any file; the next
    run continues.

    Raises ServiceUnavailable while a manifest cannot be renamed to its final name, and OSError when
    the storage fails.
    """
    identifier = jobs.identify(job)
    table = Table.objects.select_related("namespace").get(pk=job.table_id)
    stores.store_of(table.location).require_reachable(table.location)
    if not lance_versions.settle(table):
        raise ServiceUnavailable(
            "A manifest does not have its final name yet, so no files can be removed; retry later"
        )
    reason = _reason_to_skip(table)
    needed = NeededFiles(table, report=partial(jobs.renew_or_stop, job))
    if not reason:
        reason = _update(needed, job)
    if reason:
        nothing = {"orphans": 0, "bytes": 0}
        return {"before": nothing, "after": nothing, "note": f"nothing removed: {reason}"}
    age = max(policy_values(job)["orphan_age"], _MIN_ORPHAN_AGE)
    written_before = database_clock.cutoff(age).timestamp()
    branches = ["", *table.branches.order_by("name").values_list("name", flat=True)]
    orphans = [
        orphan
        for orphan in chain(
            *(
                _unused_staged_manifests(table, branch)
                for branch in branches + _unknown_branches(table)
            ),
            _unreferenced_in(table, branches, written_before, report),
        )
        if _is_older(f"{table.location}/{orphan.path}", written_before)
    ]
    if not job.is_dry_run:  # later commits that need files of the table are refused
        job.result = {RETIRED: {}}
        jobs.save_result(job)
        locks.await_commits(table.pk)
    if reason := _update(needed, job):  # the list may have taken long
        raise InvalidTableState(f"Nothing was removed: {reason}")
    is_referenced = {orphan: needed.needs(f"{table.location}/{orphan.path}") for orphan in orphans}
    referenced = [orphan for orphan in orphans if is_referenced[orphan]]
    orphans = [orphan for orphan in orphans if not is_referenced[orphan]]
    before = {"orphans": len(orphans), "bytes": sum(orphan.size for orphan in orphans)}
    plan = {**before, "paths": [orphan.path for orphan in orphans[:_MAX_LISTED_PATHS]]}
    outcome = {"plan": plan, "before": before, "after": {"orphans": 0, "bytes": 0}}
    if referenced:
        dependents = file_references.describe_dependents(table)
        outcome["note"] = f"{len(referenced)} files retained: {dependents} to them"
    if job.is_dry_run:
        return outcome
    report(0, len(orphans))
    on_spark = spark_removal.choose(
        job, table, policy_values(job), files=len(orphans), report=report, spark=spark
    )
    remover = _Remover(job, table, report) if on_spark is None else on_spark
    try:
        remover.remove_files([(o.path, o.kind, o.size) for o in orphans], written_before)
    finally:
        if remover.files:
            details = {"job": job.pk, "files": remover.files, "bytes": remover.bytes}
            commit(
                [cleanup_operations.RecordOrphans(table=identifier, facts=details)],
                actor=removed_files.witness(job),
            )
            jobs.log_event(job, f"removed {remover.files} files", data=details)
    report(remover.files, len(orphans))
    return {**outcome, "files": remover.files, "bytes": remover.bytes}


@dataclass(slots=True)
class _Remover:
    """Removes files one by one in this process, and counts them."""

    job: Job
    table: Table
    report: Report
    files: int = 0
    bytes: int = 0

    def remove_files(self, files: Sequence[File], written_before: float) -> None:
        """Remove files, and record their paths, except those that were written since."""
        unrecorded: list[str] = []
        store = stores.store_of(self.table.location)
        try:
            for name, _, size in files:
                if self.files % _REPORT_EVERY == 0:
                    self.report(self.files, len(files))
                    removed_files.record(self.job, unrecorded)
                    unrecorded = []
                path = f"{self.table.location}/{name}"
                # Checked again: the file may have been rewritten under the same name meanwhile.
                if _is_older(path, written_before) and store.remove(path):
                    self.files, self.bytes = self.files + 1, self.bytes + size
                    unrecorded.append(path)
        finally:
            removed_files.record(self.job, unrecorded)


def _update(needed: NeededFiles, job: Job) -> str:
    """Read what dependents need; the reason why that is unknown, or an empty string. Raises ServiceUnavailable, OSError."""
    references.require_read(job.table, partial(jobs.renew_or_stop, job))
    try:
        needed.update()
    except InvalidTableState as unknown:
        return unknown.message
    return ""


def _reason_to_skip(table: Table) -> str:
    """The reason why orphans cannot be determined safely, or an empty string."""
    holder = purge.holder(table)
    if holder is not None:
        # The reason does not name the other table: readers of the job may not browse it.
        log.warning("Table '%s' also has files at the location of '%s'", holder, table)
        return "another table also has files at its location"
    misplaced = lance_cleanup.find_misplaced_manifest(table)
    if misplaced:
        return f"the manifest of version {misplaced} is not at its expected path"
    fault = ref_files.find_fault(table.location)
    if fault:
        return fault
    in_storage: dict[str, set[int]] = {}
    for branch in lance_retention.pages(lance_branches.list_branches, table.identifier):
        parent = branch.parent
        if parent not in in_storage:
            in_storage[parent] = lance_files.versions_in_storage(table, parent)
        if branch.parent_version not in in_storage[parent]:
            return (
                f"version {branch.parent_version}, from which branch '{branch.name}' was created, is"
                " missing"
            )
    for name in _unknown_branches(table):
        if lance_files.versions_in_storage(table, name):
            return f"branch '{name}' is not in the catalog"
    return ""


def _unknown_branches(table: Table) -> list[str]:
    """Branches that exist only in storage; a refused branch has at most a staged manifest."""
    ledger_branches = set(table.branches.values_list("name", flat=True))
    in_storage = stores.store_of(table.location).list_branches(table.location)
    return [name for name in in_storage if name not in ledger_branches]


def _unreferenced(table: Table, branch: str) -> Iterator[_Orphan]:
    """Files of a branch that no version refers to, of any age."""
    with no_panic():
        explanation = lance_files.open_branch(table, branch).explain_cleanup_old_versions(
            older_than=_ANY_AGE,
            delete_unverified=True,
            error_if_tagged_old_versions=False,
            include_files=True,
            max_files=_MAX_FILES,
        )
    root = locations.store_path(table.location, "")
    for file in explanation.candidate_files:
        if file.unverified and file.path.startswith(root):
            yield _Orphan(file.path[len(root) :], file.kind, file.size_bytes)


def _unreferenced_in(
    table: Table, branches: Sequence[str], written_before: float, report: Report
) -> Iterator[_Orphan]:
    """Files of the branches that no version refers to: those that Lance lists, and others."""
    listed = set()
    for branch in branches:
        for orphan in _unreferenced(table, branch):
            listed.add(orphan.path)
            yield orphan
    store = stores.store_of(table.location)
    others = {}
    for branch in branches:
        root = lance_naming.versions_directory(branch).removesuffix(_VERSIONS)
        for directory, kind in _NAMED_BY_MANIFESTS.items():
            for file in store.list_files(table.location, f"{root}{directory}"):
                path = f"{root}{directory}/{file.name}"
                if file.modified_at < written_before and path not in listed:
                    others[path] = _Orphan(path, kind, file.size)
    if not others:
        return
    # After the list: what a version needs that was committed meanwhile is not that old.
    named = _named_by_manifests(table, branches, report)
    for path, orphan in others.items():
        # By the name alone, which is random: a branch shares files of its parent's directories.
        if path.rpartition("/")[2] not in named:
            yield orphan


def _named_by_manifests(table: Table, branches: Sequence[str], report: Report) -> set[str]:
    """The names of the transactions and deletion files in all manifests of the branches."""
    store = stores.store_of(table.location)
    sizes = {
        f"{table.location}/{directory}/{file.name}": file.size
        for directory in map(lance_naming.versions_directory, branches)
        for file in store.list_files(table.location, directory)
        if file.name.endswith(".manifest")
    }
    names: set[str] = set()
    paths = sorted(sizes)
    for begin in range(0, len(paths), _MANIFESTS_AT_ONCE):
        report(0, None)
        page = paths[begin : begin + _MANIFESTS_AT_ONCE]
        for content in store.read_ahead(page, _MAX_MANIFEST, sizes).results():
            if isinstance(content, OSError):
                if not stores.is_missing(content):
                    raise content
                continue  # removed meanwhile
            for file in lance_manifest.read(content).files:
                directory, _, name = file.path.rpartition("/")
                if directory in _NAMED_BY_MANIFESTS:
                    names.add(name)
    return names


def _unused_staged_manifests(table: Table, branch: str) -> Iterator[_Orphan]:
    """Staged manifests of versions that were refused or never registered in the catalog."""
    directory = lance_naming.versions_directory(branch)
    files = {
        file.name: file.size
        for file in stores.store_of(table.location).list_files(table.location, directory)
        if _STAGED.fullmatch(file.name)
    }
    if not files:
        return
    # A row still needs a staged manifest that it names because it could not be renamed.
    of_table = TableVersion.objects.filter(table=table)
    for column in ("staged_path", "manifest_path"):
        for path in of_table.filter(**{f"{column}__contains": ".manifest-"}).values_list(
            column, flat=True
        ):
            files.pop(path.rpartition("/")[2], None)
    for name, size in files.items():
        yield _Orphan(f"{directory}/{name}", "manifest", size)


def _is_older(path: str, moment: float) -> bool:
    """True if a file was last written before a moment, by the clock of its storage.

    False if the file is missing, or a link is on its path.
    """
    try:
        return stores.store_of(path).status(path).modified_at < moment
    except NotRegular:
        return False
    except OSError as error:
        if stores.is_missing(error):
            return False
        raise
