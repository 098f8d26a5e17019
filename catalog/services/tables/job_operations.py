"""Long work on a table, left to a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from catalog.errors import CommitConflict
from catalog.identifiers import label
from catalog.models import Job, JobKind, JobStatus, Table, TransactionStatus
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.batch import Batch
from catalog.services.tables.table_operations import TableOperation


@dataclass(frozen=True, kw_only=True)
class StartJob(TableOperation):
    """Leave work on a table to a job, which runs as the actor. The result is the job's row.

    The transaction stays Queued until the job runs, and then follows it. So its id is what clients
    get as the job's id. Subclasses are named as the spec's operation.
    """

    job: ClassVar[JobKind]

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the job gets, as JSON; the audit trail shows it too."""

    def apply(self, batch: Batch) -> Job:
        row = self.locked(batch)
        batch.transaction.status = TransactionStatus.QUEUED
        job = self.make_job(row)
        job.transaction = batch.transaction
        batch.add(job)
        batch.after_commit(jobs.send_jobs, job)
        batch.record(label(self.table), table=row, after=self.facts())
        return job

    def make_job(self, row: Table) -> Job:
        return Job(kind=self.job, table=row, parameters=dict(self.parameters))

    def facts(self) -> dict[str, Any]:
        """What the audit trail tells of it."""
        return dict(self.parameters)


class StartBuildIndex(StartJob):
    name = "CreateTableIndex"
    action = "index.start_build"
    job = JobKind.BUILD_INDEX


class StartBuildScalarIndex(StartBuildIndex):
    name = "CreateTableScalarIndex"


class StartBackfill(StartJob):
    name = "AlterTableBackfillColumns"
    action = "table.start_backfill"
    job = JobKind.BACKFILL_COLUMN


class StartRefresh(StartJob):
    name = "RefreshMaterializedView"
    action = "materialized_view.start_refresh"
    job = JobKind.REFRESH_VIEW


@dataclass(frozen=True, kw_only=True)
class StartMaintenance(StartJob):
    """Leave maintenance of a table of either format to a job."""

    name = "MaintainTable"
    action = "maintenance.start"
    privilege = Privilege.MAINTAIN

    kind_of_job: JobKind
    is_dry_run: bool = False
    only_if_idle: bool = False
    """Whether it is refused while another job of the table is active."""

    def apply(self, batch: Batch) -> Job:
        # Under the lock of the table: who else starts a job has committed it, or waits.
        if self.only_if_idle and self._is_busy(self.locked(batch)):
            raise CommitConflict(f"Table '{label(self.table)}' has an active job already")
        return super().apply(batch)

    @staticmethod
    def _is_busy(row: Table) -> bool:
        active = [JobStatus.QUEUED, JobStatus.RUNNING]
        return Job.objects.filter(table=row, status__in=active).exists()

    def make_job(self, row: Table) -> Job:
        return Job(
            kind=self.kind_of_job,
            table=row,
            parameters=dict(self.parameters),
            is_dry_run=self.is_dry_run,
        )

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind_of_job, "is_dry_run": self.is_dry_run, **self.parameters}
