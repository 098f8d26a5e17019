"""The small messages of the protocol. Table and view metadata remain dicts."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    """Strict: text is not accepted as a number. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class ErrorModel(Message):
    message: str
    type: str
    code: int


class IcebergErrorResponse(Message):
    error: ErrorModel


class OAuthError(Message):
    error: str
    error_description: str | None = None


class CatalogConfig(Message):
    defaults: dict[str, str]
    overrides: dict[str, str]
    endpoints: list[str] = []
    idempotency_key_lifetime: str = Field("", alias="idempotency-key-lifetime")


class OAuthTokenResponse(Message):
    access_token: str
    token_type: str
    expires_in: int
    issued_token_type: str
    scope: str


class CreateNamespaceRequest(Message):
    namespace: list[str] = Field(min_length=1)
    properties: dict[str, str] | None = None


class CreateNamespaceResponse(Message):
    namespace: list[str]
    properties: dict[str, str]


class GetNamespaceResponse(CreateNamespaceResponse):
    pass


class ListNamespacesResponse(Message):
    namespaces: list[list[str]]
    next_page_token: str | None = Field(None, alias="next-page-token")


class UpdateNamespacePropertiesRequest(Message):
    removals: list[str] | None = None
    updates: dict[str, str] | None = None


class UpdateNamespacePropertiesResponse(Message):
    updated: list[str]
    removed: list[str]
    missing: list[str] | None = None


class TableIdentifier(Message):
    namespace: list[str] | None = None
    name: str

    @property
    def levels(self) -> list[str]:
        """The namespace; by default the top of the warehouse."""
        return self.namespace or []


class CreateTableRequest(Message):
    name: str
    location: str | None = None
    table_schema: dict[str, Any] = Field(alias="schema")
    partition_spec: dict[str, Any] | None = Field(None, alias="partition-spec")
    write_order: dict[str, Any] | None = Field(None, alias="write-order")
    stage_create: bool | None = Field(None, alias="stage-create")
    properties: dict[str, str] | None = None


class RegisterTableRequest(Message):
    name: str
    metadata_location: str = Field(alias="metadata-location")
    overwrite: bool | None = None


class RenameTableRequest(Message):
    source: TableIdentifier
    destination: TableIdentifier


class RemoteSignRequest(Message):
    region: str
    uri: str
    method: str
    headers: dict[str, list[str]]
    properties: dict[str, str] | None = None
    body: str | None = None
    provider: str = "s3"


class RemoteSignResult(Message):
    uri: str
    headers: dict[str, list[str]]
