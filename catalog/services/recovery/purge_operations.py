"""Operations on dropped objects: purge them early, or stop their purge."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from catalog.errors import InvalidTableState, TrashItemNotFound
from catalog.models import (
    GuardedAction,
    Job,
    JobKind,
    JobStatus,
    Table,
    TableKind,
    TransactionStatus,
    TrashItem,
)
from catalog.services.engine import jobs, locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.tables import trash
from catalog.services.tables.approval_gate import GatedOperation

ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)


@dataclass(frozen=True, kw_only=True)
class TrashOperation(Operation):
    """An operation on a dropped table, view, or namespace with everything dropped with it."""

    item: int
    """Primary key of the trash item."""

    def locked(self, batch: Batch, also: Iterable[int] = ()) -> tuple[TrashItem, list[TrashItem]]:
        """Lock and return the item and all items dropped with it, including itself.

        The items have their namespaces and tables loaded. ``also`` are further dropped namespaces
        to lock. Raises TrashItemNotFound, PermissionDenied.
        """
        row = trash.find(self.item)
        trash.require_manage(batch.actor, row)
        items = locks.lock_trash(trash.dropped_together(row), also)
        first = next((item for item in items if item.pk == self.item), None)
        if first is None:
            raise TrashItemNotFound(self.item)
        return first, items


@dataclass(frozen=True, kw_only=True)
class PurgeNow(GatedOperation, TrashOperation):
    """Purge an item early, after a grace period in which ``StopPurge`` can still stop it.

    The result is the list of purge jobs, one per table. Raises TrashItemNotFound, InvalidTableState
    if the purge is already running, and ApprovalRequired.
    """

    name = "PurgeNow"
    action = "trash.purge"

    def apply(self, batch: Batch) -> list[Job]:
        batch.flush()
        first, items = self.locked(batch)
        namespace = trash.containing_namespace(first)
        self.require_approval(
            batch,
            action=GuardedAction.PURGE,
            description=f"purging {first.kind}",
            target=first.target.identifier,
            namespace=namespace,
            state={"items": sorted(item.pk for item in items)},
            below={trash.containing_namespace(item).pk for item in items},
        )
        grace = timedelta(seconds=settings.MONODON_PURGE_GRACE_SECONDS)
        due = batch.now + grace
        purge_jobs = []
        for item in items:
            if item.table is not None and item.table.kind == TableKind.TABLE:
                job = self._schedule_now(batch, item, item.table, due if grace else None)
                if job is None:
                    if item is first:
                        raise InvalidTableState(f"The purge of '{first}' has already begun")
                    continue
                purge_jobs.append(job)
            item.purge_at = due
            item.save(update_fields=["purge_at", "job"])
            batch.record(
                str(item),
                table=item.table,
                after={"purge_at": due.isoformat(), "reason": self.reason},
            )
        return purge_jobs

    def _schedule_now(
        self, batch: Batch, item: TrashItem, table: Table, due: datetime | None
    ) -> Job | None:
        """Return the purge job of a table with its new due time, or None if the job is running."""
        job = item.job
        if job is not None and job.status in ACTIVE:
            waits = Job.objects.filter(pk=job.pk, status=JobStatus.QUEUED)
            if item.purge_begun_at is not None or not waits.update(lease_until=due):
                return None
            job.lease_until = due
        else:
            job = Job.objects.create(
                kind=JobKind.PURGE_TABLE,
                table=table,
                transaction_id=batch.transaction.id,
                lease_until=due,
            )
            batch.transaction.status = TransactionStatus.QUEUED
            item.job = job
        if due is None:
            batch.after_commit(jobs.send_jobs, job)
        return job


@dataclass(frozen=True, kw_only=True)
class StopPurge(TrashOperation):
    """Stop a purge; the item stays in the trash until it is purged. The result is its row.

    Raises TrashItemNotFound, and InvalidTableState once its purge has begun.
    """

    name = "StopPurge"
    action = "trash.keep"

    def apply(self, batch: Batch) -> TrashItem:
        batch.flush()
        first, items = self.locked(batch)
        begun = [item for item in items if item.purge_begun_at is not None]
        if first in begun:
            raise InvalidTableState(f"The purge of '{first}' has already begun")
        stoppable = [item for item in items if item not in begun]
        jobs.cancel_jobs_of_tables([item.table for item in stoppable if item.table is not None])
        for item in stoppable:
            batch.record(
                str(item),
                table=item.table,
                before={"purge_at": item.purge_at and item.purge_at.isoformat()},
            )
            item.purge_at = None
        TrashItem.objects.filter(pk__in=[item.pk for item in stoppable]).update(purge_at=None)
        return first
