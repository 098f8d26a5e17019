"""Remote signing: requests that stay at the files of a table are signed, all others are refused."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from catalog.access import SYSTEM
from catalog.models import (
    FileReference,
    Grant,
    IcebergPath,
    PrincipalLevel,
    StorageProfile,
    Table,
)
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.iceberg import request_signing
from catalog.services.storage import profiles
from catalog.storage import object_clients, role_sessions
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_table, unchanged

pytestmark = [pytest.mark.operation("signRequest"), pytest.mark.django_db]

PATH = "namespaces/ns/tables/orders/sign"
HOST = "https://lake.s3.eu-central-1.amazonaws.com"


@pytest.fixture
def lake(db) -> StorageProfile:
    row = StorageProfile.objects.create(
        name="lake",
        kind="s3",
        roots=["s3://lake/tables"],
        region="eu-central-1",
        identity="key",
        key_id="AKIDSERVER",
        secret=profiles.sealed("the secret of the server"),
        client_access="signing",
    )
    profiles.discard_cache()
    return row


@pytest.fixture
def orders(lake) -> Table:
    return place("orders")


@pytest.fixture
def make_principal_client(db) -> Callable[[Privilege, str], Iceberg]:
    """Make a client of a principal with one privilege on one table of namespace ``ns``."""

    def make(privilege: Privilege, table: str) -> Iceberg:
        row, key = api_keys.create_api_key(
            actor=SYSTEM, name="analyst", level=PrincipalLevel.GRANTED
        )
        Grant.objects.create(
            principal=row.principal,
            mask=closure(privilege).value,
            table=Table.objects.named(("ns", table)).get(),
        )
        return Iceberg(key)

    return make


def place(name: str) -> Table:
    """An Iceberg table in the bucket. Signing sends nothing there."""
    make_iceberg_table("ns", name)
    row = Table.objects.named(("ns", name)).get()
    row.location = f"s3://lake/tables/{name}"
    row.save()
    return row


def request(method="GET", key="tables/orders/data/1.parquet", **fields):
    return {
        "method": method,
        "uri": f"{HOST}/{key}",
        "region": "eu-central-1",
        "headers": {},
        **fields,
    }


def delete_objects(*keys: str):
    body = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    return request("POST", "?delete", body=f"<Delete>{body}</Delete>")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_readers_get_signatures_for_reads(reader: Iceberg, orders, method):
    with unchanged():
        response = reader.call("POST", PATH, request(method))
    assert response.status_code == 200, response.content
    headers = response.json()["headers"]
    assert response.json()["uri"] == f"{HOST}/tables/orders/data/1.parquet"
    assert headers["authorization"][0].startswith("AWS4-HMAC-SHA256 Credential=AKIDSERVER/")
    assert response["Cache-Control"] == "private"
    assert b"the secret" not in response.content


def test_a_signature_begins_before_the_table_is_looked_up(iceberg: Iceberg, orders, monkeypatch):
    """A request that is suspended afterwards gets no signature that outlasts the drop of the table longer."""
    load = request_signing.iceberg_tables.load_table
    moments = []

    def slow(**arguments):
        loaded = load(**arguments)
        moments.append(datetime.now(UTC))
        time.sleep(1.1)
        return loaded

    monkeypatch.setattr(request_signing.iceberg_tables, "load_table", slow)
    headers = iceberg.call("POST", PATH, request()).json()["headers"]
    assert headers["x-amz-date"][0] <= f"{moments[0]:%Y%m%dT%H%M%SZ}"


@pytest.mark.parametrize(
    "body",
    [
        request("PUT"),
        request("DELETE"),
        request("POST", "tables/orders/data/1.parquet?uploads"),
        delete_objects("tables/orders/data/1.parquet", "tables/orders/metadata/1.avro"),
    ],
    ids=["put", "delete", "upload", "delete objects"],
)
def test_writers_get_signatures_for_changes_and_readers_do_not(
    iceberg: Iceberg, reader: Iceberg, orders, body
):
    response = iceberg.call("POST", PATH, body)
    assert response.status_code == 200, response.content
    assert response["Cache-Control"] == "no-cache"
    with unchanged():
        assert reader.call("POST", PATH, body).status_code == 403


def test_lists_of_the_table_are_signed(reader: Iceberg, orders):
    for prefix in ("tables/orders/", "tables/orders/data/1"):
        response = reader.call("POST", PATH, request("GET", f"?list-type=2&prefix={prefix}"))
        assert response.status_code == 200, response.content


@pytest.fixture
def others(orders) -> None:
    place("returns")
    place("orders2")


@shared_cases(
    "key",
    [
        "tables/returns/data/1.parquet",
        "tables/orders2/data/1.parquet",
        "tables/unknown/data/1.parquet",
        "tables/orders",
        "tables/x",
        "elsewhere/data/1.parquet",
    ],
)
@shared_cases("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_files_of_others_are_refused(iceberg: Iceberg, others, key, method):
    with unchanged():
        response = iceberg.call("POST", PATH, request(method, key))
    # A key that may do everything may also read other tables for this one, and change none of them.
    may_read = method in {"GET", "HEAD"} and key.startswith(("tables/returns/", "tables/orders2/"))
    assert response.status_code == (200 if may_read else 400), response.content


@pytest.mark.parametrize("key", ["tables/returns/data/1.parquet", "tables/orders2/data/1.parquet"])
def test_readers_of_one_table_do_not_read_another_one_through_it(
    make_principal_client, orders, key
):
    place("returns")
    place("orders2")
    client = make_principal_client(Privilege.READ, "orders")
    assert client.call("POST", PATH, request()).status_code == 200
    with unchanged():
        response = client.call("POST", PATH, request("GET", key))
    assert response.status_code == 400
    assert "does not belong to" in response.json()["error"]["message"]


def test_files_that_the_table_refers_to_may_be_read(make_principal_client, iceberg, orders):
    source = place("returns")
    client = make_principal_client(Privilege.READ, "orders")
    FileReference.objects.create(
        table=orders,
        source=source,
        principal="tester",
        directories=["s3://lake/tables/returns/data/day=1"],
    )
    for key in ("day=1/1.parquet", "day=1/hour=2/1.parquet"):
        reading = request("GET", f"tables/returns/data/{key}")
        assert client.call("POST", PATH, reading).status_code == 200
    for key in ("data/1.parquet", "data/day=10/1.parquet", "metadata/v1.metadata.json"):
        with unchanged():
            response = client.call("POST", PATH, request("GET", f"tables/returns/{key}"))
        assert response.status_code == 400, key


@shared_cases(
    "prefix",
    ["tables/", "tables/orders", "tables/orders2/", "tables/returns/", "t", "elsewhere/"],
    prepare=lambda: place("returns"),
)
def test_lists_beyond_the_table_are_refused(iceberg: Iceberg, orders, prefix):
    with unchanged():
        response = iceberg.call("POST", PATH, request("GET", f"?list-type=2&prefix={prefix}"))
    assert response.status_code == 400


def test_one_foreign_key_refuses_the_whole_deletion(iceberg: Iceberg, orders):
    place("returns")
    with unchanged():
        body = delete_objects("tables/orders/data/1.parquet", "tables/returns/data/1.parquet")
        assert iceberg.call("POST", PATH, body).status_code == 400


def test_copies_from_other_tables_need_access_to_them(make_principal_client, orders):
    place("returns")
    client = make_principal_client(Privilege.WRITE, "orders")
    for source, status in {"orders": 200, "returns": 400, "orders2": 400}.items():
        headers = {"x-amz-copy-source": [f"/lake/tables/{source}/data/1.parquet"]}
        with unchanged():
            response = client.call("POST", PATH, request("PUT", headers=headers))
        assert response.status_code == status, (source, response.content)


@pytest.fixture
def secrets(orders) -> Table:
    """A table in a bucket of the same name in another store."""
    StorageProfile.objects.create(
        name="other",
        kind="s3",
        roots=["s3://lake/private"],
        endpoint="http://127.0.0.1:1",
        path_style=True,
    )
    profiles.discard_cache()
    row = place("secrets")
    row.location = "s3://lake/private/secrets"
    row.save()
    return row


@pytest.mark.parametrize(
    "body",
    [
        request("GET", "private/secrets/data/1.parquet"),
        request("PUT", headers={"x-amz-copy-source": ["/lake/private/secrets/data/1.parquet"]}),
    ],
    ids=["read", "copy"],
)
def test_names_of_another_store_are_not_signed_for_this_one(iceberg: Iceberg, secrets, body):
    with unchanged():
        response = iceberg.call("POST", PATH, body)
    assert response.status_code == 400, response.content
    assert "does not belong to" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        request("GET", "private/moved/data/1.parquet"),
        request("DELETE", "private/moved/data/1.parquet"),
        request("GET", "?list-type=2&prefix=private/moved/"),
        delete_objects("private/moved/data/1.parquet"),
    ],
    ids=["read", "delete", "list", "delete objects"],
)
def test_directories_of_a_table_in_another_store_are_not_signed(
    iceberg: Iceberg, orders, secrets, body
):
    IcebergPath.objects.create(table=orders, path="s3://lake/private/moved")
    with unchanged():
        response = iceberg.call("POST", PATH, body)
    assert response.status_code == 400, response.content


def test_a_session_that_cannot_be_renewed_does_not_occupy_threads(
    iceberg: Iceberg, lake, orders, monkeypatch
):
    lake.identity, lake.role = "role", "arn:aws:iam::123456789012:role/lake"
    lake.version += 1
    lake.save()
    profiles.discard_cache()
    breaker = object_clients.availability_of(profiles.configuration(lake))
    monkeypatch.setattr(breaker, "_cause", "it does not answer in time")
    monkeypatch.setattr(role_sessions, "_assumed_role", lambda _: pytest.fail("it was called"))
    with unchanged():
        response = iceberg.call("POST", PATH, request())
    assert response.status_code == 503, response.content
    assert "storage profile 'lake' is unavailable" in response.json()["error"]["message"]


@pytest.mark.parametrize("client_access", ["none", "static", "sts"])
def test_profiles_that_do_not_sign_are_refused(iceberg: Iceberg, lake, orders, client_access):
    StorageProfile.objects.update(client_access=client_access)
    profiles.discard_cache()
    with unchanged():
        response = iceberg.call("POST", PATH, request())
    assert response.status_code == 406, response.content


def test_local_tables_are_refused(iceberg: Iceberg):
    make_iceberg_table("ns", "orders")
    with unchanged():
        assert iceberg.call("POST", PATH, request()).status_code == 406


@pytest.mark.parametrize("provider", ["gcs", "azure", "S3", ""])
def test_other_providers_are_refused(iceberg: Iceberg, orders, provider):
    with unchanged():
        assert iceberg.call("POST", PATH, request(provider=provider)).status_code == 406


def test_lance_tables_are_not_found(iceberg: Iceberg, lake):
    make_table("ns", "orders")
    with unchanged():
        assert iceberg.call("POST", PATH, request()).status_code == 404


@pytest.mark.parametrize("field", ["method", "uri", "region", "headers"])
def test_incomplete_requests_are_refused(iceberg: Iceberg, orders, field):
    body = request()
    del body[field]
    with unchanged():
        assert iceberg.call("POST", PATH, body).status_code == 400
