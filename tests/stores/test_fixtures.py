"""The fixtures of stores, as other suites use them."""

import os

import pytest
from botocore.exceptions import ClientError

from catalog import encryption
from catalog.models import StorageProfile
from catalog.services.storage import profiles
from catalog.storage.configuration import ClientAccess, ServerIdentity
from tests.live import LiveServer
from tests.stores.s3 import GivenStore, Versitygw


def test_profile_reaches_its_bucket(s3, s3_profile):
    (configuration,) = profiles.configurations()
    assert configuration.profile == s3_profile.name == "lake"
    assert configuration.identity is ServerIdentity.KEY
    assert configuration.client_access is ClientAccess.STATIC
    assert configuration.path_style
    assert configuration.allow_http
    assert configuration.key.secret not in repr(configuration)
    client = s3.client_with(configuration.key.id, configuration.key.secret)
    bucket = configuration.roots[0].removeprefix("s3://").removesuffix("/root")
    client.put_object(Bucket=bucket, Key="root/1", Body=b"x")
    client.close()
    assert s3.keys(bucket) == ["root/1"]


def test_profiles_are_sealed_and_independent(make_profile, moto_s3):
    first = make_profile(roots=["s3://one/root"], **moto_s3.profile_fields())
    second = make_profile(roots=["s3://two/root"], client_access="sts", role=moto_s3.role)
    assert first.name != second.name
    assert moto_s3.secret_key.encode() not in bytes(first.secret)
    assert moto_s3.secret_key in encryption.decrypt(bytes(first.secret))
    assert second.secret is None
    assert [c.profile for c in profiles.configurations()] == [first.name, second.name]


def test_no_profile_is_left_from_another_test(db):
    assert list(profiles.configurations()) == []


def test_storage_shows_files_from_outside(storage):
    storage.write(storage.location("t/data/1.lance"), b"one")
    storage.write(storage.location("t2/2"), b"two")
    assert storage.files() == ["t/data/1.lance", "t2/2"]
    assert storage.files(storage.location("t")) == ["data/1.lance"]
    assert storage.read(storage.location("t2/2")) == b"two"
    assert storage.root.startswith({"local": "/", "s3": "s3://"}[storage.kind])
    assert StorageProfile.objects.count() == (storage.kind == "s3")


def test_versitygw_writes_conditionally(versitygw):
    client, bucket = versitygw.client(), versitygw.new_bucket()
    client.put_object(Bucket=bucket, Key="a", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="a", Body=b"2", IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"


def test_versitygw_leaves_nothing(versitygw):
    with Versitygw() as store:
        store.client().put_object(Bucket=store.new_bucket(), Key="a", Body=b"1")
        directory, pid = store._temporary, store._server._child.pid
        assert directory.is_dir()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_given_bucket_must_be_for_tests():
    environment = {
        "MONODON_TEST_S3_ENDPOINT": "https://s3.example.com",
        "MONODON_TEST_S3_ACCESS_KEY": "key",
        "MONODON_TEST_S3_SECRET_KEY": "secret",
        "MONODON_TEST_S3_BUCKET": "production",
    }
    with pytest.raises(ValueError, match="must begin with 'monodon-test'"):
        GivenStore(environment)
    environment["MONODON_TEST_S3_BUCKET"] = "monodon-test-1"
    assert GivenStore(environment).region == "us-east-1"
    environment["PYTEST_XDIST_WORKER"] = "gw0"
    with pytest.raises(ValueError, match="pytest -n 0"):
        GivenStore(environment)


def test_live_server_gets_a_profile_and_loses_it(live_template, request, moto_s3):
    rows = "SELECT name, roots, role, version FROM catalog_storageprofile"
    server = LiveServer()  # its web server is not needed

    def nothing_is_left() -> None:
        with server.database() as connection:
            assert connection.execute(rows).fetchall() == []

    # The last finalizer runs first: that of the fixture.
    request.addfinalizer(server.close)
    request.addfinalizer(nothing_is_left)
    make_live_profile = request.getfixturevalue("make_live_profile")
    name, root = make_live_profile(server, moto_s3, client_access="sts", role=moto_s3.role)
    with server.database() as connection:
        assert connection.execute(rows).fetchall() == [(name, [root], moto_s3.role, 1)]
    server.manage(
        "from catalog.services.storage import profiles\n"
        f"assert profiles.configurations()[0].key.secret == {moto_s3.secret_key!r}"
    )
