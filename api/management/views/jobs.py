"""Jobs: starting maintenance, following it, stopping it."""

from http import HTTPStatus

from api.management import messages as m
from api.management.operation import ManagementOperation
from catalog import maintenance_actions
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.models import JobStatus, job_kinds
from catalog.services.maintenance import job_control
from catalog.services.maintenance import scheduler as maintenance_scheduler


class StartMaintenance(ManagementOperation):
    """Leave maintenance of a table to a job, whatever its policy's mode and window are."""

    verb = "POST"
    changes = True
    request_model = m.StartMaintenanceRequest
    response_model = m.JobModel
    status = HTTPStatus.ACCEPTED

    def handle(
        self, actor: Principal, body: m.StartMaintenanceRequest, id: Identifier
    ) -> m.JobModel:
        kind = maintenance_actions.require(body.kind).key
        job = maintenance_scheduler.start(
            actor=actor, table=id, kind=kind, is_dry_run=body.dry_run, indexes=body.indexes
        )
        return m.JobModel.of(job_control.find_job(actor=actor, job=job.pk))


class ListJobs(ManagementOperation):
    """Jobs of all kinds, the newest first."""

    response_model = m.JobPage
    query = ("status", "kind", "table", "since", "limit", "page_token")

    def handle(self, actor: Principal, body: None) -> m.JobPage:
        rows, token = job_control.list_jobs(
            actor=actor,
            statuses=self.chosen("status", JobStatus),
            kinds=self.words("kind", job_kinds()),
            table=self.named("table"),
            since=self.moment("since"),
            **self.page,
        )
        return m.JobPage(jobs=[m.JobModel.of(row) for row in rows], next_page_token=token)


class GetJob(ManagementOperation):
    """A job with what was asked, what came of it, and a page of its log."""

    response_model = m.JobWithLog
    query = ("limit", "page_token")

    def handle(self, actor: Principal, body: None, job: int) -> m.JobWithLog:
        row = job_control.find_job(actor=actor, job=job)
        log, token = job_control.list_events(actor=actor, job=row, **self.page)
        return m.JobWithLog.with_log(row, log, token)


class CancelJob(ManagementOperation):
    """Cancel a job that waits, or ask one that runs to stop, with all of its transaction."""

    verb = "POST"
    changes = True
    response_model = m.JobModel

    def handle(self, actor: Principal, body: None, job: int) -> m.JobModel:
        return m.JobModel.of(job_control.cancel_job(actor=actor, job=job))


class RetryJob(ManagementOperation):
    """Ask once more for maintenance that failed or was canceled, as a new job."""

    verb = "POST"
    changes = True
    response_model = m.JobModel
    status = HTTPStatus.ACCEPTED

    def handle(self, actor: Principal, body: None, job: int) -> m.JobModel:
        again = maintenance_scheduler.retry(actor=actor, job=job)
        return m.JobModel.of(job_control.find_job(actor=actor, job=again.pk))


class GetSummary(ManagementOperation):
    """What maintenance did on the last days, and what goes on now."""

    response_model = m.SummaryModel
    query = ("days",)

    def handle(self, actor: Principal, body: None) -> m.SummaryModel:
        days = self.number("days", 30, most=job_control.MAX_DAYS)
        return m.SummaryModel.of(job_control.summarize(actor=actor, days=days))
