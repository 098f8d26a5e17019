"""The facts that the scheduler reads: costs, budgets, use, commits and turns."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import Job, JobStatus, Table, TableHealth, TableVersion
from catalog.scheduling.costs import Kind
from catalog.scheduling.holds import Commits
from catalog.scheduling.limits import Amount
from catalog.services.engine import jobs
from catalog.services.maintenance import measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.scheduling import candidates, job_costs
from tests.catalog.services.maintenance.test_scheduler import SMALL, WELL
from tests.factories import make_table, make_version

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SIZE = SMALL.rewrite_bytes


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Figures by table name; by default every table needs to be compacted."""
    by_table: dict[str, Any] = {}
    monkeypatch.setattr("celery.current_app.send_task", lambda *_, **__: None)
    monkeypatch.setattr(
        measurements.lance_actions, "measure", lambda row, _: by_table.get(row.name, SMALL)
    )
    return by_table


def live(*names: tuple[str, ...]) -> list[Table]:
    rows = [make_table(*name) for name in names]
    for name in names:
        make_version(name, 1)
    measurements.measure_due()
    return rows


def set_policy(*namespace: str, **values: object) -> None:
    policies.set_namespace_policy(actor=SYSTEM, namespace=namespace, values=values)


def finish(job: Job, seconds: float) -> Job:
    """Run a job that took some time."""
    taken = jobs.take(job.pk)
    assert taken is not None
    taken.result = {"before": {"files": 2}, "after": {"files": 1}}
    jobs.finish(taken, JobStatus.SUCCEEDED)
    began = timezone.now() - timedelta(seconds=seconds)
    Job.objects.filter(pk=job.pk).update(started_at=began)
    return Job.objects.get(pk=job.pk)


def test_costs_are_learned_from_the_jobs_of_the_scheduler() -> None:
    live(("ws", "t"))
    set_policy("ws", compaction="on")
    kind = Kind("compact", "lance", "worker")
    before = job_costs.load().seconds(kind, SIZE)
    assert maintenance_scheduler.start_due() == 1
    job = Job.objects.get()
    assert job.planned_bytes == SIZE
    assert job_costs.load().past == {}, "it has not ended"
    finish(job, 600)
    assert set(job_costs.load().past) == {kind}
    assert job_costs.load().seconds(kind, SIZE) > 2 * before
    Job.objects.update(planned_bytes=None)  # a job that somebody requested
    assert job_costs.load().past == {}


def test_jobs_start_until_the_budget_of_the_window_is_spent() -> None:
    live(*[("ws", f"t{number}") for number in range(4)])
    set_policy("ws", compaction="on", budget_bytes=int(2.5 * SIZE), max_jobs=10)
    assert maintenance_scheduler.start_due() == 2
    assert maintenance_scheduler.start_due() == 0
    for job in Job.objects.all():
        finish(job, 1)
    assert maintenance_scheduler.start_due() == 0
    yesterday = timezone.now() - timedelta(days=1)
    Job.objects.update(started_at=yesterday, finished_at=yesterday)
    assert maintenance_scheduler.start_due() == 2


def test_a_budget_counts_the_jobs_of_its_window() -> None:
    live(("ws", "a"), ("ws", "b"))
    set_policy("ws", compaction="on", max_jobs=10)
    assert maintenance_scheduler.start_due() == 2
    now, costs = timezone.now(), job_costs.load()
    key = Job.objects.values_list("limit_key", flat=True).distinct().get()

    def spent(hours: int) -> Amount:
        since = now - timedelta(hours=hours)
        return job_costs.spent(key, since, now=timezone.now(), costs=costs)

    expected = costs.seconds(Kind("compact", "lance"), SIZE)
    assert spent(1) == Amount(2 * expected, 2 * SIZE)
    finish(Job.objects.earliest("pk"), 7200)
    assert spent(1) == Amount(expected, SIZE)
    both = spent(3)
    assert both.bytes == 2 * SIZE
    assert both.seconds == pytest.approx(7200 + expected, abs=5)
    assert job_costs.spent("another", now, now=now, costs=costs) == Amount()


def test_a_job_does_not_use_time_while_it_waits_for_its_next_attempt() -> None:
    live(("ws", "t"))
    set_policy("ws", compaction="on")
    assert maintenance_scheduler.start_due() == 1
    taken = jobs.take(Job.objects.get().pk)
    assert taken is not None
    jobs.finish(taken, JobStatus.QUEUED, "a conflict")
    now, costs = timezone.now(), job_costs.load()
    Job.objects.update(started_at=now - timedelta(minutes=30))
    since = now - timedelta(hours=1)
    expected = costs.seconds(Kind("compact", "lance"), SIZE)
    assert job_costs.spent(taken.limit_key, since, now=now, costs=costs) == Amount(expected, SIZE)
    assert policies.used_time(now) == {"ws": 1}
    Job.objects.update(status=JobStatus.RUNNING)
    assert job_costs.spent(taken.limit_key, since, now=now, costs=costs) == Amount(1800, SIZE)
    assert policies.used_time(now) == {"ws": 1800}


def test_the_time_of_a_namespace_with_priority_counts_less() -> None:
    live(("a", "t"), ("b", "t"))
    set_policy(compaction="on", max_jobs=9)
    set_policy("b", priority=4)
    assert maintenance_scheduler.start_due() == 2
    for job in Job.objects.all():
        finish(job, 100)
    used = policies.used_time(timezone.now())
    assert used == {"a": pytest.approx(100, abs=5), "b": pytest.approx(25, abs=2)}
    assert policies.used_time(timezone.now() + timedelta(hours=2)) == {}


def test_a_table_keeps_its_turn_until_it_gets_a_job(figures: dict[str, Any]) -> None:
    figures["well"] = WELL
    row, well = live(("ws", "t"), ("ws", "well"))
    set_policy("ws", compaction="on")

    def health(table: Table) -> TableHealth:
        return TableHealth.objects.newest().get(table=table)

    first = health(row)
    assert (first.namespace, first.due_since) == ("ws", first.measured_at)
    assert first.turn < first.measured_at - timedelta(hours=1), "it has a head start"
    assert health(well).due_since is None
    assert health(well).turn > timezone.now() + timedelta(days=1)
    assert measurements.measure_due() == 2  # under the new policy
    assert health(row).due_since == first.due_since
    assert maintenance_scheduler.start_due() == 1
    assert health(row).turn > first.measured_at, "it begins to wait again"
    job = finish(Job.objects.get(), 1)
    assert measurements.measure_due() == 1
    last = health(row)
    assert job.finished_at is not None
    assert last.turn == last.due_since > job.finished_at


def test_a_table_with_conflicts_waits_until_its_writers_are_quiet() -> None:
    (row,) = live(("ws", "t"))
    for number in range(2, 8):
        make_version(("ws", "t"), number)
    set_policy("ws", compaction="on")
    assert maintenance_scheduler.start_due() == 1
    job = finish(Job.objects.get(), 1)
    ended = timezone.now() - timedelta(hours=2)
    Job.objects.update(attempts=3, finished_at=ended)
    assert measurements.measure_due() == 1
    assert candidates.recent_commits(row, timezone.now()) == Commits(recent=7, day=7)
    assert maintenance_scheduler.start_due() == 0
    TableVersion.objects.update(created_at=timezone.now() - timedelta(hours=1))
    assert maintenance_scheduler.start_due() == 1
    assert Job.objects.latest("pk").pk != job.pk


def test_uniform_namespaces_have_no_policies_below() -> None:
    live(("a", "t"), ("b", "inner", "t"), ("c", "t"), ("d", "t"))
    set_policy("a", compaction="on")
    set_policy("b", "inner", compaction="on")
    policies.set_table_policy(actor=SYSTEM, table=("c", "t"), values={"compaction": "on"})
    assert policies.uniform_namespaces(["", "a", "b", "c", "d"]) == {"a", "d"}
