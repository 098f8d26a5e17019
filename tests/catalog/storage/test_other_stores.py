"""The same promises at Azure and Google Cloud Storage, by their emulators."""

import pytest

from catalog.regular_files import TooLarge
from catalog.storage.configuration import Key, ServerIdentity, StoreConfiguration, StoreKind
from catalog.storage.object_store import ObjectStore
from catalog.storage.stores import AccessDenied, Move, StorageUnavailable
from tests.catalog.storage.test_stores import in_parallel
from tests.stores.emulators import Azurite, FakeGcs

NAMES = ["a b", "x=a%2Fb.parquet", "a%20b", "a+b", "a#b", "a?b", "größe"]
CONTENT = bytes(range(250)) * 200


def of_azurite(azurite: Azurite, key: str = Azurite.key) -> StoreConfiguration:
    bucket = f"abfss://{azurite.new_container()}@{azurite.account}.dfs.core.windows.net"
    return _configuration(StoreKind.ADLS, bucket, azurite.endpoint, Key(azurite.account, key))


def of_fake_gcs(fake_gcs: FakeGcs) -> StoreConfiguration:
    key = Key("", fake_gcs.service_account())
    bucket = f"gs://{fake_gcs.new_bucket()}"
    return _configuration(StoreKind.GCS, bucket, fake_gcs.endpoint, key)


def _configuration(kind: StoreKind, bucket: str, endpoint: str, key: Key) -> StoreConfiguration:
    return StoreConfiguration(
        profile="lake",
        version=1,
        kind=kind,
        roots=(bucket,),
        endpoint=endpoint,
        identity=ServerIdentity.KEY,
        key=key,
    )


@pytest.fixture(params=["azurite", "fake_gcs"])
def configuration(request: pytest.FixtureRequest) -> StoreConfiguration:
    make = {"azurite": of_azurite, "fake_gcs": of_fake_gcs}[request.param]
    return make(request.getfixturevalue(request.param))


@pytest.fixture
def bucket(configuration: StoreConfiguration) -> str:
    return configuration.roots[0]


@pytest.fixture
def store(configuration: StoreConfiguration, bucket: str) -> ObjectStore:
    return ObjectStore(configuration, bucket)


def test_files_are_written_and_read(store, bucket):
    path = f"{bucket}/root/t/data/f"
    store.write_new(path, CONTENT)
    content, status = store.read(path, 10**6)
    assert content == CONTENT
    assert status == store.status(path)
    assert status.size == store.size(path) == len(CONTENT)
    assert store.read_range(path, 10, 20) == CONTENT[10:30]
    assert store.read_range(path, len(CONTENT) - 5, 20) == CONTENT[-5:]
    assert store.read_range(path, len(CONTENT) + 5, 20) == b""
    for start in (0, 30_000, len(CONTENT) - 9):
        end, _ = store.read_end(path, lambda tail, size, start=start: start, 10**6)
        assert end == CONTENT[start:]
    store.write_new(path, CONTENT)  # a retry
    with pytest.raises(FileExistsError):
        store.write_new(path, b"other")
    with pytest.raises(TooLarge):
        store.read(path, 100)
    assert store.read(path, 10**6)[0] == CONTENT


def test_empty_and_missing_files(store, bucket):
    store.write_new(f"{bucket}/empty", b"")
    assert store.read(f"{bucket}/empty", 10)[0] == b""
    assert store.read_end(f"{bucket}/empty", lambda tail, size: 0, 10)[0] == b""
    assert store.read_range(f"{bucket}/empty", 0, 10) == b""
    assert store.size(f"{bucket}/none") is None
    for read in (
        lambda: store.read(f"{bucket}/none", 10),
        lambda: store.read_end(f"{bucket}/none", lambda tail, size: 0, 10),
        lambda: store.read_range(f"{bucket}/none", 0, 10),
    ):
        with pytest.raises(FileNotFoundError):
            read()
    assert store.remove(f"{bucket}/none") is False


@pytest.mark.parametrize("name", NAMES)
def test_names_are_literal(store, bucket, name):
    path = f"{bucket}/root/{name}"
    store.write_new(path, name.encode())
    assert store.read(path, 100)[0] == name.encode()
    assert [file.name for file in store.list_tree(f"{bucket}/root")] == [name]
    assert [file.name for file in store.list_files(f"{bucket}/root", "")] == [name]
    assert list(store.remove_many([path])) == [path]
    assert list(store.list_tree(f"{bucket}/root")) == []


def test_one_of_many_writers_wins(store, bucket):
    results = in_parallel(lambda number: store.write_new(f"{bucket}/f", b"%d" % number), 8)
    winners = [number for number, result in enumerate(results) if result is None]
    assert len(winners) == 1
    assert store.read(f"{bucket}/f", 100)[0] == b"%d" % winners[0]


def test_manifests_move(store, bucket):
    store.write_new(f"{bucket}/t/s", b"manifest")
    store.write_new(f"{bucket}/t/other", b"another")
    assert store.move_manifest(f"{bucket}/t", "s", "_versions/1") is Move.DONE
    assert store.move_manifest(f"{bucket}/t", "s", "_versions/1") is Move.DONE
    assert store.move_manifest(f"{bucket}/t", "other", "_versions/1") is Move.OCCUPIED
    assert store.move_manifest(f"{bucket}/t", "s", "_versions/2") is Move.MISSING
    assert [file.name for file in store.list_tree(f"{bucket}/t")] == ["_versions/1", "other"]
    assert store.list_directories(f"{bucket}/t", "") == ["_versions"]


def test_a_table_is_removed(store, bucket):
    for name in ("t/1", "t/data/2", "t/data/x=a%2Fb/3", "t2/keep"):
        store.write_new(f"{bucket}/root/{name}", b"x")
    assert store.set_aside(f"{bucket}/root/t", "x") == f"{bucket}/root/t"
    assert list(store.remove_tree(f"{bucket}/root/t"))[-1] == 3
    assert store.set_aside(f"{bucket}/root/t", "x") is None
    assert [file.name for file in store.list_tree(f"{bucket}/root")] == ["t2/keep"]
    paths = [f"{bucket}/root/t2/keep", f"{bucket}/root/none"]
    assert list(store.remove_many(paths)) == paths


def test_a_wrong_key_is_denied(azurite):
    configuration = of_azurite(azurite, "d3Jvbmc=")
    store = ObjectStore(configuration, configuration.roots[0])
    with pytest.raises(AccessDenied, match="'lake' has no access: HTTP 403"):
        store.read(f"{configuration.roots[0]}/f", 10)


def test_a_bucket_that_is_missing(configuration):
    bucket = configuration.roots[0].replace("monodon-test", "monodon-none")
    store = ObjectStore(configuration, bucket)
    with pytest.raises(StorageUnavailable, match="the bucket does not exist"):
        store.require_reachable(f"{bucket}/f")
