"""Moto's server refuses what AWS refuses."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.stores.s3 import Moto
from tests.stores.sessions import assume, code, session_policy

FILES = ("A/1", "A/data/2", "A2/1", "B/1", "root")
Connect = Callable[..., Any]


@pytest.fixture
def bucket(moto_s3: Moto) -> str:
    bucket = moto_s3.new_bucket()
    for key in FILES:
        moto_s3.client().put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


@pytest.fixture
def connect(moto_s3: Moto) -> Iterator[Connect]:
    """A client with temporary credentials for a session policy."""
    clients = []

    def connect(policy: str | None = None, *, service: str = "s3", **arguments: object) -> Any:
        policies = {} if policy is None else {"Policy": policy}
        key = assume(moto_s3, moto_s3.role, **policies, **arguments)
        clients.append(
            moto_s3.client_with(
                key["AccessKeyId"], key["SecretAccessKey"], key["SessionToken"], service=service
            )
        )
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_writer_of_one_prefix_uses_it(bucket, connect):
    client = connect(session_policy(bucket, "A", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"))
    assert client.get_object(Bucket=bucket, Key="A/1")["Body"].read() == b"A/1"
    client.put_object(Bucket=bucket, Key="A/new", Body=b"x")
    client.copy_object(Bucket=bucket, Key="A/copy", CopySource={"Bucket": bucket, "Key": "A/1"})
    upload = client.create_multipart_upload(Bucket=bucket, Key="A/large")["UploadId"]
    part = client.upload_part(
        Bucket=bucket, Key="A/large", UploadId=upload, PartNumber=1, Body=b"part"
    )
    client.complete_multipart_upload(
        Bucket=bucket,
        Key="A/large",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "A/1"}]})
    client.delete_object(Bucket=bucket, Key="A/copy")
    listing = client.list_objects_v2(Bucket=bucket, Prefix="A/")
    assert [item["Key"] for item in listing["Contents"]] == ["A/data/2", "A/large", "A/new"]


@pytest.mark.parametrize("key", ["A2/1", "B/1", "root", "A", "a/1"])
def test_writer_of_one_prefix_is_refused_elsewhere(moto_s3, bucket, connect, key):
    client = connect(session_policy(bucket, "A", "s3:*"))
    other = moto_s3.new_bucket()
    before = moto_s3.keys(bucket)
    own = {"Bucket": bucket, "Key": "A/1"}
    calls = [
        lambda: client.get_object(Bucket=bucket, Key=key),
        lambda: client.put_object(Bucket=bucket, Key=key, Body=b"x"),
        lambda: client.put_object(Bucket=other, Key="A/1", Body=b"x"),
        lambda: client.delete_object(Bucket=bucket, Key=key),
        lambda: client.copy_object(Bucket=bucket, Key=key, CopySource=own),
        lambda: client.copy_object(
            Bucket=bucket, Key="A/copy", CopySource={"Bucket": bucket, "Key": key}
        ),
        lambda: client.create_multipart_upload(Bucket=bucket, Key=key),
    ]
    assert [code(call) for call in calls] == ["AccessDenied"] * len(calls)
    assert code(lambda: client.head_object(Bucket=bucket, Key=key)) == "403"
    answer = client.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": "A/1"}, {"Key": key}]}
    )
    assert {error["Code"] for error in answer["Errors"]} == {"AccessDenied"}
    assert moto_s3.keys(bucket) == before
    assert moto_s3.keys(other) == []


@pytest.mark.parametrize("prefix", [None, "", "A", "A2/", "B/"])
def test_listing_outside_of_the_prefix_is_refused(bucket, connect, prefix):
    client = connect(session_policy(bucket, "A", "s3:GetObject"))
    arguments = {} if prefix is None else {"Prefix": prefix}
    assert code(lambda: client.list_objects_v2(Bucket=bucket, **arguments)) == "AccessDenied"
    assert code(lambda: client.list_objects(Bucket=bucket, **arguments)) == "AccessDenied"
    assert code(client.list_buckets) == "AccessDenied"


def test_reader_does_not_write(moto_s3, bucket, connect):
    client = connect(session_policy(bucket, "A", "s3:GetObject"))
    assert client.get_object(Bucket=bucket, Key="A/1")["Body"].read() == b"A/1"
    assert code(lambda: client.put_object(Bucket=bucket, Key="A/1", Body=b"")) == "AccessDenied"
    assert code(lambda: client.delete_object(Bucket=bucket, Key="A/1")) == "AccessDenied"
    assert moto_s3.client().get_object(Bucket=bucket, Key="A/1")["Body"].read() == b"A/1"


def test_role_without_session_policy_reaches_the_bucket(bucket, connect):
    listing = connect().list_objects_v2(Bucket=bucket)
    assert [item["Key"] for item in listing["Contents"]] == sorted(FILES)


def test_session_policy_does_not_extend_the_role(moto_s3, connect):
    everything = json.dumps({"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}})
    client = connect(everything, service="iam")
    assert code(client.list_users) == "AccessDenied"


def test_session_does_not_assume_a_role_to_escape(moto_s3, bucket, connect):
    client = connect(session_policy(bucket, "A", "s3:*"), service="sts")
    call = {"RoleArn": moto_s3.role, "RoleSessionName": "escape"}
    assert code(lambda: client.assume_role(**call)) == "AccessDenied"


def test_credentials_expire(bucket, connect):
    client = connect(DurationSeconds=1)
    client.get_object(Bucket=bucket, Key="A/1")
    time.sleep(1.1)
    assert code(lambda: client.get_object(Bucket=bucket, Key="A/1")) == "ExpiredToken"


def test_signature_and_key_are_checked(moto_s3, bucket):
    for access_key, secret_key, expected in (
        (moto_s3.access_key, "wrong", "SignatureDoesNotMatch"),
        ("AKIAIOSFODNN7EXAMPLE", moto_s3.secret_key, "InvalidAccessKeyId"),
    ):
        with closing(moto_s3.client_with(access_key, secret_key)) as client:
            assert code(lambda c=client: c.get_object(Bucket=bucket, Key="A/1")) == expected


def test_external_id_is_required(moto_s3):
    role = moto_s3.role_with_external_id
    assert code(lambda: assume(moto_s3, role)) == "AccessDenied"
    assert code(lambda: assume(moto_s3, role, ExternalId="another")) == "AccessDenied"
    assert assume(moto_s3, role, ExternalId=moto_s3.external_id)["SessionToken"]


def test_session_policy_is_limited_in_size(moto_s3):
    policy = session_policy("lake", "x" * 2048, "s3:GetObject")
    assert code(lambda: assume(moto_s3, moto_s3.role, Policy=policy)) == "ValidationError"
