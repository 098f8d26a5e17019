"""Sessions expire after twelve hours without a request."""

import time
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.utils import timezone

from catalog.admin.access import sessions
from tests import clocks

HOUR = 3600
PAGE = "/admin/catalog/apikey/"


@pytest.fixture
def clock(monkeypatch):
    """Function that advances the clock of the sessions, by hours."""
    start, passed = time.time(), [0.0]
    clocks.replace(monkeypatch, sessions, time=lambda: start + passed[0])

    def move(hours: float) -> None:
        passed[0] += hours * HOUR

    return move


def is_in(browser) -> bool:
    answer = browser.get(PAGE)
    assert answer.status_code in {200, 302}
    return answer.status_code == 200


def test_an_active_session_does_not_expire(browser, clock):
    for _ in range(5):
        clock(11.5)
        assert is_in(browser)


def test_an_idle_session_expires(browser, clock):
    assert is_in(browser)
    clock(12.1)
    assert not is_in(browser)
    assert not Session.objects.exists()
    clock(-12.1)
    assert not is_in(browser)  # permanently


def test_the_cookie_and_the_row_expire_after_twelve_hours(browser, clock):
    assert settings.SESSION_COOKIE_AGE == 12 * HOUR
    clock(1)
    answer = browser.get(PAGE)
    assert answer.cookies[settings.SESSION_COOKIE_NAME]["max-age"] == 12 * HOUR
    remaining = Session.objects.get().expire_date - timezone.now()
    assert timedelta(hours=11, minutes=59) < remaining <= timedelta(hours=12)


def test_a_session_is_not_saved_on_every_request(browser, clock, django_assert_num_queries):
    browser.get(PAGE)
    clock(0.05)
    answer = browser.get(PAGE)
    assert settings.SESSION_COOKIE_NAME not in answer.cookies


def test_a_session_of_an_older_release_expires(browser):
    session = browser.session
    del session[sessions._LAST_USED]
    session.save()
    assert not is_in(browser)


@pytest.mark.parametrize("content", ["", None, "9" * 20, True])
def test_a_session_with_invalid_content_expires(browser, content):
    session = browser.session
    session[sessions._LAST_USED] = content
    session.save()
    assert not is_in(browser)
