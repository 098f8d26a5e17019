"""Temporary credentials for S3, from the token service of AWS or of a compatible store (STS AssumeRole)."""

import contextlib
import hashlib
import logging
import re

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from catalog.services.storage.client_sessions.token_services import Failure, Session
from catalog.storage import role_sessions
from catalog.storage.configuration import Key, StoreConfiguration
from catalog.storage.s3 import policies as s3_policies

# At its debug level botocore logs answers, and with them the credentials.
logging.getLogger("botocore").setLevel(logging.WARNING)

_NOT_IN_SESSION_NAMES = re.compile(r"[^A-Za-z0-9_=,.@-]+")
_LONGEST_SESSION_NAME = 64
_TOO_LARGE = "PackedPolicyTooLarge"
_OF_ONE_TABLE = frozenset({"MalformedPolicyDocument"})
"""Errors that say nothing about credentials for other tables."""
_REMEDIES = {
    "AccessDenied": "Let the role's trust policy name the server's identity, and the external ID if it requires one;"
    " let the server's identity call sts:AssumeRole on the role",
    "InvalidClientTokenId": "Set the key of the profile again",
    "SignatureDoesNotMatch": "Set the key of the profile again, and check the server's clock",
    "ExpiredToken": "The server's own credentials have expired: renew them",
    "RegionDisabledException": "Activate the token service in the region of the profile",
    _TOO_LARGE: "Shorten the location of the table",
    "ValidationError": "Check role and lifetime of the profile: the role has a maximum session duration",
}


def request(
    configuration: StoreConfiguration, directories: tuple[str, ...], *, write: bool, principal: str
) -> Session | Failure:
    """Credentials, or why there are none. The library's errors end here: they may quote the request."""
    if not configuration.role:
        return Failure("the profile has no role", "Set the role of the profile")
    opened, policy = _policy(configuration, directories, write=write)
    if not policy:
        cause = "the table's location is too long for a session policy"
        return Failure(cause, _REMEDIES[_TOO_LARGE], is_of_location=True)
    try:
        answer = role_sessions.sts_client(configuration).assume_role(
            RoleArn=configuration.role,
            RoleSessionName=session_name(principal),
            Policy=policy,
            DurationSeconds=configuration.lifetime,
            **({"ExternalId": configuration.external_id} if configuration.external_id else {}),
        )
        parts = answer["Credentials"]
        key = Key(parts["AccessKeyId"], parts["SecretAccessKey"], parts["SessionToken"])
        return Session(key, parts["Expiration"].timestamp(), opened)
    except ClientError as error:
        details = error.response.get("Error", {})
        code = str(details.get("Code", "unknown"))[:80]
        return Failure(
            f"the token service refuses: {code}",
            _REMEDIES.get(code, "See the message of the token service"),
            _without_secrets(configuration, str(details.get("Message", ""))),
            is_of_one_table=code in _OF_ONE_TABLE,
            is_of_location=code == _TOO_LARGE,
        )
    except NoCredentialsError:
        return Failure(
            "the server has no credentials in its environment",
            "Give the server's environment credentials, or the profile a key",
        )
    except (BotoCoreError, KeyError, AttributeError) as error:
        return Failure(
            f"the token service does not answer as expected: {type(error).__name__}",
            "Check the profile's sts_endpoint and region, and that the server reaches it",
        )


def session_name(principal: str) -> str:
    """A session name for a principal, of the characters that STS allows; unique for each principal."""
    text = _NOT_IN_SESSION_NAMES.sub("-", principal)
    if text == principal and 2 <= len(text) <= _LONGEST_SESSION_NAME:
        return text
    digest = hashlib.sha256(principal.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{text[: _LONGEST_SESSION_NAME - 11]}-{digest}"


def _policy(
    configuration: StoreConfiguration, directories: tuple[str, ...], *, write: bool
) -> tuple[tuple[str, ...], str]:
    """The directories that fit into a policy, and the policy; an empty one if none fits."""
    partition = s3_policies.partition_of(configuration.role)
    for opened in (directories, directories[:1]):
        with contextlib.suppress(s3_policies.PolicyTooLong):
            policy = s3_policies.session_policy(
                opened, write=write, partition=partition, kms_key=configuration.kms_key
            )
            return opened, policy
    return (), ""


def _without_secrets(configuration: StoreConfiguration, text: str) -> str:
    key = configuration.key or Key()
    for secret in (key.secret, key.token, key.id, configuration.external_id):
        if secret:
            text = text.replace(secret, "***")
    return text[:500]
