"""Sessions of roles in stores with a token service, for tests of the stores themselves."""

import json
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError

from tests.stores.s3 import S3Store


def session_policy(bucket: str, prefix: str, *actions: str) -> str:
    """A policy for the objects below a prefix, and for listing them."""
    return json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": list(actions),
                    "Resource": f"arn:aws:s3:::{bucket}/{prefix}/*",
                },
                {
                    "Effect": "Allow",
                    "Action": "s3:ListBucket",
                    "Resource": f"arn:aws:s3:::{bucket}",
                    "Condition": {"StringLike": {"s3:prefix": [f"{prefix}/*"]}},
                },
            ],
        }
    )


def assume(store: S3Store, role: str, **arguments: object) -> dict[str, str]:
    """Temporary credentials of a role."""
    answer = store.client("sts").assume_role(RoleArn=role, RoleSessionName="test", **arguments)
    credentials: dict[str, str] = answer["Credentials"]
    return credentials


def code(call: Callable[[], object]) -> str:
    """The error code of a refused call."""
    with pytest.raises(ClientError) as refused:
        call()
    return str(refused.value.response["Error"]["Code"])
