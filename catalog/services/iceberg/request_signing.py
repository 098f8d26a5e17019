"""Signing requests of clients to the files of a table, for stores without temporary credentials.

Each object that a request names must be a file of the table, and a list must stay below the table's
directories. The decision is the same as for files that the server reads itself (``table_files``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from catalog import access
from catalog.access import Principal
from catalog.errors import Unsupported
from catalog.identifiers import Identifier
from catalog.privileges import Privilege
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.profile_checks import signatures
from catalog.services.storage.table_files import TableFiles
from catalog.storage import object_clients, stores
from catalog.storage.configuration import ClientAccess, StoreConfiguration, StoreKind
from catalog.storage.role_sessions import SessionCredentials, credential_source
from catalog.storage.s3 import requests as s3_requests
from catalog.storage.s3 import signing as s3_signing
from catalog.storage.s3.requests import Action, S3Request


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as the client wants to send it (spec: RemoteSignRequest)."""

    method: str
    uri: str
    region: str
    headers: Mapping[str, list[str]]
    body: str | None = None
    """Of DeleteObjects, which names its objects only there."""
    provider: str = "s3"


def sign(*, actor: Principal, table: Identifier, request: ClientRequest) -> dict[str, str]:
    """The headers with which a client may send its request to the store.

    Reading and listing require READ on the table, everything else WRITE. Raises TableNotFound,
    PermissionDenied, Unsupported if the table's storage profile does not sign, InvalidInput for a
    request that is not understood, ForeignFile for one that leaves the table, and
    ServiceUnavailable. Nothing is sent to the store, except to check it (``profile_checks.signatures``).
    """
    # Before the table is loaded: a signature does not outlast the drop of its table for longer than it is valid.
    signed_at = datetime.now(UTC)
    # "*": without its metadata.
    loaded = iceberg_tables.load_table(actor=actor, table=table, etags=["*"])
    configuration = _configuration(loaded.location, request.provider)
    s3_request = s3_requests.read(
        method=request.method,
        uri=request.uri,
        headers=request.headers,
        body=request.body,
        region=request.region,
        configuration=configuration,
    )
    if s3_request.is_write:
        access.require(actor, Privilege.WRITE, iceberg_tables.on(table))
    files = TableFiles(loaded)
    _require_in_store(files, s3_request, configuration)
    _require_own(actor, files, s3_request)
    signatures.require_safe(s3_request, configuration)
    return s3_signing.sign(s3_request, _key(configuration), request.region, signed_at)


def _key(configuration: StoreConfiguration) -> SessionCredentials:
    """The server's key. A thread that waits for a token service counts as waiting for the store."""
    source = credential_source(configuration)
    if source.is_fresh:
        return source.current()
    with object_clients.availability_of(configuration).calling():
        return source.current()


def _configuration(location: str, provider: str) -> StoreConfiguration:
    configuration = None if location.startswith("/") else stores.configuration_of(location)
    if configuration is None or configuration.client_access is not ClientAccess.SIGNING:
        raise Unsupported("The storage of this table does not sign requests")
    if configuration.kind is not StoreKind.S3 or provider != StoreKind.S3:
        raise Unsupported(f"Requests to {provider!r} are not signed")
    return configuration


def _require_in_store(
    files: TableFiles, request: S3Request, configuration: StoreConfiguration
) -> None:
    """Refuse objects below the roots of other profiles, which may be the same names in another store.

    The request would read and write with the key of this profile. Raises ForeignFile.
    """
    verb = "changed" if request.is_write else "read"
    for path in filter(None, (*request.paths, *request.sources, request.prefix)):
        holder = stores.configuration_of(path)
        if holder is None or holder.profile != configuration.profile:
            raise files.refusal(path, verb)


def _require_own(actor: Principal, files: TableFiles, request: S3Request) -> None:
    if request.action is Action.READ:
        files.require_readable(actor, request.paths)
        return
    if request.action is Action.LIST:
        _require_below(files, request.prefix)
        return
    files.require_readable(actor, request.sources)
    _require_changeable(files, request.paths)


def _require_below(files: TableFiles, prefix: str) -> None:
    """Raises ForeignFile unless every key that begins with the prefix is in the table's directories."""
    own, foreign = files.prefixes()
    if not any(prefix.startswith(directory + "/") for directory in own):
        raise files.refusal(prefix, "listed")
    if any(
        directory.startswith(prefix) or prefix.startswith(directory + "/") for directory in foreign
    ):
        raise files.refusal(prefix, "listed")


def _require_changeable(files: TableFiles, paths: Iterable[str]) -> None:
    for path, owner in files.classify(paths).items():
        if owner.belonging is not Belonging.OWN or owner.path != path:
            raise files.refusal(path, "changed")
