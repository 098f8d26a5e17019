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
from catalog.identifiers import digest
from catalog.models import Heartbeat, Job, JobStatus, ProcessRole
from catalog.scheduling.rounds import Round
from catalog.services.engine import job_queue, jobs, processes
from catalog.services.maintenance import measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from tests.factories import make_iceberg_table, make_root, make_table, make_version

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "sent")]


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
    assert policies.effective_policy(row).limit_key == "max_jobs of the default"
    policies.set_namespace_policy(actor=SYSTEM, namespace=("ws",), values={"max_jobs": 7})
    key = policies.effective_policy(row).limit_key
    assert key == f"max_jobs of namespace {digest(('ws',))}"
    assert job_queue.has_room(0)


@pytest.mark.parametrize(
    ("namespace", "other"),
    [(("a.b",), ("a", "b")), (("the default",), ("plain",)), (("(root)",), ("below",))],
)
def test_namespaces_whose_names_look_alike_do_not_share_a_limit(namespace, other):
    """The jobs of one, with a limit of its own, would use up the limit of the other."""
    if other == ("below",):
        policies.set_namespace_policy(actor=SYSTEM, namespace=(), values={"max_jobs": 3})
    tables = [make_table(*namespace, "t"), make_table(*other, "t")]
    policies.set_namespace_policy(actor=SYSTEM, namespace=namespace, values={"max_jobs": 1000})
    if other == ("a", "b"):
        policies.set_namespace_policy(actor=SYSTEM, namespace=other, values={"max_jobs": 1})
    first, second = (policies.effective_policy(row).limit_key for row in tables)
    assert first != second


# --- many jobs of one tenant ---------------------------------------------------------------------


def sent_jobs(sent: list[tuple[str, list[Any]]]) -> list[int]:
    return [arguments[0] for name, arguments in sent if name == "run_job"]


def test_many_jobs_of_a_policy_do_not_keep_those_of_another_one_waiting(sent, monkeypatch):
    monkeypatch.setattr(jobs, "_SENT_AT_ONCE", 4)
    many, few = queue(6, limit=100, key="a"), queue(2, limit=100, key="b")
    assert jobs.send_waiting_jobs() == 4
    assert sent_jobs(sent) == [many[0].pk, few[0].pk, many[1].pk, few[1].pk]


def test_jobs_whose_limit_is_reached_do_not_keep_others_waiting(sent, monkeypatch):
    """Workers discard their messages, so nothing else would be sent before the limit is free."""
    monkeypatch.setattr(jobs, "_SENT_AT_ONCE", 2)
    full = queue(5, limit=2, key="a")
    assert jobs.take(full[0].pk) is not None
    (requested,) = queue(1, limit=None, key="")  # type: ignore[arg-type]
    jobs.send_waiting_jobs()
    assert sent_jobs(sent) == [full[1].pk, requested.pk]
    sent.clear()
    assert jobs.take(full[1].pk) is not None
    jobs.send_waiting_jobs()
    assert sent_jobs(sent) == [requested.pk]


@pytest.mark.usefixtures("small")
def test_an_error_in_the_plan_of_a_table_does_not_keep_others_waiting(monkeypatch):
    for name in (("ws", "bad"), ("ws", "good")):
        make_table(*name)
        make_version(name, 1)
    measurements.measure_due()
    policies.set_namespace_policy(actor=SYSTEM, namespace=("ws",), values={"compaction": "on"})
    choose = Round.choose

    def fail(self: Round, table: Any) -> Any:
        if table.row.name == "bad":
            raise OverflowError("date value out of range")
        return choose(self, table)

    monkeypatch.setattr(Round, "choose", fail)
    assert start_due() == 1
    assert Job.objects.get().table.name == "good"


@pytest.mark.usefixtures("small")
def test_namespaces_that_share_a_policy_take_turns():
    """The tables of one have waited longer in every round."""
    names = [("many", f"t{number}") for number in range(5)]
    for name in (*names, ("few", "a"), ("few", "b")):
        make_table(*name)
        make_version(name, 1)
    measurements.measure_due()
    policies.set_namespace_policy(
        actor=SYSTEM, namespace=(), values={"compaction": "on", "max_jobs": 1}
    )
    order = []
    for _ in range(6):
        Job.objects.filter(status=JobStatus.SUCCEEDED).update(
            finished_at=timezone.now() - timedelta(minutes=2)  # no job is queued ahead
        )
        assert start_due() == 1
        order.append(Job.objects.latest("pk").table.namespace.name)
        end_all()
    assert order == ["many", "few"] * 3


@pytest.mark.usefixtures("small")
def test_tables_of_the_root_are_maintained_too():
    for name in (("t",), ("ns", "u")):
        make_table(*name)
        make_version(name, 1)
    measurements.measure_due()
    policies.set_namespace_policy(actor=SYSTEM, namespace=(), values={"compaction": "on"})
    assert start_due() == 2
    assert policies.used_time(timezone.now()) == {"": 1.0, "ns": 1.0}
