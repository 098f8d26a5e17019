"""Access tokens and tokens of jobs: content, expiry, and invalid tokens."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core import signing

from catalog.access import tokens
from catalog.errors import TokenExpired, Unauthenticated
from catalog.privileges import READ_ONLY, Privilege
from tests import clocks

ISSUED = 1_750_000_000


@pytest.fixture
def clock(monkeypatch):
    """Set the time at which tokens are issued and read."""

    def set_to(seconds):
        clocks.replace(monkeypatch, signing, time=lambda: seconds)

    set_to(ISSUED)
    return set_to


def test_an_access_token_is_decoded_unchanged(clock):
    text = tokens.issue_token(7, READ_ONLY)
    assert text.startswith("mnt_")
    assert ":" not in text
    ends_at = datetime.fromtimestamp(ISSUED, UTC) + timedelta(hours=1)
    assert tokens.read_token(text) == tokens.AccessToken(7, ends_at, READ_ONLY)
    assert tokens.read_token(tokens.issue_token(7)).privileges == Privilege.ALL


def test_an_access_token_is_valid_for_an_hour(clock):
    text = tokens.issue_token(7)
    clock(ISSUED + 3600)
    token = tokens.read_token(text)
    clock(ISSUED + 3601)
    with pytest.raises(TokenExpired):
        tokens.read_token(text)
    assert tokens.read_token(text, allow_expired=True) == token


def test_invalid_access_tokens_are_refused(clock):
    text = tokens.issue_token(7)
    job_token = tokens.issue_job_token(7, 1)
    other_kind = tokens.PREFIX + job_token.removeprefix(tokens.JOB_PREFIX)
    for other in ("", "mnd_key", "mnt_", "mnt_x", text[:-1], text.removeprefix("mnt_"), other_kind):
        assert tokens.read_token(other) is None, other
        assert tokens.read_token(other, allow_expired=True) is None, other


def test_a_job_token_names_the_job_and_the_attempt(clock):
    text = tokens.issue_job_token(12, 3)
    assert text.startswith("mnj_")
    assert tokens.read_job_token(text) == (12, 3)
    clock(ISSUED + 26 * 3600)
    assert tokens.read_job_token(text) == (12, 3)
    clock(ISSUED + 26 * 3600 + 1)
    with pytest.raises(Unauthenticated) as refusal:
        tokens.read_job_token(text)
    assert refusal.value.message == "The token of a job is malformed or too old"


def test_invalid_job_tokens_are_refused(clock):
    access_token = tokens.issue_token(7)
    other_kind = tokens.JOB_PREFIX + access_token.removeprefix(tokens.PREFIX)
    for other in ("", "mnj_", "mnj_x", tokens.issue_job_token(1, 1)[:-1], other_kind):
        with pytest.raises(Unauthenticated, match=r"^The token of a job is malformed or too old$"):
            tokens.read_job_token(other)
