"""A trial: the state that the checks of one profile share."""

import secrets
import ssl
from dataclasses import dataclass, field
from functools import cached_property

from catalog.services.storage.profile_checks.s3_client import Answer, S3Client
from catalog.services.storage.profile_checks.token_clients import TokenClient
from catalog.storage.configuration import StoreConfiguration, StoreKind
from catalog.storage.locations import TEST_PREFIX
from catalog.storage.object_locations import bucket_of, key_of
from catalog.storage.object_store import ObjectStore
from catalog.storage.outages.availability import AlwaysTried
from catalog.storage.stores import Store


@dataclass
class Trial:
    """The profile under test, its store, and results that later checks use."""

    configuration: StoreConfiguration
    root: str
    directory: str
    """Location below which the test writes."""
    answer: Answer | None = None
    """Answer to the list of the root, with the right region and URL style if they are known. S3 only."""
    first_answer: Answer | None = None
    """Answer to the same request with the profile's region and URL style. S3 only."""
    is_other_style: bool = False
    """True if only the URL style that the profile does not state reaches the bucket. S3 only."""
    requests: S3Client | None = None
    """Signed requests that reach the bucket. S3 only."""
    uploads: list[tuple[str, str]] = field(default_factory=list)
    """Key and id of each multipart upload, to be aborted at the end. S3 only."""
    clients: dict[str, S3Client | TokenClient] = field(default_factory=dict)
    """Requests with credentials of clients, by access: "write" and "read"."""
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    @cached_property
    def store(self) -> Store:
        """The store as the server uses it. Raises OSError if its client refuses the configuration."""
        bucket = bucket_of(self.root)
        # A test calls a store that does not answer, too.
        return ObjectStore(self.configuration, bucket, availability=AlwaysTried())

    @property
    def bucket(self) -> str:
        """Name of the bucket or container."""
        return bucket_of(self.root).partition("://")[2].partition("@")[0]

    @property
    def is_s3(self) -> bool:
        return self.configuration.kind == StoreKind.S3

    def path(self, name: str) -> str:
        """Location of an object of the test."""
        return f"{self.directory}/{name}"

    def object_key(self, name: str) -> str:
        """Key of an object of the test in its bucket."""
        return key_of(self.path(name))


def new_directory(root: str) -> str:
    """A directory below a root that nothing else uses."""
    return f"{root}/{TEST_PREFIX}{secrets.token_hex(8)}"
