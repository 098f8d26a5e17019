"""What requests and answers say of facts, labels and searches."""

from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, Field, StrictBool

from api.management.messages import _Request as Request
from catalog.models import LabelColour, LabelDefinition, LabelPlace, Sensitivity, TableFormat
from catalog.services.governance.annotation_operations import Link
from catalog.services.governance.annotations import (
    Annotations,
    Changes,
    ColumnAnnotations,
    ColumnChanges,
    GivenLabel,
)
from catalog.services.search.search import Page


class LabelModel(BaseModel):
    """A label that may be given."""

    key: str
    description: str
    colour: LabelColour
    values: list[str] = Field(description="None: any text is a value.")
    is_multiple: bool = Field(description="Whether one thing may have several of its values.")
    places: list[LabelPlace] = Field(description="Where it may be put.")
    created_by: str
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: LabelDefinition) -> Self:
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class Labels(BaseModel):
    labels: list[LabelModel]


class CreateLabelRequest(Request):
    key: str = Field(description="Up to 63 of a-z, 0-9, '_', '-' and '.'.")
    description: str = ""
    colour: LabelColour = LabelColour.GREY
    values: list[str] = Field(default=[], description="None: any text is a value.")
    is_multiple: StrictBool = False
    places: list[LabelPlace] = Field(default=list(LabelPlace))


class UpdateLabelRequest(Request):
    description: str | None = None
    colour: LabelColour | None = None
    values: list[str] | None = None
    is_multiple: StrictBool | None = None
    places: list[LabelPlace] | None = None


class LinkModel(Request):
    title: str
    url: str = Field(description="http or https.")


class GivenLabelModel(BaseModel):
    """The values of a label that something has, and from where."""

    key: str
    values: list[str]
    source: str = Field(description="Who has it of its own, dotted.")
    is_inherited: bool

    @classmethod
    def of(cls, found: GivenLabel) -> Self:
        return cls(**{name: getattr(found, name) for name in cls.model_fields})


class ColumnFactsModel(BaseModel):
    """What is known and said of a column."""

    path: str
    type: str = Field(description="Empty: it is not there any more, or was not read yet.")
    comment: str = Field(description="What the schema itself says of it.")
    description: str
    sensitivity: Sensitivity | None
    labels: list[GivenLabelModel]

    @classmethod
    def of(cls, found: ColumnAnnotations) -> Self:
        values = {name: getattr(found, name) for name in cls.model_fields}
        return cls(**values | {"labels": [GivenLabelModel.of(label) for label in found.labels]})


class FactsModel(BaseModel):
    """What is said of a namespace, a table or a view, and what it inherits."""

    identifier: list[str]
    kind: str = Field(description="namespace, table or view.")
    format: TableFormat | None
    owner: str
    description: str = Field(description="Markdown.")
    links: list[LinkModel]
    labels: list[GivenLabelModel] = Field(description="Its own, and what it inherits of others.")
    said_sensitivity: Sensitivity | None = Field(description="None: it is inherited.")
    sensitivity: Sensitivity | None = Field(description="What holds: the nearest that is said.")
    sensitivity_source: str = Field(description="Who says so, dotted; empty: nobody.")
    highest_sensitivity: Sensitivity | None = Field(
        description="The highest of what holds and of what is said of columns."
    )
    columns: list[ColumnFactsModel]

    @classmethod
    def of(cls, found: Annotations) -> Self:
        values = {name: getattr(found, name) for name in cls.model_fields}
        values["links"] = [LinkModel(title=link.title, url=link.url) for link in found.links]
        values["labels"] = [GivenLabelModel.of(label) for label in found.labels]
        values["columns"] = [ColumnFactsModel.of(column) for column in found.columns]
        return cls(**values | {"identifier": list(found.identifier)})


_LABELS: Any = Field(default={}, description="Values by key; none: the label is taken away.")


class UpdateColumnFacts(Request):
    """What is to be said of a column; what is left out stays."""

    description: str | None = Field(default=None, description="Markdown; empty: there is none.")
    sensitivity: Sensitivity | None = Field(default=None, description="null: not said any more.")
    labels: dict[str, list[str]] = _LABELS

    def of_column(self) -> dict[str, Any]:
        return {
            "description": self.description,
            "sensitivity": self.sensitivity,
            "sets_sensitivity": "sensitivity" in self.model_fields_set,
            "labels": self.labels,
        }


class UpdateNamespaceFactsRequest(UpdateColumnFacts):
    """What is to be said of a namespace; what is left out stays."""

    owner: str | None = Field(default=None, description="A principal; empty: nobody owns it.")
    links: list[LinkModel] | None = Field(default=None, description="All that are to be there.")

    def changes(self) -> Changes:
        links = None if self.links is None else [Link(link.title, link.url) for link in self.links]
        return Changes(**self.of_column(), owner=self.owner, links=links)


class UpdateTableFactsRequest(UpdateNamespaceFactsRequest):
    """What is to be said of a table or view and of its columns; what is left out stays."""

    columns: dict[str, UpdateColumnFacts] = Field(default={}, description="By path: point.x.")

    def changes(self) -> Changes:
        columns = {
            path: ColumnChanges(**changes.of_column()) for path, changes in self.columns.items()
        }
        return replace(super().changes(), columns=columns)


class SearchPart(BaseModel):
    """A piece of a text."""

    text: str = Field(description="Plain text.")
    is_hit: bool = Field(description="Whether the query is in it.")


class SearchMatch(BaseModel):
    """Where a result matched."""

    field: str = Field(description="name, column, comment, label, description, owner or path.")
    parts: list[SearchPart] = Field(description="The text around it.")


class SearchResult(BaseModel):
    """Something that was found."""

    kind: str = Field(description="namespace, table or view.")
    format: TableFormat | None
    identifier: list[str]
    owner: str
    description: str = Field(description="Markdown.")
    matches: list[SearchMatch]


class SearchPage(BaseModel):
    results: list[SearchResult] = Field(description="The best first.")
    is_corrected: bool = Field(
        description="Whether nothing was found, and these are for words spelled nearly so."
    )
    next_page_token: str | None

    @classmethod
    def of(cls, found: Page) -> Self:
        results = [
            SearchResult(
                kind=result.kind,
                format=None if result.format is None else TableFormat(result.format),
                identifier=list(result.identifier),
                owner=result.owner,
                description=result.description,
                matches=[
                    SearchMatch(
                        field=match.field,
                        parts=[SearchPart(text=p.text, is_hit=p.is_hit) for p in match.parts],
                    )
                    for match in result.matches
                ],
            )
            for result in found.results
        ]
        return cls(
            results=results, is_corrected=found.is_corrected, next_page_token=found.next_page
        )
