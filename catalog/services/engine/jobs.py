"""The rows of jobs: sending, taking, renewing, finishing and canceling them.

The work itself is in ``maintenance``. This module does not depend on it, so operations may create
jobs.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from django.db import Error, IntegrityError, connections, transaction
from django.db.models import Case, F, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Now

from catalog import access, message_broker, tracing
from catalog.access import Principal, tokens
from catalog.errors import CatalogError, PermissionDenied, Unauthenticated
from catalog.identifiers import Identifier
from catalog.models import (
    Engine,
    Job,
    JobEvent,
    JobKind,
    JobStatus,
    Table,
    TableState,
    Transaction,
    TransactionStatus,
)
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import READ_ONLY, Privilege
from catalog.scheduling.holds import retry_delay
from catalog.services.engine import job_queue, locks
from catalog.services.engine.database_clock import after, database_now

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 8  # the last one about an hour after the first
MAX_TAKEN = 20  # a job that kills its worker is not retried forever
_SENT_AT_ONCE = 100
# Beat sends the waiting jobs every 15 s. After a longer wait a message would only make a worker find
# out that the job is done already. The margin covers clocks of workers that differ.
_MESSAGE_SECONDS = 120
_MAX_TEXT = 20_000
LEASE = timedelta(minutes=2)
"""The time after which another worker takes over a job whose worker is silent."""
_HEARTBEAT_SECONDS = 2.0  # the delay until a request to stop is seen and progress is shown
Report = Callable[[int, int | None], None]
"""``report(done, total)``: from any thread, any number of times; raises when the job has to stop."""


class Spark(Protocol):
    """Runs a script of ``tasks/jobs`` in its own Spark driver, and returns its result.

    The worker supplies it, since the catalog works without Spark. ``request`` is the script's input,
    as JSON; the catalog's URL and a token of the job are added. ``on_part`` is called with each part
    of the work that the script has finished, in this thread, before the script ends. Raises the exceptions of ``report``,
    CatalogError for permanent errors (no Java, no Iceberg runtime, a refusal), CommitConflict, and
    RuntimeError when the driver dies.
    """

    def __call__(
        self,
        job: Job,
        script: str,
        request: Mapping[str, Any],
        report: Report,
        *,
        needs_iceberg: bool = False,
        on_part: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> dict[str, Any]: ...


_ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)


class JobCanceled(Exception):
    """The running job has to stop; the message is the reason."""


class JobFailedInPart(Exception):
    """Some of the work is done and stays, some failed; ``result`` has both, as JSON."""

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result


class JobLost(Exception):
    """Another worker has taken the job over."""


def send_jobs(jobs: Sequence[Job]) -> None:
    """Send jobs to the workers. Without a broker nothing is lost: beat sends the jobs again."""
    message_broker.send(
        "tasks.maintenance.run_job",
        [[job.pk] for job in jobs[:_SENT_AT_ONCE]],  # beat sends the others in its next rounds
        expires=_MESSAGE_SECONDS,
        effect=f"{len(jobs)} jobs wait for beat's next round",
    )


def send_waiting_jobs() -> int:
    """Send every job that may run, and requeue those of dead workers; returns the number sent."""
    _requeue_abandoned(Job.objects.all())
    jobs = job_queue.next_jobs(_SENT_AT_ONCE)
    send_jobs(jobs)
    return len(jobs)


def take(pk: int) -> Job | None:
    """Start a job; None: it is over, another worker runs it, an earlier job comes first, or its limit
    is reached."""
    _requeue_abandoned(Job.objects.filter(table__jobs=pk))
    now = database_now()
    try:
        with transaction.atomic():
            # Lock the transaction before its job, as everywhere.
            owner = locks.lock_transaction_of_job(pk)
            if not job_queue.has_room(pk):
                return None
            taken = job_queue.ready(Job.objects.filter(pk=pk)).update(
                status=JobStatus.RUNNING,
                attempts=F("attempts") + 1,
                started_at=now,
                lease_until=after(now, LEASE),
                error="",
                engine=Engine.WORKER,  # unless the work chooses another one
                engine_reason="",
                stages=[],
                spark_ui="",
            )
            if not taken:
                return None
            if owner is not None and owner.status == TransactionStatus.QUEUED:
                owner.status = TransactionStatus.RUNNING
                owner.save(update_fields=["status"])
            return Job.objects.select_related("table__namespace", "transaction").get(pk=pk)
    except IntegrityError:  # another job of the table was taken at the same moment
        return None


def renew(job: Job) -> bool:
    """Renew the lease; returns True if the job has to stop. Raises JobLost."""
    mine = Job.objects.filter(pk=job.pk, status=JobStatus.RUNNING, attempts=job.attempts)
    lease = after(database_now(), LEASE)
    if not mine.update(lease_until=lease, progress=job.progress, total=job.total):
        raise JobLost
    return mine.filter(cancel_requested=True).exists()


def renew_or_stop(job: Job) -> None:
    """Renew the lease. Raises JobCanceled if the job has to stop, and JobLost."""
    if renew(job):
        raise JobCanceled("canceled on request")


def save_result(job: Job) -> None:
    """Store a job's intermediate result, for the attempt that continues it. Raises JobLost."""
    mine = Job.objects.filter(pk=job.pk, status=JobStatus.RUNNING, attempts=job.attempts)
    if not mine.update(result=job.result, progress=job.progress, total=job.total):
        raise JobLost


def identify(job: Job) -> Identifier:
    """The current name of a job's table, which may have been renamed. Raises JobCanceled."""
    table = Table.objects.select_related("namespace").get(pk=job.table_id)
    if table.state == TableState.DROPPED:
        raise JobCanceled("the table was dropped")
    return (*table.namespace.path, table.name)


def finish(job: Job, status: JobStatus, error: str = "") -> None:
    """Record the end of a job, or that it is to be retried (QUEUED)."""
    now = database_now()
    waits = status == JobStatus.QUEUED
    error = _storable(error)
    with transaction.atomic():
        # Only one job at a time sets the transaction's final status.
        owner = locks.lock_transaction_of_job(job.pk)
        mine = Job.objects.filter(pk=job.pk, status=JobStatus.RUNNING, attempts=job.attempts)
        finished = mine.update(
            status=status,
            error=error,
            progress=job.progress,
            total=job.total,
            result=job.result,
            finished_at=None if waits else now,
            # A failed job waits longer before each retry.
            lease_until=after(now, retry_delay(job.attempts)) if waits else None,
        )
        if finished and owner is not None:
            _close_transaction(owner)
    is_failed = status == JobStatus.FAILED
    tracing.annotate({"monodon.job.status": status.value}, error=error if is_failed else "")
    behind = job_queue.ready(Job.objects.filter(table_id=job.table_id).exclude(pk=job.pk))
    send_jobs(list(behind.order_by("pk")[:1]))
    # Workers discard the messages of jobs whose limit is reached.
    send_jobs(job_queue.next_under_limits_of(job))


def cancel_jobs_of(owner: Transaction) -> None:
    """Cancel queued jobs and request running ones to stop. Runs in the caller's transaction."""
    _cancel(owner.jobs.all())


_ACTIVE_JOBS = """
    SELECT id, transaction_id FROM catalog_job
    WHERE table_id = ANY(string_to_array(%s, ',')::bigint[]) AND status IN ('queued', 'running')
"""


def cancel_jobs_of_tables(tables: Collection[Table]) -> None:
    """Cancel all jobs of tables that are dropped. Call it with the tables locked."""
    cursor = hot_cursor()
    cursor.execute(_ACTIVE_JOBS, [",".join(str(table.pk) for table in tables)])
    active = cursor.fetchall()
    if not active:
        return
    owners = locks.lock_transactions({owner for _, owner in active})
    _cancel(Job.objects.filter(pk__in=[pk for pk, _ in active]))
    for owner in owners:
        _close_transaction(owner)


_NEEDED: Mapping[str, Privilege] = {
    JobKind.BACKFILL_COLUMN: Privilege.WRITE,
    JobKind.BUILD_INDEX: Privilege.WRITE,
    JobKind.REFRESH_VIEW: Privilege.WRITE,
}


def principal(job: Job) -> Principal:
    """The principal that requested a job, limited to the rights that the job needs.

    The job has all privileges on its own table, as long as the requester holds the privilege that
    starting the job requires. Elsewhere it may only read, even for an administrator or the catalog
    itself: the key that the requester presented, and its limits, are not stored. Raises
    PermissionDenied when the requester is not a principal.
    """
    requester = _requester(job)
    limited = replace(
        requester,
        everywhere=requester.everywhere & READ_ONLY,
        ceiling=requester.ceiling & READ_ONLY,
        confirm=partial(require_rights, job),
    )
    try:
        require_rights(job)
    except CatalogError:
        return limited
    return replace(limited, tables=(job.table_id,))


def require_rights(job: Job) -> None:
    """Require that the requester may start the job at this moment. Raises CatalogError."""
    # Read again: its owner and its namespace may have changed.
    table = Table.objects.select_related("namespace").get(pk=job.table_id)
    access.require(_requester(job), _NEEDED.get(job.kind, Privilege.MAINTAIN), table)


def _requester(job: Job) -> Principal:
    request = job.transaction
    if request is None:
        raise PermissionDenied(f"Job {job.pk} has no transaction, so nobody requested it")
    requester = access.on_behalf_of(request.actor)
    return replace(requester, request_id=request.request_id, interface="job")


def principal_of_token(token: str) -> Principal:
    """The principal of a job that runs in its own process, from its token.

    Raises Unauthenticated once the attempt is over, canceled or taken over: each commit checks the lease.
    """
    pk, attempt = tokens.read_job_token(token)
    running = Job.objects.filter(pk=pk, attempts=attempt, status=JobStatus.RUNNING)
    holding = running.filter(cancel_requested=False, lease_until__gt=database_now())
    job = holding.select_related("transaction", "table__namespace").first()
    if job is None:
        raise Unauthenticated("The job is over, was canceled, or runs elsewhere")
    kind, leaves_out = job.kind, job.leaves_out_files
    return replace(principal(job), job_kind=kind, job_leaves_out=leaves_out, confirm=lambda: None)


def log_event(
    job: Job,
    message: str,
    level: JobEvent.Level = JobEvent.Level.INFO,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write an entry of the job's log."""
    JobEvent.objects.create(
        job=job, level=level, message=_storable(message), data=None if data is None else dict(data)
    )


def _storable(text: str) -> str:
    """A text as PostgreSQL stores it. Errors of libraries may quote names of any length."""
    return text.replace("\0", "\ufffd")[:_MAX_TEXT]


class LeaseHeartbeat:
    """Renews a running job's lease and stores its progress, in its own thread.

    Lance may work for minutes without reporting progress. In the ``with`` block a request to stop, or the loss
    of the lease or of the requester's rights, is raised at the next ``report``, and replaces any other exception.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._reason: JobCanceled | JobLost | CatalogError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"job-{job.pk}", daemon=True)

    def report(self, done: int, total: int | None = None) -> None:
        """Report progress; from any thread. Raises JobCanceled, JobLost, PermissionDenied."""
        self._job.progress = done
        if total is not None:
            self._job.total = total
        if self._reason is not None:
            raise self._reason

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is not None and self._reason is not None and error is not self._reason:
            raise self._reason from error

    def _run(self) -> None:
        try:
            while self._reason is None and not self._ended.wait(_HEARTBEAT_SECONDS):
                self._beat()
        finally:
            connections.close_all()

    def _beat(self) -> None:
        try:
            if renew(self._job):
                self._reason = JobCanceled("canceled on request")
            elif self._job.kind != JobKind.PURGE_TABLE:  # decided when the table was dropped
                require_rights(self._job)
        except (JobLost, CatalogError) as reason:
            self._reason = reason
        except Error:  # the lease outlasts a failover
            log.warning("The lease of job %s could not be renewed", self._job.pk, exc_info=True)
            connections.close_all()


def _requeue_abandoned(jobs: "QuerySet[Job]") -> None:
    """Requeue jobs whose worker has died, if they have attempts left."""
    abandoned = jobs.filter(status=JobStatus.RUNNING, lease_until__lt=database_now())
    for job in list(abandoned.filter(Q(attempts__gte=MAX_TAKEN) | Q(cancel_requested=True))):
        if job.cancel_requested:
            finish(job, JobStatus.CANCELED, "canceled on request; its worker was gone")
        else:
            finish(job, JobStatus.FAILED, f"its worker was gone, {job.attempts} times")
    Job.objects.filter(pk__in=list(abandoned.values_list("pk", flat=True))).filter(
        status=JobStatus.RUNNING, lease_until__lt=database_now()
    ).update(status=JobStatus.QUEUED, lease_until=None)


def _cancel(jobs: "QuerySet[Job]") -> None:
    waits = Q(status=JobStatus.QUEUED)
    jobs.filter(status__in=_ACTIVE).update(
        cancel_requested=True,
        finished_at=Case(When(waits, then=Now()), default=F("finished_at")),
        lease_until=Case(When(waits, then=Value(None)), default=F("lease_until")),
        status=Case(
            When(waits, then=Value(JobStatus.CANCELED, output_field=TextField())),
            default=F("status"),
        ),
    )


def _close_transaction(owner: Transaction) -> None:
    """Set a transaction's final status once none of its jobs is active."""
    statuses = set(owner.jobs.values_list("status", flat=True))
    if statuses & set(_ACTIVE):
        return
    if JobStatus.FAILED in statuses:
        owner.status = TransactionStatus.FAILED
    elif JobStatus.CANCELED in statuses:
        owner.status = TransactionStatus.CANCELED
    else:
        owner.status = TransactionStatus.SUCCEEDED
    owner.save(update_fields=["status"])
