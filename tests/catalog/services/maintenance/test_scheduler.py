"""Scheduled measurements, and jobs that are started by policies."""

import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import maintenance_actions
from catalog.access import SYSTEM, Principal
from catalog.errors import (
    InvalidInput,
    InvalidJobState,
    JobNotFound,
    NamespaceNotFound,
    PermissionDenied,
    ServiceUnavailable,
    TableHasNoData,
    TableNotFound,
)
from catalog.identifiers import digest
from catalog.models import (
    AuditEvent,
    Job,
    JobKind,
    JobStatus,
    MaintenancePolicy,
    Namespace,
    Table,
    TableFormat,
    TableHealth,
    TableState,
)
from catalog.planning import StaleIndex, Statistics
from catalog.policies import rules_by_name
from catalog.privileges import READ_ONLY, Privilege
from catalog.scheduling import limits
from catalog.services.engine import jobs, locks
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.maintenance import job_runner, measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.scheduling import candidates
from catalog.services.tables import job_operations, namespace_operations, table_operations
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    make_table,
    make_version,
    unchanged,
)

pytestmark = [pytest.mark.usefixtures("warehouse"), pytest.mark.django_db]
READER = Principal("reader", READ_ONLY)
WELL = Statistics(
    format="lance",
    version=1,
    rows=1_000_000,
    deleted_rows=0,
    files=2,
    bytes=10**9,
    small_files=0,
    rewrite_files=0,
    rewrite_bytes=0,
    rewritten_files=0,
    versions=5,
    old_versions=0,
)
SMALL = replace(
    WELL, files=200, small_files=200, rewrite_files=200, rewritten_files=2, rewrite_bytes=10**8
)
OLD = replace(WELL, old_versions=3)


@pytest.fixture(autouse=True)
def sent(monkeypatch) -> list[int]:
    """Ids of the jobs sent to the broker."""
    sent_jobs: list[int] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda name, args, **options: sent_jobs.extend(args)
    )
    return sent_jobs


@pytest.fixture
def figures(monkeypatch) -> dict[str, object]:
    """Results of measurements by table name: figures, None, or an exception that is raised."""
    by_table: dict[str, object] = {}

    def measure(table, policy):
        figure = by_table.get(table.name, WELL)
        if isinstance(figure, Exception):
            raise figure
        if figure is not None:
            newest = table.versions.visible().on("").order_by("-version").first()
            figure = replace(figure, version=newest.version, format=table.format)
        return figure

    monkeypatch.setattr(measurements.lance_actions, "measure", measure)
    monkeypatch.setattr(measurements.iceberg_statistics, "measure", measure)
    return by_table


def live(*name: str) -> Table:
    row = make_table(*name)
    make_version(name, 1)
    row.refresh_from_db()
    assert row.state == TableState.LIVE
    return row


def set_policy(*namespace: str, **values: object) -> None:
    policies.set_namespace_policy(actor=SYSTEM, namespace=namespace, values=values)


def health(row: Table) -> TableHealth:
    return TableHealth.objects.newest().get(table=row)


def measured() -> int:
    return measurements.measure_due()


def due() -> list[tuple[str, str]]:
    """The jobs that a round starts: kinds and tables, in order."""
    previous = set(Job.objects.values_list("pk", flat=True))
    count = maintenance_scheduler.start_due()
    new = list(
        Job.objects.exclude(pk__in=previous).select_related("table__namespace").order_by("pk")
    )
    assert count == len(new)
    return [(job.kind, str(job.table)) for job in new]


def end(
    status: JobStatus = JobStatus.SUCCEEDED,
    *,
    before: object = 2,
    after: object = 1,
    ago: timedelta = timedelta(0),
) -> Job:
    """End the oldest active job some time ago, with figures before and after it."""
    job = Job.objects.filter(status__in=maintenance_scheduler.ACTIVE).earliest("pk")
    taken = jobs.take(job.pk)
    assert taken is not None
    taken.result = {"before": {"files": before}, "after": {"files": after}}
    jobs.finish(taken, status, "no good" if status == JobStatus.FAILED else "")
    if ago:
        past = timezone.now() - ago
        Job.objects.filter(pk=job.pk).update(created_at=past, finished_at=past)
    job.refresh_from_db()
    return job


# --- measurements -------------------------------------------------------------------------------------


def test_a_measurement_stores_figures_and_plan(figures):
    row = live("ws", "t")
    figures["t"] = SMALL
    assert measured() == 1
    row_health = health(row)
    assert (row_health.score, row_health.files_gone, row_health.bytes_read) == (30, 198, 10**8)
    assert row_health.statistics["files"] == 200
    assert [job["kind"] for job in row_health.planned] == ["compact"]
    assert measured() == 0


def test_a_changed_table_is_measured_again_and_older_figures_are_kept(figures):
    row = live("ws", "t")
    measured()
    first = health(row)
    make_version(("ws", "t"), 2)
    assert measured() == 1
    assert health(row).statistics["version"] == 2
    assert list(TableHealth.objects.filter(is_newest=False)) == [first]


def test_the_time_of_a_measurement_is_before_the_table_is_read(figures, monkeypatch):
    row = live("ws", "t")
    measure = measurements.lance_actions.measure
    read = []

    def slow(table, policy):
        statistics = measure(table, policy)
        read.append(timezone.now())
        make_version(("ws", "t"), 2)  # too late to be measured
        return statistics

    monkeypatch.setattr(measurements.lance_actions, "measure", slow)
    measured()
    assert health(row).measured_at < read[0]
    monkeypatch.setattr(measurements.lance_actions, "measure", measure)
    assert measured() == 1


def test_an_unchanged_table_is_measured_after_a_day(figures):
    row = live("ws", "t")
    measured()
    past = timezone.now() - timedelta(hours=25)
    TableHealth.objects.update(measured_at=past)
    assert measured() == 1
    assert health(row).measured_at > past


def test_a_table_is_measured_after_maintenance(figures):
    live("ws", "t")
    measured()
    maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="clean_up")
    assert measured() == 0
    end()
    assert measured() == 1
    maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="clean_up", is_dry_run=True)
    end()
    assert measured() == 0


def test_a_table_is_measured_after_a_change_of_its_policy(figures):
    live("ws", "a", "t")
    live("ws", "b", "t")
    assert measured() == 2
    set_policy("ws", "a", target_rows=2048)
    assert measured() == 1
    policies.set_table_policy(actor=SYSTEM, table=("ws", "b", "t"), values={"keep_versions": 1})
    assert measured() == 1
    set_policy(keep_versions=2)
    assert measured() == 2
    assert measured() == 0


def test_tables_with_the_oldest_measurements_come_first(figures):
    rows = [live("ws", f"t{n}") for n in range(5)]
    assert measurements.measure_due(limit=2) == 2
    assert set(TableHealth.objects.values_list("table", flat=True)) == {rows[0].pk, rows[1].pk}
    assert measurements.measure_due(limit=2) == 2
    for n in range(5):
        make_version(("ws", f"t{n}"), 2)
    assert measurements.measure_due(limit=2) == 2
    assert health(rows[4]).statistics["version"] == 2
    assert health(rows[0]).statistics["version"] == 2
    assert health(rows[1]).statistics["version"] == 1


def test_a_long_round_is_continued_by_the_next(figures, monkeypatch):
    for n in range(3):
        live("ws", f"t{n}")
    monkeypatch.setattr(measurements, "_SECONDS", -1.0)
    assert measured() == 1
    assert TableHealth.objects.count() == 1


def test_a_table_that_cannot_be_measured_does_not_delay_others(figures):
    rows = {name: live("ws", name) for name in "abc"}
    figures["a"] = ServiceUnavailable("The storage is away")
    figures["b"] = ZeroDivisionError("a bug\0")
    assert measured() == 3
    assert health(rows["c"]).score == 100
    assert (health(rows["a"]).score, health(rows["a"]).statistics, health(rows["a"]).planned) == (
        0,
        {"error": "The storage is away"},
        [],
    )
    assert health(rows["b"]).statistics == {"error": "ZeroDivisionError: a bug"}
    set_policy(compaction="on", orphans="on")
    assert due() == []


def test_a_failed_measurement_is_retried_after_an_hour(figures):
    row = live("ws", "t")
    figures["t"] = ServiceUnavailable("The storage is away")
    assert measured() == 1
    assert measured() == 0
    TableHealth.objects.update(measured_at=timezone.now() - timedelta(minutes=61))
    figures["t"] = SMALL
    assert measured() == 1
    assert health(row).score == 30


def test_a_table_without_data_is_healthy(figures):
    row = live("ws", "t")
    figures["t"] = None
    measured()
    assert (health(row).score, health(row).statistics) == (100, {})
    with pytest.raises(TableHasNoData):
        measurements.measure(actor=SYSTEM, table=("ws", "t"))


def test_declared_and_dropped_tables_are_not_measured(figures):
    make_table("ws", "declared")
    live("ws", "gone")
    commit([table_operations.DropTable(table=("ws", "gone"))], actor=SYSTEM)
    assert measured() == 0


def test_a_table_dropped_during_its_measurement_is_skipped(figures, monkeypatch):
    live("ws", "t")
    live("ws", "u")
    measure = measurements.lance_actions.measure

    def drop(table, policy):
        statistics = measure(table, policy)
        if table.name == "t":
            commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
        return statistics

    monkeypatch.setattr(measurements.lance_actions, "measure", drop)
    assert measured() == 2
    assert [str(row.table) for row in TableHealth.objects.all()] == ["ws.u"]


def test_a_table_is_measured_on_request(figures):
    row = live("ws", "t")
    figures["t"] = SMALL
    with unchanged():
        plan = measurements.plan(actor=READER, table=("ws", "t"))
        assert (plan.score, [job.kind for job in plan.planned]) == (30, ["compact"])
        with pytest.raises(PermissionDenied):
            measurements.measure(actor=READER, table=("ws", "t"))
        with pytest.raises(TableNotFound):
            measurements.measure(actor=SYSTEM, table=("ws", "no"))
        figures["t"] = ServiceUnavailable("The storage is away")
        with pytest.raises(ServiceUnavailable):
            measurements.measure(actor=SYSTEM, table=("ws", "t"))
    figures["t"] = SMALL
    assert measurements.measure(actor=SYSTEM, table=("ws", "t")) == health(row)


def test_old_measurements_are_thinned_and_deleted(figures):
    row = live("ws", "t")
    measured()
    now = datetime(2027, 5, 20, 12, 30, tzinfo=UTC)

    def past(**ago: float) -> TableHealth:
        return TableHealth.objects.create(
            table=row, measured_at=hour - timedelta(**ago), is_newest=False, score=1, statistics={}
        )

    hour = now.replace(minute=0)
    day = timezone.now() - hour
    hour += timedelta(days=day.days)  # the start of an hour, today or yesterday
    recent = [past(minutes=10), past(minutes=20)]
    hourly = [past(days=10), past(days=10, minutes=1)]
    thinned = [past(days=10, minutes=2), past(days=10, minutes=59)]
    forgotten = [past(days=91), past(days=400)]
    assert measurements.delete_old_health() == 4
    remaining = set(TableHealth.objects.values_list("pk", flat=True))
    assert remaining == {health(row).pk, *(health_row.pk for health_row in (*recent, *hourly))}
    assert remaining.isdisjoint({health_row.pk for health_row in (*thinned, *forgotten)})


# --- scheduled jobs -----------------------------------------------------------------------------------


def test_enabled_actions_are_started_by_the_system_with_their_policy(figures, sent):
    row = live("ws", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on", target_rows=4096)
    assert due() == [("compact", "ws.t")]
    job = Job.objects.get()
    assert (job.table, job.status, job.is_dry_run, sent) == (row, "queued", False, [job.pk])
    assert job.parameters["policy"]["target_rows"] == 4096
    assert set(job.parameters["policy"]) == set(policies.effective_policy(row).values)
    event = AuditEvent.objects.get(action="maintenance.start")
    assert (event.actor, event.target) == ("system", "ws.t")
    assert event.transaction_id == job.transaction_id


@pytest.mark.parametrize("mode", ["dry_run", "off"])
def test_disabled_actions_are_not_started(figures, mode):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    with unchanged():
        assert due() == []
    set_policy("ws", compaction=mode, cleanup="on", orphans=mode)
    with unchanged():
        assert due() == []


def test_an_enabled_policy_applies_before_the_next_measurement(figures):
    live("ws", "t")
    figures["t"] = SMALL
    set_policy("ws", compaction="off")
    measured()
    assert TableHealth.objects.get().planned == []
    set_policy("ws", compaction="on")
    assert due() == [("compact", "ws.t")]


def test_jobs_of_a_table_run_one_at_a_time_in_the_order_of_the_plan(figures):
    live("ws", "t")
    figures["t"] = replace(
        SMALL, old_versions=3, indexes=1, stale_indexes=(StaleIndex("by_id", 50_000),)
    )
    measured()
    set_policy("ws", compaction="on", cleanup="on", indexes="on")
    assert due() == [("optimize_indexes", "ws.t")]
    assert Job.objects.latest("pk").parameters["indexes"] == ["by_id"]
    assert due() == []
    end()
    assert due() == [("compact", "ws.t")]
    end()
    assert due() == [("clean_up", "ws.t")]
    end()
    assert due() == []  # until the table is measured again


def test_a_requested_job_comes_before_scheduled_ones(figures):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on")
    commit([job_operations.StartBuildIndex(table=("ws", "t"), parameters={})], actor=SYSTEM)
    assert due() == []
    end()
    assert due() == [("compact", "ws.t")]


def test_the_largest_savings_come_first_within_the_limits_of_policies(figures, monkeypatch):
    monkeypatch.setattr(limits, "MAX_AHEAD", 0)
    for name in ("a", "b", "c", "d"):
        live("one", name)
        live("two", name)
    bad = replace(SMALL, old_versions=5, deleted_rows=2_000_000)
    better = replace(SMALL, files=20, small_files=20, rewrite_files=20)
    figures |= {"a": OLD, "b": bad, "c": better, "d": OLD}
    measured()
    set_policy("one", compaction="on", cleanup="on", max_jobs=3)
    set_policy("two", compaction="on", cleanup="on", max_jobs=1)
    assert due() == [
        ("compact", "one.b"),
        ("compact", "two.b"),
        ("compact", "one.c"),
        ("clean_up", "one.a"),
    ]
    assert due() == []
    end()  # one.b
    assert due() == [("clean_up", "one.d")]  # which had no job yet
    end()  # two.b
    assert due() == [("compact", "two.c")]
    end()  # one.c
    # The measurement is older than the compaction, which is not repeated. Old versions are still to
    # be cleaned up.
    assert due() == [("clean_up", "one.b")]


def test_a_table_with_a_constantly_low_score_does_not_starve_others(figures, monkeypatch):
    monkeypatch.setattr(limits, "MAX_AHEAD", 0)
    for name in ("busy", "quiet"):
        live("ws", name)
    figures.update(busy=replace(SMALL, deleted_rows=500_000), quiet=SMALL)
    set_policy("ws", compaction="on", max_jobs=1)
    started = []
    for _ in range(3):  # with writers that undo the effect before the next round
        measured()
        started += due()
        end()
    assert started == [("compact", "ws.busy"), ("compact", "ws.quiet"), ("compact", "ws.busy")]


def test_max_jobs_counts_the_jobs_of_the_policy_that_sets_it(figures):
    for name in ("a", "b", "c"):
        live("ws", "inner", name)
    figures |= dict.fromkeys("abc", SMALL)
    measured()
    set_policy(max_jobs=1)
    set_policy("ws", "inner", compaction="on")
    assert len(due()) == 1
    policies.set_table_policy(actor=SYSTEM, table=("ws", "inner", "c"), values={"max_jobs": 5})
    assert due() == [("compact", "ws.inner.c")]


def test_jobs_that_wait_for_a_retry_do_not_count(figures, monkeypatch):
    monkeypatch.setattr(limits, "MAX_AHEAD", 0)
    for name in ("a", "b", "c"):
        live("ws", name)
    figures |= dict.fromkeys("abc", SMALL)
    measured()
    set_policy("ws", compaction="on", max_jobs=1)
    assert due() == [("compact", "ws.a")]
    assert due() == [], "it will run as soon as a worker is free"
    end(JobStatus.QUEUED)  # a conflict: the job is retried later
    assert due() == [("compact", "ws.b")]
    Job.objects.filter(status=JobStatus.QUEUED).update(lease_until=timezone.now())
    end()
    assert due() == [], "its time has come"


def test_jobs_that_wait_for_another_job_of_their_table_do_not_count(figures):
    for name in ("a", "b", "c"):
        live("ws", name)
    figures |= dict.fromkeys("bc", SMALL)
    measured()
    set_policy("ws", compaction="on", max_jobs=2)
    for kind in ("compact", "clean_up", "remove_orphans"):
        maintenance_scheduler.start(actor=SYSTEM, table=("ws", "a"), kind=kind)
    assert due() == [("compact", "ws.b")]
    assert due() == []
    jobs.take(Job.objects.earliest("pk").pk)
    assert due() == []


@pytest.mark.parametrize(
    ("window", "clock", "is_open"),
    [
        ("-", "12:00", True),
        ("22:00-", "12:00", True),
        ("01:00-05:00", "01:00", True),
        ("01:00-05:00", "05:00", True),
        ("01:00-05:00", "00:59", False),
        ("01:00-05:00", "05:01", False),
        ("22:00-04:00", "23:59", True),
        ("22:00-04:00", "00:00", True),
        ("22:00-04:00", "12:00", False),
    ],
)
def test_jobs_start_in_their_window_in_utc(figures, monkeypatch, window, clock, is_open):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    begin, _, last = window.partition("-")
    set_policy("ws", compaction="on", window_from=begin, window_to=last)
    moment = datetime.fromisoformat(f"2027-01-31T{clock}:00+00:00")
    monkeypatch.setattr(maintenance_scheduler.timezone, "now", lambda: moment)
    with timezone.override("Asia/Tokyo"):
        assert due() == ([("compact", "ws.t")] if is_open else [])


def test_a_window_with_a_time_zone_is_refused():
    make_root()
    with unchanged(), pytest.raises(InvalidInput, match="a time such as 22:30"):
        set_policy(window_from="22:00+02:00")


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELED])
def test_a_failure_is_followed_by_a_pause(figures, status):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on")
    assert len(due()) == 1
    end(status)
    assert due() == []
    Job.objects.update(finished_at=timezone.now() - timedelta(minutes=61))
    assert due() == [("compact", "ws.t")]


def test_a_job_without_effect_is_followed_by_a_pause(figures):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on")
    assert len(due()) == 1
    end(before=200, after=200)
    assert measured() == 1
    assert due() == []
    Job.objects.update(finished_at=timezone.now() - timedelta(minutes=61))
    assert due() == [("compact", "ws.t")]


@pytest.mark.parametrize("kind", ["manifests", "delete_files"])
def test_files_that_a_rewrite_did_not_reduce_are_not_rewritten_until_others_are_added(
    figures, kind
):
    make_root()
    made = make_iceberg_table("ws", "i")
    set_policy("ws", manifests="on", position_deletes="on")
    figures["i"] = replace(WELL, **{kind: 100, f"rewritten_{kind}": 1})
    measured()
    (planned,) = due()
    job = Job.objects.get()
    version = TableHealth.objects.newest().get(table=job.table).statistics["version"]
    taken = jobs.take(job.pk)
    counts = {f"rewritten_{kind}_count": 100, f"added_{kind}_count": 100}
    # The job's commit added a version with the same number of files.
    taken.result = {
        "before": {"version": version - 1},
        "after": {"version": version},
        "done": counts,
    }
    jobs.finish(taken, JobStatus.SUCCEEDED)
    Job.objects.update(finished_at=timezone.now() - timedelta(days=5))
    assert due() == []

    taken.result["after"]["version"] = version - 1  # other writers have added files since
    Job.objects.update(result=taken.result)
    assert due() == [planned]
    counts[f"added_{kind}_count"] = 99
    Job.objects.filter(status=JobStatus.QUEUED).delete()
    taken.result["after"]["version"] = version
    Job.objects.update(result=taken.result)
    assert due() == [planned], "it was of some use"
    assert made.document["format-version"] == 2


def test_after_an_effective_job_the_next_measurement_decides(figures):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on")
    assert len(due()) == 1
    end(before=200, after=2)
    assert due() == []
    assert measured() == 1  # writers added files again
    assert due() == [("compact", "ws.t")]


def test_actions_that_are_always_due_do_not_starve_others(figures):
    live("ws", "t")
    behind = (StaleIndex("by_id", 50_000),)
    figures["t"] = replace(SMALL, old_versions=3, indexes=1, stale_indexes=behind)
    set_policy("ws", compaction="on", cleanup="on", indexes="on")
    kinds = []
    for _ in range(6):  # with so many writes that every action is due at each measurement
        measured()
        kinds += [kind for kind, _ in due()]
        end()
    assert kinds == ["optimize_indexes", "compact", "clean_up"] * 2


def test_a_pause_applies_to_one_kind(figures):
    live("ws", "t")
    figures["t"] = replace(SMALL, old_versions=3)
    measured()
    set_policy("ws", compaction="on", cleanup="on")
    due()
    end(JobStatus.FAILED)
    assert due() == [("clean_up", "ws.t")]


def test_a_dry_run_causes_no_pause(figures):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on")
    maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="compact", is_dry_run=True)
    assert due() == []
    end(JobStatus.FAILED)
    assert due() == [("compact", "ws.t")]


def test_the_search_for_orphans_follows_their_minimum_age(figures):
    row = live("ws", "t")
    measured()
    set_policy("ws", orphans="on", orphan_age=86_400)
    assert due() == []  # no file of the table can be that old
    Table.objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(hours=25))
    assert due() == [("remove_orphans", "ws.t")]
    end(ago=timedelta(hours=23))
    assert due() == []
    Job.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert due() == [("remove_orphans", "ws.t")]


def test_statistics_of_changed_tables_are_computed_once_a_day(figures):
    make_root()
    make_iceberg_table("ws", "i")
    live("ws", "l")
    measured()
    set_policy("ws", statistics="on")
    assert due() == [("compute_statistics", "ws.i")]
    job = end()
    version = TableHealth.objects.newest().get(table=job.table).statistics["version"]
    yesterday = timezone.now() - timedelta(hours=25)
    result = {"before": {}, "after": {"version": version}}
    Job.objects.update(created_at=yesterday, finished_at=yesterday, result=result)
    assert due() == []  # its statistics are complete
    Job.objects.update(result={"before": {}, "after": {"version": version - 1}})
    assert due() == [("compute_statistics", "ws.i")]


def test_a_table_dropped_during_the_round_does_not_stop_it(figures, monkeypatch):
    live("ws", "a")
    live("ws", "b")
    figures |= {"a": replace(SMALL, old_versions=5), "b": SMALL}
    measured()
    set_policy("ws", compaction="on", cleanup="on")
    effective = policies.effective_policies

    def drop(rows):
        settings = effective(rows)
        if Table.objects.named(("ws", "a")).exists() and settings:
            commit([table_operations.DropTable(table=("ws", "a"))], actor=SYSTEM)
        return settings

    monkeypatch.setattr(policies, "effective_policies", drop)
    before = set(
        Job.objects.filter(kind__in=maintenance_actions.keys()).values_list("pk", flat=True)
    )
    assert maintenance_scheduler.start_due() == 1
    new = Job.objects.filter(kind__in=maintenance_actions.keys()).exclude(pk__in=before)
    assert [(job.kind, job.table.name) for job in new] == [("compact", "b")]


def test_a_job_started_during_the_round_prevents_a_second_one(figures, monkeypatch):
    live("ws", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on")
    effective = policies.effective_policies

    def rival(rows):
        settings = effective(rows)
        if settings and not Job.objects.exists():
            commit([job_operations.StartBuildIndex(table=("ws", "t"), parameters={})], actor=SYSTEM)
        return settings

    monkeypatch.setattr(policies, "effective_policies", rival)
    assert maintenance_scheduler.start_due() == 0
    assert [job.kind for job in Job.objects.all()] == ["build_index"]


def test_healthy_tables_do_not_hide_others(figures, monkeypatch):
    monkeypatch.setattr(candidates, "_BATCH", 2)
    monkeypatch.setattr(candidates, "_AT_LEAST", 2)
    for name in ("a", "b", "c", "d", "e"):
        live("quiet", name)
    live("ws", "t")
    figures |= dict.fromkeys("abcde", ServiceUnavailable("The storage is away"))
    figures["t"] = OLD
    measured()
    set_policy("ws", cleanup="on")
    assert due() == [("clean_up", "ws.t")]


@pytest.mark.django_db(transaction=True)
def test_concurrent_rounds_start_each_job_once(figures):
    make_root()
    for n in range(6):
        live("ws", f"t{n}")
        figures[f"t{n}"] = SMALL
    measured()
    set_policy("ws", compaction="on", max_jobs=4)
    barrier, counts = threading.Barrier(4), []

    def run() -> None:
        try:
            barrier.wait(20)
            counts.append(maintenance_scheduler.start_due())
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(counts) == Job.objects.count() == 4
    assert Job.objects.values("table").distinct().count() == 4


@pytest.mark.django_db(transaction=True)
def test_only_one_round_runs_at_a_time():
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with locks.advisory_lock("start_due") as is_alone:
            assert is_alone
            begun.set()
            over.wait(20)
        connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(20)
    with locks.advisory_lock("start_due") as is_alone:
        assert not is_alone
    with locks.advisory_lock("another") as is_alone:
        assert is_alone
    over.set()
    thread.join()
    with locks.advisory_lock("start_due") as is_alone:
        assert is_alone


def test_a_thousand_tables_take_a_fixed_number_of_statements(figures):
    make_namespace("ws")
    parent = Namespace.objects.named(("ws",)).get()
    rows = Table.objects.bulk_create(
        Table(
            uuid=uuid.uuid4(),
            namespace=parent,
            name=f"t{n}",
            digest=digest(("ws", f"t{n}")),
            state=TableState.LIVE,
            location=f"/nowhere/{n}",
        )
        for n in range(1001)
    )
    TableHealth.objects.bulk_create(
        TableHealth(
            table=row, measured_at=timezone.now(), score=60, statistics=SMALL.as_json(), planned=[]
        )
        for row in rows
    )
    MaintenancePolicy.objects.update(updated_at=timezone.now() - timedelta(days=2))
    with CaptureQueriesContext(
        connection,
    ) as looked:
        assert measurements.measure_due() == 0
    assert len(looked) == 2
    with CaptureQueriesContext(connection) as nothing:
        assert due() == []
    assert len(nothing) <= 6
    set_policy("ws", compaction="on", max_jobs=2)
    with CaptureQueriesContext(connection) as started:
        assert len(due()) == 2
    assert len(started) <= 60
    with CaptureQueriesContext(connection) as full:
        assert due() == []
    assert len(full) <= 26


# --- requested jobs -----------------------------------------------------------------------------------


def test_requests_ignore_windows_and_modes(figures):
    live("ws", "t")
    set_policy("ws", compaction="off", window_from="00:00", window_to="00:00")
    actor = Principal("ann", Privilege.ALL)
    job = maintenance_scheduler.start(
        actor=actor, table=("ws", "t"), kind="compact", is_dry_run=True
    )
    job = Job.objects.select_related("transaction").get(pk=job.pk)
    assert (job.kind, job.is_dry_run, job.transaction.actor) == ("compact", True, "ann")
    event = AuditEvent.objects.get(action="maintenance.start")
    assert (event.actor, event.after["kind"], event.after["is_dry_run"]) == ("ann", "compact", True)


def test_an_equal_request_returns_the_job_that_waits():
    make_lance_table(("ws", "t"))
    start = partial(maintenance_scheduler.start, table=("ws", "t"))
    first = start(actor=SYSTEM, kind="compact")
    assert [start(actor=SYSTEM, kind="compact").pk for _ in range(3)] == [first.pk] * 3
    assert Job.objects.count() == 1

    others = [
        start(actor=SYSTEM, kind="compact", is_dry_run=True),
        start(actor=SYSTEM, kind="clean_up"),
        start(actor=Principal("other", Privilege.ALL), kind="compact"),
    ]
    assert len({first.pk, *(job.pk for job in others)}) == 4
    Job.objects.filter(pk=first.pk).update(status=JobStatus.RUNNING)
    assert start(actor=SYSTEM, kind="compact").pk not in {first.pk, *(job.pk for job in others)}


def test_a_request_after_a_cancellation_or_an_attempt_starts_another_job():
    make_lance_table(("ws", "t"))
    start = partial(maintenance_scheduler.start, table=("ws", "t"), kind="compact", actor=SYSTEM)
    canceled = start()
    Job.objects.filter(pk=canceled.pk).update(cancel_requested=True)
    repeated = start()
    Job.objects.filter(pk=repeated.pk).update(attempts=1)
    assert len({canceled.pk, repeated.pk, start().pk}) == 3


def test_invalid_requests_are_refused():
    live("ws", "t")
    make_table("ws", "empty")
    make_iceberg_table("ws", "i")

    def start(*table, kind="compact", actor=SYSTEM):
        maintenance_scheduler.start(actor=actor, table=table, kind=kind)

    with unchanged():
        with pytest.raises(PermissionDenied):
            start("ws", "t", actor=READER)
        with pytest.raises(TableNotFound):
            start("ws", "no")
        with pytest.raises(NamespaceNotFound):
            start("no", "no")
        with pytest.raises(TableHasNoData):
            start("ws", "empty")
        with pytest.raises(
            InvalidInput, match="'build_index' is not a kind of maintenance; use one of"
        ):
            start("ws", "t", kind=JobKind.BUILD_INDEX)
        with pytest.raises(InvalidInput, match="Lance format do not support 'rewrite_manifests'"):
            start("ws", "t", kind="rewrite_manifests")
        with pytest.raises(InvalidInput, match="Iceberg format do not support 'optimize_indexes'"):
            start("ws", "i", kind="optimize_indexes")


def test_every_kind_has_a_mode_and_formats():
    assert {action.mode for action in maintenance_actions.registered()} <= set(rules_by_name())
    assert maintenance_actions.require("optimize_indexes").formats == {TableFormat.LANCE}
    assert maintenance_actions.require("compute_statistics").formats == {TableFormat.ICEBERG}
    assert maintenance_actions.require("compact").formats == set(TableFormat)


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELED])
def test_a_retry_uses_the_current_policy(status, sent):
    live("ws", "t")
    maintenance_scheduler.start(
        actor=SYSTEM, table=("ws", "t"), kind="optimize_indexes", is_dry_run=True
    )
    Job.objects.update(parameters={"policy": {"unindexed_rows": 1}, "indexes": ["by_id"]})
    old = end(status)
    set_policy("ws", unindexed_rows=77)
    sent.clear()
    new = maintenance_scheduler.retry(actor=Principal("ann", Privilege.ALL), job=old.pk)
    new = Job.objects.select_related("transaction").get(pk=new.pk)
    assert (new.kind, new.is_dry_run, new.status) == ("optimize_indexes", True, "queued")
    assert (new.transaction.actor, sent) == ("ann", [new.pk])
    assert new.parameters["indexes"] == ["by_id"]
    assert new.parameters["policy"]["unindexed_rows"] == 77
    old.refresh_from_db()
    assert old.status == status


def test_retries_of_other_jobs_are_refused():
    live("ws", "t")
    waiting = maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="compact")
    with unchanged():
        with pytest.raises(PermissionDenied):
            maintenance_scheduler.retry(actor=READER, job=waiting.pk)
        with pytest.raises(JobNotFound):
            maintenance_scheduler.retry(actor=SYSTEM, job=waiting.pk + 1)
        with pytest.raises(InvalidJobState, match="is queued and cannot be retried"):
            maintenance_scheduler.retry(actor=SYSTEM, job=waiting.pk)
    end()
    with unchanged(), pytest.raises(InvalidJobState, match="is succeeded and cannot be retried"):
        maintenance_scheduler.retry(actor=SYSTEM, job=waiting.pk)
    commit([job_operations.StartBuildIndex(table=("ws", "t"), parameters={})], actor=SYSTEM)
    build = end(JobStatus.FAILED)
    with (
        unchanged(),
        pytest.raises(InvalidInput, match="is 'build_index', which is not maintenance"),
    ):
        maintenance_scheduler.retry(actor=SYSTEM, job=build.pk)
    Job.objects.filter(pk=waiting.pk).update(status=JobStatus.FAILED)
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    with unchanged(), pytest.raises(TableNotFound):
        maintenance_scheduler.retry(actor=SYSTEM, job=waiting.pk)


def test_a_dropped_namespace_loses_its_policy(figures):
    live("ws", "t")
    live("other", "t")
    figures["t"] = SMALL
    measured()
    set_policy("ws", compaction="on")
    commit([namespace_operations.DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    assert maintenance_scheduler.start_due() == 0


# --- the schedule -------------------------------------------------------------------------------------


def test_all_tasks_are_scheduled(settings, monkeypatch):
    from tasks import maintenance as tasks

    every = {"measure_due": 60.0, "start_due": 60.0, "delete_old_health": 86_400.0}
    for name, seconds in every.items():
        entry = settings.CELERY_BEAT_SCHEDULE[name.replace("_", "-")]
        assert (entry["task"], entry["schedule"]) == (f"tasks.maintenance.{name}", seconds)
        module = maintenance_scheduler if name == "start_due" else measurements
        monkeypatch.setattr(module, name, lambda name=name: name)
        assert getattr(tasks, name)() == name


def test_a_table_of_many_fragments_is_compacted_and_then_healthy():
    row = make_lance_table(("ws", "t"), pa.table({"id": [0]}))
    for n in range(1, 10):
        lance_data.insert(actor=SYSTEM, table=("ws", "t"), data=pa.table({"id": [n]}).to_reader())
    set_policy("ws", compaction="on")
    measured()
    assert health(row).score == 41
    assert due() == [("compact", "ws.t")]
    job = Job.objects.get()
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == ("succeeded", "")
    assert job.result["before"]["files"] == 10
    assert due() == []
    assert measured() == 1
    assert (health(row).score, health(row).statistics["files"]) == (100, 1)
    assert due() == []
