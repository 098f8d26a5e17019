"""Files that maintenance of an Iceberg table skips, because they may not be read for the table.

They belong to other tables that the principal who committed them may not read (any more), or are no files of
any table. A job skips them, does the rest, and says so: ``skipped`` in its result, a note, and a warning in its
log. Paths are as the table's own metadata names them. A job that can do no part of its work ends with a note too.
"""

from collections.abc import Collection
from typing import Any

from catalog.models import Job, JobEvent
from catalog.services.engine import jobs
from catalog.services.iceberg.jobs import files
from catalog.services.iceberg.jobs.files import Unreadable
from catalog.services.maintenance.iceberg_procedures import require_metadata

MAX_LEFT_OUT = 10_000
"""The most files that the process of a job can leave out: it gets their paths with the table."""
_MAX_EXAMPLES = 10
_MAX_SNAPSHOTS = 100

Result = dict[str, Any]


def survey(job: Job) -> Unreadable:
    """The files that the job would read, but may not. Nothing is opened but readable lists and manifests.

    Raises InvalidMetadata for one that is damaged.
    """
    return files.survey(job.table, require_metadata(job.table).document, job.kind)


def permit_leaving_out(job: Job, unreadable: Unreadable) -> bool:
    """Let the process of the job load the table although it must leave out files; False if there are none.

    Otherwise the catalog refuses to load such a table for the job. Raises JobLost.
    """
    if unreadable.files or job.leaves_out_files:
        job.result = {"skipped": _facts(unreadable)} if unreadable.files else None
        jobs.save_result(job)
    return bool(unreadable.files)


def reason_to_do_nothing(unreadable: Unreadable) -> str:
    """Why a job that rewrites files of the current snapshot can rewrite none; empty if it can rewrite some."""
    if unreadable.snapshots:
        return (
            f"{_lists(unreadable.metadata)} of the current snapshot may not be read for this table, so"
            " the files that they name are unknown, and commits that keep them are refused"
        )
    if len(unreadable.files) > MAX_LEFT_OUT:
        return f"more than {MAX_LEFT_OUT:,} files may not be read for this table"
    return ""


def left_out(job: Job, unreadable: Unreadable, consequence: str) -> Result:
    """The part of a result for data and delete files that the job leaves out; empty if there are none.

    ``consequence`` completes the note.
    """
    if not unreadable.files:
        return {}
    count = len(unreadable.files)
    return _reported(
        job, unreadable, f"{_number(count, 'file')} may not be read for this table: {consequence}"
    )


def nothing(job: Job, unreadable: Unreadable, effect: str, reason: str) -> Result:
    """The result of a job that can do no part of its work."""
    return _reported(job, unreadable, f"{effect}: {reason}")


def in_snapshots(unreadable: Unreadable, snapshots: Collection[int]) -> str:
    """The snapshots, and what of them may not be read, as a phrase."""
    paths = {path for id_ in snapshots for path in unreadable.snapshots[id_]}
    listed = ", ".join(str(id_) for id_ in sorted(snapshots)[:_MAX_EXAMPLES])
    more = f" and {len(snapshots) - _MAX_EXAMPLES} others" if len(snapshots) > _MAX_EXAMPLES else ""
    noun = "snapshot" if len(snapshots) == 1 else "snapshots"
    return f"{_lists(paths)} of {noun} {listed}{more} may not be read for this table"


def removed_partly(job: Job, unreadable: Unreadable) -> Result:
    """The part of a result for snapshots that are removed although some of their files are unknown."""
    phrase = in_snapshots(unreadable, unreadable.snapshots)
    return _reported(job, unreadable, f"{phrase}: files that only they name were not removed")


def _reported(job: Job, unreadable: Unreadable, note: str) -> Result:
    facts = _facts(unreadable)
    jobs.log_event(job, note, JobEvent.Level.WARNING, facts)
    return {"skipped": facts, "note": note}


def _facts(unreadable: Unreadable) -> Result:
    paths = unreadable.files | unreadable.metadata
    facts: Result = {"foreign_files": len(paths), "examples": sorted(paths)[:_MAX_EXAMPLES]}
    if unreadable.snapshots:
        facts["snapshots"] = sorted(unreadable.snapshots)[:_MAX_SNAPSHOTS]
    return facts


def _lists(paths: Collection[str]) -> str:
    return _number(len(paths), "manifest list or manifest", "manifest lists or manifests")


def _number(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"
