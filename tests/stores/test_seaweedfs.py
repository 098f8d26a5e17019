"""SeaweedFS enforces session policies, as docs/seaweedfs.md says."""

from contextlib import closing

import pytest

from tests.stores.seaweedfs import SeaweedFs
from tests.stores.sessions import assume, code, session_policy


@pytest.fixture
def bucket(seaweedfs: SeaweedFs) -> str:
    bucket = seaweedfs.new_bucket()
    for key in ("A/1", "A2/1", "B/1"):
        seaweedfs.client().put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


def test_session_policy_limits_a_role_to_a_prefix(seaweedfs, bucket):
    policy = session_policy(bucket, "A", "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
    key = assume(seaweedfs, seaweedfs.role, Policy=policy)
    with closing(
        seaweedfs.client_with(key["AccessKeyId"], key["SecretAccessKey"], key["SessionToken"])
    ) as client:
        assert client.get_object(Bucket=bucket, Key="A/1")["Body"].read() == b"A/1"
        client.put_object(Bucket=bucket, Key="A/2", Body=b"A/2")
        listing = client.list_objects_v2(Bucket=bucket, Prefix="A/")
        assert [item["Key"] for item in listing["Contents"]] == ["A/1", "A/2"]
        refused = [
            lambda: client.get_object(Bucket=bucket, Key="A2/1"),
            lambda: client.put_object(Bucket=bucket, Key="B/1", Body=b""),
            lambda: client.delete_object(Bucket=bucket, Key="A2/1"),
            lambda: client.copy_object(Bucket=bucket, Key="A/3", CopySource=f"{bucket}/B/1"),
            lambda: client.list_objects_v2(Bucket=bucket),
            lambda: client.list_objects_v2(Bucket=bucket, Prefix="A"),
            lambda: client.list_objects_v2(Bucket=bucket, Prefix="A2/"),
        ]
        assert [code(call) for call in refused] == ["AccessDenied"] * len(refused)
    assert seaweedfs.keys(bucket) == ["A/1", "A/2", "A2/1", "B/1"]


def test_sessions_last_at_least_fifteen_minutes(seaweedfs):
    assert code(lambda: assume(seaweedfs, seaweedfs.role, DurationSeconds=60)) == (
        "InvalidParameterValue"
    )


def test_writes_are_conditional(seaweedfs, bucket):
    client = seaweedfs.client()
    call = {"Bucket": bucket, "Key": "A/1", "Body": b"x", "IfNoneMatch": "*"}
    assert code(lambda: client.put_object(**call)) == "PreconditionFailed"
    assert client.get_object(Bucket=bucket, Key="A/1")["Body"].read() == b"A/1"
