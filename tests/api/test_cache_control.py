"""Shared caches may not store answers that depend on the principal of an x-api-key."""

import pytest

from tests.api.client import Lance
from tests.factories import make_iceberg_table, make_root

pytestmark = pytest.mark.django_db
PRIVATE = {"private", "no-store", "private, no-store"}


@pytest.fixture(autouse=True)
def _catalog():
    make_root()
    make_iceberg_table("own", "t")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/config", 200),
        ("GET", "/v1/namespaces", 200),
        ("GET", "/v1/namespaces/own/tables/t", 200),
        ("HEAD", "/v1/namespaces/own/tables/t", 204),
        ("GET", "/v1/namespaces/own/tables/missing", 404),
        ("GET", "/v1/namespace/own/list", 200),
        ("GET", "/management/v1/keys", 200),
        ("GET", "/management/v1/keys/missing", 404),
        ("GET", "/management/v1/tables/own%24t/access", 200),
    ],
)
@pytest.mark.parametrize("has_key", [True, False])
def test_answers_to_principals_are_private(lance: Lance, method, path, status, has_key):
    answer = (lance if has_key else Lance()).call(method, path)
    assert answer.status_code == (status if has_key else 401)
    assert answer.headers["Cache-Control"] in PRIVATE


def test_an_unchanged_table_is_private_too(lance: Lance):
    path = "/v1/namespaces/own/tables/t"
    etag = lance.call("GET", path).headers["ETag"]
    answer = lance.call("GET", path, headers={"If-None-Match": etag})
    assert (answer.status_code, answer.headers["Cache-Control"]) == (304, "private")


def test_the_configuration_of_the_command_line_stays_public():
    answer = Lance().call("GET", "/management/v1/sign-on")
    assert answer.headers["Cache-Control"].startswith("public, max-age=")
