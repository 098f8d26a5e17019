"""The schema of a Lance table as rows to display."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from catalog.formats.lance import naming

_BLOB_KEY = "lance-encoding:blob"
_BLOB_TYPE = "lance.blob.v2"
_COMPUTED = (naming.COMPUTED, "virtual_column")


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a schema, with its path and depth."""

    id: int | None
    name: str
    path: str
    depth: int
    type: str
    is_nullable: bool
    metadata: Mapping[str, str]
    dimension: int | None = None
    """The number of values in a vector."""
    is_blob: bool = False
    is_key: bool = False
    """True if it is part of the primary key, which Lance records but does not enforce."""

    @property
    def is_computed(self) -> bool:
        """True if its metadata defines a computed column."""
        return any(key.partition(".")[0] in _COMPUTED for key in self.metadata)


def columns(schema: pa.Schema, lance_fields: Sequence[Any] = ()) -> Iterator[Column]:
    """The fields of a schema in order, each before its nested fields.

    ``lance_fields`` are Lance's own fields of the schema, which have the ids.
    """
    yield from _walk(list(schema), lance_fields, "", 0)


def is_blob(field: pa.Field) -> bool:
    """True if the values are stored apart from the rows, and a scan returns only their positions."""
    marks = text_mapping(field.metadata)
    return (
        marks.get(_BLOB_KEY) == "true"
        or marks.get("ARROW:extension:name") == _BLOB_TYPE
        or getattr(field.type, "extension_name", "") == _BLOB_TYPE
    )


def dimension(type_: pa.DataType) -> int | None:
    """The number of values in a vector of this type; None if it is not a vector type."""
    if not pa.types.is_fixed_size_list(type_):
        return None
    length: int = type_.list_size
    return length if is_number(type_.value_type) else None


def is_number(type_: pa.DataType) -> bool:
    return (
        pa.types.is_floating(type_)
        or pa.types.is_integer(type_)
        or getattr(type_, "extension_name", "") == "lance.bfloat16"
    )


def text_mapping(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Arrow's metadata as text; bytes that are not UTF-8 are replaced."""
    return {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (metadata or {}).items()
    }


def type_name(type_: pa.DataType) -> str:
    """A short name of a type, without nested fields, which have rows of their own."""
    if isinstance(type_, pa.BaseExtensionType):
        return str(type_.extension_name)
    if pa.types.is_struct(type_):
        return "struct"
    if pa.types.is_map(type_):
        return f"map<{type_name(type_.key_type)}, {type_name(type_.item_type)}>"
    if pa.types.is_fixed_size_list(type_):
        return f"{type_name(type_.value_type)}[{type_.list_size}]"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list<{type_name(type_.value_type)}>"
    if pa.types.is_dictionary(type_):
        return f"dictionary<{type_name(type_.value_type)}>"
    return str(type_)


def _walk(
    fields: Sequence[pa.Field], lance_fields: Sequence[Any], above: str, depth: int
) -> Iterator[Column]:
    ids = {lance_field.name(): lance_field for lance_field in lance_fields}
    for field in fields:
        own = ids.get(field.name)
        path = f"{above}.{field.name}" if above else field.name
        blob = is_blob(field)
        yield Column(
            id=None if own is None else own.id(),
            name=field.name,
            path=path,
            depth=depth,
            type=type_name(field.type),
            is_nullable=field.nullable,
            metadata=text_mapping(field.metadata),
            dimension=dimension(field.type),
            is_blob=blob,
            is_key=own is not None and own.is_unenforced_primary_key(),
        )
        if not blob:
            children = [] if own is None else own.children()
            yield from _walk(_inside(field.type), children, path, depth + 1)


def _inside(type_: pa.DataType) -> list[pa.Field]:
    """The nested fields that get a row of their own: struct fields, and fields that hold structs."""
    if isinstance(type_, pa.BaseExtensionType):
        return []
    if pa.types.is_struct(type_):
        return list(type_.fields)
    children = [type_.field(index) for index in range(type_.num_fields)]
    return [field for field in children if _holds_struct(field.type)]


def _holds_struct(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return _holds_struct(type_.item_type)
    if isinstance(type_, pa.BaseExtensionType) or not type_.num_fields:
        return False
    return pa.types.is_struct(type_) or _holds_struct(type_.field(0).type)
