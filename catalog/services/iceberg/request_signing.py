"""Signing requests of clients to the files of a table, for stores without temporary credentials.

Each object that a request names must be a file of the table, and a list must stay below the table's
directories. The decision is the same as for files that the server reads itself (``table_files``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from catalog import access
from catalog.access import Principal
from catalog.errors import Unsupported
from catalog.identifiers import Identifier
from catalog.privileges import Privilege
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.storage.table_files import Belonging, Holder, TableFiles
from catalog.storage import s3_requests, s3_signing, stores
from catalog.storage.configuration import ClientAccess, StoreConfiguration, StoreKind
from catalog.storage.role_sessions import credential_source
from catalog.storage.s3_requests import Action, S3Request


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
    ServiceUnavailable. Nothing is sent to the store.
    """
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
    _require_own(actor, loaded, s3_request)
    return s3_signing.sign(s3_request, credential_source(configuration).current(), request.region)


def _configuration(location: str, provider: str) -> StoreConfiguration:
    configuration = None if location.startswith("/") else stores.configuration_of(location)
    if configuration is None or configuration.client_access is not ClientAccess.SIGNING:
        raise Unsupported("The storage of this table does not sign requests")
    if configuration.kind is not StoreKind.S3 or provider != StoreKind.S3:
        raise Unsupported(f"Requests to {provider!r} are not signed")
    return configuration


def _require_own(actor: Principal, table: Holder, request: S3Request) -> None:
    files = TableFiles(table)
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
