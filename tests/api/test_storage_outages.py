"""Requests for tables in an object store that does not answer: 503 that names the storage profile."""

import pytest

from api import metrics
from catalog.access import SYSTEM
from catalog.errors import ServiceUnavailable
from catalog.models import Namespace, StorageProfile, Table, TableVersion
from catalog.privileges import Privilege
from catalog.services.storage import credentials, profile_operations, profiles
from catalog.storage import object_clients, role_sessions, stores
from catalog.storage.configuration import Key
from catalog.storage.outages import availability
from catalog.storage.stores import StorageUnavailable
from tests.api.client import Lance
from tests.catalog.storage.outages.test_availability import eventually
from tests.factories import make_lance_table, make_table, make_version, unchanged
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


def test_a_profile_that_is_corrected_is_no_longer_probed_at_its_old_endpoint(lake, monkeypatch):
    monkeypatch.setattr(availability, "PAUSES", (0.05,))
    lake.region = "eu-west-1"  # the breakers of other tests pause for long
    lake.save()
    profiles.discard_cache()
    profiles.configurations()
    breaker = object_clients.availability_of(profiles.configuration(lake))
    breaker.suspect()
    eventually(lambda: "answers" not in repr(breaker))
    profile_operations.update_profile(
        actor=SYSTEM,
        name="lake",
        changes=profile_operations.Changes(
            endpoint="http://127.0.0.1:10", key=Key("AKID", "another")
        ),
        confirm=True,
    )
    profiles.discard_cache()
    profiles.configurations()
    eventually(lambda: "answers" in repr(breaker) and not breaker._is_probing)


@pytest.fixture
def unreadable(lake: StorageProfile, make_profile: MakeProfile) -> StorageProfile:
    """Profile lake with a key that was encrypted with another MONODON_SECRET_KEY, beside a good profile."""
    make_profile(
        name="good", roots=["s3://good/root"], identity="key", key_id="AKGOOD", secret="secret"
    )
    StorageProfile.objects.filter(pk=lake.pk).update(secret=b"encrypted with another key")
    profiles.discard_cache()
    return lake


@pytest.mark.parametrize("request_name", REQUESTS)
def test_an_unreadable_key_affects_the_tables_of_its_profile_only(
    lance: Lance, unreadable, request_name
):
    tables = list(Table.objects.values())
    method, path, body = REQUESTS[request_name]
    answer = lance.call(method, path, body)
    assert answer.status_code == 503
    assert "storage profile 'lake' is unavailable: its key cannot be decrypted" in str(
        answer.json()
    )
    assert int(answer["Retry-After"]) == 60
    assert list(Table.objects.values()) == tables
    assert lance.post("/v1/table/near$t/count_rows", {}) == 3
    stores.store_of("s3://good/root/t")


@pytest.mark.parametrize("identity", ["key", "role"])
@pytest.mark.parametrize("kind", ["s3", "gcs", "adls"])
def test_an_unreadable_key_is_never_replaced_by_the_environment(
    unreadable, monkeypatch, identity, kind
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    root = {"s3": "s3://lake/root", "gcs": "gs://lake/root", "adls": "abfss://c@lake.x/root"}[kind]
    StorageProfile.objects.filter(pk=unreadable.pk).update(
        kind=kind, roots=[root], identity=identity, role="arn:aws:iam::1:role/r"
    )
    profiles.discard_cache()
    configuration = stores.configuration_of(f"{root}/t")
    assert configuration is not None
    assert configuration.key == Key("AKID")
    for use in (
        lambda: stores.store_of(f"{root}/t"),
        lambda: role_sessions.credential_source(configuration),
        lambda: object_clients.secret_of(configuration),
    ):
        with pytest.raises(StorageUnavailable, match="MONODON_SECRET_KEY has changed"):
            use()


@pytest.mark.parametrize("client_access", ["static", "sts"])
def test_an_unreadable_key_gives_clients_no_credentials(unreadable, client_access):
    StorageProfile.objects.filter(pk=unreadable.pk).update(client_access=client_access)
    profiles.discard_cache()
    table = Table.objects.get(location="s3://lake/root/t")
    opens = credentials.table_access(SYSTEM, table, held=Privilege.ALL)
    assert opens is not None
    with (
        unchanged(),
        pytest.raises(ServiceUnavailable, match="'lake' cannot issue credentials: its key"),
    ):
        credentials.issue(SYSTEM, table, opens)


def test_an_unreadable_key_is_logged_once_and_counted(unreadable, caplog):
    for _ in range(3):
        profiles.configurations(fresh=True)
    (message,) = (record.getMessage() for record in caplog.records)
    assert message == (
        "Storage profile 'lake' cannot be used: its key cannot be decrypted, because"
        " MONODON_SECRET_KEY has changed since it was stored. Enter the key of the profile again, or"
        " restore MONODON_SECRET_KEY."
    )
    assert profiles.unreadable() == ["lake"]
    (family,) = metrics._storage()
    assert [sample.value for sample in family.samples] == [1]


def test_a_new_key_repairs_a_profile_with_an_unreadable_one(unreadable):
    with (
        unchanged(),
        pytest.raises(ServiceUnavailable, match="'lake': its key cannot be decrypted"),
    ):
        profile_operations.update_profile(
            actor=SYSTEM, name="lake", changes=profile_operations.Changes(region="eu-west-1")
        )
    profile_operations.rotate_key(actor=SYSTEM, name="lake", key=Key("AKID", "another"))
    profiles.discard_cache()
    assert profiles.unreadable() == []
    stores.store_of("s3://lake/root/t")
