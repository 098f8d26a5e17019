"""The columns of a view with what they are made from, as a JSON object in the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from catalog.formats.iceberg.views.sources import Sources
from catalog.identifiers import digest

Candidate = tuple[tuple[UUID, ...], str]
"""The digests of the tables that a name may stand for, and the name of a column."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a view."""

    name: str
    references: tuple[tuple[Candidate, ...], ...] = ()
    """The columns that it is made from; of several candidates in a reference, the view reads one."""
    is_copy: bool = False
    problem: str = ""
    dialects: tuple[str, ...] = ()
    """The dialects in which the view has this definition; empty if it is the only one."""


def to_json(parsed: Sources) -> dict[str, Any]:
    """The object that ``from_json`` reads."""
    positions = {name.parts: index for index, name in enumerate(parsed.names)}
    dialects = [
        {
            "dialect": dialect,
            "columns": [
                {
                    "name": column.name,
                    "is_copy": column.is_copy,
                    "problem": column.problem,
                    "references": [
                        [[positions[parts], name] for parts, name in reference]
                        for reference in column.references
                    ],
                }
                for column in columns
            ],
        }
        for dialect, columns in parsed.columns
    ]
    return {
        "tables": [[digest(key).hex for key in name.identifiers] for name in parsed.names],
        "dialects": dialects,
        "problem": " ".join(parsed.column_problems),
    }


def from_json(document: Mapping[str, Any]) -> list[StoredColumn]:
    """The columns of all dialects; those that several dialects define alike only once."""
    tables = [tuple(UUID(key) for key in keys) for keys in document["tables"]]
    dialects: dict[StoredColumn, list[str]] = {}
    for entry in document["dialects"]:
        for column in entry["columns"]:
            stored = StoredColumn(
                name=column["name"],
                references=tuple(
                    tuple((tables[index], name) for index, name in reference)
                    for reference in column["references"]
                ),
                is_copy=column["is_copy"],
                problem=column["problem"],
            )
            dialects.setdefault(stored, []).append(entry["dialect"])
    count = len({entry["dialect"] for entry in document["dialects"]})
    return [
        StoredColumn(
            column.name,
            column.references,
            column.is_copy,
            column.problem,
            () if len(set(names)) == count else tuple(dict.fromkeys(names)),
        )
        for column, names in dialects.items()
    ]
