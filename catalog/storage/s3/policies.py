"""Session policies for S3: what temporary credentials permit, limited to the directories of one table.

A directory stands in a policy with a slash at its end, so that ``orders`` does not include ``orders2``.
Listing is limited by a condition on the listed prefix: the permission to list is one on the whole bucket.
"""

from collections.abc import Collection, Iterable
from typing import Any

import orjson

from catalog.errors import InvalidLocation
from catalog.storage import object_locations

MAX_CHARACTERS = 2048
"""The longest session policy that AWS STS accepts."""

_READ = ("s3:GetObject",)
_WRITE = (
    *_READ,
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)
_PARTITIONS = frozenset({"aws", "aws-cn", "aws-us-gov"})


class PolicyTooLong(ValueError):
    """A policy for these directories is longer than the token service accepts."""


def partition_of(role: str) -> str:
    """The partition of AWS in a role's ARN: aws, aws-cn or aws-us-gov. Other stores have ``aws``."""
    parts = role.split(":")
    partition = parts[1] if len(parts) > 1 else ""
    return partition if partition in _PARTITIONS else "aws"


def session_policy(
    directories: Collection[str], *, write: bool, partition: str = "aws", kms_key: str = ""
) -> str:
    """The policy that permits reading, or also writing, below canonical ``s3://`` directories.

    ``kms_key`` is the key that encrypts the objects. Raises PolicyTooLong, and InvalidLocation for
    a directory that a policy would not take literally.
    """
    by_bucket: dict[str, list[str]] = {}
    for directory in sorted(set(directories)):
        bucket, prefix = _parts(directory)
        by_bucket.setdefault(bucket, []).append(prefix)
    if not by_bucket:
        raise ValueError("a policy without a directory")
    arn = f"arn:{partition}:s3:::"
    objects = [
        f"{arn}{bucket}/{prefix}*" for bucket, prefixes in by_bucket.items() for prefix in prefixes
    ]
    statements = [_allow(_WRITE if write else _READ, objects)]
    for bucket, prefixes in by_bucket.items():
        listed = [pattern for prefix in prefixes for pattern in (prefix, f"{prefix}*")]
        condition = {"StringLike": {"s3:prefix": listed}}
        statements.append(_allow(["s3:ListBucket"], [arn + bucket], condition))
    statements.append(_allow(["s3:GetBucketLocation"], [arn + bucket for bucket in by_bucket]))
    if kms_key:
        statements.append(_use_of_key(kms_key, partition, write=write))
    policy = orjson.dumps({"Version": "2012-10-17", "Statement": statements}).decode()
    if len(policy) > MAX_CHARACTERS:
        raise PolicyTooLong(f"{len(policy)} characters")
    return policy


def _parts(directory: str) -> tuple[str, str]:
    """The bucket, and the prefix of a directory's keys with a slash at its end."""
    # Locations are checked when they are entered. Here a mistake would open other tables.
    if object_locations.canonical_directory(directory) != directory:
        raise InvalidLocation(directory, "is not in its canonical form")
    bucket = object_locations.bucket_of(directory).removeprefix("s3://")
    key = object_locations.key_of(directory)
    if not key or not directory.startswith("s3://"):
        raise InvalidLocation(directory, "is not a directory in a bucket of S3")
    return bucket, f"{key}/"


def _allow(
    actions: Iterable[str], resources: Iterable[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(resources),
    }
    return statement if condition is None else {**statement, "Condition": condition}


def _use_of_key(key: str, partition: str, *, write: bool) -> dict[str, Any]:
    """The permission to use a key, which a profile names by its ARN, its id or an alias."""
    actions = ["kms:Decrypt", "kms:GenerateDataKey"] if write else ["kms:Decrypt"]
    name = key.rpartition(":")[2]
    if name.startswith("alias/"):
        # Permissions are on keys, not on aliases.
        aliases = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": [name]}}
        return _allow(actions, ["*"], aliases)
    resource = key if key.startswith("arn:") else f"arn:{partition}:kms:*:*:key/{name}"
    return _allow(actions, [resource])
