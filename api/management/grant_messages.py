"""The bodies of requests and answers about grants."""

from datetime import datetime
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from catalog.models import Grant, PrincipalKind
from catalog.privileges import words
from catalog.services.access.grants import Because, Holder, KeyLimit, Loss, Source

_WORDS = "browse, read, write, create, manage, maintain, grant; with all that they include."


class _Request(BaseModel):
    # A misspelled "privileges" must not be taken for none.
    model_config = ConfigDict(extra="forbid")


class SetGrantRequest(_Request):
    principal: str = Field(description="Its name: etl, user:ada, group:analysts.")
    privileges: list[str] = Field(
        description="Exactly these, and what they include; 'all' is all of them. None: the grant goes."
    )


class GrantModel(BaseModel):
    """What a principal was granted on this very namespace or table."""

    principal: str
    kind: PrincipalKind
    privileges: list[str] = Field(description=_WORDS)
    granted_by: str
    granted_at: datetime

    @classmethod
    def of(cls, row: Grant) -> Self:
        return cls(
            principal=row.principal.name,
            kind=PrincipalKind(row.principal.kind),
            privileges=words(row.privileges),
            granted_by=row.granted_by,
            granted_at=row.granted_at,
        )


class GrantPage(BaseModel):
    grants: list[GrantModel]
    next_page_token: str | None


class Granted(BaseModel):
    """What is granted from now on; no privileges: there is no grant any more."""

    principal: str
    privileges: list[str] = Field(description=_WORDS)


class SourceModel(BaseModel):
    """One reason why a principal holds something here."""

    because: Because
    privileges: list[str]
    on: str = Field(description="What is owned, or on what it is granted; empty: everywhere.")
    is_here: bool = Field(description="Whether that is what was asked about, not one above it.")
    through: str = Field(description="The group that has it; empty: the principal itself.")

    @classmethod
    def of(cls, found: Source) -> Self:
        return cls(
            because=found.because,
            privileges=words(found.privileges),
            on=found.on,
            is_here=found.is_here,
            through=found.through,
        )


class KeyLimitModel(BaseModel):
    """What may be done here with one of a principal's keys."""

    name: str
    privileges: list[str]
    scopes: list[str] = Field(description="What the key lets through at most.")
    within: str | None = Field(description="The namespace that it is for; null: everywhere.")

    @classmethod
    def of(cls, found: KeyLimit) -> Self:
        return cls(
            name=found.name,
            privileges=words(found.privileges),
            scopes=words(found.scopes),
            within=found.within,
        )


class HolderModel(BaseModel):
    """What a principal holds, and why."""

    principal: str
    kind: PrincipalKind
    is_active: bool = Field(description="Who is not active holds nothing.")
    privileges: list[str] = Field(description=_WORDS)
    sources: list[SourceModel]
    keys: list[KeyLimitModel]

    @classmethod
    def of(cls, found: Holder) -> Self:
        return cls(
            principal=found.principal.name,
            kind=PrincipalKind(found.principal.kind),
            is_active=found.is_active,
            privileges=words(found.held),
            sources=[SourceModel.of(source) for source in found.sources],
            keys=[KeyLimitModel.of(key) for key in found.keys],
        )


class AccessPage(BaseModel):
    principals: list[HolderModel]
    next_page_token: str | None


class WhatIfRequest(_Request):
    principal: str = Field(description="Whose grant here is meant.")
    privileges: list[str] = Field(
        default_factory=list, description="What would be granted instead; none: nothing."
    )


class LossModel(BaseModel):
    """What a principal would lose, all its other sources counted."""

    principal: str
    before: list[str] = Field(description="What it holds here now.")
    after: list[str]
    lost: list[str]
    namespaces: int = Field(description="So many namespaces it would not see any more.")
    tables: int = Field(description="So many tables and views it would not see any more.")

    @classmethod
    def of(cls, found: Loss) -> Self:
        return cls(
            principal=found.principal.name,
            before=words(found.before),
            after=words(found.after),
            lost=words(found.lost),
            namespaces=found.namespaces,
            tables=found.tables,
        )


class LossPage(BaseModel):
    principals: list[LossModel]
    next_page_token: str | None
