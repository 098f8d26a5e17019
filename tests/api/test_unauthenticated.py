"""Requests without a valid key get 401 with the authentication scheme."""

import pytest

from tests.access.protocols import PROTOCOLS
from tests.factories import unchanged

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("interface", PROTOCOLS)
def test_every_operation_without_a_key_gets_401_with_the_scheme(interface):
    protocol = PROTOCOLS[interface]
    client = protocol.client("")
    for name, request in protocol.requests.items():
        with unchanged():
            response = client.call(request.method, request.path, request.body, **request.options)
        assert response.status_code == 401, name
        assert response["www-authenticate"] == "Bearer", name


@pytest.mark.parametrize("interface", PROTOCOLS)
def test_a_wrong_key_gets_401_with_the_scheme(interface):
    protocol = PROTOCOLS[interface]
    request = next(iter(protocol.requests.values()))
    response = protocol.client("mnd_wrong").call(request.method, request.path, request.body)
    assert (response.status_code, response["www-authenticate"]) == (401, "Bearer")
