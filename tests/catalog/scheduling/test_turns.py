"""The order of the tables of a namespace."""

from datetime import UTC, datetime, timedelta

import pytest

from catalog.scheduling import turns
from catalog.scheduling.turns import MAX_HEAD_START, REFERENCE, Turn, head_start, value

NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def turn(**facts: object) -> Turn:
    defaults = {
        "is_needed": True,
        "worth": 0.0,
        "was_due_since": None,
        "last_job": None,
        "now": NOW,
    }
    return turns.turn(**defaults | facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("worth", "hours"),
    [
        (0, 0),
        (REFERENCE, 0),
        (2 * REFERENCE, 1),
        (1024 * REFERENCE, 10),
        (2**24 * REFERENCE, 24),
        (2**60 * REFERENCE, 24),
    ],
)
def test_each_doubling_of_the_value_is_an_hour(worth: float, hours: int) -> None:
    assert head_start(worth) == hours * HOUR


def test_the_value_is_the_saving_times_the_use_for_the_cost() -> None:
    assert value([600, 400], 20.0, 10.0, 1) == 2000
    assert value([600, 400], 20.0, 20.0, 1) == 1000
    assert value([600, 400], 20.0, 10.0, 3) == 6000
    assert value([1000], None, 10.0, 1) == value([1000], 10.0, 10.0, 1)
    assert value([1000], 0.0, 10.0, 1) == 25
    assert value([], 20.0, 10.0, 1) == 0


def test_a_table_is_due_since_the_first_measurement_that_requires_a_job() -> None:
    assert turn() == Turn(NOW, NOW)
    before = NOW - 5 * HOUR
    assert turn(was_due_since=before) == Turn(before, before)
    assert turn(was_due_since=before, worth=4 * REFERENCE) == Turn(before, before - 2 * HOUR)


def test_a_table_begins_to_wait_again_after_a_job() -> None:
    before = NOW - 5 * HOUR
    assert turn(was_due_since=before, last_job=NOW - 3 * HOUR) == Turn(NOW, NOW)
    earlier = turn(was_due_since=before, last_job=NOW - 6 * HOUR)
    assert earlier == Turn(before, before)


def test_a_table_that_just_had_a_job_has_no_head_start() -> None:
    worth = 2**30 * REFERENCE
    assert turn(worth=worth, last_job=NOW - timedelta(minutes=59)) == Turn(NOW, NOW)
    assert turn(worth=worth, last_job=NOW - HOUR) == Turn(NOW, NOW - MAX_HEAD_START)


def test_a_table_that_needs_nothing_comes_last() -> None:
    healthy = turn(is_needed=False, worth=2**60, was_due_since=NOW - 99 * HOUR)
    assert healthy.due_since is None
    assert healthy.at > NOW + timedelta(days=10_000)
