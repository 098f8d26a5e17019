"""Iceberg view metadata as rows to display. Missing and malformed values are left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from catalog.formats.iceberg import lenient
from catalog.formats.iceberg.reading import Document


@dataclass(frozen=True, slots=True)
class Representation:
    dialect: str
    sql: str


@dataclass(frozen=True, slots=True)
class ViewVersion:
    id: int | None
    at: datetime | None
    schema_id: int | None
    default_catalog: str
    default_namespace: tuple[str, ...]
    representations: tuple[Representation, ...]
    summary: Mapping[str, Any]


def versions(document: Document) -> list[Document]:
    """The versions of a view, newest first, for ``version`` to convert."""
    documents = lenient.objects(document.get("versions"))
    return sorted(
        documents, key=lambda entry: lenient.integer(entry.get("version-id")) or 0, reverse=True
    )


def current_version(document: Document) -> Document | None:
    current = document.get("current-version-id")
    candidates = lenient.objects(document.get("versions"))
    return next(
        (candidate for candidate in candidates if candidate.get("version-id") == current), None
    )


def version(document: Document) -> ViewVersion:
    return ViewVersion(
        id=lenient.integer(document.get("version-id")),
        at=lenient.moment(document.get("timestamp-ms")),
        schema_id=lenient.integer(document.get("schema-id")),
        default_catalog=lenient.text(document.get("default-catalog")),
        default_namespace=lenient.texts(document.get("default-namespace")),
        representations=tuple(
            Representation(
                lenient.text(representation.get("dialect")), lenient.text(representation.get("sql"))
            )
            for representation in lenient.objects(document.get("representations"))
        ),
        summary=lenient.mapping(document.get("summary")),
    )


def current_since(document: Document) -> dict[int | None, datetime | None]:
    """The time at which each version of a view last became current."""
    return {
        lenient.integer(entry.get("version-id")): lenient.moment(entry.get("timestamp-ms"))
        for entry in lenient.objects(document.get("version-log"))
    }
