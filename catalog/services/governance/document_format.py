"""Format of governance documents."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalog.errors import InvalidInput
from catalog.models import (
    LabelColour,
    LabelTarget,
    PrincipalKind,
    PrincipalLevel,
    Sensitivity,
)
from catalog.storage.configuration import ClientAccess, ServerIdentity, StoreKind

VERSION = 1


class _Part(BaseModel):
    # Otherwise a misspelled name would count as left out.
    model_config = ConfigDict(extra="forbid")


class PrincipalPart(_Part):
    name: str
    kind: PrincipalKind
    level: PrincipalLevel | None = None
    description: str | None = None
    is_active: bool | None = None
    groups: list[str] | None = Field(
        default=None, description="All groups that the principal is a member of."
    )


class LabelPart(_Part):
    key: str
    description: str | None = None
    colour: LabelColour | None = None
    values: list[str] | None = None
    is_multiple: bool | None = None
    applies_to: list[LabelTarget] | None = None


class StorageProfilePart(_Part):
    name: str
    kind: StoreKind | None = None
    roots: list[str] | None = None
    region: str | None = None
    endpoint: str | None = None
    sts_endpoint: str | None = None
    path_style: bool | None = None
    kms_key: str | None = None
    identity: ServerIdentity | None = None
    key_id: str | None = None
    secret_from: str | None = Field(
        default=None,
        description="Where the key's secret is, when the document is applied:"
        " env:MONODON_STORAGE_NAME. Documents contain no secrets.",
    )
    token_from: str | None = Field(
        default=None, description="Where the session token of the key is, in the same way."
    )
    role: str | None = None
    external_id: str | None = None
    client_access: ClientAccess | None = None
    lifetime_seconds: int | None = None
    conditional_writes: bool | None = None


class LinkPart(_Part):
    title: str
    url: str


class ColumnPart(_Part):
    description: str = ""
    sensitivity: Sensitivity | None = None
    labels: dict[str, list[str]] = {}


class TargetPart(_Part):
    name: list[str]
    owner: str | None = None
    description: str | None = None
    sensitivity: Sensitivity | Literal[""] | None = Field(
        default=None, description="An empty value inherits the sensitivity."
    )
    links: list[LinkPart] | None = None
    labels: dict[str, list[str]] | None = None
    protected: bool | None = None
    grants: dict[str, list[str]] | None = Field(
        default=None, description="Privileges by principal; all direct grants on the object."
    )
    maintenance: dict[str, Any] | None = Field(
        default=None, description="The object's own maintenance policy."
    )


class NamespacePart(TargetPart):
    retention_seconds: int | Literal["inherited"] | None = None
    approvals: list[str] | None = Field(
        default=None,
        description="Actions that require approval by a second person, here and below.",
    )
    storage_profile: str | None = Field(
        default=None,
        description="Storage profile of new tables, here and below. An empty value inherits it.",
    )


class TablePart(TargetPart):
    columns: dict[str, ColumnPart] | None = None


class Document(_Part):
    version: Literal[1]
    principals: list[PrincipalPart] = []
    labels: list[LabelPart] = []
    storage_profiles: list[StorageProfilePart] = []
    namespaces: list[NamespacePart] = []
    tables: list[TablePart] = []


def read(values: Any) -> Document:
    """Validate a document of plain values. Raises InvalidInput with the path of the error."""
    try:
        return Document.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InvalidInput(f"{where}: {first['msg']}" if where else first["msg"]) from None
