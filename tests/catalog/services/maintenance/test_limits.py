"""Limits of policies: concurrency, not rate; and kinds of maintenance that no worker can do."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.errors import Unsupported
from catalog.models import Heartbeat, Job, JobStatus, ProcessRole
from catalog.services.engine import job_limits, jobs, processes
from catalog.services.maintenance import measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from tests.factories import make_iceberg_table, make_root, make_table, make_version

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """Messages to the broker: names of tasks with their arguments."""
    messages: list[tuple[str, list[Any]]] = []
    monkeypatch.setattr(
        "celery.current_app.send_task",
        lambda name, args=(), **_: messages.append((name.rpartition(".")[2], list(args))),
    )
    return messages


def queue(number: int, *, limit: int = 1, key: str = "k", **values: Any) -> list[Job]:
    """Queued jobs of different tables with the same limit."""
    start = Job.objects.count()
    return [
        Job.objects.create(
            kind="compact",
            table=make_table(f"ns{key}", f"t{start + n}"),
            limit_key=key,
            limit=limit,
            **values,
        )
        for n in range(number)
    ]


def test_as_many_jobs_run_as_their_limit_allows():
    first, second, third = queue(3, limit=2)
    (other,) = queue(1, key="other")
    assert jobs.take(first.pk) is not None
    assert jobs.take(second.pk) is not None
    assert jobs.take(third.pk) is None
    third.refresh_from_db()
    assert (third.status, third.attempts) == (JobStatus.QUEUED, 0)
    assert jobs.take(other.pk) is not None


def test_a_job_without_a_limit_is_always_taken():
    (limited,) = queue(1)
    assert jobs.take(limited.pk) is not None
    (requested,) = queue(1, key="", limit=None)  # type: ignore[arg-type]
    assert jobs.take(requested.pk) is not None


def test_the_end_of_a_job_sends_the_next_one_of_its_policy(sent):
    first, second = queue(2)
    taken = jobs.take(first.pk)
    assert taken is not None
    jobs.finish(taken, JobStatus.SUCCEEDED)
    assert sent == [("run_job", [second.pk])]


def test_the_end_of_the_last_queued_job_of_a_policy_starts_the_scheduler(sent):
    (first,) = queue(1)
    taken = jobs.take(first.pk)
    assert taken is not None
    jobs.finish(taken, JobStatus.SUCCEEDED)
    assert sent == [("start_due", [])]


@pytest.mark.django_db(transaction=True)
def test_two_workers_do_not_exceed_a_limit():
    make_root()  # a transactional test before this one may have removed it
    rows = queue(8)
    barrier = threading.Barrier(4)
    taken: list[Job] = []

    def take(mine: list[Job]) -> None:
        barrier.wait()
        taken.extend(job for row in mine if (job := jobs.take(row.pk)) is not None)
        connection.close()

    threads = [threading.Thread(target=take, args=(rows[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    assert Job.objects.filter(status=JobStatus.RUNNING).count() == 1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table needs to be compacted."""
    from tests.catalog.services.maintenance.test_scheduler import SMALL

    monkeypatch.setattr(measurements.lance_actions, "measure", lambda *_: SMALL)


def start_due() -> int:
    return maintenance_scheduler.start_due()


@pytest.mark.usefixtures("small")
def test_a_pass_queues_as_many_further_jobs_as_ended_within_a_minute():
    for number in range(9):
        name = ("ws", f"t{number}")
        make_table(*name)
        make_version(name, 1)
    measurements.measure_due()
    policies.set_namespace_policy(
        actor=SYSTEM, namespace=("ws",), values={"compaction": "on", "max_jobs": 1}
    )
    assert start_due() == 1
    assert start_due() == 0
    end_all()
    assert start_due() == 2
    end_all()
    assert start_due() == 4  # three jobs have ended
    end_all()
    Job.objects.update(finished_at=timezone.now() - timedelta(minutes=2))
    assert start_due() == 1  # long jobs are not planned ahead
    assert {job.limit for job in Job.objects.all()} == {1}


def end_all() -> None:
    for job in Job.objects.filter(status=JobStatus.QUEUED).order_by("pk"):
        taken = jobs.take(job.pk)
        assert taken is not None
        taken.result = {"before": {"files": 2}, "after": {"files": 1}}
        jobs.finish(taken, JobStatus.SUCCEEDED)


# --- kinds of maintenance that no worker can do --------------------------------------------------


def report(name: str, role: ProcessRole, missing: str = "") -> None:
    row = Heartbeat(
        name=name, role=role, seen_at=Now(), started_at=Now(), missing_for_iceberg=missing
    )
    processes.report(row, is_first=True)


def start(*table: str) -> Job:
    return maintenance_scheduler.start(actor=SYSTEM, table=table, kind="compact")


def test_a_job_that_no_worker_can_run_is_refused_with_the_reason():
    make_iceberg_table("ws", "t")
    report("jobs@a", ProcessRole.JOB_WORKER, "Spark needs Java 17 to 23, and none is installed")
    report("tasks@a", ProcessRole.TASK_WORKER)
    with pytest.raises(Unsupported, match="Spark needs Java 17 to 23, and none is installed"):
        start("ws", "t")
    assert not Job.objects.exists()
    report("jobs@b", ProcessRole.JOB_WORKER)  # another worker can
    assert start("ws", "t").kind == "compact"


def test_a_job_is_accepted_while_no_worker_runs():
    make_iceberg_table("ws", "t")
    report("jobs@a", ProcessRole.JOB_WORKER, "no Java")
    Heartbeat.objects.update(seen_at=timezone.now() - timedelta(minutes=5))
    assert start("ws", "t").status == JobStatus.QUEUED


def test_lance_tables_need_no_spark():
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    report("jobs@a", ProcessRole.JOB_WORKER, "no Java")
    assert start("ws", "t").status == JobStatus.QUEUED


def test_the_key_of_a_limit_is_that_of_the_policy_that_sets_it():
    row = make_table("ws", "t")
    policies.set_namespace_policy(actor=SYSTEM, namespace=("ws",), values={"compaction": "on"})
    assert policies.limit_key(policies.effective_policy(row)) == "max_jobs of the default"
    policies.set_namespace_policy(actor=SYSTEM, namespace=("ws",), values={"max_jobs": 7})
    assert policies.limit_key(policies.effective_policy(row)) == "max_jobs of ws"
    assert job_limits.has_room(0)
