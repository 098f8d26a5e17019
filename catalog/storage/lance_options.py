"""The options with which the server's own Lance opens a location.

They hold the server's secrets: they leave this process only for the executors of a job (``lance_compaction``).
``services.storage.credentials`` makes those for clients.
"""

import os

from catalog.storage import object_clients, object_locations, role_sessions, stores
from catalog.storage.configuration import ServerIdentity, StoreConfiguration, StoreKind
from catalog.storage.outages.availability import serves_requests
from catalog.storage.stores import StorageUnavailable

EXPIRES_AT = "expires_at_millis"
"""The option with the time when the credentials expire, in milliseconds since 1970.

A dataset that was opened with it must be opened again before that time, with new options: without a
client of a namespace, Lance does not renew them.
"""
# Lance prefers these variables to a key, and no option overrides them.
_AZURE_IDENTITIES = ("AZURE_STORAGE_TOKEN", "AZURE_BEARER_TOKEN")
_TOKENS = ("AWS_SESSION_TOKEN", "AWS_TOKEN")


def storage_options(location: str) -> dict[str, str] | None:
    """Options for Lance at a canonical location; None for a local path.

    Raises AccessDenied and StorageUnavailable, if the credentials cannot be had. With EXPIRES_AT, the
    options are valid for at least 30 seconds, and usually for 10 minutes.
    """
    if not object_locations.is_object(location):
        return None
    bucket = object_locations.bucket_of(location)
    configuration = stores.configuration_of(location)
    if configuration is None:
        raise StorageUnavailable("", f"no profile has {bucket}")
    options = {
        "connect_timeout": f"{object_clients.CONNECT_SECONDS}s",
        "timeout": f"{_request_seconds()}s",
        "client_max_retries": str(object_clients.RETRIES),
        "client_retry_timeout": str(object_clients.retry_seconds()),
        "allow_http": _flag(configuration.allow_http),
        "allow_invalid_certificates": "false",
    }
    match configuration.kind:
        case StoreKind.S3:
            return options | _s3(configuration, bucket)
        case StoreKind.GCS:
            return options | _gcs(configuration)
        case StoreKind.ADLS:
            return options | _azure(configuration, bucket)
        case StoreKind.FILE:
            return None


def _s3(configuration: StoreConfiguration, bucket: str) -> dict[str, str]:
    endpoint, virtual_hosted = object_clients.s3_address(configuration, bucket)
    region = configuration.region or role_sessions.DEFAULT_REGION
    options = {
        "aws_region": region,
        "aws_default_region": region,
        "aws_endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,  # precedes aws_endpoint, and the environment may set it
        "aws_virtual_hosted_style_request": _flag(virtual_hosted),
        "aws_skip_signature": "false",
        "aws_unsigned_payload": "false",
        "aws_request_payer": "false",
        "aws_s3_express": "false",
        "aws_conditional_put": "etag",
    }
    for name, value in object_clients.s3_encryption(configuration).items():
        options[f"aws_{name}"] = value
    if configuration.identity == ServerIdentity.ENVIRONMENT:
        return options  # Lance renews what it reads from the environment
    credentials = role_sessions.credential_source(configuration).current()
    options["aws_access_key_id"] = credentials.key_id
    options["aws_secret_access_key"] = credentials.secret
    if credentials.token or any(os.environ.get(name) for name in _TOKENS):
        # Without it, Lance would take the token of another key from the environment.
        options["aws_session_token"] = credentials.token
    if credentials.expires_at is not None:
        options[EXPIRES_AT] = str(int(credentials.expires_at * 1000))
    return options


def _gcs(configuration: StoreConfiguration) -> dict[str, str]:
    options = {
        "google_base_url": object_clients.gcs_endpoint(configuration),
        "google_skip_signature": "false",
    }
    if configuration.identity == ServerIdentity.KEY:
        options["google_service_account_key"] = object_clients.secret_of(
            configuration, object_clients.GCS_IDENTITIES
        )
    return options


def _azure(configuration: StoreConfiguration, bucket: str) -> dict[str, str]:
    account, endpoint = object_clients.azure_address(configuration, bucket)
    options = {
        "azure_storage_account_name": account,
        "azure_storage_endpoint": endpoint,
        "azure_skip_signature": "false",
        "azure_storage_use_emulator": "false",
        "azure_use_fabric_endpoint": "false",
    }
    if configuration.identity == ServerIdentity.KEY:
        options["azure_storage_account_key"] = object_clients.secret_of(
            configuration, _AZURE_IDENTITIES
        )
    return options


def _request_seconds() -> int:
    """Lance reads and writes whole files by one request. A thread that serves requests waits less."""
    return (2 if serves_requests() else 10) * object_clients.REQUEST_SECONDS


def _flag(value: bool) -> str:
    return "true" if value else "false"
