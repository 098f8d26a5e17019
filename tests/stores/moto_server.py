"""Moto's server of S3, IAM and STS, with every request authorized: `python -m tests.stores.moto_server`.

Moto alone checks signatures, but ignores the session policy of an assumed role, its expiry, a missing
external ID, and the conditions of policies. Here a request needs the permission of its user or role *and* that of
the session policy, for each object that it names. Requests without an `Authorization` header, such as
presigned ones, are refused.

Differences from AWS: DeleteObjects is refused as a whole if one of its keys is refused, credentials may
be valid for less than 900 seconds, and bucket policies are moto's.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import xmltodict
from moto import settings
from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.utils import utcnow
from moto.iam.access_control import AssumedRoleAccessKey, IAMRequest, IAMRequestBase, S3IAMRequest
from moto.iam.models import Policy, iam_backends
from moto.iam.policy_conditions import TrustCondition
from moto.s3.exceptions import S3AccessDeniedError, S3ClientError
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from moto.sts.exceptions import STSValidationError
from moto.sts.models import AssumedRole, STSBackend, sts_backends

from tests.stores import policies

ACCOUNT = "123456789012"
EXTERNAL_ID = "monodon-tests"
_USER, _ROLE, _ROLE_WITH_EXTERNAL_ID = "server", "lake", "lake-with-external-id"
_MAX_POLICY_CHARACTERS = 2048
_EVERYTHING = json.dumps(
    {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
)
_STORAGE_ONLY = json.dumps(
    {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
)


def main() -> None:
    """Serve on a port that the system chooses, and print where and with which keys, as one line."""
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    ActionAuthenticatorMixin._authenticate_and_authorize_s3_action = _authorize_s3
    IAMRequestBase.check_action_permitted = _check_session(IAMRequestBase.check_action_permitted)
    STSBackend.assume_role = _check_policy_size(STSBackend.assume_role)
    TrustCondition.verify_condition = _require_values(TrustCondition.verify_condition)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request otherwise
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    print(json.dumps({"port": port, **_create_identities()}), flush=True)
    assert server._thread is not None
    server._thread.join()


def _create_identities() -> dict[str, str]:
    """A user who may do everything, and two roles for storage that it may assume."""
    iam = iam_backends[ACCOUNT]["aws"]
    iam.create_user("us-east-1", _USER)
    iam.put_user_policy(_USER, "everything", _EVERYTHING)
    key = iam.create_access_key(_USER)
    roles = {}
    for name, condition in (
        (_ROLE, {}),
        (_ROLE_WITH_EXTERNAL_ID, {"StringEquals": {"sts:ExternalId": EXTERNAL_ID}}),
    ):
        trust = {
            "Effect": "Allow",
            "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/{_USER}"},
            "Action": "sts:AssumeRole",
        } | ({"Condition": condition} if condition else {})
        role = iam.create_role(
            role_name=name,
            assume_role_policy_document=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
            path="/",
            permissions_boundary=None,
            description="",
            tags=[],
            max_session_duration="3600",
        )
        iam.put_role_policy(name, "storage", _STORAGE_ONLY)
        roles[name] = role.arn
    return {
        "access_key": key.access_key_id,
        "secret_key": key.secret_access_key,
        "role": roles[_ROLE],
        "role_with_external_id": roles[_ROLE_WITH_EXTERNAL_ID],
        "external_id": EXTERNAL_ID,
    }


# --- S3


def _authorize_s3(
    self: S3Response, bucket_name: str | None = None, key_name: str | None = None
) -> None:
    """Replaces moto's method, which every operation of S3 calls first."""
    if "Authorization" not in self.headers:
        raise S3AccessDeniedError
    query = self.request.query_string.decode()  # as it was signed
    request = S3IAMRequest(
        account_id=self.current_account,
        method=self.method,
        path=f"{self.raw_path}?{query}" if query else self.raw_path,
        data=self.data,
        body=self.raw_body,
        headers=self.headers,
        action=self._get_action(),
    )
    request.check_signature()
    identity = [_document(policy) for policy in request._access_key.collect_policies()]
    session = _session(request)
    if session is not None and utcnow() >= session.expiration:
        raise S3ClientError("ExpiredToken", "The provided token has expired.")
    context = _context(query)
    for action, resource in _permissions(self, request._action, bucket_name, key_name):
        for documents in (identity, *([[session.policy]] if session and session.policy else ())):
            if not policies.is_allowed(documents, action, resource, context):
                request._raise_access_denied()


def _permissions(
    response: S3Response, action: str, bucket: str | None, key: str | None
) -> Iterator[tuple[str, str]]:
    """The actions and resources for which a request needs permission."""
    if action == "s3:HeadBucket":
        action = "s3:ListBucket"
    if bucket is None:
        yield action, "*"
    elif key is not None:
        yield action, _arn(f"{bucket}/{key}")
        if source := response.headers.get("x-amz-copy-source"):
            yield "s3:GetObject", _arn(unquote(source.partition("?")[0]).removeprefix("/"))
    elif action == "s3:DeleteObject":  # DeleteObjects: the keys are in the body
        objects = xmltodict.parse(response.body, strip_whitespace=False)["Delete"].get("Object", [])
        for item in objects if isinstance(objects, list) else [objects]:
            yield action, _arn(f"{bucket}/{item['Key']}")
    else:
        yield action, _arn(bucket)


def _arn(path: str) -> str:
    return f"arn:aws:s3:::{path}"


def _context(query: str) -> Mapping[str, str]:
    parameters = parse_qs(query, keep_blank_values=True)
    names = {"s3:prefix": "prefix", "s3:delimiter": "delimiter", "s3:max-keys": "max-keys"}
    return {key: parameters[name][0] for key, name in names.items() if name in parameters}


def _document(policy: Any) -> str:
    """The JSON of a policy in one of moto's forms: attached, in line, or in line with its name."""
    if isinstance(policy, Policy):
        return str(next(version.document for version in policy.versions if version.is_default))
    return policy if isinstance(policy, str) else str(policy["policy_document"])


# --- sessions of assumed roles


def _session(request: IAMRequestBase) -> AssumedRole | None:
    if not isinstance(request._access_key, AssumedRoleAccessKey):
        return None
    roles = sts_backends[request.account_id]["aws"].assumed_roles
    return next(r for r in roles if r.access_key_id == request._access_key._access_key_id)


def _check_session(original: Any) -> Any:
    """For IAM and STS: what the session policy does not allow is refused, for example another role."""

    def check_action_permitted(self: IAMRequest, resource: str) -> None:
        session = _session(self)
        if session is not None and (
            utcnow() >= session.expiration
            or (
                session.policy
                and not policies.is_allowed([session.policy], self._action, resource, {})
            )
        ):
            self._raise_access_denied()
        original(self, resource)

    return check_action_permitted


def _check_policy_size(original: Any) -> Any:
    def assume_role(self: STSBackend, *, policy: str | None, **arguments: Any) -> AssumedRole:
        if policy and len(policy) > _MAX_POLICY_CHARACTERS:
            raise STSValidationError(
                f"The policy has {len(policy)} characters; {_MAX_POLICY_CHARACTERS} are allowed"
            )
        role: AssumedRole = original(self, policy=policy, **arguments)
        return role

    return assume_role


def _require_values(original: Any) -> Any:
    """A trust policy's condition does not hold for a request without the value: an external ID."""

    def verify_condition(self: TrustCondition, actual_values: list[str]) -> bool:
        return len(actual_values) == len(self.context_keys) and original(self, actual_values)

    return verify_condition


if __name__ == "__main__":
    main()
