"""The stages of running jobs, and the heartbeats of the processes that run them."""

from types import SimpleNamespace

import pytest
from django.db import DatabaseError
from django.db.models import QuerySet
from django.db.models.functions import Now

from catalog.models import Engine, Heartbeat, Job, JobEvent, JobStatus, ProcessRole
from catalog.services.engine import job_stages, processes
from tests.factories import make_root, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def job():
    make_root()
    return Job.objects.create(
        kind="compact", table=make_table("ws", "t"), status=JobStatus.RUNNING, attempts=1
    )


def stored(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def test_each_stage_is_recorded_once(job, caplog):
    caplog.set_level("INFO", "monodon.jobs")
    for name in ("planning", "planning", "rewriting"):
        job_stages.begin(job, name)
        assert [stage["name"] for stage in stored(job).stages][-1] == name
    job_stages.count_bytes(job, 70)
    first, second = stored(job).stages
    assert (first["name"], second["name"], second["bytes"]) == ("planning", "rewriting", 70)
    messages = JobEvent.objects.filter(job=job).order_by("pk").values_list("message", flat=True)
    assert list(messages) == ["planning", "rewriting"]
    lines = [record.getMessage() for record in caplog.records if record.name == "monodon.jobs"]
    assert lines == [f"Job {job.pk}: planning", f"Job {job.pk}: rewriting"]


def test_the_engine_is_recorded_with_its_reason(job, caplog):
    caplog.set_level("INFO", "monodon.jobs")
    job_stages.choose_engine(job, Engine.SPARK, "the policy sets it")
    row = stored(job)
    assert (row.engine, row.engine_reason) == ("spark", "the policy sets it")
    assert JobEvent.objects.get(job=job).message == "engine spark: the policy sets it"
    (record,) = (record for record in caplog.records if record.name == "monodon.jobs")
    assert record.getMessage() == f"Job {job.pk} uses the engine 'spark': the policy sets it"
    assert (record.job, record.kind, record.attempt) == (job.pk, "compact", 1)


def test_the_pages_of_spark_are_recorded_and_removed(job, django_assert_num_queries):
    job_stages.record_ui(job, "http://127.0.0.1:4040")
    assert stored(job).spark_ui == "http://127.0.0.1:4040"
    with django_assert_num_queries(0):
        job_stages.record_ui(job, "http://127.0.0.1:4040")
    job_stages.record_ui(job, "")
    assert stored(job).spark_ui == ""


def test_a_later_attempt_is_not_changed(job):
    Job.objects.filter(pk=job.pk).update(attempts=2)
    job_stages.begin(job, "planning")
    job_stages.record_ui(job, "http://127.0.0.1:4040")
    job_stages.choose_engine(job, Engine.SPARK, "")
    assert (stored(job).stages, stored(job).spark_ui, stored(job).engine) == ([], "", "")


def test_bytes_are_recorded_for_a_stage_and_when_they_change(job, django_assert_num_queries):
    with django_assert_num_queries(0):
        job_stages.count_bytes(job, 70)
    job_stages.begin(job, "planning")
    with django_assert_num_queries(0):
        job_stages.count_bytes(job, 0)
    for size in (70, 80):
        with django_assert_num_queries(1):
            job_stages.count_bytes(job, size)
        with django_assert_num_queries(0):
            job_stages.count_bytes(job, size)
        assert stored(job).stages[-1]["bytes"] == size


def test_work_goes_on_while_the_database_is_away(job, monkeypatch):
    """Neither the stage nor its entry in the log can be stored; the next ones can."""
    closed = []

    def fail(*_, **__):
        raise DatabaseError("away")

    monkeypatch.setattr(job_stages, "connection", SimpleNamespace(close=lambda: closed.append(1)))
    with monkeypatch.context() as patch:
        patch.setattr(QuerySet, "update", fail)
        patch.setattr(job_stages.jobs, "log_event", fail)
        job_stages.begin(job, "planning")
    assert closed == [1, 1]
    assert (stored(job).stages, JobEvent.objects.count()) == ([], 0)
    job_stages.begin(job, "rewriting")
    assert [stage["name"] for stage in stored(job).stages] == ["planning", "rewriting"]


def test_background_processes_without_heartbeats_are_missing():
    missing = "no heartbeat within 60 s"
    assert processes.background() == {"worker": missing, "tasks": missing, "beat": missing}
    processes.report(Heartbeat(name="w", role=ProcessRole.WORKER, seen_at=Now()))
    assert processes.background() == {"worker": "ok", "tasks": "ok", "beat": missing}
    processes.report(Heartbeat(name="b", role=ProcessRole.BEAT, seen_at=Now()))
    assert processes.background()["beat"] == "ok"
    processes.forget("w")
    assert processes.background() == {"worker": missing, "tasks": missing, "beat": "ok"}
    Heartbeat.objects.update(seen_at=Now() - 2 * processes.ALIVE)
    assert set(processes.background().values()) == {missing}
