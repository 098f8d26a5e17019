"""Each transition of a job, with all fields that it sets, at a fixed time."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import current_app
from django.db import DatabaseError
from django.db.models import DateTimeField, Value
from kombu.exceptions import OperationalError

from catalog import message_broker
from catalog.access import Principal, tokens
from catalog.errors import PermissionDenied, Unauthenticated
from catalog.models import (
    ApiKey,
    Grant,
    Job,
    JobEvent,
    JobKind,
    JobStatus,
    Table,
    TableState,
    Transaction,
    TransactionStatus,
)
from catalog.models import Principal as Row
from catalog.privileges import READ_ONLY, Privilege, closure
from catalog.services.engine import job_queue, jobs
from tests.factories import make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    for module in (jobs, job_queue):
        monkeypatch.setattr(module, "database_now", lambda: Value(NOW, DateTimeField()))


@pytest.fixture(autouse=True)
def sent(monkeypatch):
    """Messages sent to the broker."""
    messages = []
    monkeypatch.setattr(
        current_app, "send_task", lambda name, **options: messages.append((name, options))
    )
    return messages


@pytest.fixture
def table():
    make_root()
    return make_table("ws", "t")


def make(table, *, change=None, kind="compact", **keys):
    return Job.objects.create(kind=kind, table=table, transaction=change, **keys)


def running(table, **keys):
    lease = {"lease_until": NOW + SECOND, "attempts": 1}
    return make(table, status=JobStatus.RUNNING, **(lease | keys))


def make_change(status=TransactionStatus.QUEUED, actor="etl"):
    return Transaction.objects.create(actor=actor, status=status, request_id="r1")


def state(job, *names):
    job.refresh_from_db()
    return tuple(getattr(job, name) for name in names)


def numbers(sent):
    return [options["args"][0] for _, options in sent]


# -- messages


def test_a_message_names_the_job_and_expires(table, sent):
    jobs.send_jobs([make(table)])
    pk = Job.objects.get().pk
    assert sent == [("tasks.maintenance.run_job", {"args": [pk], "retry": False, "expires": 120})]


def test_at_most_a_hundred_jobs_are_sent_at_once(sent):
    jobs.send_jobs([Job(pk=number) for number in range(101)])
    assert numbers(sent) == list(range(100))


def test_without_a_broker_jobs_remain_queued(monkeypatch, caplog):
    def fail(*args, **options):
        raise OperationalError

    monkeypatch.setattr(current_app, "send_task", fail)
    try:
        jobs.send_jobs([Job(pk=1), Job(pk=2)])
    finally:
        message_broker.resume()
    assert caplog.messages == ["The broker is unavailable; 2 jobs wait for beat's next round"]


def test_queued_jobs_are_sent_oldest_first(table, sent):
    other = make_table("ws", "other")
    later, earlier = make(table, created_at=NOW), make(other, created_at=NOW - SECOND)
    make(table)  # queued after the first job of its table
    assert jobs.send_waiting_jobs() == 2
    assert numbers(sent) == [earlier.pk, later.pk]


@pytest.mark.parametrize(
    ("lease", "is_due"), [(None, True), (-SECOND, True), (timedelta(0), False), (SECOND, False)]
)
def test_a_job_that_is_retried_waits_until_it_is_due(table, sent, lease, is_due):
    job = make(table, lease_until=None if lease is None else NOW + lease)
    assert jobs.send_waiting_jobs() == is_due
    assert (jobs.take(job.pk) is not None) is is_due


# -- workers


def test_a_worker_takes_a_job_with_a_lease(table):
    change = make_change()
    job = make(table, change=change, attempts=2, error="before")
    taken = jobs.take(job.pk)
    assert taken == job
    fields = ("status", "attempts", "started_at", "lease_until", "error")
    assert state(job, *fields) == (JobStatus.RUNNING, 3, NOW, NOW + timedelta(minutes=2), "")
    assert state(change, "status") == (TransactionStatus.RUNNING,)
    assert taken.attempts == 3
    assert jobs.take(job.pk) is None


@pytest.mark.parametrize("status", [TransactionStatus.FAILED, TransactionStatus.CANCELED])
def test_only_a_queued_transaction_begins_to_run(table, status):
    change = make_change(status)
    assert jobs.take(make(table, change=change).pk) is not None
    assert state(change, "status") == (status,)


def test_jobs_of_a_table_are_taken_in_order_and_one_at_a_time(table):
    first, second = make(table), make(table)
    assert jobs.take(second.pk) is None
    assert jobs.take(first.pk) is not None
    assert jobs.take(second.pk) is None
    Job.objects.filter(pk=first.pk).update(status=JobStatus.SUCCEEDED)
    assert jobs.take(second.pk) is not None


def test_a_retry_that_is_not_due_does_not_hold_up_later_jobs(table):
    make(table, lease_until=NOW + SECOND)
    assert jobs.take(make(table).pk) is not None


@pytest.mark.parametrize("status", [s for s in JobStatus if s != JobStatus.QUEUED])
def test_only_queued_jobs_are_taken(table, status):
    job = make(table, status=status, lease_until=NOW + SECOND)
    with unchanged():
        assert jobs.take(job.pk) is None


# -- the lease


def test_the_lease_is_renewed_with_the_progress(table):
    job = running(table)
    job.progress, job.total = 3, 8
    assert jobs.renew(job) is False
    assert state(job, "lease_until", "progress", "total") == (NOW + timedelta(minutes=2), 3, 8)
    Job.objects.update(cancel_requested=True)
    assert jobs.renew(job) is True


def test_an_intermediate_result_is_stored(table):
    job = running(table)
    job.progress, job.total, job.result = 3, 8, {"a": 1}
    jobs.save_result(job)
    assert state(job, "progress", "total", "result", "status") == (3, 8, {"a": 1}, "running")


@pytest.mark.parametrize(
    "change", [{"attempts": 2}, {"status": JobStatus.QUEUED, "lease_until": None}]
)
@pytest.mark.parametrize("step", [jobs.renew, jobs.save_result])
def test_a_worker_that_lost_its_job_changes_and_sends_nothing(table, sent, change, step):
    job = running(table)
    Job.objects.update(**change)
    job.progress, job.result = 3, {"a": 1}
    with unchanged(), pytest.raises(jobs.JobLost):
        step(job)
    with unchanged():
        jobs.finish(job, JobStatus.SUCCEEDED)
    assert sent == []


@pytest.mark.parametrize(
    ("ago", "is_abandoned"), [(SECOND, True), (timedelta(0), False), (-SECOND, False)]
)
def test_the_job_of_a_dead_worker_is_queued_again(table, sent, ago, is_abandoned):
    job = running(table, lease_until=NOW - ago, attempts=jobs.MAX_TAKEN - 1)
    assert jobs.send_waiting_jobs() == is_abandoned
    assert numbers(sent) == [job.pk] * is_abandoned
    expected = (JobStatus.QUEUED, None) if is_abandoned else (JobStatus.RUNNING, NOW - ago)
    assert state(job, "status", "lease_until") == expected


def test_a_worker_takes_over_the_job_of_a_dead_one(table):
    job = running(table, lease_until=NOW - SECOND)
    other = running(make_table("ws", "other"), lease_until=NOW - SECOND)
    assert jobs.take(job.pk).attempts == 2
    assert state(other, "status", "attempts") == (JobStatus.RUNNING, 1)


def test_a_canceled_job_ends_with_its_worker(table):
    change = make_change(TransactionStatus.RUNNING)
    job = running(
        table, change=change, lease_until=NOW - SECOND, cancel_requested=True, attempts=99
    )
    assert jobs.send_waiting_jobs() == 0
    message = "canceled on request; its worker was gone"
    assert state(job, "status", "error", "finished_at") == (JobStatus.CANCELED, message, NOW)
    assert state(change, "status") == (TransactionStatus.CANCELED,)


def test_the_name_of_a_job_is_that_of_its_table_now(table):
    job = make(table)
    Table.objects.update(name="renamed")
    assert jobs.identify(job) == ("ws", "renamed")
    Table.objects.update(state=TableState.DROPPED, dropped_at=NOW)
    with pytest.raises(jobs.JobCanceled, match=r"^the table was dropped$"):
        jobs.identify(job)


# -- the end


def test_the_end_of_a_job_is_recorded(table, sent):
    change = make_change(TransactionStatus.RUNNING)
    job = running(table, change=change)
    behind, last = make(table), make(table)
    job.progress, job.total, job.result = 8, 9, {"a": 1}
    jobs.finish(job, JobStatus.SUCCEEDED, "a remark")
    fields = ("status", "error", "progress", "total", "result", "finished_at", "lease_until")
    assert state(job, *fields) == ("succeeded", "a remark", 8, 9, {"a": 1}, NOW, None)
    assert state(change, "status") == (TransactionStatus.SUCCEEDED,)
    assert numbers(sent) == [behind.pk]
    assert state(last, "status") == (JobStatus.QUEUED,)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 30), (2, 60), (7, 1920)])
def test_a_failed_attempt_is_repeated_after_growing_pauses(table, sent, attempts, seconds):
    change = make_change(TransactionStatus.RUNNING)
    job = running(table, change=change, attempts=attempts)
    jobs.finish(job, JobStatus.QUEUED, "no space")
    fields = ("status", "error", "finished_at", "lease_until")
    due = NOW + timedelta(seconds=seconds)
    assert state(job, *fields) == (JobStatus.QUEUED, "no space", None, due)
    assert state(change, "status") == (TransactionStatus.RUNNING,)
    assert sent == []


Q, R, S, F, C = (
    *(JobStatus.QUEUED, JobStatus.RUNNING),
    *(JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELED),
)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], "Succeeded"),
        ([S, S], "Succeeded"),
        ([F, C], "Failed"),
        ([C], "Canceled"),
        ([F, Q], "Running"),
        ([R], "Running"),
    ],
)
def test_a_transaction_ends_with_its_last_job(table, others, expected):
    change = make_change(TransactionStatus.RUNNING)
    job = running(table, change=change)
    for number, status in enumerate(others):
        make(make_table("ws", f"other{number}"), change=change, status=status)
    jobs.finish(job, JobStatus.SUCCEEDED)
    assert state(change, "status") == (expected,)


def test_queued_jobs_are_canceled_and_running_ones_asked_to_stop(table):
    change = make_change(TransactionStatus.RUNNING)
    run = running(table, change=change)
    queued = make(table, change=change, lease_until=NOW)
    over = make(table, change=change, status=JobStatus.FAILED)
    other = make(table)
    jobs.cancel_jobs_of(change)
    fields = ("status", "cancel_requested", "lease_until")
    assert state(run, *fields) == (JobStatus.RUNNING, True, NOW + SECOND)
    assert run.finished_at is None
    assert state(queued, *fields) == (JobStatus.CANCELED, True, None)
    assert queued.finished_at is not None
    assert state(over, *fields) == (JobStatus.FAILED, False, None)
    assert state(other, *fields) == (JobStatus.QUEUED, False, None)


def test_the_jobs_of_dropped_tables_end_with_their_transactions(table):
    stays = make_table("ws", "stays")
    changes = [make_change(), make_change(TransactionStatus.RUNNING), make_change()]
    queued = make(table, change=changes[0])
    run = running(table, change=changes[1])
    other = make(stays, change=changes[2])
    make(table, status=JobStatus.SUCCEEDED)
    jobs.cancel_jobs_of_tables([table])
    assert [state(job, "status")[0] for job in (queued, run, other)] == [C, R, Q]
    assert [state(change, "status")[0] for change in changes] == ["Canceled", "Running", "Queued"]
    idle = make_table("ws", "idle")
    with unchanged():
        jobs.cancel_jobs_of_tables([idle])


# -- the principal


def requester(*privileges, table):
    row = Row.objects.create(name="etl", kind="service")
    ApiKey.objects.create(name="k", principal=row, digest="k")
    for privilege in privileges:
        Grant.objects.create(principal=row, table=table, mask=closure(privilege).value)
    return row


@pytest.mark.parametrize(
    ("kind", "privilege", "is_enough"),
    [
        ("compact", Privilege.MAINTAIN, True),
        ("compact", Privilege.WRITE, False),
        (JobKind.BUILD_INDEX, Privilege.WRITE, True),
        (JobKind.BUILD_INDEX, Privilege.MAINTAIN, False),
        (JobKind.BACKFILL_COLUMN, Privilege.MAINTAIN, False),
        (JobKind.REFRESH_VIEW, Privilege.MAINTAIN, False),
    ],
)
def test_a_job_has_all_privileges_on_its_table_only(table, kind, privilege, is_enough):
    row = requester(privilege, table=table)
    assert jobs.principal(make(table, change=make_change(), kind=kind)) == Principal(
        "etl",
        request_id="r1",
        ids=(row.pk,),
        ceiling=READ_ONLY,
        tables=(table.pk,) if is_enough else (),
        interface="job",
    )


def test_a_job_that_nobody_requested_has_no_principal(table):
    job = make(table)
    with pytest.raises(PermissionDenied) as refusal:
        jobs.principal(job)
    assert refusal.value.message == f"Job {job.pk} has no transaction, so nobody requested it"


def test_a_token_belongs_to_the_running_attempt(table):
    requester(Privilege.MAINTAIN, table=table)
    job = running(table, change=make_change(), attempts=2)
    principal = jobs.principal_of_token(tokens.issue_job_token(job.pk, 2))
    assert principal == jobs.principal(job)
    assert principal.job_kind == "compact"


@pytest.mark.parametrize(
    "change",
    [
        {"attempts": 3},
        {"status": JobStatus.SUCCEEDED},
        {"cancel_requested": True},
        {"lease_until": NOW},
    ],
)
def test_a_token_ends_with_the_attempt(table, change):
    requester(Privilege.MAINTAIN, table=table)
    job = running(table, change=make_change(), attempts=2)
    token = tokens.issue_job_token(job.pk, 2)
    Job.objects.update(**change)
    with pytest.raises(Unauthenticated) as refusal:
        jobs.principal_of_token(token)
    assert refusal.value.message == "The job is over, was canceled, or runs elsewhere"


# -- the log


def test_events_of_a_job_are_stored(table):
    job = make(table)
    jobs.log_event(job, "began")
    jobs.log_event(job, "failed", JobEvent.Level.ERROR, {"files": 3})
    rows = JobEvent.objects.order_by("pk").values_list("job", "message", "level", "data")
    assert list(rows) == [
        (job.pk, "began", JobEvent.Level.INFO, None),
        (job.pk, "failed", JobEvent.Level.ERROR, {"files": 3}),
    ]


def test_progress_is_reported_to_the_job(table):
    job = Job(pk=1)
    heartbeat = jobs.LeaseHeartbeat(job)
    heartbeat.report(3, 8)
    heartbeat.report(4)
    assert (job.progress, job.total) == (4, 8)


@pytest.mark.parametrize(
    ("kind", "renewal", "reason"),
    [
        ("compact", lambda: True, jobs.JobCanceled("canceled on request")),
        ("compact", lambda: False, PermissionDenied("no longer")),
        (JobKind.PURGE_TABLE, lambda: True, jobs.JobCanceled("canceled on request")),
        (JobKind.PURGE_TABLE, lambda: False, None),  # decided when the table was dropped
    ],
)
def test_a_heartbeat_learns_why_the_job_has_to_stop(table, monkeypatch, kind, renewal, reason):
    def refuse(_: Job) -> None:
        raise PermissionDenied("no longer")

    monkeypatch.setattr(jobs, "renew", lambda _: renewal())
    monkeypatch.setattr(jobs, "require_rights", refuse)
    heartbeat = jobs.LeaseHeartbeat(running(table, kind=kind))
    heartbeat.report(1)
    heartbeat._beat()
    if reason is None:
        heartbeat.report(2)
    else:
        with pytest.raises(type(reason), match=str(reason)):
            heartbeat.report(2)


def test_a_heartbeat_survives_an_outage_of_the_database_but_not_the_loss_of_the_job(
    table, monkeypatch
):
    outcomes, closed = [DatabaseError("away"), jobs.JobLost()], []

    def renew(_: Job) -> bool:
        raise outcomes.pop(0)

    monkeypatch.setattr(jobs, "renew", renew)
    sessions = SimpleNamespace(close_all=lambda: closed.append(True))
    monkeypatch.setattr(jobs, "connections", sessions)
    heartbeat = jobs.LeaseHeartbeat(running(table))
    heartbeat._beat()
    assert closed == [True]
    heartbeat.report(1)
    heartbeat._beat()
    with pytest.raises(jobs.JobLost):
        heartbeat.report(2)


def test_the_thread_of_a_heartbeat_ends_with_its_job_and_its_worker():
    heartbeat = jobs.LeaseHeartbeat(Job(pk=7))
    thread = heartbeat._thread
    assert (thread.daemon, thread.name) == (True, "job-7")
    with heartbeat:
        assert thread.is_alive()
    assert not thread.is_alive()


def test_the_reason_to_stop_replaces_errors_that_follow_from_it():
    canceled, failure = jobs.JobCanceled("canceled on request"), OSError("External error")
    for reason, error, expected in (
        (canceled, failure, canceled),
        (canceled, canceled, canceled),
        (None, failure, failure),
    ):
        heartbeat = jobs.LeaseHeartbeat(Job(pk=7))
        heartbeat._reason = reason
        with pytest.raises(type(expected)) as raised, heartbeat:
            raise error
        assert raised.value is expected
        assert raised.value.__cause__ is (failure if expected is not error else None)
        canceled.__cause__ = None
    heartbeat = jobs.LeaseHeartbeat(Job(pk=7))
    with heartbeat:
        heartbeat._reason = canceled  # the work was done before
