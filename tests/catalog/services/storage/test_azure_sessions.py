"""Shared access signatures for directories: what they open, and how clients use them."""

import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import lance
import obstore
import pyarrow as pa
import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.storage.filedatalake import DataLakeServiceClient, UserDelegationKey
from obstore.exceptions import BaseError, PermissionDeniedError
from obstore.store import AzureStore

from api.lance import storage_options
from catalog.errors import CredentialsRefused, ServiceUnavailable
from catalog.services.storage.client_sessions import token_services
from catalog.services.storage.credentials import Credentials
from catalog.storage.configuration import (
    ClientAccess,
    Key,
    ServerIdentity,
    StoreConfiguration,
    StoreKind,
)
from tests.stores.directory_signatures import DirectoryGate
from tests.stores.emulators import Azurite


@pytest.fixture(scope="module")
def gate(azurite: Azurite) -> Iterator[DirectoryGate]:
    with DirectoryGate(azurite) as gate:
        yield gate


@pytest.fixture
def lake(azurite: Azurite, gate: DirectoryGate) -> StoreConfiguration:
    root = f"abfss://{azurite.new_container()}@{azurite.account}.dfs.core.windows.net/root"
    return configuration(root, gate.endpoint, Key(azurite.account, azurite.key))


def configuration(root: str, endpoint: str, key: Key | None) -> StoreConfiguration:
    return StoreConfiguration(
        profile="lake",
        version=1,
        kind=StoreKind.ADLS,
        roots=(root,),
        endpoint=endpoint,
        identity=ServerIdentity.KEY if key else ServerIdentity.ENVIRONMENT,
        key=key,
        client_access=ClientAccess.STS,
    )


def store_of(lake: StoreConfiguration, signature: str) -> AzureStore:
    """A client with a signature alone."""
    return AzureStore(
        lake.roots[0].removeprefix("abfss://").partition("@")[0],
        account_name=Azurite.account,
        endpoint=lake.endpoint,
        sas_key=signature,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def delete(lake: StoreConfiguration, signature: str, key: str) -> int:
    """The status of a deletion. (obstore deletes in batches, which no signature for a directory permits.)"""
    container = lake.roots[0].removeprefix("abfss://").partition("@")[0]
    return httpx.delete(f"{lake.endpoint}/{container}/{key}?{signature}").status_code


def signature(lake: StoreConfiguration, directory: str, *, write: bool) -> str:
    session = token_services.open_session(
        lake, [f"{lake.roots[0]}/{directory}"], write=write, principal="user:ada"
    )
    assert session.directories == (f"{lake.roots[0]}/{directory}",)
    assert 3500 < session.expires_at - time.time() < 3601
    assert session.key.id == Azurite.account
    return session.key.token


@pytest.fixture
def objects(azurite: Azurite, lake: StoreConfiguration) -> StoreConfiguration:
    """Objects in a table, its sibling, its prefix twin and beside them."""
    container = lake.roots[0].removeprefix("abfss://").partition("@")[0]
    owner = AzureStore(
        container,
        account_name=azurite.account,
        account_key=azurite.key,
        endpoint=azurite.endpoint,
        client_options={"allow_http": True},
    )
    for name in ("a/x", "b/x", "a2/x", "beside"):
        obstore.put(owner, f"root/{name}", b"content")
    return lake


FOREIGN = ("b/x", "a2/x", "beside")


def test_a_writer_reaches_its_directory_alone(objects):
    text = signature(objects, "a", write=True)
    store = store_of(objects, text)
    assert bytes(obstore.get(store, "root/a/x").bytes()) == b"content"
    obstore.put(store, "root/a/new/y", b"new")
    listed = {entry["path"] for page in obstore.list(store, "root/a") for entry in page}
    assert listed == {"root/a/x", "root/a/new/y"}
    assert delete(objects, text, "root/a/new/y") == 202
    assert [entry["path"] for page in obstore.list(store, "root/a") for entry in page] == [
        "root/a/x"
    ]
    for name in FOREIGN:
        with pytest.raises(PermissionDeniedError):
            obstore.get(store, f"root/{name}")
        with pytest.raises(PermissionDeniedError):
            obstore.put(store, f"root/{name}", b"changed")
        assert delete(objects, text, f"root/{name}") == 403
    for prefix in ("root", "root/b", "root/a2", None):
        with pytest.raises(BaseError, match="403 Forbidden"):
            list(obstore.list(store, prefix))


def test_a_reader_cannot_write(objects):
    text = signature(objects, "a", write=False)
    store = store_of(objects, text)
    assert bytes(obstore.get(store, "root/a/x").bytes()) == b"content"
    assert [entry["path"] for page in obstore.list(store, "root/a") for entry in page] == [
        "root/a/x"
    ]
    with pytest.raises(PermissionDeniedError):
        obstore.put(store, "root/a/x", b"changed")
    assert delete(objects, text, "root/a/x") == 403
    assert bytes(obstore.get(store, "root/a/x").bytes()) == b"content"
    with pytest.raises(PermissionDeniedError):
        obstore.get(store, "root/b/x")


def test_a_signature_for_another_directory_is_not_valid(objects):
    """The depth is not signed: a client may change it, and gets nothing by that."""
    text = signature(objects, "a", write=True)
    assert "sdd=2" in text
    for changed in ("sdd=1", "sdd=3"):
        store = store_of(objects, text.replace("sdd=2", changed))
        for name in ("a/x", *FOREIGN):
            with pytest.raises(PermissionDeniedError):
                obstore.get(store, f"root/{name}")


def test_lance_reads_and_writes_with_a_signature(objects):
    location = f"{objects.roots[0]}/orders"
    session = token_services.open_session(objects, [location], write=True, principal="user:ada")
    options = storage_options.render(
        Credentials(objects, location, session.key, expires_at=session.expires_at)
    )
    assert storage_options.has_secrets(options)
    assert "azure_storage_account_key" not in options
    lance.write_dataset(pa.table({"id": [1, 2]}), location, storage_options=options)
    lance.write_dataset(pa.table({"id": [3]}), location, mode="append", storage_options=options)
    assert lance.dataset(location, storage_options=options).count_rows() == 3
    with pytest.raises(OSError, match="not authorized"):
        lance.write_dataset(
            pa.table({"id": [1]}), f"{objects.roots[0]}/orders2", storage_options=options
        )


def test_a_container_is_not_a_directory(objects):
    container = objects.roots[0].removesuffix("/root")
    with pytest.raises(CredentialsRefused, match=r"root of a container\. Move the table"):
        token_services.open_session(objects, [container], write=False, principal="user:ada")


# --- with the environment's identity -----------------------------------------------------------------


ROOT = "abfss://c@account.dfs.core.windows.net/root"


class DelegationKeys:
    """Replaces the request for a user delegation key, which needs an account at Azure."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = []
        self.failure: Exception | None = None
        keys = self

        def get(self: DataLakeServiceClient, start: object, end: object) -> UserDelegationKey:
            keys.addresses.append(self.url)
            if keys.failure is not None:
                raise keys.failure
            key = UserDelegationKey()
            key.signed_oid, key.signed_tid = "oid", "tid"
            key.signed_start, key.signed_expiry = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
            key.signed_service, key.signed_version = "b", "2025-07-05"
            key.value = "c2VjcmV0"
            return key

        monkeypatch.setattr(DataLakeServiceClient, "get_user_delegation_key", get)


@pytest.fixture
def delegation(monkeypatch: pytest.MonkeyPatch) -> DelegationKeys:
    return DelegationKeys(monkeypatch)


def test_a_user_delegation_key_signs(delegation):
    profile = replace(configuration(ROOT, "", None), version=2)
    for directory in ("a", "b"):
        session = token_services.open_session(
            profile, [f"{ROOT}/{directory}"], write=False, principal="user:ada"
        )
        fields = dict(pair.split("=", 1) for pair in session.key.token.split("&"))
        assert (fields["skoid"], fields["sr"], fields["sdd"], fields["sp"]) == (
            *("oid", "d", "2", "rl"),
        )
        assert fields["spr"] == "https"
    assert delegation.addresses == ["https://account.dfs.core.windows.net/"]


def test_each_account_has_its_own_delegation_key(delegation):
    other = ROOT.replace("account", "another")
    profile = replace(configuration(ROOT, "", None), roots=(ROOT, other), version=3)
    for root in profile.roots:
        token_services.open_session(profile, [f"{root}/a"], write=False, principal="user:ada")
    assert delegation.addresses == [
        "https://account.dfs.core.windows.net/",
        "https://another.dfs.core.windows.net/",
    ]


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (ClientAuthenticationError("secret text"), "the server's identity is refused"),
        (HttpResponseError("secret text"), "the token service refuses"),
    ],
)
def test_a_refused_identity(delegation, failure, cause, caplog):
    delegation.failure = failure
    profile = replace(configuration(ROOT, "", None), version=hash(cause))
    with pytest.raises(ServiceUnavailable) as raised:
        token_services.open_session(profile, [f"{ROOT}/a"], write=False, principal="user:ada")
    assert cause in raised.value.message
    assert "secret text" not in raised.value.message + caplog.text
