"""Jobs of any kind: order, lease, principal, and end."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import CommitConflict, InvalidInput, PermissionDenied, ServiceUnavailable
from catalog.models import (
    ApiKey,
    AuditEvent,
    Job,
    JobKind,
    JobStatus,
    Transaction,
    TransactionStatus,
)
from catalog.privileges import NOTHING, READ_ONLY, Privilege
from catalog.services.access import api_keys
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.transactions import SetStatus, alter_transaction, describe_transaction
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations, table_operations
from tests.factories import files, make_root, make_table, stage, unchanged

pytestmark = pytest.mark.usefixtures("warehouse")
T = ("ws", "t")


@pytest.fixture
def sent(monkeypatch) -> list[int]:
    """Ids of the jobs sent to the broker."""
    ids: list[int] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda name, args, **options: ids.append(args[0])
    )
    return ids


@pytest.fixture
def replace_work(monkeypatch):
    """Function that replaces the work of a kind."""

    def put(work, kind: str = JobKind.BUILD_INDEX) -> None:
        monkeypatch.setitem(job_runner._WORK, kind, work)

    return put


def start(*, actor: Principal = SYSTEM, table=T, **parameters) -> Job:
    result = commit(
        [job_operations.StartBuildIndex(table=table, parameters=parameters)], actor=actor
    )
    return Job.objects.get(pk=result.results[0].pk)


def status(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.status, Transaction.objects.get(pk=job.transaction_id).status


def cancel(job: Job) -> None:
    alter_transaction(
        actor=SYSTEM,
        transaction=(str(job.transaction_id),),
        actions=[SetStatus(TransactionStatus.CANCELED)],
    )


def describe(job: Job) -> dict[str, str]:
    facts = describe_transaction(actor=SYSTEM, transaction=(str(job.transaction_id),))
    return {
        name.removeprefix("monodon."): value
        for name, value in facts.properties.items()
        if "job" in name
    }


@pytest.mark.django_db
def test_a_job_follows_its_commit(sent, replace_work):
    make_table(*T)

    def work(job, report):
        report(3, 8)
        assert job.parameters == {"column": "id"}
        assert str(job.table) == "ws.t"
        return {"version": 2, "note": "with a remark"}

    replace_work(work)
    job = start(column="id")
    assert sent == [job.pk]
    assert status(job) == ("queued", "Queued")
    event = AuditEvent.objects.get(action="index.start_build")
    assert (event.target, event.after, event.transaction_id) == (
        "ws.t",
        {"column": "id"},
        job.transaction_id,
    )
    assert describe(job) == {
        "jobs": "1",
        "jobs_over": "0",
        "job_id": str(job.pk),
        "job_kind": "build_index",
        "job_status": "queued",
        "job_progress": "0",
        "job_unit": "rows",
        "job_attempts": "0",
    }
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "Succeeded")
    assert (job.progress, job.total, job.result) == (3, 8, {"version": 2})
    assert describe(job) == {
        "jobs": "1",
        "jobs_over": "1",
        "job_id": str(job.pk),
        "job_kind": "build_index",
        "job_status": "succeeded",
        "job_progress": "3",
        "job_total": "8",
        "job_unit": "rows",
        "job_attempts": "1",
        "job_error": "with a remark",
        "job_result": '{"version": 2}',
    }


@pytest.mark.django_db
def test_starting_a_job_requires_the_write_privilege(sent):
    make_table(*T)
    with unchanged(), pytest.raises(PermissionDenied):
        start(actor=Principal("reader", READ_ONLY))
    assert sent == []


@pytest.mark.django_db
def test_jobs_of_one_table_run_in_order(sent, replace_work):
    make_table(*T)
    make_table("ws", "u")
    first, second, elsewhere = start(), start(), start(table=("ws", "u"))
    ran = []

    def work(job, report):
        job_runner.run_job(second.pk)  # its message arrives early
        ran.append(job.pk)
        assert jobs.send_waiting_jobs() == (1 if job == first else 0)

    replace_work(work)
    job_runner.run_job(second.pk)  # not the next job of the table
    assert ran == []
    sent.clear()
    job_runner.run_job(first.pk)
    assert ran == [first.pk]
    assert sent == [elsewhere.pk, second.pk]  # beat's round, then the next one of the table
    replace_work(lambda job, report: ran.append(job.pk))
    job_runner.run_job(second.pk)
    job_runner.run_job(elsewhere.pk)
    assert ran == [first.pk, second.pk, elsewhere.pk]
    assert {status(job) for job in (first, second, elsewhere)} == {("succeeded", "Succeeded")}


@pytest.mark.django_db
def test_only_one_job_of_a_table_runs_at_a_time(sent):
    make_table(*T)
    first, second = start(), start()
    Job.objects.filter(pk=first.pk).update(status=JobStatus.RUNNING)
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.filter(pk=second.pk).update(status=JobStatus.RUNNING)


@pytest.mark.django_db
def test_jobs_waiting_for_a_retry_are_overtaken(sent, replace_work):
    make_table(*T)
    first, second = start(), start()
    replace_work(lambda job, report: 1 / 0)
    job_runner.run_job(first.pk)
    assert status(first) == ("queued", "Running")
    replace_work(lambda job, report: None)
    job_runner.run_job(second.pk)
    assert status(second) == ("succeeded", "Succeeded")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidInput("no such metric"), ("failed", "Failed")),
        (CommitConflict("others were faster"), ("queued", "Running")),
        (ServiceUnavailable("later"), ("queued", "Running")),
        (OSError("storage is away"), ("queued", "Running")),
    ],
)
def test_permanent_errors_fail_the_job_immediately(sent, replace_work, error, expected):
    make_table(*T)

    def work(job, report):
        raise error

    replace_work(work)
    job = start()
    job_runner.run_job(job.pk)
    assert status(job) == expected
    assert (job.attempts, job.error) == (1, str(error))
    assert describe(job)["job_error"] == str(error)


@pytest.mark.django_db
def test_transient_errors_fail_the_job_after_all_retries(sent, replace_work):
    make_table(*T)

    def work(job, report):
        raise CommitConflict("others were faster")

    replace_work(work)
    job = start()
    for _ in range(jobs.MAX_ATTEMPTS):
        Job.objects.update(lease_until=None)
        job_runner.run_job(job.pk)
    assert status(job) == ("failed", "Failed")
    assert job.attempts == jobs.MAX_ATTEMPTS


@pytest.mark.django_db
def test_an_unknown_kind_fails(sent, monkeypatch):
    monkeypatch.delitem(job_runner._WORK, JobKind.BUILD_INDEX, raising=False)
    make_table(*T)
    job = start()
    job_runner.run_job(job.pk)
    assert status(job) == ("failed", "Failed")
    assert job.error == "This worker runs no jobs of the kind 'Build index'"


@pytest.mark.django_db
def test_a_job_that_kills_its_workers_fails(sent):
    make_table(*T)
    job = start()
    Job.objects.update(
        status=JobStatus.RUNNING,
        attempts=jobs.MAX_TAKEN,
        lease_until=timezone.now() - timedelta(seconds=1),
    )
    assert jobs.send_waiting_jobs() == 0
    assert status(job) == ("failed", "Failed")
    assert job.error == f"its worker was gone, {jobs.MAX_TAKEN} times"


# --- drops


@pytest.mark.django_db
def test_a_drop_cancels_queued_jobs(sent, replace_work):
    stage(make_table(*T), 1)
    waiting = start()
    commit([table_operations.DropTable(table=T)], actor=SYSTEM)
    assert status(waiting) == ("canceled", "Canceled")
    assert waiting.finished_at is not None
    purge = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(waiting.pk)
    job_runner.run_job(purge.pk)
    assert status(purge) == ("succeeded", "Succeeded")


@pytest.mark.django_db
def test_a_purge_waits_for_running_jobs(sent, replace_work):
    table = make_table(*T)
    stage(table, 1)
    running = start()

    def work(job, report):
        commit([table_operations.DropTable(table=T)], actor=SYSTEM)
        purge = Job.objects.get(kind=JobKind.PURGE_TABLE)
        job_runner.run_job(purge.pk)
        assert status(purge) == ("queued", "Queued")
        assert len(files(table.location)) == 1
        assert jobs.renew(job) is True  # as the heartbeat thread does
        raise jobs.JobCanceled("canceled on request")

    replace_work(work)
    job_runner.run_job(running.pk)
    assert status(running) == ("canceled", "Canceled")
    purge = Job.objects.get(kind=JobKind.PURGE_TABLE)
    assert sent[-1] == purge.pk
    job_runner.run_job(purge.pk)
    assert status(purge) == ("succeeded", "Succeeded")
    assert files(table.location) == {}


@pytest.mark.django_db
def test_a_purge_continues_when_the_worker_of_the_running_job_is_gone(sent):
    stage(make_table(*T), 1)
    running = start()
    assert jobs.take(running.pk) is not None
    commit([table_operations.DropTable(table=T)], actor=SYSTEM)
    purge = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(purge.pk)
    assert status(purge)[0] == "queued"
    Job.objects.filter(pk=running.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    job_runner.run_job(purge.pk)
    assert status(purge) == ("succeeded", "Succeeded")
    assert status(running) == ("canceled", "Canceled")


@pytest.mark.django_db
def test_a_deregistered_table_has_no_jobs(sent):
    make_table(*T)
    job = start()
    commit([table_operations.DeregisterTable(table=T)], actor=SYSTEM)
    assert status(job) == ("canceled", "Canceled")


# --- the principal of a job


@pytest.mark.django_db
def test_a_job_acts_for_its_requester(sent, replace_work):
    make_table(*T)
    api_keys.create_api_key(actor=SYSTEM, name="etl")
    job = start(actor=Principal("etl", Privilege.ALL, request_id="r-1"))
    job = Job.objects.select_related("transaction").get(pk=job.pk)
    principal = jobs.principal(job)
    assert (principal.name, principal.everywhere, principal.request_id) == ("etl", READ_ONLY, "r-1")
    assert principal.tables == (job.table_id,)
    ApiKey.objects.update(revoked_at=timezone.now())
    with pytest.raises(PermissionDenied):
        access.require(jobs.principal(job), Privilege.WRITE)


@pytest.mark.django_db
def test_a_job_requires_that_its_user_is_still_active(sent, django_user_model):
    make_table(*T)
    django_user_model.objects.create_superuser("root")
    user = django_user_model.objects.create_superuser("ada")
    job = start(actor=Principal("user:ada", Privilege.ALL))
    job = Job.objects.select_related("transaction").get(pk=job.pk)
    assert jobs.principal(job).tables == (job.table_id,)
    user.is_active = False
    user.save()
    assert jobs.principal(job).everywhere == NOTHING


@pytest.mark.django_db
def test_a_job_acts_for_the_anonymous_principal(sent, settings):
    make_table(*T)
    settings.MONODON_ANONYMOUS = "admin"
    job = start(actor=Principal("anonymous", Privilege.ALL))
    assert jobs.principal(job).tables == (job.table_id,)
    settings.MONODON_ANONYMOUS = "read"
    assert (jobs.principal(job).everywhere, jobs.principal(job).tables) == (READ_ONLY, ())


# --- the lease, which a heartbeat thread renews


@pytest.mark.django_db(transaction=True)
def test_the_lease_is_renewed_while_lance_works(sent, replace_work, monkeypatch):
    monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 0.02)
    make_root()
    make_table(*T)
    job = start()

    def work(job, report):
        worker = threading.Thread(target=report, args=(5, 9))  # Lance's thread
        worker.start()
        worker.join()
        Job.objects.update(lease_until=timezone.now())
        wait(lambda: Job.objects.filter(lease_until__gt=timezone.now(), progress=5, total=9))

    replace_work(work)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "Succeeded")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_the_lease_is_renewed_after_an_outage_of_the_database(
    sent, replace_work, monkeypatch, caplog, error
):
    monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 0.02)
    make_root()
    make_table(*T)
    job = start()
    outcomes = iter([error("the server is away")])
    renew = jobs.renew

    def renew_later(row):
        for outage in outcomes:
            raise outage
        return renew(row)

    monkeypatch.setattr(jobs, "renew", renew_later)

    def work(job, report):
        Job.objects.update(lease_until=timezone.now())
        wait(lambda: Job.objects.filter(lease_until__gt=timezone.now()))

    replace_work(work)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "Succeeded")
    message = f"The lease of job {job.pk} could not be renewed"
    (record,) = (record for record in caplog.records if record.getMessage() == message)
    assert record.exc_info[0] is error


@pytest.mark.django_db(transaction=True)
def test_a_running_job_is_canceled(sent, replace_work, monkeypatch):
    monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 0.02)
    make_root()
    make_table(*T)
    job = start()

    def work(running, report):
        cancel(job)
        for step in range(10_000):
            time.sleep(0.01)
            report(step, None)

    replace_work(work)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "Canceled")
    assert job.error == "canceled on request"


@pytest.mark.django_db(transaction=True)
def test_a_cancel_is_recognized_in_an_error_of_lance(sent, replace_work, monkeypatch):
    """Lance wraps exceptions of its reader in its own error."""
    monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 0.02)
    make_root()
    make_table(*T)
    job = start()

    def work(running, report):
        cancel(job)
        try:
            for step in range(10_000):
                time.sleep(0.01)
                report(step, None)
        except jobs.JobCanceled as error:
            raise OSError("External error") from error

    replace_work(work)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "Canceled")


@pytest.mark.django_db(transaction=True)
def test_a_worker_without_its_lease_stops(sent, replace_work, monkeypatch):
    monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 0.02)
    make_root()
    make_table(*T)
    job = start()

    def work(running, report):
        Job.objects.update(attempts=2)  # another worker has the job now
        for step in range(10_000):
            time.sleep(0.01)
            report(step, None)

    replace_work(work)
    job_runner.run_job(job.pk)
    assert status(job) == ("running", "Running")  # the other worker ends the job


@pytest.mark.django_db(transaction=True)
def test_two_workers_do_not_run_two_jobs_of_a_table(sent, replace_work):
    make_root()
    make_table(*T)
    first, second = start(), start()
    Job.objects.filter(pk=first.pk).update(lease_until=timezone.now() + timedelta(seconds=0.2))
    barrier, ran = threading.Barrier(2), []

    def work(job, report):
        ran.append(job.pk)
        time.sleep(0.5)

    replace_work(work)

    def run(pk):
        from django.db import connection

        barrier.wait()
        time.sleep(0.2 if pk == first.pk else 0.19)
        job_runner.run_job(pk)
        connection.close()

    threads = [threading.Thread(target=run, args=(job.pk,)) for job in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 1


def wait(holds) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
