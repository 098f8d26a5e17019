"""Counts of requests by address and by principal."""

import pytest

from api.errors import TooManyRequests
from api.front.limits import Limits, network


@pytest.fixture
def limits(settings) -> Limits:
    settings.MONODON_REQUESTS_PER_ADDRESS = 3
    settings.MONODON_REQUESTS_PER_PRINCIPAL = 2
    return Limits()


def test_requests_of_an_address_are_limited(limits: Limits):
    for _ in range(3):
        assert limits.enter("a", None) is None
    refusal = limits.enter("a", None)
    assert isinstance(refusal, TooManyRequests)
    assert refusal.message == "More than 3 requests at once from address a; try again later"
    assert limits.enter("b", None) is None
    limits.leave("a", None)
    assert limits.enter("a", None) is None


def test_requests_of_a_principal_from_all_addresses_are_limited(limits: Limits):
    limits.prove(1, "alice")
    limits.prove(2, "alice")
    first, second = limits.principal(1), limits.principal(2)
    assert limits.enter("a", first) is None
    assert limits.enter("b", second) is None
    assert isinstance(limits.enter("c", first), TooManyRequests)
    limits.leave("b", second)
    assert limits.enter("c", first) is None


def test_refused_requests_do_not_count(limits: Limits):
    for _ in range(2):
        limits.enter("a", "alice")
    assert limits.enter("a", "alice") is not None
    assert limits.enter("a", None) is None  # the third of the address
    limits.leave("a", "alice")
    assert limits.enter("b", "alice") is None


def test_requests_with_unknown_credentials_count_separately(limits: Limits):
    assert limits.principal(None) is None
    assert limits.principal(7) == 7
    assert not limits.is_proven(7)
    limits.prove(7, "alice")
    assert limits.principal(7) == "alice"
    assert limits.is_proven(7)


def test_zero_disables_the_limit(settings):
    settings.MONODON_REQUESTS_PER_ADDRESS = settings.MONODON_REQUESTS_PER_PRINCIPAL = 0
    limits = Limits()
    assert {limits.enter("a", "alice") for _ in range(1000)} == {None}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("nothing", "nothing"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, expected: str):
    assert network(address) == expected


def test_immediate_answers_of_a_principal_are_limited_by_the_second():
    now = 1000.0
    counted = Limits(clock=lambda: now)
    assert [counted.has_immediate_share("mallory") for _ in range(600)].count(True) == 500
    assert counted.has_immediate_share("alice")
    now = 1001.0
    assert counted.has_immediate_share("mallory")
