"""Which jobs may begin next, and what the end of a job sends to the workers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection
from django.test.utils import CaptureQueriesContext
from kombu.exceptions import OperationalError

from catalog import message_broker
from catalog.engine_profiles import EngineKind
from catalog.models import EngineProfile, Job, JobStatus, Transaction
from catalog.services.engine import job_queue
from tests.factories import make_root, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Messages sent to the broker."""
    messages: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        current_app, "send_task", lambda name, **options: messages.append((name, options))
    )
    return messages


@pytest.fixture(autouse=True)
def _root(db: None) -> None:
    make_root()


def make(profile: str = "", key: str = "", *, actor: str = "", **fields: Any) -> Job:
    """A job of a table of its own; queued, unless the fields say otherwise."""
    table = make_table("ws", f"t{Job.objects.count()}")
    request = Transaction.objects.create(actor=actor) if actor else None
    return Job.objects.create(
        kind="compact",
        table=table,
        transaction=request,
        engine_profile=profile,
        limit_key=key,
        **fields,
    )


def at_work(profile: str = "", key: str = "", **fields: Any) -> Job:
    return make(profile, key, status=JobStatus.RUNNING, attempts=1, **fields)


def make_profile(name: str, concurrency: int = 1) -> None:
    EngineProfile.objects.create(name=name, kind=EngineKind.LOCAL, concurrency=concurrency)


def test_the_oldest_jobs_come_first():
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    late, early, *equal = [make(created_at=noon + at * HOUR) for at in (2, 0, 1, 1)]
    assert job_queue.next_jobs(9) == [early, *equal, late]
    assert job_queue.next_jobs(2) == [early, equal[0]]


def test_jobs_without_a_free_place_are_left_out():
    make_profile("full")
    make_profile("free", concurrency=2)
    at_work("full")
    at_work("free", "k")
    make("full")
    make("full", "k", limit=2)
    make("", "k", limit=1)
    last_of_both = make("free", "k", limit=2)
    make("free")
    make("", "k", limit=2)
    without_key = make("", "", limit=0)
    assert job_queue.free_drivers() == {"full": 0, "free": 1}
    assert job_queue.next_jobs(9) == [last_of_both, without_key]


def test_jobs_that_ended_yesterday_do_not_influence_the_order():
    make_profile("x")
    now = datetime.now(UTC)
    last = make("x", actor="former", status=JobStatus.SUCCEEDED, started_at=now - 26 * HOUR)
    former, new = make("x", actor="former"), make("x", actor="new")
    for hours, expected in ((25, former), (23, new)):
        Job.objects.filter(pk=last.pk).update(finished_at=now - hours * HOUR)
        assert job_queue.next_jobs(1) == [expected]


def test_policies_and_principals_take_turns_on_each_profile_and_outside_of_them():
    make_profile("x", concurrency=9)
    of_k = [make("x", "k") for _ in range(2)]
    of_actor = [make("x", actor="a") for _ in range(2)]
    elsewhere = [make(name, actor="a") for name in ("", "deleted")]
    assert job_queue.next_jobs(9) == [
        *(of_k[0], of_actor[0], elsewhere[0]),
        *(of_k[1], of_actor[1], elsewhere[1]),
    ]


@pytest.mark.parametrize(
    ("limit", "concurrency", "is_enough"),
    [(1, 9, False), (2, 9, True), (None, 9, True), (2, 1, False), (None, 2, True)],
)
def test_a_job_has_room_under_its_limit_and_on_its_profile(limit, concurrency, is_enough):
    make_profile("x", concurrency)
    at_work("x", "k")
    make("x", "k", status=JobStatus.SUCCEEDED)
    at_work("other", "other")
    assert job_queue.has_room(make("x", "k", limit=limit).pk) is is_enough


def test_the_default_profile_and_a_deleted_one_have_room():
    make_profile("default")
    for name in ("default", "deleted", ""):
        at_work(name)
        assert job_queue.has_room(make(name).pk) is True
        assert job_queue.has_room(make(name, "", limit=0).pk) is True


def test_room_is_counted_under_locks_that_begin_with_that_of_the_limit():
    make_profile("x")
    job = make("x", "k", limit=1)
    with CaptureQueriesContext(connection) as captured:
        assert job_queue.has_room(job.pk)
    statements = [query["sql"] for query in captured]
    locks = [i for i, sql in enumerate(statements) if "pg_advisory_xact_lock" in sql]
    counts = [i for i, sql in enumerate(statements) if "COUNT(*)" in sql]
    assert (locks, counts) == ([1, 3], [2, 4])


def test_the_end_of_a_job_without_a_limit_sends_nothing(sent, django_assert_num_queries):
    make("", "k", limit=9)
    for job in (at_work(), at_work("default")):
        with django_assert_num_queries(0):
            assert job_queue.next_under_limits_of(job) == []
    assert sent == []


def test_the_end_of_a_job_starts_one_job_of_its_profile_and_one_of_its_limit(sent):
    make_profile("x", concurrency=5)
    ended = make("x", "k", status=JobStatus.SUCCEEDED)
    on_profile, _ = make("x"), make("x")
    same_limit, _ = make("", "k", limit=5), make("", "k", limit=5)
    make("", "other", limit=5)
    assert job_queue.next_under_limits_of(ended) == [on_profile, same_limit]
    assert sent == []


def test_a_job_of_both_counts_for_the_limit_too(sent):
    make_profile("x", concurrency=5)
    ended = make("x", "k", status=JobStatus.SUCCEEDED)
    of_both = make("x", "k", limit=5)
    make("", "k", limit=5)
    assert job_queue.next_under_limits_of(ended) == [of_both]
    assert sent == []


def test_the_scheduler_is_started_if_no_job_of_the_limit_waits(sent):
    make_profile("x", concurrency=5)
    ended = make("x", "k", status=JobStatus.SUCCEEDED)
    on_profile = make("x", "other", limit=5)
    assert job_queue.next_under_limits_of(ended) == [on_profile]
    ((name, options),) = sent
    assert name == "tasks.maintenance.start_due"
    assert (options["args"], options["expires"]) == ([], 60)


def test_without_a_broker_the_log_states_when_the_scheduler_starts(monkeypatch, caplog):
    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError

    monkeypatch.setattr(current_app, "send_task", fail)
    try:
        job_queue.send_scheduler()
    finally:
        message_broker.resume()
    assert caplog.messages == [
        "The broker is unavailable; the scheduler starts in beat's next round"
    ]
