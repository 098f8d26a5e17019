"""Storage options of Lance's clients: the address of a table's store, and credentials for the table.

The keys are those of Lance's object stores. Lance describes the table again at ``expires_at_millis``
minus ``refresh_offset_millis``.
"""

from django.http import HttpResponse

from catalog.access import Principal
from catalog.errors import NotFound, PermissionDenied
from catalog.identifiers import Identifier
from catalog.privileges import Privilege
from catalog.services.storage import credentials
from catalog.services.storage.credentials import Credentials
from catalog.services.storage.file_owners import Holder
from catalog.services.tables import tables
from catalog.storage import object_clients, object_locations
from catalog.storage.configuration import Key, StoreConfiguration, StoreKind

NOT_STORED = "private, no-store"
"""Cache-Control of an answer with credentials."""


def of_table(
    actor: Principal, table: Holder, *, held: Privilege, vend: bool | None
) -> dict[str, str] | None:
    """The storage options for a table on which the actor holds ``held``; None for local files.

    ``vend`` is the request's ``vend_credentials``: if it is false, there are no secrets. Raises
    ServiceUnavailable.
    """
    opens = credentials.table_access(actor, table, held=held, secrets=vend is not False)
    if opens is None:
        return None
    return render(credentials.issue(actor, table, opens))


def of_new_table(
    actor: Principal, table: Identifier, location: str, *, vend: bool | None = None
) -> dict[str, str] | None:
    """The storage options for a table that was created at a location; None for local files.

    None also if the actor may not read it, or another table has the name by now.
    """
    if location.startswith("/"):
        return None
    try:
        description = tables.describe_table(actor=actor, table=table)
    except (NotFound, PermissionDenied):
        return None
    if description.location != location:
        return None
    return of_table(actor, description, held=description.held, vend=vend)


def require_available(
    actor: Principal, table: Identifier, location: str | None = None, *, vend: bool | None = None
) -> None:
    """Require that there will be storage options for a new table, before it is created.

    Raises ServiceUnavailable.
    """
    if vend is not False:
        credentials.require_available(actor, table, location)


def has_secrets(options: dict[str, str] | None) -> bool:
    return options is not None and not _SECRETS.isdisjoint(options)


def keep_private(response: HttpResponse, options: dict[str, str] | None) -> HttpResponse:
    """The response, marked as not to be stored if its options have secrets."""
    if has_secrets(options):
        response["Cache-Control"] = NOT_STORED
    return response


def render(access_: Credentials) -> dict[str, str]:
    configuration, key = access_.configuration, access_.key
    options: dict[str, str] = {}
    if configuration.kind is StoreKind.S3:
        options |= _address_of_s3(configuration, access_.location)
        options |= _key_of_s3(key) if key else {}
    elif configuration.kind is StoreKind.ADLS:
        options |= _address_of_azure(configuration, access_.location)
        options |= _key_of_azure(key) if key else {}
    else:
        options |= _address_of_gcs(configuration)
        options |= {"google_storage_token": key.token} if key else {}
    if access_.expires_at_millis is not None:
        options["expires_at_millis"] = str(access_.expires_at_millis)
        options["refresh_offset_millis"] = str(access_.refresh_offset_millis)
    return options


_SECRETS = frozenset(
    (
        *("aws_secret_access_key", "google_storage_token"),
        *("azure_storage_account_key", "azure_storage_sas_token"),
    )
)


def _address_of_s3(configuration: StoreConfiguration, location: str) -> dict[str, str]:
    bucket = object_locations.bucket_of(location)
    endpoint, is_virtual_hosted = object_clients.s3_address(configuration, bucket)
    options = {
        "aws_virtual_hosted_style_request": "true" if is_virtual_hosted else "false",
        "allow_http": "true" if configuration.allow_http else "false",
    }
    if configuration.region:
        options["aws_region"] = configuration.region
    if configuration.endpoint:
        options["aws_endpoint"] = endpoint
    if configuration.kms_key:
        options["aws_server_side_encryption"] = "aws:kms"
        options["aws_sse_kms_key_id"] = configuration.kms_key
    return options


def _key_of_s3(key: Key) -> dict[str, str]:
    options = {"aws_access_key_id": key.id, "aws_secret_access_key": key.secret}
    return {**options, "aws_session_token": key.token} if key.token else options


def _address_of_gcs(configuration: StoreConfiguration) -> dict[str, str]:
    if not configuration.endpoint:
        return {}
    return {
        "google_base_url": configuration.endpoint,
        "allow_http": "true" if configuration.allow_http else "false",
    }


def _key_of_azure(key: Key) -> dict[str, str]:
    if key.token:
        return {"azure_storage_sas_token": key.token}
    return {"azure_storage_account_key": key.secret}


def _address_of_azure(configuration: StoreConfiguration, location: str) -> dict[str, str]:
    account = location.partition("@")[2].partition(".")[0]
    options = {"azure_storage_account_name": account}
    if configuration.endpoint:
        options["azure_storage_endpoint"] = configuration.endpoint
        options["allow_http"] = "true" if configuration.allow_http else "false"
    return options
