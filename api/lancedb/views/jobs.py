"""Jobs: the long-running work on the tables of the database."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, StrictInt, StrictStr

from api.lancedb.operation import DatabaseOperation
from catalog.access import Principal
from catalog.errors import JobNotFound
from catalog.models import Job, JobKind, JobStatus
from catalog.services.maintenance import job_control

_OBJECT: dict[str, Any] = {"type": "object"}
_STATES = {
    JobStatus.QUEUED: "IN_PROGRESS",
    JobStatus.RUNNING: "IN_PROGRESS",
    JobStatus.SUCCEEDED: "DONE",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELED: "CANCELLED",
}
_LONGEST_NUMBER = 18


class JobRequest(BaseModel):
    """Names a job."""

    job_id: StrictStr


class ListJobsRequest(BaseModel):
    """A page of a list."""

    page_token: StrictStr | None = None
    limit: Annotated[StrictInt, Field(ge=0)] | None = None
    """0: a page of the usual size."""


class _JobOperation(DatabaseOperation):
    request_model: ClassVar[type[BaseModel] | None] = JobRequest
    response_schema: ClassVar[dict[str, Any]] = _OBJECT

    def find(self, actor: Principal, body: JobRequest) -> Job:
        """The job. Raises JobNotFound, also for a job of another database."""
        text = body.job_id
        if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
            raise JobNotFound(text)
        row = job_control.find_job(actor=actor, job=int(text))
        if not self.has_table(row):
            raise JobNotFound(int(text))
        return row

    def has_table(self, row: Job) -> bool:
        return tuple(row.table.identifier[: len(self.database)]) == self.database

    def describe(self, row: Job) -> dict[str, Any]:
        return {
            "job_id": str(row.pk),
            "table": ".".join(self.relative(tuple(row.table.identifier))),
            "job_type": row.kind,
            "creation_ms": int(row.created_at.timestamp() * 1000),
            "created_at_millis": int(row.created_at.timestamp() * 1000),
            "state": _STATES[JobStatus(row.status)],
            "job_state": _STATES[JobStatus(row.status)],
            "result": _result(row),
            **({"failure": {"message": row.error}} if row.status == JobStatus.FAILED else {}),
        }


def _result(row: Job) -> dict[str, Any] | None:
    """The result of a job. Clients read the result of a backfill as RefreshColumnResult."""
    result: dict[str, Any] = row.result or {}
    if row.kind != JobKind.BACKFILL_COLUMN or "source_version" not in result:
        return result or None
    return {
        **result,
        "rows_assigned": result["rows"],
        "rows_failed": 0,  # a row that cannot be evaluated fails the job
        "rows_remaining": result["remaining_rows"],
        "published_version": result.get("version"),
    }


class ListJobs(_JobOperation):
    """List the jobs of the database's tables, newest first, a page at a time.

    A page may be short or empty although there are more.
    """

    request_model = ListJobsRequest

    def handle(self, actor: Principal, body: ListJobsRequest) -> dict[str, Any]:
        rows, token = job_control.list_jobs(
            actor=actor, limit=body.limit, page_token=body.page_token
        )
        return {
            "jobs": [self.describe(row) for row in rows if self.has_table(row)],
            "page_token": token,
        }


class DescribeJob(_JobOperation):
    """Return the state of a job.

    The result and the failure are those of the worker's last attempt.
    """

    def handle(self, actor: Principal, body: JobRequest) -> dict[str, Any]:
        return self.describe(self.find(actor, body))


class CancelJob(_JobOperation):
    """Cancel a queued job, or request a running job to stop.

    All jobs of the same transaction are canceled.
    """

    changes = True

    def handle(self, actor: Principal, body: JobRequest) -> dict[str, Any]:
        row = self.find(actor, body)
        return self.describe(job_control.cancel_job(actor=actor, job=row.pk))
