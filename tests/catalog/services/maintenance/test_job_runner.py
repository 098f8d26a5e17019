"""Purge jobs: the data of dropped tables is removed once, after the commit, unless canceled."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.errors import LocationTaken
from catalog.models import Job, JobStatus, Table, TableState, Transaction, TransactionStatus
from catalog.services.engine import jobs, locks
from catalog.services.engine.commit import commit
from catalog.services.engine.transactions import SetStatus, alter_transaction
from catalog.services.lance.ledger import registration_operations
from catalog.services.maintenance import job_runner
from catalog.services.tables import namespace_operations, table_operations
from catalog.storage import local_directories
from tasks import maintenance as tasks
from tests.factories import files, make_table, stage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def sent(monkeypatch) -> list[int]:
    """Ids of the jobs sent to the broker."""
    sent_jobs: list[int] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda name, args, **options: sent_jobs.append(args[0])
    )
    return sent_jobs


@pytest.fixture
def job(sent) -> Job:
    """The job of a dropped table with some files."""
    table = make_table("ws", "t")
    for version in (1, 2, 3):
        stage(table, version)
    (Path(table.location) / "data/deep").mkdir(parents=True)
    (Path(table.location) / "data/deep/1.lance").write_bytes(b"rows")
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    return Job.objects.get()


def aside(job: Job) -> str:
    """The path to which a purge renames the table's directory."""
    return f"{job.table.location}.purged-{job.pk}"


def run_at_once(job: Job) -> None:
    """Run a job that waits for a retry."""
    Job.objects.filter(pk=job.pk, status=JobStatus.QUEUED).update(lease_until=None)
    job_runner.run_job(job.pk)


def status(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.status, Transaction.objects.get(pk=job.transaction_id).status


def cancel(job: Job) -> None:
    alter_transaction(
        actor=SYSTEM,
        transaction=(str(job.transaction_id),),
        actions=[SetStatus(TransactionStatus.CANCELED)],
    )


def test_jobs_are_sent_to_the_broker_after_the_commit(job: Job, sent):
    assert sent == [job.pk]
    assert status(job) == ("queued", "Queued")


@pytest.mark.parametrize("run", [job_runner.run_job, tasks.run_job], ids=["service", "task"])
def test_a_purge_removes_the_data(job: Job, run):
    other = make_table("ws", "other")
    stage(other, 1)
    run(job.pk)
    assert status(job) == ("succeeded", "Succeeded")
    assert (job.attempts, job.progress, job.error) == (1, 4, "")
    assert job.finished_at >= job.started_at
    assert job.lease_until is None
    assert not Path(job.table.location).exists()
    assert len(files(other.location)) == 1
    assert Table.objects.get(name="t").state == TableState.DROPPED  # the row is kept


def test_a_repeated_run_has_no_effect(job: Job):
    job_runner.run_job(job.pk)
    before = Job.objects.values().get()
    job_runner.run_job(job.pk)
    assert Job.objects.values().get() == before


def test_a_missing_job_is_ignored():
    job_runner.run_job(12345)


def test_the_purge_of_a_table_without_files_succeeds(sent):
    make_table("ws", "t")
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    job = Job.objects.get()
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "Succeeded")
    assert job.progress == 0


def test_a_purge_is_retried_after_a_storage_failure(job: Job, monkeypatch):
    real = os.unlink
    calls = []

    def fail_third(path, **options):
        calls.append(path)
        if len(calls) == 3:
            raise OSError("storage is away")
        real(path, **options)

    monkeypatch.setattr(os, "unlink", fail_third)
    job_runner.run_job(job.pk)
    assert status(job) == ("queued", "Running")
    assert (job.attempts, job.error, job.finished_at) == (1, "storage is away", None)
    assert not Path(job.table.location).exists()
    assert len(files(aside(job))) == 2
    assert job.lease_until > timezone.now()  # the job waits before the retry
    job_runner.run_job(job.pk)
    assert jobs.send_waiting_jobs() == 0
    assert status(job) == ("queued", "Running")
    run_at_once(job)
    assert status(job) == ("succeeded", "Succeeded")
    assert (job.attempts, job.error) == (2, "")
    assert not Path(aside(job)).exists()


def test_a_job_fails_after_the_last_attempt(job: Job, monkeypatch):
    def fail(location):
        raise PermissionError("not allowed")

    monkeypatch.setattr(local_directories, "remove_tree", fail)
    for attempt in range(1, jobs.MAX_ATTEMPTS + 1):
        run_at_once(job)
        ended = attempt == jobs.MAX_ATTEMPTS
        assert status(job) == (("failed", "Failed") if ended else ("queued", "Running"))
    assert (job.attempts, job.error) == (jobs.MAX_ATTEMPTS, "not allowed")
    assert job.finished_at is not None
    job_runner.run_job(job.pk)
    assert job.attempts == jobs.MAX_ATTEMPTS


def test_a_queued_job_is_canceled(job: Job):
    before = files(job.table.location)
    cancel(job)
    assert status(job) == ("canceled", "Canceled")
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "Canceled")
    assert files(job.table.location) == before


def test_a_running_job_is_canceled(job: Job, monkeypatch):
    real = locks.lock_table_row

    def cancel_now(pk: int) -> Table:
        cancel(job)
        return real(pk)

    monkeypatch.setattr(locks, "lock_table_row", cancel_now)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "Canceled")
    assert job.error == "canceled on request"
    assert len(files(job.table.location)) == 4


def test_a_purge_that_began_is_not_canceled(job: Job, monkeypatch):
    """Once the directory is renamed, the purge continues and logs a message."""
    real = local_directories.remove_tree

    def cancel_after_two(directory):
        for removed in real(directory):
            if removed == 2:
                cancel(job)
            yield removed

    monkeypatch.setattr(local_directories, "remove_tree", cancel_after_two)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "Succeeded")
    assert not Path(aside(job)).exists()


def test_an_unexpected_error_is_stored_in_the_job(job: Job, monkeypatch):
    monkeypatch.setattr(local_directories, "set_aside", lambda *args: 1 / 0)
    job_runner.run_job(job.pk)
    assert status(job) == ("queued", "Running")
    assert job.error == "division by zero"


def test_a_stalled_worker_does_not_remove_files_of_a_new_table(job: Job, monkeypatch):
    """It continues when the location already belongs to another table."""
    real = local_directories.remove_tree
    location = job.table.location

    def stall(directory):
        Job.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
        monkeypatch.setattr(local_directories, "remove_tree", real)
        job_runner.run_job(job.pk)  # another worker takes over the job and ends it
        again = make_table("ws", "again", location=location)
        stage(again, 1)
        return real(directory)

    monkeypatch.setattr(local_directories, "remove_tree", stall)
    job_runner.run_job(job.pk)
    assert status(job) == ("succeeded", "Succeeded")
    assert len(files(location)) == 1


def test_a_purge_keeps_a_table_inside_the_location(job: Job, caplog):
    inner = make_table("ws", "inner")
    inner.location = f"{job.table.location}/inner"
    inner.save()
    stage(inner, 1)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "Canceled")
    assert job.error == "its files also belong to another table"
    assert "ws.inner" in caplog.text  # appears in the server's log, and is hidden from readers
    assert len(files(job.table.location)) == 5


def test_a_new_table_may_not_enclose_a_deregistered_one(sent):
    """Otherwise a drop of the new table would remove data that can be registered again."""
    inner = make_table("ws", "inner", location="outer/inner")
    stage(inner, 1)
    commit([table_operations.DeregisterTable(table=("ws", "inner"))], actor=SYSTEM)
    around = str(Path(inner.location).parent)
    for location in (around, f"{inner.location}/deeper"):
        with pytest.raises(LocationTaken):
            commit(
                [registration_operations.DeclareTable(table=("ws", "outer"), location=location)],
                actor=SYSTEM,
            )
    commit(
        [registration_operations.DeclareTable(table=("ws", "same"), location=inner.location)],
        actor=SYSTEM,
    )


def test_the_job_of_a_dead_worker_is_taken_over(job: Job, sent):
    Job.objects.update(
        status=JobStatus.RUNNING, attempts=1, lease_until=timezone.now() - timedelta(seconds=1)
    )
    sent.clear()
    assert tasks.send_queued_jobs() == 1
    assert sent == [job.pk]
    job_runner.run_job(job.pk)
    assert status(job)[0] == "succeeded"
    assert job.attempts == 2


def test_an_expired_lease_may_be_taken_directly(job: Job):
    Job.objects.update(
        status=JobStatus.RUNNING, attempts=1, lease_until=timezone.now() - timedelta(seconds=1)
    )
    job_runner.run_job(job.pk)
    assert status(job)[0] == "succeeded"


def test_the_job_of_a_live_worker_is_not_taken_over(job: Job, sent):
    Job.objects.update(
        status=JobStatus.RUNNING, attempts=1, lease_until=timezone.now() + timedelta(minutes=1)
    )
    sent.clear()
    assert jobs.send_waiting_jobs() == 0
    job_runner.run_job(job.pk)
    assert status(job)[0] == "running"
    assert len(files(job.table.location)) == 4


def test_a_worker_that_lost_its_lease_stops(job: Job, monkeypatch):
    monkeypatch.setattr(job_runner, "_RENEW_EVERY", 1)
    real = local_directories.remove_tree

    def lose(location):
        for removed in real(location):
            if removed == 1:  # another worker has the job now
                Job.objects.filter(pk=job.pk).update(attempts=2)
            yield removed

    monkeypatch.setattr(local_directories, "remove_tree", lose)
    job_runner.run_job(job.pk)
    assert status(job)[0] == "running"  # the other worker ends the job
    assert len(files(aside(job))) == 3


def test_queued_jobs_are_sent_again(job: Job, sent):
    sent.clear()
    assert jobs.send_waiting_jobs() == 1
    assert sent == [job.pk]
    job_runner.run_job(job.pk)
    assert jobs.send_waiting_jobs() == 0


def test_an_undropped_table_keeps_its_data(job: Job):
    Table.objects.update(state=TableState.LIVE)
    job_runner.run_job(job.pk)
    assert status(job) == ("canceled", "Canceled")
    assert len(files(job.table.location)) == 4


def test_the_location_of_another_table_is_not_removed(job: Job):
    location = job.table.location
    Table.objects.filter(pk=job.table_id).update(location=f"{location}-old")
    stays = make_table("ws", "stays", location=location)
    Table.objects.filter(pk=job.table_id).update(location=location)
    job_runner.run_job(job.pk)
    assert status(job)[0] == "canceled"
    assert len(files(stays.location)) == 4


def test_a_location_is_not_assigned_during_its_purge(job: Job):
    location = job.table.location
    for state in (JobStatus.QUEUED, JobStatus.RUNNING):
        Job.objects.update(status=state)
        for taken in (location, f"{location}/inner"):
            register = registration_operations.RegisterTable(table=("ws", "u"), location=taken)
            with pytest.raises(LocationTaken):
                commit([register], actor=SYSTEM)
    Job.objects.update(status=JobStatus.CANCELED)
    commit(
        [registration_operations.RegisterTable(table=("ws", "u"), location=location)], actor=SYSTEM
    )


def test_messages_to_the_broker_expire(job: Job, settings, monkeypatch):
    """Beat sends queued jobs repeatedly. A worker that is busy for long takes none of the messages."""
    delays: list[float] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda *_, expires, **options: delays.append(expires)
    )
    jobs.send_waiting_jobs()
    every = settings.CELERY_BEAT_SCHEDULE["send-queued-jobs"]["schedule"]
    assert 4 * every <= delays[0] <= 10 * every


def test_a_cascade_succeeds_with_its_last_job(sent):
    for name in ("a", "b", "c"):
        stage(make_table("ws", name), 1)
    commit([namespace_operations.DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    queued = list(Job.objects.order_by("pk"))
    assert sent == [job.pk for job in queued]
    for job, expected in zip(queued, ("Running", "Running", "Succeeded"), strict=True):
        job_runner.run_job(job.pk)
        assert status(job) == ("succeeded", expected)


def test_a_cascade_fails_if_one_of_its_jobs_fails(sent, monkeypatch):
    for name in ("a", "b"):
        stage(make_table("ws", name), 1)
    commit([namespace_operations.DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    first, second = Job.objects.order_by("pk")
    Job.objects.filter(pk=first.pk).update(attempts=jobs.MAX_ATTEMPTS - 1)
    with monkeypatch.context() as patch:
        patch.setattr(local_directories, "remove_tree", lambda location: _away())
        job_runner.run_job(first.pk)
    assert status(first) == ("failed", "Running")
    job_runner.run_job(second.pk)
    assert status(second) == ("succeeded", "Failed")


def _away():
    raise OSError("storage is away")
