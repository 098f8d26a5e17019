"""Requests for tables in an object store that does not answer: 503 that names the storage profile."""

import pytest

from catalog.models import Namespace, StorageProfile, Table, TableVersion
from catalog.services.storage import profiles
from catalog.storage import object_clients
from catalog.storage.outages import availability
from tests.api.client import Lance
from tests.catalog.storage.outages.test_availability import eventually
from tests.factories import make_lance_table, make_table, make_version
from tests.stores.fixtures import MakeProfile

CAUSE = "storage profile 'lake' is unavailable: it refuses connections"


@pytest.fixture
def lake(make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch) -> StorageProfile:
    """A profile whose store refuses connections, and the table prod.far there; prod.near is local."""
    monkeypatch.setattr(object_clients, "RETRIES", 0)
    make_lance_table(("near", "t"))
    make_table("far", "t")
    make_version(("far", "t"), 1)
    profile = make_profile(
        name="lake",
        roots=["s3://lake/root"],
        region="eu-central-1",
        endpoint="http://127.0.0.1:9",
        path_style=True,
        identity="key",
        key_id="AKID",
        secret="of the tests",
    )
    Namespace.objects.named(("far",)).update(storage_profile=profile)
    Table.objects.named(("far", "t")).update(location="s3://lake/root/t")
    TableVersion.objects.filter(table__location="s3://lake/root/t").update(
        manifest_path="s3://lake/root/t/_versions/18446744073709551614.manifest"
    )
    return profile


REQUESTS = {
    "lance read": ("POST", "/v1/table/far$t/count_rows", {}),
    "iceberg write": (
        "POST",
        "/v1/namespaces/far/tables",
        {"name": "new", "schema": {"type": "struct", "fields": []}},
    ),
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_answers_name_the_profile_and_when_to_retry(lance: Lance, lake, monkeypatch, request_name):
    monkeypatch.setattr(availability, "PAUSES", (60.0,))
    breaker = object_clients.availability_of(profiles.configuration(lake))
    tables = list(Table.objects.values())
    method, path, body = REQUESTS[request_name]
    first = lance.call(method, path, body)
    assert (first.status_code, CAUSE in first.content.decode()) == (503, True)
    eventually(lambda: "answers" not in repr(breaker))
    refused = lance.call(method, path, body)
    assert (refused.status_code, CAUSE in refused.content.decode()) == (503, True)
    assert 30 < int(refused["Retry-After"]) <= 61
    assert list(Table.objects.values()) == tables
    assert lance.post("/v1/table/near$t/count_rows", {}) == 3
