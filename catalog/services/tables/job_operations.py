"""Operations that start a job on a table."""

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
    """Start a job on a table, which runs as the actor. The result is the job's row.

    The transaction stays Queued until the job runs and then follows its status. Clients therefore
    get the transaction's id as the id of the job. Subclasses have the name of the spec's operation.
    """

    job: ClassVar[JobKind]

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the job, as JSON; also shown in the audit trail."""

    def apply(self, batch: Batch) -> Job:
        row = self.locked(batch)
        batch.transaction.status = TransactionStatus.QUEUED
        job = self.make_job(row)
        job.transaction_id = batch.transaction.id
        batch.add(job)
        batch.after_commit(jobs.send_jobs, job)
        batch.record(label(self.table), table=row, after=self.facts())
        return job

    def make_job(self, row: Table) -> Job:
        return Job(kind=self.job, table=row, parameters=dict(self.parameters))

    def facts(self) -> dict[str, Any]:
        """Details of the job in the audit trail."""
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
    """Start a maintenance job on a table of either format.

    If the actor has requested an equal job that waits still, the result is that job: a second one
    would find nothing to do.
    """

    name = "MaintainTable"
    action = "maintenance.start"
    privilege = Privilege.MAINTAIN

    kind_of_job: str
    is_dry_run: bool = False
    only_if_idle: bool = False
    """True to refuse the job while another job of the table is active."""
    engine_profile: str = ""
    """Name of the profile of Spark; empty if the job does not use Spark."""
    limit_key: str = ""
    limit: int | None = None
    """Maximum number of running jobs with the same key."""
    planned_bytes: int | None = None
    """Bytes that the plan of a scheduled job reads and writes."""

    def apply(self, batch: Batch) -> Job:
        # Checked under the lock of the table: a concurrent start has committed or waits.
        row = self.locked(batch)
        if self.only_if_idle and self._is_busy(row):
            raise CommitConflict(f"Table '{label(self.table)}' has an active job already")
        return self._equal_job(batch, row) or super().apply(batch)

    def _equal_job(self, batch: Batch, row: Table) -> Job | None:
        """A job that was not started yet and would do the same as the same principal."""
        batch.flush()
        return Job.objects.filter(
            table=row,
            kind=self.kind_of_job,
            parameters=dict(self.parameters),
            is_dry_run=self.is_dry_run,
            status=JobStatus.QUEUED,
            attempts=0,
            cancel_requested=False,
            transaction__actor=batch.actor.name,
        ).first()

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
            engine_profile=self.engine_profile,
            limit_key=self.limit_key,
            limit=self.limit,
            planned_bytes=self.planned_bytes,
        )

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind_of_job, "is_dry_run": self.is_dry_run, **self.parameters}
