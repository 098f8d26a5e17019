"""The files that jobs removed, in the audit trail of the table to which they belonged."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from django.db import transaction

from catalog.access import Principal
from catalog.models import Job
from catalog.services.engine import audit_records, jobs

ACTION = "table.remove_files"
_PATHS_PER_EVENT = 500


def witness(job: Job) -> Principal:
    """The principal that commits what a job has removed already, although its requester may have lost its rights since."""
    return replace(jobs.principal(job), tables=(job.table_id,), confirm=lambda: None)


def record(job: Job, paths: Iterable[str]) -> None:
    """Record the paths of files that a job has removed, at most 500 in an event.

    Jobs call this after each group of files, so that the trail is complete when a later group fails
    or the worker is killed.
    """
    remaining = iter(paths)
    actor = jobs.principal(job)
    while group := list(islice(remaining, _PATHS_PER_EVENT)):
        after = {"job": job.pk, "files": len(group), "paths": group}
        with transaction.atomic():
            audit_records.record(actor, ACTION, str(job.table), table=job.table, after=after)
