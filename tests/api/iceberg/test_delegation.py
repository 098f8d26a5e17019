"""Access to tables in object stores: credentials and addresses in answers, ETags, repeated requests."""

import gzip
import json
import logging
import re
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from django.http import HttpResponse

from api.iceberg import answers, delegation
from catalog.access import SYSTEM, tokens
from catalog.formats.iceberg.job_properties import LEFT_OUT_FILES
from catalog.models import (
    AuditEvent,
    Grant,
    IcebergMetadata,
    IcebergPath,
    IdempotencyRecord,
    Namespace,
    StorageProfile,
    Table,
    TableFormat,
)
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.jobs import files as job_files
from catalog.services.storage import profiles
from catalog.services.storage.client_sessions import token_services
from catalog.services.storage.credentials import Credentials
from catalog.services.tables import job_operations
from catalog.storage import role_sessions
from catalog.storage.configuration import ClientAccess, Key, StoreConfiguration, StoreKind
from tests import vending
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_idempotency import new_key
from tests.factories import ICEBERG_SCHEMA, make_iceberg_table, make_namespace, snapshot, unchanged
from tests.ports import free_port
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto
from tests.vending import DELEGATED

PATH = "namespaces/ns/tables/orders"
GZIP = {"Accept-Encoding": "gzip"}
SECRETS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")


@dataclass
class Lake:
    store: Moto
    profile: StorageProfile
    table: Table

    @property
    def address(self) -> dict[str, str]:
        return {
            # The slash is for ClickHouse.
            "s3.endpoint": f"{self.store.endpoint}/",
            "s3.region": self.store.region,
            "client.region": self.store.region,
            "s3.path-style-access": "true",
            "s3.force-virtual-addressing": "false",
        }

    @property
    def bucket(self) -> str:
        return self.table.location.split("/")[2]

    def change(self, **fields: Any) -> None:
        self.profile.version += 1
        rows = StorageProfile.objects.filter(pk=self.profile.pk)
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
    table = vending.make_iceberg(f"{profile.roots[0]}/orders", "ns", "orders")
    bound = make_namespace("bound")
    Namespace.objects.filter(pk=bound.pk).update(storage_profile=profile)
    return Lake(moto_s3, profile, table)


def content_of(answer: HttpResponse) -> Any:
    assert answer.status_code == 200, answer.content
    content = answer.content
    if answer.get("Content-Encoding") == "gzip":
        content = gzip.decompress(content)
    return json.loads(content)


@pytest.mark.operation("loadTable")
@pytest.mark.parametrize("encoding", [{}, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize("snapshots", ["all", "refs"])
@pytest.mark.parametrize(
    "header", ["vended-credentials", "remote-signing, Vended-Credentials", "vended-credentials,x"]
)
def test_credentials_on_request(lake: Lake, iceberg: Iceberg, encoding, snapshots, header):
    headers = {"X-Iceberg-Access-Delegation": header, **encoding}
    answer = iceberg.call("GET", f"{PATH}?snapshots={snapshots}", headers=headers)
    content = content_of(answer)
    assert answer["Cache-Control"] == "private, no-store"
    row = IcebergMetadata.objects.get()
    stored = json.loads(metadata_files.decompress(bytes(row.answer)))
    config = content["config"]
    if snapshots == "all":
        assert content["metadata"] == stored["metadata"]
    assert content["metadata-location"] == row.metadata_location
    assert content.keys() == {"metadata-location", "metadata", "config", "storage-credentials"}
    assert config.keys() == {
        *SECRETS,
        *lake.address,
        "s3.session-token-expires-at-ms",
        "client.refresh-credentials-endpoint",
    }
    assert lake.address.items() <= config.items()
    expires_in = int(config["s3.session-token-expires-at-ms"]) - time.time() * 1000
    assert 3590_000 < expires_in < 3601_000
    assert config["client.refresh-credentials-endpoint"] == f"v1/{PATH}/credentials"
    assert content["storage-credentials"] == [{"prefix": lake.table.location, "config": config}]
    assert row.metadata_location.startswith(lake.table.location)


@pytest.mark.operation("loadTable")
@pytest.mark.parametrize("header", [None, "", "remote-signing", "vended"])
def test_the_address_without_request(lake: Lake, iceberg: Iceberg, header):
    headers = {} if header is None else {"X-Iceberg-Access-Delegation": header}
    with unchanged():
        answer = iceberg.call("GET", PATH, headers=headers)
    content = content_of(answer)
    assert content["config"] == lake.address
    assert "storage-credentials" not in content
    assert answer["Cache-Control"] == "private"


@pytest.mark.operation("loadTable")
def test_local_tables_are_sent_as_they_are_stored(iceberg: Iceberg, django_assert_num_queries):
    make_iceberg_table("ns", "local")
    iceberg.get("namespaces/ns/tables/local")
    row = IcebergMetadata.objects.get()
    with django_assert_num_queries(1):
        answer = iceberg.call("GET", "namespaces/ns/tables/local", headers=DELEGATED | GZIP)
    assert answer.content == bytes(row.answer)
    assert answer["ETag"] == row.etag
    assert answer["Cache-Control"] == "private"
    headers = DELEGATED | {"If-None-Match": row.etag}
    assert iceberg.call("GET", "namespaces/ns/tables/local", headers=headers).status_code == 304


@pytest.mark.operation("loadTable")
def test_a_hit_costs_no_statement_more(lake: Lake, django_assert_num_queries):
    client = Iceberg(vending.make_client_key("client", lake.table, vending.READ))
    client.get(PATH, headers=DELEGATED)
    client.get(PATH)
    with django_assert_num_queries(1):
        client.get(PATH)
    with django_assert_num_queries(1):
        client.get(PATH, headers=DELEGATED)


@pytest.mark.operation("loadTable")
def test_paths_outside_the_location(lake: Lake, iceberg: Iceberg):
    path = f"{lake.profile.roots[0]}/data-of-orders"
    lake.table.paths.create(path=path)
    content = iceberg.get(PATH, headers=DELEGATED)
    (credential,) = content["storage-credentials"]
    assert credential["prefix"] == "s3"
    client = vending.client_of(lake.store, credential["config"])
    client.put_object(Bucket=lake.bucket, Key="root/data-of-orders/data/1", Body=b"x")
    permitted = vending.outcomes(client, lake.bucket, "root/data-of-orders")
    assert permitted == vending.ALL_PERMITTED


@pytest.mark.operation("loadTable")
def test_a_profile_that_signs(lake: Lake, iceberg: Iceberg):
    lake.change(client_access="signing")
    content = iceberg.get(PATH, headers={"X-Iceberg-Access-Delegation": "remote-signing"})
    assert content["config"] == lake.address | {
        "s3.remote-signing-enabled": "true",
        "s3.signer.endpoint": f"v1/{PATH}/sign",
        "s3.signer": "S3V4RestSigner",
    }
    assert content["remote-signing-config"] == {"properties": {}, "headers": {}}
    assert "storage-credentials" not in content


@pytest.mark.operation("loadTable")
def test_the_profiles_own_key(lake: Lake, iceberg: Iceberg):
    lake.change(client_access="static")
    content = iceberg.get(PATH, headers=DELEGATED)
    assert content["config"] == lake.address | {
        "s3.access-key-id": lake.store.access_key,
        "s3.secret-access-key": lake.store.secret_key,
    }


@pytest.mark.operation("loadTable")
def test_names_in_the_endpoint_are_quoted(lake: Lake, iceberg: Iceberg):
    vending.make_iceberg(f"{lake.profile.roots[0]}/x", "a b", "c/d", "größe+1")
    levels = quote("c/d", safe="")
    path = f"namespaces/{levels}/tables/{quote('größe+1', safe='')}"
    content = iceberg.at("a~20b").get(path, headers=DELEGATED)
    endpoint = content["config"]["client.refresh-credentials-endpoint"]
    assert endpoint == f"v1/a~20b/{path}/credentials"
    assert iceberg.get(f"/{endpoint}")["storage-credentials"]


# --- ETags -------------------------------------------------------------------------------------


def load(client: Iceberg, *etags: str, **headers: str) -> HttpResponse:
    return client.call(
        "GET", PATH, headers={**DELEGATED, "If-None-Match": ", ".join(etags), **headers}
    )


@pytest.mark.operation("loadTable")
def test_an_unchanged_table_with_valid_credentials(lake: Lake, iceberg: Iceberg):
    first = load(iceberg)
    assert re.fullmatch(r'"[0-9a-f]{32}\.c[0-9a-f]{16}-\d{10}"', first["ETag"])
    with unchanged():
        again = load(iceberg, '"other"', first["ETag"])
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    refs = iceberg.call("GET", f"{PATH}?snapshots=refs", headers=DELEGATED)["ETag"]
    headers = DELEGATED | {"If-None-Match": refs}
    answer = iceberg.call("GET", f"{PATH}?snapshots=refs", headers=headers)
    assert (answer.status_code, answer["ETag"]) == (304, refs)
    assert load(iceberg, refs).status_code == 200


@pytest.mark.operation("loadTable")
def test_a_304_does_not_need_the_token_service(lake: Lake, iceberg: Iceberg, monkeypatch):
    etag = load(iceberg)["ETag"]
    monkeypatch.setattr(token_services, "open_session", None)
    assert load(iceberg, etag).status_code == 304


@pytest.mark.operation("loadTable")
def test_expired_credentials_are_no_304(lake: Lake, iceberg: Iceberg):
    lake.change(lifetime_seconds=3)
    first = load(iceberg)
    assert load(iceberg, first["ETag"]).status_code == 304
    time.sleep(3)
    second = load(iceberg, first["ETag"])
    names = ("s3.session-token-expires-at-ms", "s3.access-key-id")
    for name in names:
        assert content_of(second)["config"][name] != content_of(first)["config"][name]
    assert second["ETag"] != first["ETag"]


@pytest.mark.operation("loadTable")
def test_etags_of_others_are_no_304(lake: Lake, iceberg: Iceberg, reader: Iceberg):
    etag = load(iceberg)["ETag"]
    plain = iceberg.call("GET", PATH)["ETag"]
    stored = IcebergMetadata.objects.get().etag
    assert load(reader, etag).status_code == 200
    for tag in (
        plain,
        stored,
        "*",
        etag.replace(".c", ".c0"),
        f'{stored[:-1]}.c{"0" * 16}-{"9" * 10}"',
    ):
        assert load(iceberg, tag).status_code == 200
    without = {"If-None-Match": f"{etag}, {stored}"}
    assert iceberg.call("GET", PATH, headers=without).status_code == 200
    answer = iceberg.call("GET", PATH, headers={"If-None-Match": plain})
    assert (answer.status_code, answer["ETag"]) == (304, plain)


@pytest.mark.operation("loadTable")
def test_a_changed_profile_is_no_304(lake: Lake, iceberg: Iceberg):
    etags = [load(iceberg)["ETag"], iceberg.call("GET", PATH)["ETag"]]
    lake.change(region="eu-central-1")
    assert content_of(load(iceberg, *etags))["config"]["s3.region"] == "eu-central-1"
    answer = iceberg.call("GET", PATH, headers={"If-None-Match": etags[1]})
    assert content_of(answer)["config"]["s3.region"] == "eu-central-1"


@pytest.mark.operation("loadTable")
def test_withdrawn_access_ends_them_at_once(lake: Lake):
    client = Iceberg(vending.make_client_key("client", lake.table, vending.WRITE))
    first = load(client)
    Grant.objects.filter(table=lake.table).update(mask=vending.READ.value)
    second = load(client, first["ETag"])
    name = "s3.access-key-id"
    assert content_of(second)["config"][name] != content_of(first)["config"][name]
    Grant.objects.filter(table=lake.table).delete()
    assert load(client, first["ETag"], second["ETag"]).status_code == 404


# --- the token service -------------------------------------------------------------------------


@pytest.mark.operation("loadTable")
def test_an_unavailable_token_service(lake: Lake, iceberg: Iceberg, monkeypatch, caplog):
    etag = load(iceberg)["ETag"]
    lake.break_token_service(monkeypatch)
    before = snapshot()
    with caplog.at_level(logging.DEBUG):
        for path in (PATH, f"{PATH}/credentials"):
            answer = iceberg.call("GET", path, headers=DELEGATED | {"If-None-Match": etag})
            assert answer.status_code == 503
            assert answer["Retry-After"]
            error = answer.json()["error"]
            assert error["type"] == "SlowDownException"
            assert "'lake' cannot issue credentials" in error["message"]
            assert lake.store.secret_key not in answer.content.decode()
    assert lake.store.secret_key not in caplog.text
    assert snapshot() == before
    assert content_of(iceberg.call("GET", PATH))["config"].keys() == lake.address.keys()


@pytest.mark.operation("createTable")
@pytest.mark.parametrize("stage", [False, True])
def test_nothing_is_created_without_the_token_service(
    lake: Lake, iceberg: Iceberg, monkeypatch, stage
):
    lake.break_token_service(monkeypatch)
    body = {"name": "new", "schema": ICEBERG_SCHEMA, "stage-create": stage}
    with unchanged():
        answer = iceberg.call("POST", "namespaces/bound/tables", body, headers=DELEGATED)
    assert answer.status_code == 503, answer.content
    assert lake.store.keys(lake.bucket) == []
    iceberg.post("namespaces/bound/tables", body)  # without credentials


@pytest.mark.operation("registerTable")
def test_nothing_is_registered_without_the_token_service(lake: Lake, iceberg: Iceberg, monkeypatch):
    location = created(iceberg, name="new")["metadata-location"]
    iceberg.post("namespaces/bound/tables/new/unregister")
    lake.break_token_service(monkeypatch)
    body = {"name": "again", "metadata-location": location}
    with unchanged():
        answer = iceberg.call("POST", "namespaces/bound/register", body, headers=DELEGATED)
    assert answer.status_code == 503, answer.content


@pytest.mark.operation("createTable")
@pytest.mark.parametrize("stage", [False, True])
def test_nothing_is_created_around_files_of_another_table(lake: Lake, iceberg: Iceberg, stage):
    """Nobody gets credentials for the location."""
    around = f"{lake.profile.roots[0]}/around"
    IcebergPath.objects.create(table=lake.table, path=f"{around}/data")
    body = {"name": "new", "schema": ICEBERG_SCHEMA, "location": around, "stage-create": stage}
    with unchanged():
        answer = iceberg.call("POST", "namespaces/bound/tables", body, headers=DELEGATED)
    assert answer.status_code == 403, answer.content
    assert "another table has files inside" in answer.json()["error"]["message"]
    assert lake.store.keys(lake.bucket) == []
    iceberg.post("namespaces/bound/tables", body)  # without credentials


@pytest.mark.operation("registerTable")
def test_nothing_is_registered_around_files_of_another_table(lake: Lake, iceberg: Iceberg):
    around = f"{lake.profile.roots[0]}/around"
    location = created(iceberg, name="new", location=around)["metadata-location"]
    iceberg.post("namespaces/bound/tables/new/unregister")
    IcebergPath.objects.create(table=lake.table, path=f"{around}/data")
    body = {"name": "again", "metadata-location": location}
    with unchanged():
        answer = iceberg.call("POST", "namespaces/bound/register", body, headers=DELEGATED)
    assert answer.status_code == 403, answer.content
    assert "another table has files inside" in answer.json()["error"]["message"]
    iceberg.post("namespaces/bound/register", body)  # without credentials


# --- new tables --------------------------------------------------------------------------------


def created(client: Iceberg, *, headers: Any = DELEGATED, **fields: Any) -> Any:
    body = {"schema": ICEBERG_SCHEMA, **fields}
    answer = client.call("POST", "namespaces/bound/tables", body, headers=headers)
    return content_of(answer)


@pytest.mark.operation("createTable")
@pytest.mark.parametrize("stage", [False, True])
def test_new_tables(lake: Lake, iceberg: Iceberg, stage):
    content = created(iceberg, name="new", **{"stage-create": stage})
    location = content["metadata"]["location"]
    (credential,) = content["storage-credentials"]
    assert credential == {"prefix": location, "config": content["config"]}
    bucket, _, directory = location.removeprefix("s3://").partition("/")
    client = vending.client_of(lake.store, content["config"])
    client.put_object(Bucket=bucket, Key=f"{directory}/data/1", Body=b"x")
    assert vending.outcomes(client, bucket, directory) == vending.ALL_PERMITTED
    assert vending.outcomes(client, bucket, "root/orders") == vending.NOTHING_PERMITTED
    event = AuditEvent.objects.get(action="credentials.issue")
    assert event.target == "bound.new"
    assert ("client.refresh-credentials-endpoint" in content["config"]) is not stage


@pytest.mark.operation("createTable")
def test_new_tables_without_credentials(lake: Lake, iceberg: Iceberg):
    content = created(iceberg, name="new", headers={})
    assert content["config"] == lake.address
    assert not AuditEvent.objects.filter(action="credentials.issue").exists()


@pytest.mark.operation("registerTable")
def test_registered_tables(lake: Lake, iceberg: Iceberg):
    location = created(iceberg, name="new")["metadata-location"]
    iceberg.post("namespaces/bound/tables/new/unregister")
    body = {"name": "again", "metadata-location": location}
    answer = iceberg.call("POST", "namespaces/bound/register", body, headers=DELEGATED)
    content = content_of(answer)
    bucket = content["metadata"]["location"].split("/")[2]
    client = vending.client_of(lake.store, content["config"])
    key = location.removeprefix(f"s3://{bucket}/")
    assert client.get_object(Bucket=bucket, Key=key)["Body"].read()


@pytest.mark.operation("createTable")
@pytest.mark.parametrize("stage", [False, True])
def test_a_repeated_creation_gets_new_credentials(lake: Lake, iceberg: Iceberg, stage):
    headers = DELEGATED | {"Idempotency-Key": new_key()}
    fields = {"name": "new", "stage-create": stage, "location": f"{lake.profile.roots[0]}/new"}
    first = created(iceberg, headers=headers, **fields)
    secret = first["config"]["s3.secret-access-key"]
    for record in IdempotencyRecord.objects.all():
        assert secret.encode() not in bytes(record.content or b"")
    second = created(iceberg, headers=headers, **fields)
    assert second["config"] == first["config"]  # still valid
    lake.change(lifetime_seconds=1800)
    third = created(iceberg, headers=headers, **fields)
    assert third["config"]["s3.secret-access-key"] != secret
    assert third["metadata-location"] == first["metadata-location"]
    assert Table.objects.filter(name="new").count() == (0 if stage else 1)


# --- the endpoint of credentials ---------------------------------------------------------------


@pytest.mark.operation("loadCredentials")
def test_the_credentials_alone(lake: Lake, iceberg: Iceberg, reader: Iceberg):
    loaded = iceberg.get(PATH, headers=DELEGATED)
    answer = iceberg.call("GET", f"{PATH}/credentials")
    assert content_of(answer) == {"storage-credentials": loaded["storage-credentials"]}
    assert answer["Cache-Control"] == "private, no-store"
    (credential,) = reader.get(f"{PATH}/credentials")["storage-credentials"]
    client = vending.client_of(lake.store, credential["config"])
    lake.store.client().put_object(Bucket=lake.bucket, Key="root/orders/data/1", Body=b"x")
    permitted = vending.outcomes(client, lake.bucket, "root/orders")
    assert permitted == vending.READ_PERMITTED


@pytest.mark.operation("loadCredentials")
@pytest.mark.parametrize("client_access", ["none", "signing"])
def test_profiles_without_credentials(lake: Lake, iceberg: Iceberg, client_access):
    lake.change(client_access=client_access)
    with unchanged():
        assert iceberg.get(f"{PATH}/credentials") == {"storage-credentials": []}


@pytest.mark.operation("loadCredentials")
def test_local_tables_have_none(iceberg: Iceberg):
    make_iceberg_table("ns", "local")
    with unchanged():
        content = iceberg.get("namespaces/ns/tables/local/credentials")
    assert content == {"storage-credentials": []}


@pytest.mark.operation("loadCredentials")
def test_credentials_need_read(lake: Lake):
    browser = Iceberg(vending.make_client_key("browser", lake.table, vending.Privilege.BROWSE))
    outsider = Iceberg(vending.make_client_key("outsider", None, vending.READ))
    with unchanged():
        assert browser.call("GET", f"{PATH}/credentials").status_code == 403
        assert outsider.call("GET", f"{PATH}/credentials").status_code == 404


@pytest.mark.operation("loadTable")
def test_jobs_and_clients_share_no_compressed_answer(lake: Lake, iceberg: Iceberg, monkeypatch):
    """Hadoop would put secrets of the server in place of variables in properties that jobs get."""
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    row = IcebergMetadata.objects.get()
    content = json.loads(metadata_files.decompress(bytes(row.answer)))
    of_client = {"gc.enabled": "false", "zlib.compress.level": "${env.AWS_SECRET_ACCESS_KEY}"}
    text = json.dumps(content["metadata"] | {"properties": of_client}).encode()
    answer = metadata_files.answer(row.metadata_location, text)
    start = job_operations.StartMaintenance(
        table=("ns", "orders"), format=TableFormat.ICEBERG, kind_of_job="compute_statistics"
    )
    job = jobs.take(commit([start], actor=SYSTEM).results[0].pk)
    assert job is not None
    of_job = Iceberg(tokens.issue_job_token(job.pk, job.attempts))

    tags: dict[str, set[str]] = {"client": set(), "job": set()}

    def load(client: Iceberg, query: str = "") -> None:
        """The properties; no ETag of an answer means another answer too."""
        kind, other = ("job", "client") if client is of_job else ("client", "job")
        for tag in ("", *tags[other]):
            headers = {**DELEGATED, **GZIP, **({"If-None-Match": tag} if tag else {})}
            loaded = client.call("GET", f"{PATH}{query}", headers=headers)
            tags[kind].add(loaded["ETag"])
            properties = content_of(loaded)["metadata"]["properties"]
            assert properties == (of_client if client is iceberg else {"gc.enabled": "false"})

    for clients in ((iceberg, of_job, iceberg), (of_job, iceberg, of_job)):
        IcebergMetadata.objects.update(answer=answer, etag=metadata_files.new_etag())
        tags["client"].clear()
        for client in clients:
            load(client)
        load(of_job, "?snapshots=refs")
        assert not tags["client"] & tags["job"]


@pytest.mark.operation("loadTable")
def test_jobs_that_leave_out_other_files_share_no_compressed_answer(lake: Lake, monkeypatch):
    """Rights change without a new state of the table, and jobs of several kinds read different files."""
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_foreign(monkeypatch, left_out := set[str]())
    start = job_operations.StartMaintenance(
        table=("ns", "orders"), format=TableFormat.ICEBERG, kind_of_job="compact"
    )
    job = jobs.take(commit([start], actor=SYSTEM).results[0].pk)
    assert job is not None
    job.result = {"skipped": {}}
    job.save()
    client = Iceberg(tokens.issue_job_token(job.pk, job.attempts))
    tags = set()
    for files in ({"s3://b/x"}, {"s3://b/x", "s3://b/y"}, set(), {"s3://b/y"}):
        left_out.clear()
        left_out.update(files)
        for tag in ("", *tags):
            headers = {**DELEGATED, **GZIP, **({"If-None-Match": tag} if tag else {})}
            loaded = client.call("GET", PATH, headers=headers)
            properties = content_of(loaded)["metadata"]["properties"]
            assert set(json.loads(properties.get(LEFT_OUT_FILES, "[]"))) == files
        assert loaded["ETag"] not in tags
        tags.add(loaded["ETag"])


def make_foreign(monkeypatch: pytest.MonkeyPatch, files: set[str]) -> None:
    monkeypatch.setattr(job_files, "left_out", lambda *arguments: frozenset(files))


# --- how the fields come into the stored answer --------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 70_000, 3_000_000])
def test_fields_in_a_compressed_answer(size):
    text = json.dumps({"snapshots": "größe" * (size // 5)}, ensure_ascii=False).encode()
    stored = metadata_files.answer("s3://lake/t/metadata/1.json", text)
    for etag in ("", f'"{size}"', f'"{size}"'):
        packed = answers.with_fields(stored, b'"config":{"a":"b"}', etag=etag, gzip=True)
        plain = answers.with_fields(stored, b'"config":{"a":"b"}', etag=etag, gzip=False)
        assert gzip.decompress(packed) == plain
        assert json.loads(plain) == {
            "metadata-location": "s3://lake/t/metadata/1.json",
            "metadata": json.loads(text),
            "config": {"a": "b"},
        }


@pytest.mark.parametrize(
    ("kind", "location", "key", "expected"),
    [
        (
            StoreKind.GCS,
            "gs://lake/root/t",
            Key(token="narrow"),
            {
                "gcs.oauth2.token": "narrow",
                "gcs.oauth2.token-expires-at": "2000000",
                "gcs.oauth2.refresh-credentials-endpoint": "v1/namespaces/ns/tables/t/credentials",
            },
        ),
        (
            StoreKind.ADLS,
            "abfss://files@acc.dfs.core.windows.net/root/t",
            Key("acc", token="sig=1"),
            {
                "adls.sas-token.acc.dfs.core.windows.net": "sig=1",
                "adls.sas-token.acc": "sig=1",
                "adls.sas-token-expires-at-ms.acc.dfs.core.windows.net": "2000000",
                "adls.sas-token-expires-at-ms.acc": "2000000",
                "adls.refresh-credentials-endpoint": "v1/namespaces/ns/tables/t/credentials",
            },
        ),
    ],
)
def test_temporary_credentials_of_other_stores(kind, location, key, expected):
    configuration = StoreConfiguration(
        profile="lake", version=1, kind=kind, roots=(location,), client_access=ClientAccess.STS
    )
    issued = Credentials(configuration, location, key, expires_at=2000.0)
    table = SimpleNamespace(
        pk=1, identifier=("ns", "t"), metadata_location=f"{location}/metadata/0.json"
    )
    credential = delegation.storage_credential(issued, table, ())
    assert credential == {"prefix": location, "config": expected}
