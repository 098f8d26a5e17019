"""Limits on guessing secrets, with API keys and at the token endpoint."""

from urllib.parse import urlencode

import pytest
from django.test import Client

from catalog.access import SYSTEM
from catalog.errors import TooManyAttempts
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys, known_keys, throttle
from catalog.services.access.throttle import BY_ADDRESS, BY_CLIENT, Throttle
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.management.client import Management


@pytest.fixture
def key(db) -> str:
    _, key = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.READ)
    return key


def ask(path: str = "/oauth/token", address: str = "127.0.0.1", **form: str):
    form = {"grant_type": "client_credentials", **form}
    return Client(REMOTE_ADDR=address).post(
        path, urlencode(form), content_type="application/x-www-form-urlencoded"
    )


# --- HTTP ----------------------------------------------------------------------------------------


def test_wrong_keys_are_limited_in_each_protocol(key):
    for i in range(BY_ADDRESS):
        Management(f"mnd_wrong{i}").refused(401, "unauthenticated", "unknown", "GET jobs")
    answer = Management("mnd_one_more").refused(
        429, "too-many-attempts", "Too many wrong credentials", "GET jobs"
    )
    assert 0 < int(answer["retry-after"]) <= 60
    answer = Lance("mnd_wrong").refused(429, 21, "Too many", "/v1/table", method="GET")
    assert 0 < int(answer["retry-after"]) <= 60
    answer = Iceberg("mnd_wrong").refused(
        429, "TooManyRequestsException", "Too many", "GET namespaces"
    )
    assert 0 < int(answer["retry-after"]) <= 60
    # Even the right key is refused now, because it might be the next guess.
    Management(key).refused(429, "too-many-attempts", "", "GET jobs")
    # From another address it is accepted. Then it is proven, and accepted from this address too.
    elsewhere = Management(key)
    elsewhere.client.defaults["REMOTE_ADDR"] = "192.0.2.7"
    elsewhere.get("jobs")
    Management(key).get("jobs")


def test_repetitions_of_a_wrong_key_count_once(key):
    for _ in range(BY_ADDRESS + 5):
        Management("mnd_revoked").refused(401, "unauthenticated", "", "GET jobs")
    Management(key).get("jobs")


@pytest.mark.parametrize("path", ["/oauth/token", "/v1/oauth/tokens"])
def test_wrong_client_secrets_are_limited(key, path):
    for i in range(BY_CLIENT):
        answer = ask(path, f"192.0.2.{i % 200}", client_id="etl", client_secret=f"wrong {i}")
        assert answer.status_code == 401
    answer = ask(path, "198.51.100.1", client_id="etl", client_secret=key)
    assert (answer.status_code, answer["cache-control"]) == (429, "no-store")
    assert answer.json()["error"] == "temporarily_unavailable"
    assert set(answer.json()) == {"error", "error_description"}
    assert 0 < int(answer["retry-after"]) <= 60
    assert ask(path, "198.51.100.1", client_secret=key).status_code == 200


def test_a_proven_client_is_not_limited(key):
    assert ask(client_id="etl", client_secret=key).status_code == 200
    for i in range(BY_ADDRESS):
        ask(client_id="etl", client_secret=f"wrong {i}")
    assert ask(client_id="etl", client_secret="another").status_code == 429
    assert ask(client_id="etl", client_secret=key).status_code == 200


def test_subject_tokens_of_an_exchange_count_as_guesses(key):
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    for i in range(BY_ADDRESS):
        assert ask(**form, subject_token=f"wrong {i}").status_code == 400
    assert ask(**form, subject_token=key).status_code == 429


def test_the_address_is_that_of_the_trusted_proxies(key, settings):
    settings.MONODON_PROXIES = 2
    for i in range(BY_ADDRESS):
        client = Management(f"wrong{i}", **{"x-forwarded-for": f"{i}, 192.0.2.1, 10.0.0.1"})
        client.refused(401, "unauthenticated", "", "GET jobs")
    for forwarded_for, status in (
        ("192.0.2.1, 10.0.0.1", 429),
        ("192.0.2.2, 10.0.0.1", 200),
        ("192.0.2.1, 192.0.2.3, 10.0.0.1", 200),
    ):
        known_keys.forget_keys()
        throttle.throttle._proven.clear()
        client = Management(key, **{"x-forwarded-for": forwarded_for})
        assert client.call("GET", "jobs").status_code == status


def test_forwarding_headers_are_ignored_without_proxies(key):
    for i in range(BY_ADDRESS):
        Management(f"wrong{i}", **{"x-forwarded-for": f"192.0.2.{i}"}).call("GET", "jobs")
    Management(key).refused(429, "too-many-attempts", "", "GET jobs")


# --- counting ------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_limit_ends_after_a_minute():
    clock = Clock()
    fresh = Throttle(clock=clock)
    for i in range(BY_ADDRESS - 1):
        fresh.record_failure(f"{i}", "192.0.2.1")
    fresh.check("x", "192.0.2.1")
    clock.now = 20
    fresh.record_failure("x", "192.0.2.1")
    with pytest.raises(TooManyAttempts) as refused:
        fresh.check("y", "192.0.2.1")
    assert refused.value.seconds == 40
    fresh.check("y", "192.0.2.2")
    clock.now = 60
    fresh.check("y", "192.0.2.1")


@pytest.mark.parametrize(
    ("guesser", "same", "other"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("", "nonsense", "192.0.2.2"),
    ],
)
def test_addresses_of_one_network_count_together(guesser, same, other):
    fresh = Throttle()
    for i in range(BY_ADDRESS):
        fresh.record_failure(f"{i}", guesser)
    with pytest.raises(TooManyAttempts):
        fresh.check("x", same)
    fresh.check("x", other)


def test_memory_is_bounded():
    fresh = Throttle(size=100)
    for i in range(1000):
        fresh.record_failure(f"{i}", f"10.0.{i // 250}.{i % 250}", f"client {i}")
        fresh.record_success(f"right {i}")
    for i in range(1000):
        fresh.record_failure(f"{i}", "192.0.2.1")
    assert len(fresh._sources) <= 100
    assert len(fresh._proven) <= 100
    assert max(len(source.guesses) for source in fresh._sources.values()) == BY_ADDRESS


def test_a_revoked_credential_is_no_longer_trusted():
    fresh = Throttle()
    fresh.record_success("key")
    for i in range(BY_ADDRESS):
        fresh.record_failure(f"{i}", "192.0.2.1")
    fresh.check("key", "192.0.2.1")
    fresh.record_failure("key", "192.0.2.1")
    with pytest.raises(TooManyAttempts):
        fresh.check("key", "192.0.2.1")
