"""Schemas of both formats as lists of columns, and their differences."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column or a nested field. ``key`` identifies it in another version of the table."""

    key: object
    name: str
    type: str
    required: bool


def lance_columns(schema: Mapping[str, Any]) -> list[Column]:
    """The columns of a JSON Arrow schema. Their keys are their names."""
    return [*_arrow_fields(schema.get("fields", ()), "")]


def _arrow_fields(fields: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[Column]:
    for field in fields:
        name = f"{prefix}{field['name']}"
        kind = field["type"]
        children = kind.get("fields") or ()
        yield Column(name, name, _arrow_type(kind), not field.get("nullable", True))
        if kind["type"] == "struct":
            yield from _arrow_fields(children, f"{name}.")


def _arrow_type(kind: Mapping[str, Any]) -> str:
    text = str(kind["type"])
    children = kind.get("fields") or ()
    if children and text != "struct":
        text = f"{text}<{', '.join(_arrow_type(child['type']) for child in children)}>"
    if kind.get("length") is not None:
        text = f"{text}[{kind['length']}]"
    return text


def iceberg_columns(metadata: Mapping[str, Any], schema_id: int | None = None) -> list[Column]:
    """The columns of a schema of an Iceberg table or view; by default the current one.

    Their keys are the field ids, which a rename keeps.
    """
    if schema_id is None:
        schema_id = metadata.get("current-schema-id")
    if schema_id is None:  # a view
        current = metadata["current-version-id"]
        schema_id = next(
            version["schema-id"]
            for version in metadata["versions"]
            if version["version-id"] == current
        )
    for schema in metadata["schemas"]:
        if schema.get("schema-id", 0) == schema_id:
            return [*_iceberg_fields(schema["fields"], "")]
    return []


def _iceberg_fields(fields: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[Column]:
    for field in fields:
        name, kind = f"{prefix}{field['name']}", field["type"]
        yield Column(field["id"], name, _iceberg_type(kind), bool(field["required"]))
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            yield from _iceberg_fields(kind["fields"], f"{name}.")


def _iceberg_type(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "list":
        return f"list<{_iceberg_type(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{_iceberg_type(kind['key'])}, {_iceberg_type(kind['value'])}>"
    return "struct" if kind["type"] == "struct" else json.dumps(kind)


def compare(before: Sequence[Column], after: Sequence[Column]) -> list[dict[str, object]]:
    """The changes between two schemas: the column, what changed, and a line for people."""
    old = {column.key: column for column in before}
    new = {column.key: column for column in after}
    changes = [
        _change("removed", column.name, f"- {column.name} {column.type}")
        for key, column in old.items()
        if key not in new
    ]
    for key, column in new.items():
        if key not in old:
            changes.append(_change("added", column.name, f"+ {column.name} {column.type}"))
        else:
            changes += _differences(old[key], column)
    return changes


def _differences(old: Column, new: Column) -> Iterator[dict[str, object]]:
    if old.name != new.name:
        yield _change("renamed", new.name, f"~ {old.name} renamed to {new.name}")
    if old.type != new.type:
        yield _change("type", new.name, f"~ {new.name} {old.type} -> {new.type}")
    if old.required != new.required:
        text = "required" if new.required else "optional"
        yield _change("required", new.name, f"~ {new.name} is now {text}")


def _change(kind: str, column: str, text: str) -> dict[str, object]:
    return {"change": kind, "column": column, "text": text}
