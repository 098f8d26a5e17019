"""Leases of jobs, with a worker whose clock is wrong by more than the duration of a lease."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from catalog.access import tokens
from catalog.models import Job, JobStatus
from catalog.services.engine import jobs
from catalog.services.engine.database_clock import database_now
from catalog.services.maintenance import scheduler
from tests.factories import make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SKEW = timedelta(seconds=150)


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


@pytest.fixture(params=[SKEW, -SKEW], ids=["ahead", "behind"])
def skewed(monkeypatch, request):
    """The clock of this process differs from that of the database."""
    right = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: right() + request.param)


def make(**values) -> Job:
    make_root()
    return Job.objects.create(kind="compact", table=make_table("ws", "t"), **values)


def remaining(job: Job, name: str = "lease_until") -> float:
    """Seconds from now, by the database's clock, to a time of a job."""
    row = Job.objects.annotate(database_now=database_now()).get(pk=job.pk)
    return (getattr(row, name) - row.database_now).total_seconds()


def leased(seconds: int) -> Job:
    job = make(status=JobStatus.RUNNING, attempts=1)
    Job.objects.update(lease_until=Now() + timedelta(seconds=seconds))
    return job


@pytest.mark.usefixtures("skewed")
def test_a_healthy_job_is_not_taken_over():
    job = leased(60)
    with unchanged():
        assert jobs.send_waiting_jobs() == 0
        assert jobs.take(job.pk) is None


@pytest.mark.usefixtures("skewed")
def test_the_job_of_a_dead_worker_is_taken_over():
    job = leased(-1)
    taken = jobs.take(job.pk)
    assert taken is not None
    assert taken.attempts == 2
    assert 100 < remaining(job) <= 120
    assert -10 < remaining(job, "started_at") <= 0


@pytest.mark.usefixtures("skewed")
def test_a_renewed_lease_lasts_two_minutes():
    job = leased(5)
    job.refresh_from_db()
    assert jobs.renew(job) is False
    assert 100 < remaining(job) <= 120


@pytest.mark.usefixtures("skewed")
def test_a_token_ends_with_the_lease_by_the_clock_of_the_database(monkeypatch):
    monkeypatch.setattr(jobs, "principal", lambda job: scheduler.SYSTEM)
    job = leased(60)
    # A token is signed without a time, so that only the lease ends it.
    assert jobs.principal_of_token(tokens.issue_job_token(job.pk, 1)).job_kind == "compact"
    Job.objects.update(lease_until=Now() - timedelta(seconds=1))
    with pytest.raises(jobs.Unauthenticated):
        jobs.principal_of_token(tokens.issue_job_token(job.pk, 1))


@pytest.mark.usefixtures("skewed")
def test_a_failed_attempt_waits_its_pause():
    job = leased(60)
    job.refresh_from_db()
    jobs.finish(job, JobStatus.QUEUED, "no space")
    assert 10 < remaining(job) <= 30
    with unchanged():
        assert jobs.take(job.pk) is None
