"""How many statements frequent requests take, with the two of a savepoint instead of BEGIN and COMMIT."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.identifiers import digest
from catalog.services.engine import table_cache
from catalog.services.storage import profiles
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.factories import make_iceberg_table, make_namespace, make_table, make_version

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": True, "type": "long"}]}


@pytest.fixture
def iceberg(lance: Lance) -> Iceberg:
    return Iceberg(lance.headers["x-api-key"])


@pytest.fixture(autouse=True)
def _content(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_FRESH_SECONDS", 3600.0)
    profiles.configurations()  # cached
    table_cache.namespaces.get(digest(()))  # cached
    make_namespace("ns", "below")
    make_table("ns", "t")
    make_version(("ns", "t"), 1)
    make_iceberg_table("ns", "i")


LANCE = {
    "/v1/namespace/ns/exists": 1,
    "/v1/namespace/ns/describe": 1,
    "/v1/namespace/new/create": 3,  # one, in a savepoint
    "/v1/table/ns$t/version/list": 1,
    "/v1/table/ns$new/declare": 3,
    "/v1/table/ns$t/deregister": 7,
    "/v1/table/ns$t/drop": 9,
    "/v1/namespace/ns$below/drop": 7,
}


@pytest.mark.parametrize("path", LANCE)
def test_lance(path: str, lance: Lance):
    lance.post("/v1/table/ns$t/describe", {})  # reads the key
    with CaptureQueriesContext(connection) as captured:
        lance.post(path, {})
    assert len(captured) == LANCE[path], [query["sql"] for query in captured]


ICEBERG = {
    "HEAD namespaces/ns": 1,
    "GET namespaces/ns": 1,
    "HEAD namespaces/ns/tables/i": 1,
    "POST namespaces/ns/tables": 4,  # the record of the file, and the table in a savepoint
    "POST namespaces": 4,  # one in a savepoint, and the namespaces for the answer
    "DELETE namespaces/ns/tables/i": 8,
}
BODIES = {
    "POST namespaces/ns/tables": {"name": "new", "schema": SCHEMA},
    "POST namespaces": {"namespace": ["new"]},
}


@pytest.mark.parametrize("request_line", ICEBERG)
def test_iceberg(request_line: str, iceberg: Iceberg):
    iceberg.call("GET", "namespaces/ns/tables/i")  # reads the key
    method, path = request_line.split()
    with CaptureQueriesContext(connection) as captured:
        answer = iceberg.call(method, path, BODIES.get(request_line))
    assert answer.status_code in {200, 204}, answer.content
    assert len(captured) == ICEBERG[request_line], [query["sql"] for query in captured]
