"""The moments before which versions and files may be removed."""

from datetime import UTC, datetime, timedelta

import pytest

from catalog.services.engine import database_clock
from catalog.services.maintenance import lance_retention
from tests.factories import make_table, make_version

DAY = 86_400


@pytest.mark.django_db
def test_the_clock_of_the_database_is_read():
    assert abs(datetime.now(UTC) - database_clock.read_clock()) < timedelta(hours=1)


@pytest.mark.parametrize("error", [timedelta(days=3), timedelta(days=-3)])
def test_a_wrong_clock_removes_less_and_never_more(monkeypatch, error):
    """A worker whose clock is three days ahead would remove the files of pending commits."""
    now = datetime.now(UTC)
    monkeypatch.setattr(database_clock, "read_clock", lambda: now + error)
    assert database_clock.cutoff(DAY) <= datetime.now(UTC) - timedelta(days=1)
    assert database_clock.cutoff(DAY) <= now + error - timedelta(days=1)


@pytest.mark.django_db
@pytest.mark.usefixtures("warehouse")
@pytest.mark.parametrize("seconds", [100 * 366 * DAY, 10**11, 2**53])
def test_retention_may_be_longer_than_there_are_dates(seconds):
    assert database_clock.cutoff_ms(seconds) == 0
    table = make_table("ws", "t")
    for version in (1, 2, 3):
        make_version(("ws", "t"), version)
    policy = {"keep_for": seconds, "keep_versions": 1}
    assert lance_retention.count_versions(table, policy).old_versions == 0
    assert lance_retention.retention(table, policy, 10)
