"""Jobs that wait for an engine profile: they do not keep other jobs waiting."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.engine_profiles import EngineKind
from catalog.models import EngineProfile, Job, JobStatus, Transaction
from catalog.services.engine import job_queue, jobs
from catalog.services.maintenance import measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from tests.catalog.services.maintenance.test_scheduler import SMALL
from tests.factories import make_table, make_version

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "sent")]


def make_profile(name: str = "x", concurrency: int = 1) -> None:
    EngineProfile.objects.create(name=name, kind=EngineKind.LOCAL, concurrency=concurrency)


def queue(profile: str, *, key: str = "", limit: int | None = None, actor: str = "") -> Job:
    """A queued job of a table of its own."""
    request = Transaction.objects.create(actor=actor) if actor else None
    table = make_table("ws", f"t{Job.objects.count()}")
    return Job.objects.create(
        kind="compact",
        table=table,
        engine_profile=profile,
        limit_key=key,
        limit=limit,
        transaction=request,
    )


def take(job: Job) -> Job:
    taken = jobs.take(job.pk)
    assert taken is not None
    return taken


def pks(rows: list[Job]) -> list[int]:
    return [row.pk for row in rows]


def test_jobs_that_wait_for_a_profile_leave_their_limit_to_others(
    sent: list[tuple[str, list[Any]]],
) -> None:
    make_profile()
    take(queue("x", actor="other"))
    running = take(queue("default", key="k", limit=2))
    for _ in range(3):
        queue("x", key="k", limit=2)
    first, second = queue("default", key="k", limit=2), queue("", key="k", limit=2)
    assert pks(job_queue.next_jobs(9)) == [first.pk]
    jobs.finish(running, JobStatus.SUCCEEDED)
    assert sent == [("run_job", [first.pk])]
    assert pks(job_queue.next_jobs(9)) == [first.pk, second.pk]


def test_the_scheduler_starts_if_only_jobs_of_a_full_profile_wait(
    sent: list[tuple[str, list[Any]]],
) -> None:
    make_profile()
    take(queue("x", actor="other"))
    running = take(queue("default", key="k", limit=2))
    queue("x", key="k", limit=2)
    jobs.finish(running, JobStatus.SUCCEEDED)
    assert sent == [("start_due", [])]


def test_the_scheduler_does_not_count_jobs_that_wait_for_a_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It queues no more of them than the limit, and lets jobs of other profiles begin."""
    monkeypatch.setattr(measurements.lance_actions, "measure", lambda *_: SMALL)
    for number in range(9):
        name = ("on_x" if number < 5 else "others", f"t{number}")
        make_table(*name)
        make_version(name, 1)
    measurements.measure_due()
    make_profile()
    take(queue("x", actor="other"))
    values = {"compaction": "on", "max_jobs": 2}
    policies.set_namespace_policy(actor=SYSTEM, namespace=(), values=values)
    policies.set_namespace_policy(actor=SYSTEM, namespace=("on_x",), values={"engine_profile": "x"})

    def end_of_others() -> None:
        for job in job_queue.next_jobs(9):
            jobs.finish(take(job), JobStatus.SUCCEEDED)
        Job.objects.filter(status=JobStatus.SUCCEEDED).update(
            finished_at=timezone.now() - timedelta(minutes=2)  # no job is queued ahead
        )

    def queued() -> list[tuple[str, str]]:
        rows = Job.objects.filter(status=JobStatus.QUEUED)
        return sorted(rows.values_list("table__namespace__name", "engine_profile"))

    assert maintenance_scheduler.start_due() == 2
    assert queued() == [("on_x", "x"), ("others", "default")]
    assert maintenance_scheduler.start_due() == 0
    end_of_others()
    assert maintenance_scheduler.start_due() == 2
    assert queued() == [("on_x", "x")] * 2 + [("others", "default")]
    end_of_others()
    assert maintenance_scheduler.start_due() == 1, "no further job for the profile"
    assert queued() == [("on_x", "x")] * 2 + [("others", "default")]


def test_principals_take_turns_on_a_profile(sent: list[tuple[str, list[Any]]]) -> None:
    make_profile()
    many = [queue("x", actor="many") for _ in range(4)]
    few = [queue("x", actor="few") for _ in range(2)]
    order = []
    (job,) = job_queue.next_jobs(9)
    while True:
        order.append(job.pk)
        taken = take(job)
        sent.clear()
        jobs.finish(taken, JobStatus.SUCCEEDED)
        if not sent:
            break
        (message,) = sent
        assert pks(job_queue.next_jobs(9)) == message[1]
        job = Job.objects.get(pk=message[1][0])
    assert order == pks([many[0], few[0], many[1], few[1], many[2], many[3]])


def test_the_principal_with_fewer_running_jobs_on_a_profile_is_next(
    sent: list[tuple[str, list[Any]]],
) -> None:
    make_profile(concurrency=3)
    many = [queue("x", actor="many") for _ in range(5)]
    first, _, third = [take(job) for job in many[:3]]
    few = [queue("x", actor="few") for _ in range(2)]
    # Then each has one running job, and the last one of the first principal began earlier.
    for ended, successor in ((first, few[0]), (third, many[3])):
        sent.clear()
        jobs.finish(ended, JobStatus.SUCCEEDED)
        assert sent == [("run_job", [successor.pk])]
        assert pks(job_queue.next_jobs(9)) == [successor.pk]
        take(successor)


def test_the_successor_on_a_profile_is_not_one_whose_limit_is_reached(
    sent: list[tuple[str, list[Any]]],
) -> None:
    make_profile()
    take(queue("default", key="k", limit=1))
    running = take(queue("x", actor="a"))
    queue("x", key="k", limit=1)
    successor = queue("x", actor="a")
    jobs.finish(running, JobStatus.SUCCEEDED)
    assert sent == [("run_job", [successor.pk])]


def test_each_job_that_ends_on_a_profile_starts_one_job(
    sent: list[tuple[str, list[Any]]],
) -> None:
    """Messages for other free places were sent when those became free."""
    make_profile(concurrency=3)
    running = take(queue("x", actor="a"))
    successor, _ = queue("x", actor="a"), queue("x", actor="a")
    jobs.finish(running, JobStatus.SUCCEEDED)
    assert sent == [("run_job", [successor.pk])]


def test_the_statements_do_not_grow_with_the_jobs(django_assert_num_queries: Any) -> None:
    make_profile(concurrency=3)
    ended = take(queue("x", key="k", limit=9))
    for number in range(6):
        queue("x", actor=f"p{number}")
        queue("x", key="k", limit=9)
    with django_assert_num_queries(5):
        assert len(job_queue.next_jobs(9)) == 2
    with django_assert_num_queries(7):
        assert len(job_queue.next_under_limits_of(ended)) == 2
