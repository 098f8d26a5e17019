"""Removing files of Lance tables that no version has: what writers left that died or were refused.

Lance tells which files no manifest in storage refers to, on any branch, but not how old they are; a
writer that is about to commit has such files as well. So only those are removed here that are older
than the policy says, one by one. Manifests that were staged for versions which never came to be are
unknown to Lance: the ledger says which are still needed.

Nothing is removed while a manifest is not at its final name, by which Lance finds it, nor where
another table has files, nor where the manifest that a branch began with is gone, since Lance looks
there for what the branch shares.
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

from catalog import regular_files, storage
from catalog.errors import ServiceUnavailable
from catalog.formats.lance import naming as lance_naming
from catalog.models import Job, Table, TableVersion
from catalog.regular_files import NotRegular
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import Report
from catalog.services.lance import refs as lance_refs
from catalog.services.lance.errors import no_panic
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.maintenance import lance_cleanup, lance_dependents, lance_retention
from catalog.services.maintenance.lance_compaction import policy_values
from catalog.services.recovery import purge
from catalog.services.tables import cleanup_operations

log = logging.getLogger(__name__)

_MAX_FILES = 10_000_000
_MAX_LISTED_PATHS = 1000
_MIN_ORPHAN_AGE = 86_400  # whatever a job is asked: a writer may take its time
_REPORT_EVERY = 100
_ANY_AGE = timedelta(days=36500)
_STAGED = re.compile(r"[0-9]{1,20}\.manifest-.+")


@dataclass(frozen=True, slots=True)
class _Orphan:
    path: str
    """Relative to the table."""
    kind: str
    size: int


def remove_orphans(job: Job, report: Report) -> Mapping[str, Any]:
    """Do the job. It may be stopped at any file; the next run goes on.

    Raises ServiceUnavailable while a manifest cannot be brought to its place, and OSError when the
    storage fails.
    """
    identifier = jobs.identify(job)
    table = Table.objects.select_related("namespace").get(pk=job.table_id)
    storage.require_reachable(table.location)
    if not lance_versions.settle(table):
        raise ServiceUnavailable("A manifest is not at its place yet, so nothing can be removed")
    reason = _reason_to_skip(table)
    referenced_files: frozenset[str] = frozenset()
    if not reason:
        referenced_files = lance_dependents.needed_files(table)
    if reason:
        nothing = {"orphans": 0, "bytes": 0}
        return {"before": nothing, "after": nothing, "note": f"left alone: {reason}"}
    written_before = time.time() - max(policy_values(job)["orphan_age"], _MIN_ORPHAN_AGE)
    branches = ["", *table.branches.order_by("name").values_list("name", flat=True)]
    orphans = [
        orphan
        for orphan in chain(
            *(
                _unused_staged_manifests(table, branch)
                for branch in branches + _unknown_branches(table)
            ),
            *(_unreferenced(table, branch) for branch in branches),
        )
        if _is_older(f"{table.location}/{orphan.path}", written_before)
    ]
    referenced = [
        orphan for orphan in orphans if f"{table.location}/{orphan.path}" in referenced_files
    ]
    orphans = [orphan for orphan in orphans if orphan not in referenced]
    before = {"orphans": len(orphans), "bytes": sum(orphan.size for orphan in orphans)}
    plan = {**before, "paths": [orphan.path for orphan in orphans[:_MAX_LISTED_PATHS]]}
    outcome = {"plan": plan, "before": before, "after": {"orphans": 0, "bytes": 0}}
    if referenced:
        names = lance_dependents.describe(jobs.principal(job), table)
        outcome["note"] = f"{len(referenced)} files stay: the table has dependents: {names}"
    if job.is_dry_run:
        return outcome
    report(0, len(orphans))
    removed = size = 0
    try:
        for orphan in orphans:
            if removed % _REPORT_EVERY == 0:
                report(removed, len(orphans))
            path = f"{table.location}/{orphan.path}"
            # Written again meanwhile, under the same name: no longer what was looked at.
            if _is_older(path, written_before) and _remove(path):
                removed, size = removed + 1, size + orphan.size
    finally:
        if removed:
            details = {"job": job.pk, "files": removed, "bytes": size}
            commit(
                [cleanup_operations.RecordOrphans(table=identifier, facts=details)],
                actor=jobs.principal(job),
            )
            jobs.log_event(job, f"removed {removed} files", data=details)
    report(removed, len(orphans))
    return {**outcome, "files": removed, "bytes": size}


def _reason_to_skip(table: Table) -> str:
    """Why Lance cannot tell what is needed, or empty."""
    holder = purge.holder(table)
    if holder is not None:
        # Whoever may see the job may not be one who may see that table.
        log.warning("Table '%s' has files at the location of '%s' too", holder, table)
        return "another table has files there too"
    misplaced = lance_cleanup.find_misplaced_manifest(table)
    if misplaced:
        return f"the manifest of version {misplaced} lies elsewhere"
    link = regular_files.find_link(table.location)
    if link is not None:
        return lance_cleanup.link_note(link).removeprefix("left alone: ")
    in_storage: dict[str, set[int]] = {}
    for branch in lance_retention.pages(lance_refs.list_branches, table.identifier):
        parent = branch.parent
        if parent not in in_storage:
            in_storage[parent] = lance_cleanup.versions_in_storage(table, parent)
        if branch.parent_version not in in_storage[parent]:
            return f"version {branch.parent_version}, with which '{branch.name}' began, is gone"
    for name in _unknown_branches(table):
        if lance_cleanup.versions_in_storage(table, name):
            return f"the catalog does not know the branch '{name}'"
    return ""


def _unknown_branches(table: Table) -> list[str]:
    """Branches that are in storage alone; one that was refused has no more than a staged manifest."""
    ledger_branches = set(table.branches.values_list("name", flat=True))
    return [name for name in storage.list_branches(table.location) if name not in ledger_branches]


def _unreferenced(table: Table, branch: str) -> Iterator[_Orphan]:
    """The files of a branch that no version has, however young."""
    with no_panic():
        explanation = lance_cleanup.open_branch(table, branch).explain_cleanup_old_versions(
            older_than=_ANY_AGE,
            delete_unverified=True,
            error_if_tagged_old_versions=False,
            include_files=True,
            max_files=_MAX_FILES,
        )
    root = storage.store_path(table.location, "")
    for file in explanation.candidate_files:
        if file.unverified and file.path.startswith(root):
            yield _Orphan(file.path[len(root) :], file.kind, file.size_bytes)


def _unused_staged_manifests(table: Table, branch: str) -> Iterator[_Orphan]:
    """Staged manifests of versions that were refused, or of which the catalog was never told."""
    directory = lance_naming.versions_directory(branch)
    files = {
        file.name: file.size
        for file in storage.list_files(table.location, directory)
        if _STAGED.fullmatch(file.name)
    }
    if not files:
        return
    # A row that names one as it is, because it could not be moved, still needs it.
    of_table = TableVersion.objects.filter(table=table)
    for column in ("staged_path", "manifest_path"):
        for path in of_table.filter(**{f"{column}__contains": ".manifest-"}).values_list(
            column, flat=True
        ):
            files.pop(path.rpartition("/")[2], None)
    for name, size in files.items():
        yield _Orphan(f"{directory}/{name}", "manifest", size)


def _remove(path: str) -> bool:
    """Remove a file of the table, unless a link was put on the way to it meanwhile."""
    try:
        regular_files.unlink(path)
    except NotRegular:
        return False
    except OSError as error:
        if storage.is_missing(error):
            return False
        raise
    return True


def _is_older(path: str, moment: float) -> bool:
    written_at = storage.modified_at(path)
    return written_at is not None and written_at < moment
