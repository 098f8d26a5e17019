"""Storage options in answers for tables in object stores."""

import json
import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Grant, IdempotencyRecord, Namespace, StorageProfile, Table
from catalog.services.storage import profiles
from catalog.services.storage.client_sessions import token_services
from catalog.storage import role_sessions
from tests import vending
from tests.api.client import Lance, stream
from tests.factories import make_namespace, make_root, make_table, snapshot, unchanged
from tests.ports import free_port
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto

DESCRIBE = "/v1/table/ns$orders/describe"
SECRETS = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}


@dataclass
class Lake:
    store: Moto
    profile: StorageProfile
    table: Table

    @property
    def address(self) -> dict[str, str]:
        return {
            "aws_endpoint": self.store.endpoint,
            "aws_region": self.store.region,
            "aws_virtual_hosted_style_request": "false",
            "allow_http": "true",
        }

    def change(self, **fields: Any) -> None:
        rows = StorageProfile.objects.filter(pk=self.profile.pk)
        self.profile.version += 1
        rows.update(**fields, version=self.profile.version)
        profiles.discard_cache()

    def break_token_service(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(role_sessions, "_client_config", vending.impatient)
        token_services.forget()
        self.change(sts_endpoint=f"http://127.0.0.1:{free_port()}")


@pytest.fixture
def lake(moto_s3: Moto, make_profile: MakeProfile) -> Lake:
    fields = moto_s3.profile_fields() | {"client_access": "sts", "role": moto_s3.role}
    profile = make_profile(name="lake", roots=[f"s3://{moto_s3.new_bucket()}/root"], **fields)
    table = vending.make_lance(f"{profile.roots[0]}/orders", "ns", "orders")
    bound = make_namespace("bound")
    Namespace.objects.filter(pk=bound.pk).update(storage_profile=profile)
    return Lake(moto_s3, profile, table)


@pytest.mark.operation("DescribeTable")
@pytest.mark.parametrize("body", [{}, {"vend_credentials": True}, {"vend_credentials": None}])
def test_credentials_unless_they_are_declined(lake: Lake, lance: Lance, body):
    answer = lance.call("POST", DESCRIBE, body)
    assert answer["Cache-Control"] == "private, no-store"
    options = answer.json()["storage_options"]
    assert options.keys() == SECRETS | lake.address.keys() | {
        "expires_at_millis",
        "refresh_offset_millis",
    }
    assert lake.address.items() <= options.items()
    assert 3590_000 < int(options["expires_at_millis"]) - time.time() * 1000 < 3601_000
    assert options["refresh_offset_millis"] == "60000"
    client = vending.client_of(lake.store, options)
    bucket = lake.table.location.split("/")[2]
    client.put_object(Bucket=bucket, Key="root/orders/data/1", Body=b"x")
    assert vending.outcomes(client, bucket, "root/orders") == vending.ALL_PERMITTED


@pytest.mark.operation("DescribeTable")
def test_declined_credentials_leave_the_address(lake: Lake, lance: Lance):
    with unchanged():
        answer = lance.call("POST", DESCRIBE, {"vend_credentials": False})
    assert answer["Cache-Control"] == "private"
    assert answer.json()["storage_options"] == lake.address


@pytest.mark.operation("DescribeTable")
def test_short_lifetimes_are_renewed_earlier(lake: Lake, lance: Lance):
    lake.change(lifetime_seconds=10)
    options = lance.post(DESCRIBE)["storage_options"]
    assert options["refresh_offset_millis"] == "2000"


@pytest.mark.operation("DescribeTable")
@pytest.mark.parametrize("client_access", ["none", "signing"])
def test_profiles_without_credentials_give_the_address(lake: Lake, lance: Lance, client_access):
    lake.change(client_access=client_access)
    with unchanged():
        assert lance.post(DESCRIBE)["storage_options"] == lake.address


@pytest.mark.operation("DescribeTable")
def test_the_profiles_own_key(lake: Lake, lance: Lance):
    lake.change(client_access="static")
    assert lance.post(DESCRIBE)["storage_options"] == lake.address | {
        "aws_access_key_id": lake.store.access_key,
        "aws_secret_access_key": lake.store.secret_key,
    }


@pytest.mark.operation("DescribeTable")
def test_virtual_hosts_and_encryption(lake: Lake, lance: Lance):
    lake.change(path_style=False, endpoint="https://store.example:9000", kms_key="alias/lake")
    options = lance.post(DESCRIBE, {"vend_credentials": False})["storage_options"]
    bucket = lake.table.location.split("/")[2]
    assert options == {
        "aws_endpoint": f"https://{bucket}.store.example:9000",
        "aws_region": lake.store.region,
        "aws_virtual_hosted_style_request": "true",
        "allow_http": "false",
        "aws_server_side_encryption": "aws:kms",
        "aws_sse_kms_key_id": "alias/lake",
    }


@pytest.mark.operation("DescribeTable")
def test_readers_get_other_credentials_than_writers(lake: Lake, lance: Lance, reader: Lance):
    written, read = (client.post(DESCRIBE)["storage_options"] for client in (lance, reader))
    bucket = lake.table.location.split("/")[2]
    vending.client_of(lake.store, written).put_object(
        Bucket=bucket, Key="root/orders/data/1", Body=b"x"
    )
    client = vending.client_of(lake.store, read)
    assert vending.outcomes(client, bucket, "root/orders") == vending.READ_PERMITTED
    events = AuditEvent.objects.filter(action="credentials.issue").order_by("pk")
    assert [(event.actor, event.after["access"]) for event in events] == [
        ("tester", "write"),
        ("reader", "read"),
    ]


@pytest.mark.operation("DescribeTable")
def test_withdrawn_access_ends_them_at_once(lake: Lake):
    key = vending.make_client_key("client", lake.table, vending.WRITE)
    client = Lance(key)
    first = client.post(DESCRIBE)["storage_options"]
    assert client.post(DESCRIBE)["storage_options"] == first
    Grant.objects.filter(table=lake.table).update(mask=vending.READ.value)
    second = client.post(DESCRIBE)["storage_options"]
    assert second["aws_access_key_id"] != first["aws_access_key_id"]
    Grant.objects.filter(table=lake.table).delete()
    client.refused(404, 1, "ns", DESCRIBE)


@pytest.mark.operation("DescribeTable")
def test_a_hit_costs_no_statement_more_than_declined_credentials(
    lake: Lake, django_assert_num_queries
):
    key = vending.make_client_key("client", lake.table, vending.READ)
    client = Lance(key)
    client.post(DESCRIBE)
    client.post(DESCRIBE, {"vend_credentials": False})
    with django_assert_num_queries(1):
        client.post(DESCRIBE, {"vend_credentials": False})
    with django_assert_num_queries(1):
        client.post(DESCRIBE)


@pytest.mark.operation("DescribeTable")
def test_local_tables_have_no_options(lance: Lance, django_assert_num_queries):
    table = make_table("ws", "t")
    lance.post("/v1/table/ws$t/describe")
    with django_assert_num_queries(1):
        answer = lance.call("POST", "/v1/table/ws$t/describe", {"vend_credentials": True})
    assert answer["Cache-Control"] == "private"
    expected = {"location": table.location, "properties": {}, "managed_versioning": True}
    assert json.loads(answer.content) == expected


@pytest.mark.operation("DescribeTable")
def test_an_unavailable_token_service(lake: Lake, lance: Lance, monkeypatch, caplog):
    lake.break_token_service(monkeypatch)
    with caplog.at_level(logging.DEBUG):
        answer = lance.refused(503, 17, "'lake' cannot issue credentials", DESCRIBE)
    assert answer["Retry-After"]
    assert lake.store.secret_key not in answer.content.decode() + caplog.text
    assert lance.post(DESCRIBE, {"vend_credentials": False})["storage_options"] == lake.address


# --- new tables --------------------------------------------------------------------------------


@pytest.mark.operation("DeclareTable")
@pytest.mark.parametrize("chosen", [False, True], ids=["server's location", "client's location"])
def test_declared_tables(lake: Lake, lance: Lance, chosen):
    location = f"{lake.profile.roots[0]}/declared" if chosen else None
    answer = lance.call("POST", "/v1/table/bound$new/declare", {"location": location})
    assert answer.status_code == 200, answer.content
    assert answer["Cache-Control"] == "private, no-store"
    body = answer.json()
    bucket, _, directory = body["location"].removeprefix("s3://").partition("/")
    client = vending.client_of(lake.store, body["storage_options"])
    client.put_object(Bucket=bucket, Key=f"{directory}/data/1", Body=b"x")
    assert vending.outcomes(client, bucket, directory) == vending.ALL_PERMITTED
    described = lance.post("/v1/table/bound$new/describe")["storage_options"]
    assert described == body["storage_options"]


@pytest.mark.operation("DeclareTable")
def test_declared_tables_without_credentials(lake: Lake, lance: Lance):
    body = {"vend_credentials": False}
    answer = lance.post("/v1/table/bound$new/declare", body)
    assert answer["storage_options"] == lake.address
    assert not AuditEvent.objects.filter(action="credentials.issue").exists()


@pytest.mark.operation("DeclareTable")
@pytest.mark.parametrize("chosen", [False, True], ids=["server's location", "client's location"])
def test_nothing_is_declared_without_the_token_service(
    lake: Lake, lance: Lance, chosen, monkeypatch
):
    lake.break_token_service(monkeypatch)
    body = {"location": f"{lake.profile.roots[0]}/declared" if chosen else None}
    path = "/v1/table/bound$new/declare"
    lance.refused(503, 17, "'lake' cannot issue credentials", path, body)
    assert not Table.objects.filter(name="new").exists()
    lance.post(path, body | {"vend_credentials": False})


@pytest.mark.operation("CreateTable")
def test_created_tables(lake: Lake, lance: Lance):
    answer = lance.call("POST", "/v1/table/bound$new/create", raw=stream(pa.table({"id": [1]})))
    assert answer.status_code == 200, answer.content
    assert answer["Cache-Control"] == "private, no-store"
    body = answer.json()
    bucket, _, directory = body["location"].removeprefix("s3://").partition("/")
    client = vending.client_of(lake.store, body["storage_options"])
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{directory}/")
    assert listed["KeyCount"] > 0


@pytest.mark.operation("CreateTable")
@pytest.mark.parametrize("mode", ["Create", "ExistOk"])
def test_a_repeated_creation_gets_new_credentials(lake: Lake, lance: Lance, mode):
    if mode == "ExistOk":
        lance.post("/v1/table/bound$new/create", raw=stream(pa.table({"id": [1]})))
    key = {"Idempotency-Key": str(uuid.uuid4())}

    def create() -> Any:
        path = f"/v1/table/bound$new/create?mode={mode}"
        answer = lance.call("POST", path, raw=stream(pa.table({"id": [1]})), headers=key)
        assert answer.status_code == 200, answer.content
        assert answer["Cache-Control"] == "private, no-store"
        return answer.json()

    first = create()
    secret = first["storage_options"]["aws_secret_access_key"]
    for record in IdempotencyRecord.objects.all():
        assert secret.encode() not in bytes(record.content or b"")
    assert create() == first
    lake.change(lifetime_seconds=1800)
    third = create()
    assert third["storage_options"]["aws_secret_access_key"] != secret
    del first["storage_options"], third["storage_options"]
    assert third == first
    Table.objects.filter(name="new").update(state="dropped")
    answer = lance.call(
        "POST",
        f"/v1/table/bound$new/create?mode={mode}",
        raw=stream(pa.table({"id": [1]})),
        headers=key,
    )
    assert answer.json() == first


@pytest.mark.operation("CreateTable")
def test_nothing_is_created_without_the_token_service(lake: Lake, lance: Lance, monkeypatch):
    lake.break_token_service(monkeypatch)
    path = "/v1/table/bound$new/create"
    content = stream(pa.table({"id": [1]}))
    lance.refused(503, 17, "'lake' cannot issue credentials", path, raw=content)
    assert lake.store.keys(lake.table.location.split("/")[2]) == []


def test_no_secret_is_in_the_catalog(lake: Lake, lance: Lance):
    make_root()
    options = lance.post(DESCRIBE)["storage_options"]
    rows = str(snapshot())
    for name in ("aws_secret_access_key", "aws_session_token", "aws_access_key_id"):
        assert options[name] not in rows
    metrics = lance.client.get("/metrics").content.decode()
    for name in SECRETS:
        assert options[name] not in metrics
