"""The configuration of a store, as a storage profile states it.

A profile lists the roots that may hold tables, and how the server reaches them. These values are
plain data: ``services.storage.profiles`` reads them from the database.
"""

from dataclasses import dataclass, field
from enum import StrEnum

MAX_PROFILES = 4096
"""The most profiles whose sessions and states a process keeps. Each takes a few kilobytes."""


class StoreKind(StrEnum):
    """The kind of a store, which decides its protocol and the scheme of its locations."""

    FILE = "file"
    S3 = "s3"
    GCS = "gcs"
    ADLS = "adls"


class ServerIdentity(StrEnum):
    """How the server authenticates at a store."""

    KEY = "key"
    """With a key that the profile holds, encrypted."""
    ENVIRONMENT = "environment"
    """With the environment of the server, or the identity of the machine it runs on."""
    ROLE = "role"
    """Assume a role, from the key of the profile or else from the environment."""


class ClientAccess(StrEnum):
    """How clients get access to the files of a table."""

    STS = "sts"
    """With short-lived credentials that are limited to the table's prefix."""
    SIGNING = "signing"
    """The server signs each request of a client."""
    STATIC = "static"
    """With the profile's own key, which is limited to nothing. Only for trusted clients."""
    NONE = "none"
    """Clients have credentials of their own; the server gives them none."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the server. Its secret parts are not in its representation."""

    id: str = ""
    """S3: access key id. GCS: unused. ADLS: name of the storage account."""
    secret: str = field(default="", repr=False)
    """S3: secret access key. GCS: the JSON of a service account. ADLS: account key."""
    token: str = field(default="", repr=False)
    """S3: session token, if the key is temporary."""


@dataclass(frozen=True, slots=True)
class StoreConfiguration:
    """How the server reaches a store, and what it may give to clients."""

    profile: str
    """Name of the storage profile, for messages."""
    version: int
    """Increases with every change of the profile, so that open clients are replaced."""
    kind: StoreKind
    roots: tuple[str, ...]
    """Canonical locations below which tables may be, for example ``s3://lake/tables``."""
    region: str = ""
    endpoint: str = ""
    """URL of the store; empty: that of the provider."""
    sts_endpoint: str = ""
    """URL of the token service; empty: that of the provider, or ``endpoint`` if that is set."""
    path_style: bool = False
    """S3: the bucket is part of the path, not of the host name."""
    kms_key: str = ""
    """S3: encrypt new objects with this key of the provider's key management."""
    identity: ServerIdentity = ServerIdentity.ENVIRONMENT
    key: Key | None = None
    key_error: str = ""
    """Why the secret of ``key`` cannot be read; it is empty then. ``stores.require_key`` refuses such a key."""
    role: str = ""
    """S3: ARN of the role that the server assumes, for itself or for clients."""
    external_id: str = field(default="", repr=False)
    client_access: ClientAccess = ClientAccess.NONE
    lifetime: int = 3600
    """Seconds for which credentials of clients are valid."""
    conditional_writes: bool = True
    """True if the store supports ``If-None-Match``: a write then never replaces an object."""

    @property
    def allow_http(self) -> bool:
        """True if the endpoint is not encrypted."""
        return self.endpoint.startswith("http://")
