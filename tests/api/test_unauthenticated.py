"""A request without a valid key: 401, which says how to come in."""

import pytest

from tests.access.doors import DOORS
from tests.factories import unchanged

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("door", DOORS)
def test_every_operation_says_how_to_come_in(door):
    one = DOORS[door]
    client = one.client("")
    for name, request in one.requests.items():
        with unchanged():
            response = client.call(request.method, request.path, request.body, **request.options)
        assert response.status_code == 401, name
        assert response["www-authenticate"] == "Bearer", name


@pytest.mark.parametrize("door", DOORS)
def test_a_wrong_key(door):
    one = DOORS[door]
    request = next(iter(one.requests.values()))
    response = one.client("mnd_wrong").call(request.method, request.path, request.body)
    assert (response.status_code, response["www-authenticate"]) == (401, "Bearer")
