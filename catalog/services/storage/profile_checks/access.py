"""Checks of the server's access to an S3 bucket: its key, the bucket, the region and the URL style.

One signed request, a list of the root, answers all of them. If it fails because the region or the URL
style is wrong, it is repeated with the right one, so that one mistake fails one check.
"""

import contextlib

import urllib3

from catalog.services.storage.profile_checks.results import CheckFailed, CheckSkipped
from catalog.services.storage.profile_checks.s3_client import Answer, S3Client
from catalog.services.storage.profile_checks.trial import Trial
from catalog.storage import role_sessions
from catalog.storage.configuration import Key, ServerIdentity
from catalog.storage.object_locations import key_of

_UNKNOWN_KEY = {
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidAccessKey",
    "UnrecognizedClientException",
}
_WRONG_SECRET = {"SignatureDoesNotMatch"}
_BAD_TOKEN = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
_WRONG_REGION = {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "IncorrectEndpoint",
    "InvalidRegion",
    "InvalidRegionName",
    "PermanentRedirect",
    "TemporaryRedirect",
}
_PATH_STYLE_FORBIDDEN = {"PathStyleDomainForbidden", "SecondLevelDomainForbidden"}
_FIX_IDENTITY = {
    ServerIdentity.KEY: "Store a key in the profile.",
    ServerIdentity.ENVIRONMENT: "Give the server's processes credentials: environment variables, a shared"
    " credentials file or an instance profile. Otherwise store a key in the profile.",
    ServerIdentity.ROLE: "Check the role, its trust policy and external ID, the profile's key, and the endpoint of"
    " the token service. The server needs sts:AssumeRole for the role.",
}
_SKEWED = {"RequestTimeTooSkewed", "RequestExpired"}


def check_credentials(trial: Trial) -> str:
    """Send the signed request that the checks of this module share, and check that the key is accepted."""
    key = _server_key(trial)
    trial.requests, trial.answer = _reach(trial, key)
    answer = trial.answer
    if answer.code in _SKEWED:
        raise CheckFailed(
            f"The store refuses the time of the request: {answer.summary}",
            "Synchronize the clock of the server.",
        )
    if answer.code in _UNKNOWN_KEY:
        raise CheckFailed(
            f"The store does not know the access key '{key.id}' ({answer.summary})",
            "Correct the key id. It may have been deleted, or belong to another store.",
        )
    if answer.code in _WRONG_SECRET:
        raise CheckFailed(
            f"The secret does not belong to the access key '{key.id}' ({answer.code})",
            "Enter the secret again. If it is right, a proxy in front of the store changes the host or"
            " headers of requests.",
        )
    if answer.code in _BAD_TOKEN:
        raise CheckFailed(
            f"The store does not accept the session token ({answer.summary})",
            "Store a key that is not temporary, or a new session token.",
        )
    if _is_region_error(answer):
        raise CheckSkipped("The store does not look at the key before the region is right")
    if answer.status == 401:
        raise CheckFailed(
            f"The store does not accept the key ({answer.summary})",
            "Correct the key of the profile.",
        )
    return f"key {key.id}" if key.id else ""


def check_bucket(trial: Trial) -> str:
    """Check that the bucket exists."""
    answer = _answer(trial)
    if answer.status == 404:
        raise CheckFailed(
            f"The store has no bucket '{trial.bucket}' ({answer.summary})",
            "Create the bucket, or correct the roots of the profile. Monodon creates no buckets.",
        )
    if answer.status >= 500:
        raise CheckFailed(
            f"The store fails to list the bucket ({answer.summary})",
            "Look into the log of the store, or at the provider's status page, and test again.",
        )
    if _is_region_error(answer):
        raise CheckSkipped("The store does not look for the bucket before the region is right")
    if not (_is_list(answer) or answer.is_refusal):
        raise CheckFailed(
            f"The store does not answer as S3 does ({answer.summary})",
            "Check that the endpoint is that of the S3 interface, not of a console or a load balancer's page.",
        )
    return f"bucket {trial.bucket}"


def check_region(trial: Trial) -> str:
    """Compare the region of the profile with that of the bucket."""
    answer = _answer(trial)
    configured = trial.configuration.region or role_sessions.DEFAULT_REGION
    first = trial.first_answer or answer
    actual = first.region or answer.region
    if _is_region_error(first) or (actual and actual != configured):
        raise CheckFailed(
            f"The profile states region '{configured}'"
            + (
                f", the bucket is in '{actual}'"
                if actual
                else f"; the store answers {first.summary}"
            ),
            f"Set the region to '{actual}'."
            if actual
            else "Set the region that the bucket was created in.",
        )
    return f"{configured}, as the store states" if actual else f"{configured}; the store accepts it"


def check_path_style(trial: Trial) -> str:
    """Check that the bucket is where the URL style of the profile looks for it."""
    requests = trial.requests
    if requests is None:
        raise CheckSkipped("No request reached the store")
    if not trial.is_other_style:
        return requests.base
    if trial.configuration.path_style:
        raise CheckFailed(
            "The store refuses the bucket in the path of the URL",
            "Switch path style off: this store expects the bucket in the host name.",
        )
    raise CheckFailed(
        f"The store does not serve the bucket '{trial.bucket}' as part of the host name",
        "Switch path style on. Otherwise the store needs a domain with wildcard DNS and certificate.",
    )


def _server_key(trial: Trial) -> Key:
    """The key with which the server signs its requests. Raises CheckFailed."""
    try:
        current = role_sessions.credential_source(trial.configuration).current()
    except OSError as error:
        raise CheckFailed(
            str(error.strerror or error), _FIX_IDENTITY[trial.configuration.identity]
        ) from error
    return Key(current.key_id, current.secret, current.token)


def _answer(trial: Trial) -> Answer:
    if trial.answer is None:
        raise CheckSkipped("No request reached the store")
    return trial.answer


def _reach(trial: Trial, key: Key) -> tuple[S3Client, Answer]:
    """The requests that reach the bucket, and their answer. Raises CheckFailed if none has any.

    Also notes the first answer, and whether the other URL style was needed.
    """
    answer: Answer | None = None
    failure: Exception | None = None
    requests = S3Client(trial.configuration, trial.bucket, key)
    prefix = key_of(trial.root) + "/" if key_of(trial.root) else ""
    try:
        answer = requests.list_keys(prefix)
    except urllib3.exceptions.HTTPError as error:
        failure = error
    trial.first_answer = answer
    if answer is None or _may_be_other_style(answer):
        other = S3Client(
            trial.configuration, trial.bucket, key, path_style=not trial.configuration.path_style
        )
        second: Answer | None = None
        if other.base != requests.base:  # otherwise the style makes no difference
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                second = other.list_keys(prefix)
        if second is not None and (_is_list(second) or answer is None):
            trial.is_other_style = True
            requests, answer = other, second
    if answer is None:
        raise CheckFailed(
            f"No request reached the store: {type(failure).__name__}",
            "Check the endpoint, and proxies between the server and the store.",
        ) from failure
    if _is_region_error(answer) and answer.region:
        requests = S3Client(
            trial.configuration,
            trial.bucket,
            key,
            region=answer.region,
            path_style=trial.configuration.path_style != trial.is_other_style,
        )
        try:
            answer = requests.list_keys(prefix)
        except urllib3.exceptions.HTTPError as error:
            raise CheckFailed(
                f"The store stopped answering: {type(error).__name__}", "Test again."
            ) from error
    return requests, answer


def _may_be_other_style(answer: Answer) -> bool:
    if answer.is_success:
        return not _is_list(answer)
    return answer.status in {404, 405} or answer.code in _PATH_STYLE_FORBIDDEN


def _is_list(answer: Answer) -> bool:
    """True if a store answered with the list of a bucket, rather than of all buckets."""
    return answer.is_success and b"<ListBucketResult" in answer.body


def _is_region_error(answer: Answer) -> bool:
    return answer.code in _WRONG_REGION or answer.status in {301, 307}
