"""Jobs: starting maintenance, following it, canceling it."""

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import jobs as s
from api.management.serializers.base import PageQuery
from api.management.viewsets import ManagementViewSet
from catalog import maintenance_actions
from catalog.errors import JobNotFound
from catalog.models import JobEvent
from catalog.services.maintenance import job_control
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.requests.arguments import Overrides


class MaintenanceViewSet(ManagementViewSet):
    operation_ids = {"create": "StartMaintenance"}

    @extend_schema(request=s.StartMaintenanceSerializer, responses={202: s.JobSerializer})
    def create(self, request: Request, id: str) -> Response:
        """Start maintenance of a table as a job.

        The mode and the window of the policy do not apply.
        """
        body = self.read_body(s.StartMaintenanceSerializer)
        job = maintenance_scheduler.start(
            actor=self.principal,
            table=self.identifier,
            kind=maintenance_actions.require(body["kind"]).key,
            is_dry_run=body["dry_run"],
            indexes=body["indexes"],
            overrides=Overrides(
                engine_profile=body["engine_profile"],
                strategy=body["strategy"],
                sort_order=body["sort_order"],
            ),
        )
        row = job_control.find_job(actor=self.principal, job=job.pk)
        return Response(s.JobSerializer.represent(row), status=202)


class JobViewSet(ManagementViewSet):
    lookup_field = "job"
    lookup_value_regex = "[^/]+"
    results_field = "jobs"
    resource = "Job"
    query_classes = {"list": s.JobQuery, "retrieve": PageQuery}

    @extend_schema(responses=s.JobSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List jobs of all kinds, newest first."""
        query = self.query()
        rows = partial(
            job_control.list_jobs,
            actor=self.principal,
            statuses=query["status"],
            kinds=query["kind"],
            table=self.identify(query["table"]) if query["table"] else None,
            since=query["since"],
        )
        return self.page(rows, s.JobSerializer)

    @extend_schema(responses=s.JobWithLogSerializer)
    def retrieve(self, request: Request, job: str) -> Response:
        """Get a job with its parameters, its result, and a page of its log.

        These require `read` on the table; `browse` is enough for status and progress.
        """
        query = self.query()
        row = job_control.find_job(actor=self.principal, job=self._job)
        events: tuple[list[JobEvent], str | None] = ([], None)
        if row.has_details:
            events = job_control.list_events(actor=self.principal, job=row, **query)
        log, token = events
        return Response(s.JobWithLogSerializer.represent(row, log=log, next_page_token=token))

    @extend_schema(request=None, responses=s.JobSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, job: str) -> Response:
        """Cancel a queued job, or request a running job to stop.

        All jobs of the same transaction are canceled.
        """
        row = job_control.cancel_job(actor=self.principal, job=self._job)
        return Response(s.JobSerializer.represent(row))

    @extend_schema(request=None, responses={202: s.JobSerializer})
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, job: str) -> Response:
        """Start failed or canceled maintenance again, as a new job."""
        again = maintenance_scheduler.retry(actor=self.principal, job=self._job)
        row = job_control.find_job(actor=self.principal, job=again.pk)
        return Response(s.JobSerializer.represent(row), status=202)

    @property
    def _job(self) -> int:
        return self.number("job", JobNotFound)


class SummaryViewSet(ManagementViewSet):
    resource = "Summary"
    query_classes = {"retrieve": s.SummaryQuery}

    @extend_schema(responses=s.SummarySerializer)
    def retrieve(self, request: Request) -> Response:
        """Get the results of maintenance in the last days, and the numbers of active jobs."""
        summary = job_control.summarize(actor=self.principal, **self.query())
        return Response(s.SummarySerializer.represent(summary))
