"""Heartbeats: which workers count as running, and what all of them lack."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from catalog.models import Heartbeat, ProcessRole
from catalog.services.engine import processes

pytestmark = pytest.mark.django_db


def report(name: str, role: str = ProcessRole.JOB_WORKER, *, seconds: float = 0, **facts: Any):
    """The heartbeat of a process that was seen so many seconds ago."""
    seen_at = Now() - timedelta(seconds=seconds)
    processes.report(Heartbeat(name=name, role=role, seen_at=seen_at, **facts))


def test_missing_features_are_described_as_by_the_newest_heartbeat():
    assert processes.missing_for_iceberg() == ""  # no worker runs now
    report("jobs@a", seconds=20, missing_for_iceberg="no Java")
    assert processes.missing_for_iceberg() == "no Java"
    report("both@b", ProcessRole.WORKER, seconds=5, missing_for_iceberg="Java is too old")
    report("jobs@c", seconds=10, missing_for_iceberg="Spark has no Iceberg runtime")
    assert processes.missing_for_iceberg() == "Java is too old"
    report("jobs@d", seconds=30)  # it can
    assert processes.missing_for_iceberg() == ""


def test_only_running_workers_for_jobs_count():
    report("jobs@a", missing_for_iceberg="no Java")
    report("tasks@a", ProcessRole.TASK_WORKER)
    report("beat@a", ProcessRole.BEAT)
    report("jobs@gone", seconds=61)
    assert processes.missing_for_iceberg() == "no Java"


def test_a_profile_that_one_worker_can_use_is_not_missing(django_assert_num_queries):
    assert processes.missing_for_profiles() == {}
    assert not processes.can_use_profile("large")
    report("jobs@a", seconds=9, missing_for_profiles={"large": "no cluster", "small": "no Java"})
    assert processes.missing_for_profiles() == {"large": "no cluster", "small": "no Java"}
    assert not processes.can_use_profile("large")
    assert processes.can_use_profile("other")
    report("jobs@b", missing_for_profiles={"small": "Java is too old", "own": "no cluster"})
    with django_assert_num_queries(1):
        assert processes.missing_for_profiles() == {"small": "Java is too old"}
    with django_assert_num_queries(1):
        assert processes.can_use_profile("large")
    assert not processes.can_use_profile("small")


def test_a_heartbeat_replaces_what_the_process_reported_before():
    report(
        "a",
        missing_for_spark="no Java",
        missing_for_iceberg="no runtime",
        missing_for_profiles={"large": "no cluster"},
        is_downloading=True,
    )
    Heartbeat.objects.update(started_at=Now() - timedelta(hours=1), seen_at=Now() - timedelta(1))
    before = Heartbeat.objects.get()
    report("a", ProcessRole.WORKER, concurrency=4)
    after = Heartbeat.objects.get()
    assert (after.role, after.concurrency, after.is_downloading) == ("worker", 4, False)
    assert (after.missing_for_spark, after.missing_for_iceberg) == ("", "")
    assert after.missing_for_profiles == {}
    assert after.seen_at - before.seen_at > timedelta(hours=23)
    assert after.started_at == before.started_at


def test_the_first_heartbeat_of_a_process_forgets_those_not_seen_for_a_day():
    report("long gone", seconds=25 * 3600)
    report("gone", seconds=23 * 3600)
    report("a")
    Heartbeat.objects.filter(name="a").update(started_at=Now() - timedelta(hours=1))
    assert Heartbeat.objects.count() == 3
    started_at = Heartbeat.objects.get(name="a").started_at
    row = Heartbeat(name="a", role=ProcessRole.WORKER, started_at=Now(), seen_at=Now())
    processes.report(row, is_first=True)
    assert set(Heartbeat.objects.values_list("name", flat=True)) == {"gone", "a"}
    assert Heartbeat.objects.get(name="a").started_at > started_at


def test_a_process_counts_as_running_for_a_minute_after_its_heartbeat():
    report("a", seconds=58)
    report("b", seconds=62)
    assert [row.name for row in processes.alive()] == ["a"]
