"""Session policies: what they permit, and nothing else."""

import json
from typing import Any

import pytest

from catalog.errors import InvalidLocation
from catalog.storage.s3 import policies as s3_policies
from tests.stores.policies import is_allowed

TABLE = "s3://lake/ns/orders"
READ = {"s3:GetObject"}
WRITE = READ | {
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
}
FOREIGN_KEYS = (
    "lake/ns/orders",
    "lake/ns/orders2/data/1",
    "lake/ns/order/data/1",
    "lake/ns/other/data/1",
    "lake/ns/data",
    "lake2/ns/orders/data/1",
)


def arn(path: str) -> str:
    return f"arn:aws:s3:::{path}"


@pytest.mark.parametrize("write", [False, True])
def test_objects_below_the_directory_alone(write):
    policy = s3_policies.session_policy([TABLE], write=write)
    for action in WRITE:
        expected = action in (WRITE if write else READ)
        assert is_allowed([policy], action, arn("lake/ns/orders/data/1"), {}) is expected
        assert is_allowed([policy], action, arn("lake/ns/orders/"), {}) is expected
        for key in FOREIGN_KEYS:
            assert not is_allowed([policy], action, arn(key), {})


@pytest.mark.parametrize("action", ["s3:PutObjectAcl", "s3:PutBucketPolicy", "s3:GetObjectVersion"])
def test_other_actions_are_not_permitted(action):
    policy = s3_policies.session_policy([TABLE], write=True)
    for resource in ("lake", "lake/ns/orders/data/1"):
        assert not is_allowed([policy], action, arn(resource), {})


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("ns/orders/", True),
        ("ns/orders/data/", True),
        ("ns/orders", False),
        ("ns/orders2/", False),
        ("ns/", False),
        ("", False),
        (None, False),
    ],
)
def test_lists_need_the_prefix_with_its_slash(prefix, expected):
    policy = s3_policies.session_policy([TABLE], write=True)
    context = {} if prefix is None else {"s3:prefix": prefix}
    assert is_allowed([policy], "s3:ListBucket", arn("lake"), context) is expected
    assert not is_allowed([policy], "s3:ListBucket", arn("lake2"), context)


def test_several_directories_in_two_buckets():
    policy = s3_policies.session_policy([TABLE, "s3://lake/data", "s3://other/x"], write=False)
    for key in ("lake/ns/orders/1", "lake/data/1", "other/x/1"):
        assert is_allowed([policy], "s3:GetObject", arn(key), {})
    assert not is_allowed([policy], "s3:GetObject", arn("other/data/1"), {})
    assert is_allowed([policy], "s3:ListBucket", arn("other"), {"s3:prefix": "x/"})
    assert not is_allowed([policy], "s3:ListBucket", arn("other"), {"s3:prefix": "data/"})


@pytest.mark.parametrize(
    ("role", "partition"),
    [
        ("arn:aws:iam::123456789012:role/lake", "aws"),
        ("arn:aws-cn:iam::123456789012:role/lake", "aws-cn"),
        ("arn:aws-us-gov:iam::123456789012:role/lake", "aws-us-gov"),
        ("arn:xyz:s3:::role", "aws"),
        ("role", "aws"),
        ("", "aws"),
    ],
)
def test_partitions(role, partition):
    assert s3_policies.partition_of(role) == partition
    policy = s3_policies.session_policy([TABLE], write=False, partition=partition)
    assert f"arn:{partition}:s3:::lake/ns/orders/*" in _resources(policy)


def _resources(policy: str) -> list[str]:
    return [text for each in json.loads(policy)["Statement"] for text in each["Resource"]]


def statement_of_key(key: str, *, write: bool) -> dict[str, Any]:
    policy = s3_policies.session_policy([TABLE], write=write, kms_key=key)
    return json.loads(policy)["Statement"][-1]


@pytest.mark.parametrize(
    ("key", "resource"),
    [
        ("arn:aws:kms:eu-central-1:1:key/k", "arn:aws:kms:eu-central-1:1:key/k"),
        ("k", "arn:aws:kms:*:*:key/k"),
    ],
)
def test_the_key_of_the_objects(key, resource):
    assert statement_of_key(key, write=False) == {
        "Effect": "Allow",
        "Action": ["kms:Decrypt"],
        "Resource": [resource],
    }
    actions = ["kms:Decrypt", "kms:GenerateDataKey"]
    assert statement_of_key(key, write=True)["Action"] == actions


@pytest.mark.parametrize("key", ["alias/lake", "arn:aws:kms:eu-central-1:1:alias/lake"])
def test_an_alias_of_a_key(key):
    statement = statement_of_key(key, write=False)
    assert statement["Resource"] == ["*"]
    assert statement["Condition"] == {
        "ForAnyValue:StringEquals": {"kms:ResourceAliases": ["alias/lake"]}
    }


@pytest.mark.parametrize(
    "directory",
    [
        "s3://lake",
        "s3://lake/",
        "s3://lake/a*",
        "s3://lake/a?",
        "s3://lake/${aws:username}",
        "s3://lake/a/../b",
        "s3://lake//a",
        "s3://lake/a/",
        "s3://*/a",
        "s3a://lake/a",
        "gs://lake/a",
        "/lake/a",
    ],
)
def test_directories_that_a_policy_would_widen_are_refused(directory):
    with pytest.raises(InvalidLocation):
        s3_policies.session_policy([directory], write=False)


def test_the_size_that_the_token_service_accepts():
    longest = "s3://lake/" + "x" * 500
    assert len(s3_policies.session_policy([longest], write=True)) <= s3_policies.MAX_CHARACTERS
    with pytest.raises(s3_policies.PolicyTooLong):
        s3_policies.session_policy(["s3://lake/" + "x" * 700], write=True)


def test_nothing_is_no_policy():
    with pytest.raises(ValueError, match="without a directory"):
        s3_policies.session_policy([], write=False)
