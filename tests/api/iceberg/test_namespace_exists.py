import pytest

from tests.api.iceberg.client import Iceberg
from tests.factories import make_namespace

pytestmark = pytest.mark.operation("namespaceExists")


def test_an_existing_namespace(iceberg: Iceberg):
    make_namespace("a", "b")
    assert iceberg.send("HEAD", "namespaces/a%1Fb") is None
    assert iceberg.at("a").send("HEAD", "namespaces/b") is None


def test_a_missing_namespace_is_refused(iceberg: Iceberg):
    make_namespace("a")
    iceberg.refused(404, "", "", "HEAD namespaces/b")
    iceberg.refused(404, "", "", "HEAD /v1/b/namespaces/a")
    iceberg.refused(400, "", "", "HEAD namespaces/a%1F")


def test_credentials_are_required(db):
    Iceberg().refused(401, "", "", "HEAD namespaces/a")
