"""Requests to an issuer, and what is read from its claims, without a database."""

import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import requests

from catalog.errors import ServiceUnavailable
from catalog.services.access import issued_groups, oidc, timed_calls
from tests import clocks
from tests.cases import shared_cases

URL = "https://issuer.example.com"


class Answer:
    def __init__(self, content: bytes, status: int = 200) -> None:
        self.content, self.status_code = content, status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def iter_content(self, size: int):
        return (self.content[i : i + size] for i in range(0, len(self.content), size))


@pytest.fixture
def answers(monkeypatch):
    """Function that sets the answer to every request; returns the arguments of the requests."""
    calls = []

    def answer(content: bytes, status: int = 200):
        monkeypatch.setattr(
            requests,
            "get",
            lambda url, **more: calls.append((url, more)) or Answer(content, status),
        )
        return calls

    return answer


def test_a_document_is_requested_with_time_limits_and_without_redirects(answers):
    calls = answers(b'{"a": 1}')
    assert oidc.fetch_json(URL) == {"a": 1}
    assert calls == [
        (
            URL,
            {
                "timeout": (3.0, 5.0),
                "allow_redirects": False,
                "stream": True,
                "headers": {"Accept": "application/json"},
            },
        )
    ]


LARGEST = b"{}".ljust(512 * 1024)


def test_documents_that_are_too_large_or_no_objects_are_refused(answers):
    answers(LARGEST)
    assert oidc.fetch_json(URL) == {}
    for content, status, message in (
        (LARGEST + b" ", 200, "too large, or too slow"),
        (b"[]", 200, "not a JSON object"),
        (b"{}", 201, "status 201"),
        (b"{}", 302, "status 302"),
    ):
        answers(content, status)
        with pytest.raises(ValueError, match=f"^{message}$"):
            oidc.fetch_json(URL)


def test_a_slow_document_is_refused(answers, monkeypatch):
    answers(b"{}")
    monkeypatch.setattr(timed_calls, "WHOLE_SECONDS", -1)
    with pytest.raises(ValueError, match=r"^too large, or too slow$"):
        oidc.fetch_json(URL)


@shared_cases(
    ("url", "is_safe"),
    [
        (URL, True),
        ("https://127.0.0.1/x", True),
        ("http://localhost:80/x", True),
        ("http://127.0.0.1/x", True),
        ("http://[::1]:9/x", True),
        ("http://issuer.example.com", False),
        ("file://localhost/etc/passwd", False),
        ("", False),
        (None, False),
        (5, False),
    ],
)
def test_only_https_and_this_machine_are_safe(url, is_safe):
    if is_safe:
        assert oidc.require_safe(url) == url
        return
    with pytest.raises(ValueError, match=r"^not https$"):
        oidc.require_safe(url)


def test_the_document_names_its_issuer(monkeypatch):
    documents = {
        f"{URL}/.well-known/openid-configuration": {"issuer": URL, "jwks_uri": f"{URL}/jwks"},
        f"{URL}/jwks": {"keys": []},
    }
    monkeypatch.setattr(oidc, "fetch_json", documents.__getitem__)
    assert oidc._fetch(URL) == (documents[f"{URL}/.well-known/openid-configuration"], [])
    # A slash at the end belongs to the name.
    with pytest.raises(ValueError, match=r"^the document is of another issuer$"):
        oidc._fetch(f"{URL}/")
    documents[f"{URL}/.well-known/openid-configuration"]["jwks_uri"] = "http://localhost/jwks"
    with pytest.raises(
        ValueError, match=r"^the keys are not fetched over https, as the document is$"
    ):
        oidc._fetch(URL)


@shared_cases(
    ("issuer", "older_than", "is_due"),
    [
        ({"fetched_at": 100.5}, None, False),
        ({"fetched_at": 100}, None, True),
        ({"fetched_at": 500}, 499, False),
        ({"fetched_at": 500}, 500, True),
        ({"fetched_at": 500}, 501, True),
        ({"is_away": True, "tried_at": 990.5}, None, False),
        ({"is_away": True, "tried_at": 990.5}, 0, False),
        ({"is_away": True, "tried_at": 990}, None, True),
        ({"is_away": True, "tried_at": 990, "fetched_at": 999}, None, True),
    ],
)
def test_when_the_keys_are_fetched_again(monkeypatch, issuer, older_than, is_due):
    clocks.replace(monkeypatch, oidc, monotonic=lambda: 1000)
    assert oidc._is_due(oidc._Issuer(**issuer), older_than) is is_due


def test_keys_are_usable_for_an_hour(monkeypatch):
    clocks.replace(monkeypatch, oidc, monotonic=lambda: 5000)
    issuer = oidc._Issuer(fetched_at=1400.5)
    assert oidc._usable(issuer) is issuer
    for fetched_at in (1400, float("-inf")):
        with pytest.raises(ServiceUnavailable):
            oidc._usable(oidc._Issuer(fetched_at=fetched_at))


@shared_cases(
    ("claims", "groups"),
    [
        ({}, None),
        ({"groups": None}, None),
        ({"groups": {"a": 1}}, None),
        ({"groups": "a"}, {"a"}),
        ({"groups": []}, set()),
        ({"groups": ["a", 5, "b\x00", "b", "a"]}, {"a", "b"}),
        ({"groups": [str(i) for i in range(1001)]}, {str(i) for i in range(1000)}),
    ],
)
def test_the_groups_of_a_claim(claims, groups):
    assert issued_groups.groups_of(claims) == groups


def test_the_moment_of_a_claim():
    assert issued_groups.moment(1.5) == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert issued_groups.moment(0) == datetime(1970, 1, 1, tzinfo=UTC)
    for seconds in (None, 1e20, float("nan"), float("inf")):
        assert issued_groups.moment(seconds) is None


# --- calls with a time limit ---------------------------------------------------------------------


def test_the_result_or_the_error_of_a_call_is_returned(monkeypatch):
    monkeypatch.setattr(timed_calls, "_exchanges", [])
    assert timed_calls.exchange(lambda: 7) == 7
    for error in (ValueError("x"), TimeoutError("its own")):
        call = SimpleNamespace(error=error)
        with pytest.raises(type(error)) as raised:
            timed_calls.exchange(lambda call=call: (_ for _ in ()).throw(call.error))
        assert raised.value is error


def test_a_call_that_does_not_end_counts_against_the_limit(monkeypatch):
    monkeypatch.setattr(timed_calls, "_exchanges", [])
    monkeypatch.setattr(timed_calls, "_MOST", 2)
    monkeypatch.setattr(timed_calls, "WHOLE_SECONDS", 0.01)
    go_on, calls = threading.Event(), []
    late = "^The issuer of the single sign-on does not answer in time$"
    for _ in range(3):
        with pytest.raises(ServiceUnavailable, match=late) as error:
            timed_calls.exchange(lambda: calls.append(threading.current_thread()) or go_on.wait())
        assert error.value.retry_seconds == 1
    assert [(thread.name, thread.daemon) for thread in calls] == [("issuer", True)] * 2
    go_on.set()
    for thread in calls:
        thread.join()
    monkeypatch.setattr(timed_calls, "WHOLE_SECONDS", 10)
    assert timed_calls.exchange(lambda: 7) == 7
