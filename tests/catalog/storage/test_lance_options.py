"""The server's own Lance reads and writes objects with the options of a profile."""

import json
import time

import lance
import pyarrow as pa
import pytest

from catalog.storage import lance_options, object_clients, stores
from catalog.storage.configuration import Key, ServerIdentity, StoreKind
from catalog.storage.stores import AccessDenied, StorageUnavailable
from tests.catalog.storage import configurations
from tests.catalog.storage.answering_server import AnsweringServer
from tests.stores.faults import Faults
from tests.stores.s3 import Moto, S3Store


@pytest.fixture
def use(monkeypatch):
    """Let a configuration be the only one."""

    def connect(configuration) -> None:
        monkeypatch.setattr(stores, "_source", lambda fresh: (configuration,))

    return connect


def test_local_paths_need_no_options():
    assert lance_options.storage_options("/warehouse/t") is None


def test_a_location_without_a_profile(use):
    use(configurations.of_endpoint("http://127.0.0.1:9"))
    with pytest.raises(StorageUnavailable, match="no profile has s3://other"):
        lance_options.storage_options("s3://other/root/t")


def test_lance_writes_and_reads(s3: S3Store, use):
    bucket = s3.new_bucket()
    use(configurations.of_store(s3, bucket))
    location = f"s3://{bucket}/root/t"
    options = lance_options.storage_options(location)
    lance.write_dataset(pa.table({"x": [1, 2]}), location, storage_options=options)
    assert lance.dataset(location, storage_options=options).count_rows() == 2
    store = stores.store_of(location)
    assert len(list(store.list_files(location, "_versions"))) == 1


def test_lance_knows_the_time_limit_of_a_request(proxied_s3, s3_proxy, use, monkeypatch):
    """Lance ignores options that it does not know."""
    bucket = proxied_s3.new_bucket()
    use(configurations.of_store(proxied_s3, bucket))
    location = f"s3://{bucket}/root/t"
    lance.write_dataset(
        pa.table({"x": [1]}), location, storage_options=lance_options.storage_options(location)
    )
    monkeypatch.setattr(lance_options, "_request_seconds", lambda: 1)
    monkeypatch.setattr(object_clients, "RETRIES", 0)
    options = lance_options.storage_options(location)
    dataset = lance.dataset(location, storage_options=options, session=lance.Session())
    s3_proxy.faults = Faults(delay=1, delay_seconds=4)
    begin = time.monotonic()
    with pytest.raises(pa.ArrowInvalid, match="error sending request"):
        dataset.to_table()
    # Lance itself repeats reads of data files.
    assert time.monotonic() - begin < 3 * 4
    assert s3_proxy.counts["delay"] > 1


def test_lance_uses_an_assumed_role(moto_s3: Moto, use):
    bucket = moto_s3.new_bucket()
    use(configurations.of_store(moto_s3, bucket, identity=ServerIdentity.ROLE, role=moto_s3.role))
    location = f"s3://{bucket}/root/t"
    options = lance_options.storage_options(location)
    assert options is not None
    assert options["aws_access_key_id"] != moto_s3.access_key
    assert options["aws_session_token"]
    remaining = int(options[lance_options.EXPIRES_AT]) / 1000 - time.time()
    assert 600 < remaining <= 3600
    lance.write_dataset(pa.table({"x": [1, 2]}), location, storage_options=options)
    assert lance.dataset(location, storage_options=options).count_rows() == 2


def test_the_environment_does_not_lead_lance_elsewhere(answering, use, monkeypatch):
    with AnsweringServer() as elsewhere:
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, elsewhere.url)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "ENVKEY",
            "AWS_SECRET_ACCESS_KEY": "environment-secret",
            "AWS_SESSION_TOKEN": "ENVTOKEN",
            "AWS_REGION": "env-region",
            "AWS_DEFAULT_REGION": "env-region",
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REQUEST_PAYER": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        }.items():
            monkeypatch.setenv(name, value)
        use(configurations.of_endpoint(answering.url))
        options = lance_options.storage_options("s3://lake/root/t")
        with pytest.raises((OSError, ValueError)):
            lance.dataset("s3://lake/root/t", storage_options=options)
        assert elsewhere.requests == []
    assert answering.requests
    for request in answering.requests:
        assert request.path.startswith("/lake")
        assert "Credential=AKIDPROFILE/" in request.headers["authorization"]
        assert "/eu-central-1/s3/" in request.headers["authorization"]
        text = json.dumps({**request.headers})
        assert not [value for value in ("ENV", "env-region", "request-payer") if value in text]


def test_the_options_of_a_key(use, monkeypatch):
    for name in ("AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_SERVER_SIDE_ENCRYPTION"):
        monkeypatch.delenv(name, raising=False)
    use(
        configurations.of_endpoint(
            "https://store.example", path_style=False, kms_key="arn:aws:kms:x:1:key/k"
        )
    )
    options = lance_options.storage_options("s3://lake/root/t")
    assert options is not None
    assert {name: value for name, value in options.items() if name.startswith("aws_")} == {
        "aws_access_key_id": "AKIDPROFILE",
        "aws_secret_access_key": "profile-secret",
        "aws_region": "eu-central-1",
        "aws_default_region": "eu-central-1",
        "aws_endpoint": "https://lake.store.example",
        "aws_endpoint_url_s3": "https://lake.store.example",
        "aws_virtual_hosted_style_request": "true",
        "aws_skip_signature": "false",
        "aws_unsigned_payload": "false",
        "aws_request_payer": "false",
        "aws_s3_express": "false",
        "aws_conditional_put": "etag",
        "aws_server_side_encryption": "aws:kms",
        "aws_sse_kms_key_id": "arn:aws:kms:x:1:key/k",
    }
    assert options["allow_http"] == "false"
    assert lance_options.EXPIRES_AT not in options


def test_the_options_of_the_environment_hold_no_key(use, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environment-secret")
    use(
        configurations.of_endpoint(
            "https://store.example", key=None, identity=ServerIdentity.ENVIRONMENT
        )
    )
    options = lance_options.storage_options("s3://lake/root/t")
    assert options is not None
    assert not {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"} & options.keys()


def test_the_options_of_google(use, monkeypatch):
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT", raising=False)
    use(
        configurations.of_endpoint(
            "", kind=StoreKind.GCS, roots=("gs://lake/root",), key=Key("", "{}")
        )
    )
    options = lance_options.storage_options("gs://lake/root/t")
    assert options is not None
    assert options["google_service_account_key"] == "{}"
    assert options["google_base_url"] == "https://storage.googleapis.com"
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/other.json")
    with pytest.raises(AccessDenied, match="GOOGLE_SERVICE_ACCOUNT"):
        lance_options.storage_options("gs://lake/root/t")


def test_the_options_of_azure(use, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_TOKEN", raising=False)
    bucket = "abfss://con@account.dfs.core.windows.net"
    use(
        configurations.of_endpoint(
            "", kind=StoreKind.ADLS, roots=(f"{bucket}/root",), key=Key("account", "QUFB")
        )
    )
    options = lance_options.storage_options(f"{bucket}/root/t")
    assert options is not None
    assert options["azure_storage_account_name"] == "account"
    assert options["azure_storage_account_key"] == "QUFB"
    assert options["azure_storage_endpoint"] == "https://account.blob.core.windows.net"
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "ENVTOKEN")
    with pytest.raises(AccessDenied, match="AZURE_STORAGE_TOKEN"):
        lance_options.storage_options(f"{bucket}/root/t")
