"""Access of clients to the files of a table in an object store: credentials, and the store's address.

A client that lists ``vended-credentials`` in ``X-Iceberg-Access-Delegation`` gets credentials, if the
storage profile has any for clients. Other clients get the address of the store only. The same fields
stand in ``storage-credentials`` and in ``config``, which is all that Trino and older clients read.

An answer for a table in an object store has an ETag with a mark at its end: what the answer opens, and
until when, as in ``"<ETag>.c<16 digits>-<seconds since 1970>"``. So no 304 keeps expired credentials in use.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
from django.http import HttpRequest

from api.iceberg import prefixes
from catalog import access
from catalog.access import Principal
from catalog.errors import PermissionDenied, TableNotFound
from catalog.identifiers import Identifier
from catalog.privileges import NOTHING, Privilege
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.storage import credentials
from catalog.services.storage.credentials import Credentials, TableAccess
from catalog.storage import object_clients, object_locations
from catalog.storage.configuration import ClientAccess, Key, StoreConfiguration, StoreKind

NOT_STORED = "private, no-store"
"""Cache-Control of an answer with credentials."""
_MARK = re.compile(r'(".*)\.c([0-9a-f]{16})-([0-9]{1,12})"')

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delegation:
    """What a request gets for a table in an object store."""

    actor: Principal
    table: LoadedTable
    opens: TableAccess

    @property
    def has_secrets(self) -> bool:
        """True if the answer has credentials."""
        return self.opens.has_secrets

    def issue(self) -> Credentials:
        """The credentials, or only the store's address. Raises ServiceUnavailable."""
        return credentials.issue(self.actor, self.table, self.opens)

    def is_current(self, tag: str) -> bool:
        """True if an answer with this ETag opens the same, and has not to be renewed."""
        mark = _MARK.fullmatch(tag)
        if mark is None or mark[2] != self.opens.tag:
            return False
        return not self.has_secrets or int(mark[3]) > time.time()

    def marked(self, tag: str, issued: Credentials) -> str:
        """The ETag of the answer with these credentials."""
        return f'{tag[:-1]}.c{self.opens.tag}-{int(issued.renew_at)}"'


def unmarked(tags: Iterable[str]) -> list[str]:
    """ETags without what ``Delegation.marked`` has added."""
    marks = [(tag, _MARK.fullmatch(tag)) for tag in tags]
    return [tag if mark is None else f'{mark[1]}"' for tag, mark in marks]


def of_loaded(request: HttpRequest, actor: Principal, table: LoadedTable) -> Delegation | None:
    """What a request gets for a table that ``load_table`` returned; None for local files."""
    return _delegation(actor, table, table.held, secrets=_requests_credentials(request))


def of_created(request: HttpRequest, actor: Principal, table: LoadedTable) -> Delegation | None:
    """The same for a table that was just created or registered, or whose creation is staged."""
    if table.location.startswith("/"):
        return None
    held = _held_on_created(actor, table)
    secrets = held != NOTHING and _requests_credentials(request)
    return _delegation(actor, table, held, secrets=secrets)


def of_credentials_request(actor: Principal, table: LoadedTable) -> Delegation | None:
    """The same for a request for credentials; None if there are none."""
    delegated = _delegation(actor, table, table.held, secrets=True)
    return delegated if delegated is not None and delegated.has_secrets else None


def _delegation(
    actor: Principal, table: LoadedTable, held: Privilege, *, secrets: bool
) -> Delegation | None:
    opens = credentials.table_access(actor, table, held=held, secrets=secrets, state=table.etag)
    return None if opens is None else Delegation(actor, table, opens)


def require_available(
    request: HttpRequest, actor: Principal, table: Identifier, location: str | None
) -> None:
    """Require that a request gets credentials for a new table, before it is created.

    Raises ServiceUnavailable.
    """
    if _requests_credentials(request):
        credentials.require_available(actor, table, location)


def _held_on_created(actor: Principal, table: LoadedTable) -> Privilege:
    if table.pk == 0:  # staged: who creates a table owns it
        return Privilege.ALL & actor.ceiling if Privilege.READ in actor.ceiling else NOTHING
    try:
        return access.require(actor, Privilege.READ, iceberg_tables.on(table.identifier))
    except (PermissionDenied, TableNotFound):
        return NOTHING


def _requests_credentials(request: HttpRequest) -> bool:
    header = request.META.get("HTTP_X_ICEBERG_ACCESS_DELEGATION", "")
    return any(word.strip().lower() == "vended-credentials" for word in header.split(","))


# --- the fields of answers -----------------------------------------------------------------------


def fields(delegation: Delegation, issued: Credentials, warehouse: Identifier) -> bytes:
    """The members of the answer to loadTable: ``config`` and what belongs to it, as JSON."""
    table = delegation.table
    config = _config(issued, table, warehouse)
    members: Json = {"config": config}
    if issued.key is not None:
        prefix = _prefix(issued, table)
        members["storage-credentials"] = [{"prefix": prefix, "config": config}]
    if issued.configuration.client_access is ClientAccess.SIGNING:
        members["remote-signing-config"] = {"properties": {}, "headers": {}}
    return orjson.dumps(members)[1:-1]


def storage_credential(issued: Credentials, table: LoadedTable, warehouse: Identifier) -> Json:
    """A StorageCredential. There is one for all of a table's directories: clients take no more."""
    return {"prefix": _prefix(issued, table), "config": _config(issued, table, warehouse)}


def _prefix(issued: Credentials, table: LoadedTable) -> str:
    is_above = f"{table.metadata_location or issued.location}/".startswith(f"{issued.location}/")
    if is_above and not issued.has_several_directories:
        return issued.location
    return issued.location.partition("://")[0]


def _config(issued: Credentials, table: LoadedTable, warehouse: Identifier) -> dict[str, str]:
    configuration, key = issued.configuration, issued.key
    config: dict[str, str] = {}
    if configuration.kind is StoreKind.S3:
        config |= _address_of_s3(configuration, issued.location)
        if configuration.client_access is ClientAccess.SIGNING:
            config["s3.remote-signing-enabled"] = "true"
            # Relative to the catalog's address, which clients use in place of ``s3.signer.uri``.
            config["s3.signer.endpoint"] = f"{_path(table.identifier, warehouse)}/sign"
            config["s3.signer"] = "S3V4RestSigner"  # PyIceberg's
        if key is not None:
            config |= _key_of_s3(key)
    elif key is not None:
        host = object_locations.bucket_of(issued.location).rpartition("@")[2]
        is_azure = configuration.kind is StoreKind.ADLS
        config |= _key_of_azure(key, host) if is_azure else {"gcs.oauth2.token": key.token}
    if issued.expires_at_millis is not None:
        for name in _expiry_of(configuration, issued):
            config[name] = str(issued.expires_at_millis)
        if table.pk:  # a staged table has no credentials of its own yet
            path = _path(table.identifier, warehouse)
            config[_REFRESH_ENDPOINTS[configuration.kind]] = f"{path}/credentials"
    return config


_REFRESH_ENDPOINTS = {
    StoreKind.S3: "client.refresh-credentials-endpoint",
    StoreKind.GCS: "gcs.oauth2.refresh-credentials-endpoint",
    StoreKind.ADLS: "adls.refresh-credentials-endpoint",
}


def _expiry_of(configuration: StoreConfiguration, issued: Credentials) -> list[str]:
    """The names of the fields with the expiry, in milliseconds since 1970."""
    match configuration.kind:
        case StoreKind.S3:
            return ["s3.session-token-expires-at-ms"]
        case StoreKind.GCS:
            return ["gcs.oauth2.token-expires-at"]
        case _:
            host = object_locations.bucket_of(issued.location).rpartition("@")[2]
            return [f"adls.sas-token-expires-at-ms.{name}" for name in _names_of_account(host)]


def _names_of_account(host: str) -> list[str]:
    """Clients look an account up by its host, or by its name."""
    return [host, host.partition(".")[0]]


def _address_of_s3(configuration: StoreConfiguration, location: str) -> dict[str, str]:
    bucket = object_locations.bucket_of(location)
    _, is_virtual_hosted = object_clients.s3_address(configuration, bucket)
    config = {
        "s3.path-style-access": "false" if is_virtual_hosted else "true",
        # PyIceberg's name for the contrary.
        "s3.force-virtual-addressing": "true" if is_virtual_hosted else "false",
    }
    if configuration.region:
        config |= {"s3.region": configuration.region, "client.region": configuration.region}
    if configuration.endpoint:
        # ClickHouse removes the endpoint from the start of a table's address, and finds the metadata
        # file relative to the rest only without a slash there. Other clients accept both.
        config["s3.endpoint"] = f"{configuration.endpoint}/"
    if configuration.kms_key:
        config |= {"s3.sse.type": "kms", "s3.sse.key": configuration.kms_key}
    return config


def _key_of_s3(key: Key) -> dict[str, str]:
    config = {"s3.access-key-id": key.id, "s3.secret-access-key": key.secret}
    return {**config, "s3.session-token": key.token} if key.token else config


def _key_of_azure(key: Key, host: str) -> dict[str, str]:
    if key.token:
        return {f"adls.sas-token.{name}": key.token for name in _names_of_account(host)}
    return {
        "adls.auth.shared-key.account.name": key.id,
        "adls.auth.shared-key.account.key": key.secret,
        # PyIceberg's names.
        "adls.account-name": key.id,
        "adls.account-key": key.secret,
    }


def _path(table: Identifier, warehouse: Identifier) -> str:
    """The path of a table, relative to the catalog's address."""
    prefix = f"{prefixes.spell(warehouse)}/" if warehouse else ""
    levels = quote(prefixes.SEPARATOR.join(table[len(warehouse) : -1]), safe="")
    return f"v1/{prefix}namespaces/{levels}/tables/{quote(table[-1], safe='')}"
