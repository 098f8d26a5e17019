"""The server's own credentials for S3: keys, the environment, and roles of a real token service."""

import logging
import threading
import time
import traceback

import pytest

from catalog.storage import role_sessions
from catalog.storage.configuration import Key, ServerIdentity, StoreConfiguration
from catalog.storage.object_store import ObjectStore
from catalog.storage.role_sessions import CredentialSource, SessionCredentials
from catalog.storage.stores import AccessDenied, StorageUnavailable
from tests.catalog.storage import configurations
from tests.catalog.storage.answering_server import Answer
from tests.catalog.storage.test_stores import in_parallel
from tests.stores.s3 import Moto


@pytest.fixture
def bucket(moto_s3: Moto) -> str:
    return moto_s3.new_bucket()


def with_role(moto_s3: Moto, bucket: str, **changes: object) -> StoreConfiguration:
    values = {"identity": ServerIdentity.ROLE, "role": moto_s3.role}
    return configurations.of_store(moto_s3, bucket, **values | changes)


def test_the_server_assumes_a_role(moto_s3, bucket):
    configuration = with_role(moto_s3, bucket)
    store = ObjectStore(configuration, f"s3://{bucket}")
    store.write_new(f"s3://{bucket}/root/f", b"content")
    assert store.read(f"s3://{bucket}/root/f", 100)[0] == b"content"
    credentials = role_sessions.credential_source(configuration).current()
    assert credentials.key_id != moto_s3.access_key
    assert credentials.token
    assert credentials.expires_at is not None
    assert 3000 < credentials.expires_at - time.time() <= 3600
    assert role_sessions.credential_source(configuration).current() is credentials
    assert credentials.secret not in repr(credentials)
    assert credentials.token not in repr(credentials)


def test_the_server_assumes_a_role_with_an_external_id(moto_s3, bucket):
    role = moto_s3.role_with_external_id
    configuration = with_role(moto_s3, bucket, role=role, external_id=moto_s3.external_id)
    assert CredentialSource(configuration).current().token


def test_no_session_is_logged(moto_s3, bucket, caplog):
    caplog.set_level(logging.DEBUG)
    credentials = CredentialSource(with_role(moto_s3, bucket)).current()
    for secret in (credentials.secret, credentials.token, moto_s3.secret_key):
        assert secret not in caplog.text


def test_a_role_that_may_not_be_assumed(moto_s3, bucket):
    configuration = with_role(
        moto_s3, bucket, key=Key("AKIDUNKNOWN", "unknown-secret"), external_id="the-external-id"
    )
    source = CredentialSource(configuration)
    with pytest.raises(AccessDenied, match="'lake' has no access: the role cannot be assumed") as e:
        source.current()
    text = "".join(traceback.format_exception(e.value)) + repr(e.value.args)
    assert not [secret for secret in ("unknown-secret", "the-external-id") if secret in text]
    assert e.value.__context__ is None
    store = ObjectStore(configuration, f"s3://{bucket}")
    with pytest.raises(AccessDenied, match="the role cannot be assumed"):
        store.read(f"s3://{bucket}/root/f", 10)


def test_a_token_service_that_is_not_there(answering):
    answering.answer = lambda request: Answer(500, b"<ErrorResponse/>")
    configuration = configurations.of_endpoint(
        answering.url, identity=ServerIdentity.ROLE, role="arn:aws:iam::123456789012:role/r"
    )
    source = CredentialSource(configuration)
    with pytest.raises(StorageUnavailable, match="the role cannot be assumed"):
        source.current()
    requests = len(answering.requests)
    assert requests == 3
    # For a moment nobody tries again.
    assert {type(error) for error in in_parallel(lambda number: source.current(), 8)} == {
        StorageUnavailable
    }
    assert len(answering.requests) == requests


# --- renewing


class Sessions(CredentialSource):
    """Sessions of a lifetime, without a token service."""

    def __init__(self, lifetime: float) -> None:
        super().__init__(configurations.of_endpoint("http://127.0.0.1:9"))
        self.lifetime = lifetime
        self.failure: OSError | None = None
        self.reads = 0
        self.wait = threading.Event()
        self.wait.set()

    def _read(self) -> tuple[SessionCredentials, float]:
        self.reads += 1
        self.wait.wait(20)
        if self.failure is not None:
            raise self.failure
        expires_at = time.time() + self.lifetime
        credentials = SessionCredentials(f"key-{self.reads}", "s", "t", expires_at)
        return credentials, expires_at - self.lifetime / 2


def test_one_thread_gets_the_first_session():
    source = Sessions(3600)
    results = in_parallel(lambda number: source.current())
    assert {result.key_id for result in results} == {"key-1"}
    assert source.reads == 1


def test_a_session_is_renewed_by_one_thread_while_others_use_it():
    source = Sessions(3600)
    source.current()
    source._renew_at = time.time() - 1
    source.wait.clear()
    renewal = threading.Thread(target=source.current)
    renewal.start()
    while source.reads < 2:
        time.sleep(0.01)
    assert {result.key_id for result in in_parallel(lambda number: source.current())} == {"key-1"}
    source.wait.set()
    renewal.join()
    assert source.current().key_id == "key-2"
    assert source.reads == 2


def test_a_session_that_cannot_be_renewed_is_used_to_its_end():
    source = Sessions(3600)
    source.current()
    source._renew_at = time.time() - 1
    source.failure = StorageUnavailable("lake", "the role cannot be assumed")
    assert source.current().key_id == "key-1"
    assert source.reads == 2
    assert source.current().key_id == "key-1"
    assert source.reads == 2  # not again at once


def test_an_expired_session_is_not_used():
    source = Sessions(20)  # too short to be used for a request
    source.current()
    source._renew_at = time.time() - 1
    source.failure = StorageUnavailable("lake", "the role cannot be assumed")
    with pytest.raises(StorageUnavailable):
        source.current()


# --- the environment


def test_the_environment_does_not_change_a_key(monkeypatch, answering):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "ENVKEY",
        "AWS_SECRET_ACCESS_KEY": "environment-secret",
        "AWS_SESSION_TOKEN": "ENVTOKEN",
        "AWS_PROFILE": "not-configured",
        "AWS_REGION": "env-region",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:9",
        "AWS_CONFIG_FILE": "/nonexistent",
    }.items():
        monkeypatch.setenv(name, value)
    configuration = configurations.of_endpoint(
        answering.url, identity=ServerIdentity.ROLE, role="arn:aws:iam::123456789012:role/r"
    )
    answering.answer = lambda request: Answer(403, b"<ErrorResponse/>")
    with pytest.raises(OSError, match="lake"):
        CredentialSource(configuration).current()
    (request,) = answering.requests
    assert "Credential=AKIDPROFILE/" in request.headers["authorization"]
    assert "/eu-central-1/sts/" in request.headers["authorization"]
    assert "x-amz-security-token" not in request.headers
    # Without an own endpoint: the provider's, not the environment's.
    elsewhere = configurations.of_endpoint("", identity=ServerIdentity.ROLE, role="r")
    endpoint = role_sessions.sts_client(elsewhere).meta.endpoint_url
    assert endpoint == "https://sts.eu-central-1.amazonaws.com"


def test_an_environment_without_credentials(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    configuration = configurations.of_endpoint(
        "http://127.0.0.1:9", key=None, identity=ServerIdentity.ENVIRONMENT
    )
    with pytest.raises(AccessDenied, match="the environment of the server has no credentials"):
        CredentialSource(configuration).current()


def test_a_profile_without_its_key():
    configuration = configurations.of_endpoint("http://127.0.0.1:9", key=None)
    with pytest.raises(AccessDenied, match="it has no key"):
        CredentialSource(configuration).current()
