"""The bodies of requests and answers about principals and their keys."""

from datetime import datetime
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictBool, model_validator

from catalog.models import ApiKey, Principal, PrincipalKind, PrincipalLevel
from catalog.privileges import words

MAX_OVERLAP_SECONDS = 30 * 86_400
_SCOPES = "Words of privileges beyond which the key does nothing. Null: all that its principal may."


class _Request(BaseModel):
    # A misspelled "expires_at" must not make a key for ever.
    model_config = ConfigDict(extra="forbid")


# --- principals ----------------------------------------------------------------------------------


class PrincipalModel(BaseModel):
    """A person, a group or a service account."""

    name: str
    kind: PrincipalKind
    level: PrincipalLevel
    description: str
    is_active: bool
    issuer: str = Field(description="The OpenID Connect issuer that vouches for it; empty: none.")
    subject: str = Field(description="How that issuer calls it.")
    groups: list[str]
    created_by: str
    created_at: datetime

    @classmethod
    def of(cls, row: Principal) -> Self:
        return cls(
            name=row.name,
            kind=PrincipalKind(row.kind),
            level=PrincipalLevel(row.level),
            description=row.description,
            is_active=row.is_active,
            issuer=row.issuer,
            subject=row.subject,
            groups=sorted(group.name for group in row.groups.all()),
            created_by=row.created_by,
            created_at=row.created_at,
        )


class PrincipalPage(BaseModel):
    principals: list[PrincipalModel]
    next_page_token: str | None


class CreatePrincipalRequest(_Request):
    name: str = Field(description="etl, user:ada, group:analysts.")
    kind: PrincipalKind
    level: PrincipalLevel = PrincipalLevel.GRANTED
    description: str = ""
    issuer: str = ""
    subject: str = ""


class UpdatePrincipalRequest(_Request):
    """What is left out stays as it is."""

    level: PrincipalLevel | None = None
    description: str | None = None
    is_active: StrictBool | None = None
    issuer: str | None = None
    subject: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("nothing to change is named")
        return self


# --- keys ----------------------------------------------------------------------------------------


class KeyModel(BaseModel):
    """An API key, without the key itself."""

    name: str
    principal: str
    prefix: str = Field(description="How the key begins.")
    scopes: list[str] | None = Field(description=_SCOPES)
    namespace: list[str] | None = Field(description="Where it may be used, with all below.")
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    replaced_by: str | None = Field(description="The key that takes over.")

    @classmethod
    def of(cls, row: ApiKey) -> Self:
        return cls(
            name=row.name,
            principal=row.principal.name,
            prefix=row.prefix,
            scopes=None if row.scopes is None else words(row.ceiling),
            namespace=None if row.namespace is None else list(row.namespace.identifier),
            created_by=row.created_by,
            created_at=row.created_at,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
            last_used_at=row.last_used_at,
            replaced_by=None if row.replaced_by is None else row.replaced_by.name,
        )


class NewKey(BaseModel):
    """A key that was just made. Nobody can be shown it again."""

    key: str = Field(description="The secret.")
    details: KeyModel


class KeyPage(BaseModel):
    keys: list[KeyModel]
    next_page_token: str | None


class CreateKeyRequest(_Request):
    principal: str
    name: str
    scopes: list[str] | None = Field(default=None, description=_SCOPES)
    namespace: list[str] | None = None
    expires_at: AwareDatetime | None = Field(
        default=None,
        description="Without it the key is valid for 90 days. Null: it never expires, which only"
        " an administrator may ask for.",
    )


class RotateKeyRequest(_Request):
    overlap_seconds: int = Field(
        ge=0, le=MAX_OVERLAP_SECONDS, description="So long the old key goes on."
    )
    name: str | None = Field(default=None, description="Null: the old name with a number.")
    expires_at: AwareDatetime | None = Field(
        default=None, description="Of the new key; null: when the old one would have."
    )
