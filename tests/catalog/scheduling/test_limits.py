"""Holds, limits and budgets."""

from datetime import UTC, datetime, timedelta

import pytest

from catalog import policies
from catalog.maintenance_actions import LastRun
from catalog.scheduling.holds import Commits, is_quiet, needs_quiet, retry_delay
from catalog.scheduling.limits import ActiveJobs, Amount, fits, is_left, most_jobs

NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)


def test_a_budget_limits_seconds_and_bytes() -> None:
    budget = Amount(100.0, 1000)
    assert fits(budget, Amount(60.0, 900), Amount(40.0, 100))
    assert not fits(budget, Amount(60.0, 900), Amount(40.1, 100))
    assert not fits(budget, Amount(60.0, 900), Amount(40.0, 101))
    assert fits(Amount(), Amount(1e9, 10**15), Amount(1e9, 10**15))


def test_a_job_larger_than_the_budget_starts_first_in_a_window() -> None:
    assert fits(Amount(100.0), Amount(), Amount(500.0))
    assert not fits(Amount(100.0), Amount(1.0), Amount(500.0))


def test_a_budget_that_is_spent_leaves_nothing() -> None:
    assert is_left(Amount(100.0, 1000), Amount(99.0, 999))
    assert not is_left(Amount(100.0, 1000), Amount(100.0, 0))
    assert not is_left(Amount(100.0, 1000), Amount(0.0, 1000))
    assert is_left(Amount(), Amount(5.0, 5))


def test_jobs_that_wait_for_a_profile_leave_their_limit_to_others() -> None:
    active = ActiveJobs({"x": 1})
    for profile in ("x", "x", "", "other"):
        active.add("k", profile)
    active.add_running("k")
    assert active.imminent == {"k": 4}
    assert active.waiting == {("k", "x"): 1}


def test_the_number_of_jobs_queued_ahead_is_limited() -> None:
    assert [most_jobs(2, ended) for ended in (0, 7, 10_000)] == [2, 9, 502]


@pytest.mark.parametrize(
    ("attempts", "hours", "expected"),
    [(1, 1, False), (2, 1, True), (8, 23, True), (8, 25, False)],
)
def test_a_table_with_conflicts_needs_quiet_for_a_day(
    attempts: int, hours: int, expected: bool
) -> None:
    ended = NOW - timedelta(hours=hours)
    last = LastRun(ended, ended, False, False, 1, attempts)
    assert needs_quiet(last, NOW) is expected


def test_a_table_without_an_ended_job_needs_no_quiet() -> None:
    assert not needs_quiet(None, NOW)
    assert not needs_quiet(LastRun(NOW, None, False, False, 1, 5), NOW)


def test_a_table_is_quiet_with_half_of_its_usual_commits() -> None:
    assert is_quiet(Commits(recent=5, day=1440))  # ten in ten minutes
    assert not is_quiet(Commits(recent=6, day=1440))
    assert is_quiet(Commits(recent=0, day=0))


def test_attempts_are_repeated_after_growing_delays() -> None:
    assert [retry_delay(number).total_seconds() for number in (1, 2, 7)] == [30, 60, 1920]


@pytest.mark.parametrize(
    ("window", "clock", "began"),
    [
        ("", "12:00", "2027-01-31T00:00"),
        ("22:00-04:00", "23:00", "2027-01-31T22:00"),
        ("22:00-04:00", "03:00", "2027-01-30T22:00"),
        ("08:00-10:00", "08:00", "2027-01-31T08:00"),
    ],
)
def test_the_begin_of_a_window(window: str, clock: str, began: str) -> None:
    begin, _, end = window.partition("-")
    policy = policies.effective([("p", {"window_from": begin, "window_to": end})])
    now = datetime.fromisoformat(f"2027-01-31T{clock}+00:00")
    assert policy.window_began(now) == datetime.fromisoformat(f"{began}+00:00")


def test_a_policy_with_a_budget_counts_its_own_jobs() -> None:
    root = ("root", {"max_jobs": 9})
    assert policies.effective([]).limit_key == "max_jobs of the default"
    assert policies.effective([root, ("a", {"compaction": "on"})]).limit_key == "max_jobs of root"
    limited = policies.effective([root, ("a", {"budget_bytes": 5})])
    assert limited.limit_key == "max_jobs of a"
    assert limited["max_jobs"] == 9
