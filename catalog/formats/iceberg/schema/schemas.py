"""Schemas: their columns, fresh ids, equality (spec: Schemas and Data Types; Appendix C).

Names are compared in full, as ``point.x``, ``tags.element``, ``scores.value``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    array_at,
    as_object,
    at,
    boolean_at,
    integer_at,
    integers_at,
    kind,
    optional_boolean_at,
    optional_integer_at,
    optional_text_at,
    required,
    shown,
    text_at,
)
from catalog.formats.iceberg.schema import primitives

# One level of a struct is three levels of JSON, and the JSON writer stops at 254.
MAX_DEPTH = 50
_DEFAULTS_FIRST_VERSION = 3
_PARTS = {"list": ("element",), "map": ("key", "value")}


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a schema, at any depth."""

    id: int
    name: str
    type: str | Document
    required: bool
    below_structs_only: bool
    below_required_only: bool
    initial_default: object = None


Columns = dict[int, Column]


@dataclass(slots=True)
class _Index:
    columns: Columns = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)

    def add(self, column: Column, path: str) -> None:
        if column.id in self.columns:
            raise InvalidMetadata(
                f"{path}: field id {column.id} is that of {shown(self.columns[column.id].name)} too"
            )
        if column.name in self.ids:
            raise InvalidMetadata(f"{path}: there are two columns named {shown(column.name)}")
        self.columns[column.id] = column
        self.ids[column.name] = column.id


def index(schema: Document, path: str) -> Columns:
    """All columns by id. Raises InvalidMetadata for a malformed schema."""
    optional_integer_at(schema, "schema-id", path, high=INT_MAX)
    collected = _Index()
    if "type" in schema and schema["type"] != "struct":
        raise InvalidMetadata(f"{at(path, 'type')} must be 'struct'")
    _struct(collected, schema, path, parent=None, depth=0)
    if schema.get("identifier-field-ids") is not None:
        here = at(path, "identifier-field-ids")
        for i, id_ in enumerate(integers_at(schema, "identifier-field-ids", path, high=INT_MAX)):
            _check_identifier(collected.columns.get(id_), id_, f"{here}[{i}]")
    return collected.columns


def _struct(
    collected: _Index, struct: Document, path: str, parent: Column | None, depth: int
) -> None:
    here = at(path, "fields")
    for i, value in enumerate(array_at(struct, "fields", path)):
        field_path = f"{here}[{i}]"
        nested = as_object(value, field_path)
        name = text_at(nested, "name", field_path)
        optional_text_at(nested, "doc", field_path)
        column = Column(
            id=integer_at(nested, "id", field_path, high=INT_MAX),
            name=f"{parent.name}.{name}" if parent else name,
            type=_type(nested, "type", field_path),
            required=boolean_at(nested, "required", field_path),
            below_structs_only=parent is None or _is_struct(parent),
            below_required_only=parent is None or (parent.required and parent.below_required_only),
            initial_default=nested.get("initial-default"),
        )
        _check_defaults(column, nested, field_path)
        _add(collected, column, field_path, at(field_path, "type"), depth)


def _is_struct(column: Column) -> bool:
    return (
        column.below_structs_only
        and isinstance(column.type, dict)
        and column.type.get("type") == "struct"
    )


def _add(collected: _Index, column: Column, path: str, type_path: str, depth: int) -> None:
    collected.add(column, path)
    if isinstance(column.type, str):
        if primitives.base_name(column.type, type_path) == "unknown" and column.required:
            raise InvalidMetadata(f"{path}: a column of type unknown must be optional")
        return
    if depth >= MAX_DEPTH:
        raise InvalidMetadata(f"{type_path}: types are nested deeper than {MAX_DEPTH} levels")
    name = text_at(column.type, "type", type_path)
    if name == "struct":
        _struct(collected, column.type, type_path, column, depth + 1)
    elif name in _PARTS:
        _parts(collected, column, column.type, type_path, depth)
    else:
        raise InvalidMetadata(f"{at(type_path, 'type')}: unknown type {shown(name)}")


def _parts(collected: _Index, owner: Column, type_: Document, path: str, depth: int) -> None:
    """The element of a list, or the key and the value of a map."""
    for component in _PARTS[type_["type"]]:
        column = Column(
            id=integer_at(type_, f"{component}-id", path, high=INT_MAX),
            name=f"{owner.name}.{component}",
            type=_type(type_, component, path),
            required=component == "key"
            or bool(optional_boolean_at(type_, f"{component}-required", path)),
            below_structs_only=False,
            below_required_only=owner.required and owner.below_required_only,
        )
        _add(collected, column, at(path, component), at(path, component), depth + 1)


def _type(owner: Document, key: str, path: str) -> str | Document:
    value = required(owner, key, path)
    if type(value) is str or type(value) is dict:
        return value
    raise InvalidMetadata(f"{at(path, key)} must be a type's name or an object, not {kind(value)}")


def _check_defaults(column: Column, nested: Document, path: str) -> None:
    for name in ("initial-default", "write-default"):
        value = nested.get(name)
        if value is None:
            continue
        if isinstance(column.type, str):
            base = primitives.base_name(column.type, at(path, "type"))
            primitives.check_default(base, value, at(path, name))
        elif column.type.get("type") != "struct" or value != {}:
            raise InvalidMetadata(f"{at(path, name)} of a nested column must be null")


def _check_identifier(column: Column | None, id_: int, path: str) -> None:
    if column is None:
        raise InvalidMetadata(f"{path}: there is no column with id {id_}")
    if not isinstance(column.type, str) or column.type in {"float", "double", "variant"}:
        raise InvalidMetadata(f"{path}: {shown(column.name)} is of a type that identifies no row")
    if not column.required or not column.below_required_only or not column.below_structs_only:
        raise InvalidMetadata(
            f"{path}: {shown(column.name)} must be required, in required structs only"
        )


def plain(type_: Any) -> Any:
    """A schema, valid or not, with type names normalised as Java reads them."""
    if isinstance(type_, str):
        return primitives.plain_name(type_)
    if not isinstance(type_, dict):
        return type_
    read = dict(type_)
    fields = type_.get("fields")
    if isinstance(fields, list):
        read["fields"] = [_plain_field(member) for member in fields]
    for component in ("element", "key", "value"):
        if component in type_:
            read[component] = plain(type_[component])
    return read


def _plain_field(field: Any) -> Any:
    if not isinstance(field, dict) or "type" not in field:
        return field
    return {**field, "type": plain(field["type"])}


def check_version(columns: Columns, version: int, path: str) -> None:
    """Raise InvalidMetadata for types and initial defaults that the format version does not have.

    A write default alone is allowed in every version, as in Java's library: readers of older
    versions do not need it.
    """
    for column in columns.values():
        name = shown(column.name)
        if isinstance(column.type, str):
            first = primitives.first_version(primitives.base_name(column.type, path))
            if version < first:
                raise InvalidMetadata(
                    f"{path}: column {name}: {column.type} is not supported until v{first}"
                )
        if column.initial_default is not None and version < _DEFAULTS_FIRST_VERSION:
            raise InvalidMetadata(
                f"{path}: column {name}: an initial default is not supported until v3"
            )


def completed(schema: Document) -> Document:
    """A valid schema in which every list element and map value has its ``required`` property.

    Some clients omit the property when it is false; Java's readers require it.
    """
    complete: Document = _completed(schema)
    return complete


def _completed(type_: Any) -> Any:
    if isinstance(type_, str):
        return type_
    if "fields" in type_:
        fields = [{**nested, "type": _completed(nested["type"])} for nested in type_["fields"]]
        return {**type_, "fields": fields}
    complete = {
        f"{component}-required": False for component in _PARTS[type_["type"]] if component != "key"
    }
    complete |= {key: value for key, value in type_.items() if value is not None}
    return complete | {
        component: _completed(type_[component]) for component in _PARTS[type_["type"]]
    }


def highest_id(columns: Columns) -> int:
    return max(columns, default=0)


def fresh(schema: Document) -> tuple[Document, dict[int, int]]:
    """A valid schema with ids from 1, and the map from old ids to new ids.

    All fields of a struct are numbered before their nested fields, as every client does, so that a
    created table has the ids that its client expects.
    """
    numbers = count(1)
    moved: dict[int, int] = {}
    renewed = _fresh_type(schema, numbers, moved)
    renewed["schema-id"] = 0
    if schema.get("identifier-field-ids") is not None:
        renewed["identifier-field-ids"] = [moved[id_] for id_ in schema["identifier-field-ids"]]
    return {"type": "struct", **renewed}, moved


def renumbered(columns: Columns, moved: dict[int, int]) -> Columns | None:
    """The columns of a schema after ``fresh``; None if some are nested: their types have new ids too."""
    if not all(isinstance(column.type, str) for column in columns.values()):
        return None
    return {
        moved[id_]: Column(
            id=moved[id_],
            name=column.name,
            type=column.type,
            required=column.required,
            below_structs_only=True,
            below_required_only=True,
            initial_default=column.initial_default,
        )
        for id_, column in columns.items()
    }


def _fresh_type(type_: Any, numbers: Iterator[int], moved: dict[int, int]) -> Any:
    if isinstance(type_, str):
        return type_
    renewed = dict(type_)
    if "fields" in type_:
        renewed["fields"] = [_fresh_id(nested, "id", numbers, moved) for nested in type_["fields"]]
        for nested in renewed["fields"]:
            nested["type"] = _fresh_type(nested["type"], numbers, moved)
        return renewed
    components = _PARTS[type_["type"]]
    for component in components:
        renewed = _fresh_id(renewed, f"{component}-id", numbers, moved)
    for component in components:
        renewed[component] = _fresh_type(type_[component], numbers, moved)
    return renewed


def _fresh_id(owner: Document, key: str, numbers: Iterator[int], moved: dict[int, int]) -> Document:
    renewed = {**owner, key: next(numbers)}
    moved[owner[key]] = renewed[key]
    return renewed


def same(first: Document, second: Document) -> bool:
    """True if two valid schemas are equal except for their schema ids."""
    return _plain_schema(first) == _plain_schema(second)


def _plain_schema(schema: Document) -> Document:
    plain: Document = _plain(schema)
    plain.pop("schema-id", None)
    plain["type"] = "struct"
    plain["identifier-field-ids"] = set(plain.get("identifier-field-ids") or ())
    return plain


def _plain(value: Any) -> Any:
    """A value without optional spelling: nulls, and spaces in ``decimal(9, 2)``."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item.replace(" ", "")
        if key in {"type", "element", "key", "value"} and isinstance(item, str)
        else _plain(item)
        for key, item in value.items()
        if item is not None
    }
