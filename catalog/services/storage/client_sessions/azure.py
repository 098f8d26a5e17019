"""Temporary credentials for Azure Data Lake Storage: shared access signatures for a directory.

With a profile's key they are signed with the key of the storage account, without a request. With the
environment's identity they are signed with a user delegation key, which Azure issues to that
identity. Azure limits signatures to a directory only in accounts with a hierarchical namespace.
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.identity import DefaultAzureCredential
from azure.storage.filedatalake import (
    DataLakeServiceClient,
    DirectorySasPermissions,
    UserDelegationKey,
    generate_directory_sas,
)

from catalog.services.storage.client_sessions.token_services import Failure, Session
from catalog.storage import object_clients, object_locations
from catalog.storage.configuration import Key, ServerIdentity, StoreConfiguration
from catalog.storage.stores import AccessDenied

_KEY_HOURS = 24
"""How long a user delegation key is valid; Azure permits seven days."""
_TIME_LIMITS: dict[str, Any] = {"connection_timeout": 3, "read_timeout": 10, "retry_total": 2}
_READ = {"read": True, "list": True}
_WRITE = _READ | {"create": True, "write": True, "add": True, "delete": True}


def request(
    configuration: StoreConfiguration,
    directories: tuple[str, ...],
    *,
    write: bool,
    principal: str,  # noqa: ARG001 -- of all kinds
) -> Session | Failure:
    """A signature for the first directory, or why there is none.

    Azure's logs name the account or the server's identity, not ``principal``.
    """
    directory = directories[0]
    path = object_locations.key_of(directory)
    if not path:
        cause = "the table is at the root of a container"
        return Failure(cause, "Move the table into a directory", is_of_location=True)
    bucket = object_locations.bucket_of(directory)
    account, _ = object_clients.azure_address(configuration, bucket)
    expires_at = int(time.time()) + configuration.lifetime
    permissions = dict.fromkeys(("create", "write", "delete", "add"), False)
    permissions |= _WRITE if write else _READ
    try:
        signature = generate_directory_sas(
            account,
            bucket.partition("://")[2].partition("@")[0],
            path,
            _signing_key(configuration, bucket.rpartition("@")[2], expires_at),
            DirectorySasPermissions(**permissions),
            datetime.fromtimestamp(expires_at, UTC),
            protocol="https,http" if configuration.allow_http else "https",
        )
    except AccessDenied as error:
        return Failure(str(error.strerror), "Set the key of the storage account in the profile")
    except ClientAuthenticationError:
        return Failure(
            "the server's identity is refused",
            "Give the server's environment an identity of Microsoft Entra, or the profile a key",
        )
    except HttpResponseError as error:
        code = str(getattr(error, "error_code", "") or error.status_code)[:80]
        return Failure(
            f"the token service refuses: {code}",
            "Let the server's identity generate user delegation keys: give it the role"
            " 'Storage Blob Data Contributor' or 'Storage Blob Delegator'",
        )
    except (AzureError, ValueError) as error:
        return Failure(
            f"the token service does not answer as expected: {type(error).__name__}",
            "Check the key and the endpoint of the profile, and that the server reaches Azure",
        )
    return Session(Key(id=account, token=signature), float(expires_at), (directory,))


def _signing_key(
    configuration: StoreConfiguration, host: str, expires_at: float
) -> str | UserDelegationKey:
    if configuration.identity == ServerIdentity.KEY:
        return object_clients.secret_of(configuration)
    return _delegation(configuration, host).key_until(expires_at)


class _Delegation:
    """The user delegation key of a storage account, renewed in time. Safe for threads."""

    def __init__(self, configuration: StoreConfiguration, host: str) -> None:
        self._address = configuration.endpoint or f"https://{host}"
        self._identity: Any = DefaultAzureCredential(
            exclude_cli_credential=True,
            exclude_developer_cli_credential=True,
            exclude_powershell_credential=True,
            exclude_visual_studio_code_credential=True,
            exclude_shared_token_cache_credential=True,
        )
        self._lock = threading.Lock()
        self._key: UserDelegationKey | None = None
        self._expires_at = 0.0

    def key_until(self, expires_at: float) -> UserDelegationKey:
        """A key that is valid until then. Raises AzureError."""
        with self._lock:
            if self._key is None or self._expires_at < expires_at:
                now = datetime.now(UTC)
                end = now + timedelta(hours=_KEY_HOURS)
                with DataLakeServiceClient(self._address, self._identity, **_TIME_LIMITS) as client:
                    self._key = client.get_user_delegation_key(now, end)
                self._expires_at = end.timestamp()
            return self._key


@lru_cache(maxsize=64)
def _delegation(configuration: StoreConfiguration, host: str) -> _Delegation:
    """The key of the account at a host: the roots of a profile may be in several accounts."""
    return _Delegation(configuration, host)
