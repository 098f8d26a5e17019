"""Tables in object stores whose credentials clients get, and what those credentials can do."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from catalog.access import SYSTEM
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.identifiers import Identifier, digest
from catalog.models import (
    ApiKey,
    IcebergMetadata,
    Principal,
    PrincipalLevel,
    Table,
    TableFormat,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from catalog.services.iceberg import metadata_files
from tests.factories import ICEBERG_SCHEMA, make_namespace, make_root, make_table
from tests.stores.s3 import Moto

READ = Privilege.READ | Privilege.BROWSE
WRITE = READ | Privilege.WRITE
DELEGATED = {"X-Iceberg-Access-Delegation": "vended-credentials"}


def make_lance(location: str, *identifier: str) -> Table:
    """A declared Lance table at a location."""
    make_root()  # which a test with its own transactions has removed
    return make_table(*identifier, location=location)


def make_iceberg(location: str, *identifier: str) -> Table:
    """An Iceberg table at a location; its metadata is in the database only."""
    document = metadata_documents.new_table(
        schema=ICEBERG_SCHEMA,
        partition_spec=None,
        write_order=None,
        location=location,
        properties=None,
        now_ms=1,
    )
    table = Table.objects.create(
        namespace=make_namespace(*identifier[:-1]),
        name=identifier[-1],
        digest=digest(identifier),
        format=TableFormat.ICEBERG,
        state=TableState.LIVE,
        location=location,
        owner="system",
    )
    path = f"{location}/metadata/00000-0.metadata.json"
    answer = metadata_files.answer(path, metadata_documents.dump(document))
    IcebergMetadata.objects.create(
        table=table,
        metadata_location=path,
        sequence=0,
        answer=answer,
        etag=metadata_files.new_etag(),
    )
    return table


def make_client_key(name: str, table: Table | None, privileges: Privilege) -> str:
    """An API key of a new service account with these privileges on one table alone."""
    row, key = api_keys.create_api_key(actor=SYSTEM, name=name, level=PrincipalLevel.GRANTED)
    if table is not None:
        principal = principal_of(row)
        principal.grants.create(mask=privileges.value, table=table)
    return key


def principal_of(key: ApiKey) -> Principal:
    principal: Principal = key.principal
    return principal


def lance_path(identifier: Identifier) -> str:
    return f"/v1/table/{'$'.join(identifier)}/describe"


def iceberg_path(identifier: Identifier) -> str:
    return f"namespaces/{identifier[0]}/tables/{identifier[1]}"


def client_of(store: Moto, config: Mapping[str, str]) -> Any:
    """A boto3 client with the credentials in storage options or in an Iceberg config."""
    if "s3.access-key-id" in config:
        names = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
    else:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return store.client_with(*(config[name] for name in names))


def outcomes(client: Any, bucket: str, directory: str) -> dict[str, bool]:
    """What a client may do in a directory of a bucket that has an object ``data/1``."""
    prefix = f"{directory}/" if directory else ""
    key = f"{prefix}data/1"
    operations = {
        "get": lambda: client.get_object(Bucket=bucket, Key=key),
        "head": lambda: client.head_object(Bucket=bucket, Key=key),
        "list": lambda: client.list_objects_v2(Bucket=bucket, Prefix=prefix),
        "put": lambda: client.put_object(Bucket=bucket, Key=f"{prefix}data/new", Body=b"x"),
        "delete": lambda: client.delete_object(Bucket=bucket, Key=f"{prefix}data/new"),
        "delete many": lambda: client.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": f"{prefix}data/new"}]}
        ),
        "upload": lambda: client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}data/big"),
    }
    return {name: is_permitted(operation) for name, operation in operations.items()}


def is_permitted(operation: Callable[[], Any]) -> bool:
    """True if an operation succeeds, and False if the store denies access to it."""
    try:
        errors = operation().get("Errors", [])  # of DeleteObjects: one for each refused key
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status == 403:
            return False
        pytest.fail(f"neither done nor refused: {error}")
    assert {error["Code"] for error in errors} <= {"AccessDenied"}
    return not errors


NOTHING_PERMITTED = dict.fromkeys(
    ("get", "head", "list", "put", "delete", "delete many", "upload"), False
)
READ_PERMITTED = NOTHING_PERMITTED | {"get": True, "head": True, "list": True}
ALL_PERMITTED = dict.fromkeys(NOTHING_PERMITTED, True)


def impatient() -> Config:
    """In place of ``role_sessions._client_config``: one attempt of a second."""
    return Config(
        connect_timeout=1,
        read_timeout=1,
        retries={"total_max_attempts": 1},
        parameter_validation=False,
    )
