"""The columns of a table that a query names, and the column of vectors that it searches."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from catalog.errors import ColumnNotFound, InvalidInput
from catalog.formats.lance import paths as lance_paths
from catalog.identifiers import Identifier, label

DEFAULT_VECTOR_COLUMN = "vector"
"""Column to search if the table has several vector columns and the query names none."""


def find_vector_column(
    table: Identifier,
    schema: pa.Schema,
    path: str | None,
    candidates: Mapping[str, pa.DataType],
) -> tuple[str, pa.DataType]:
    """Return the path and the type of the column to search.

    ``candidates`` are the columns of vectors in the schema (``vector_fields``).
    """
    if path:
        field = find_column(table, schema, path)
        kind = storage_type(field.type)
        if not _is_vector(kind):
            raise InvalidInput(f"Column '{path}' holds no vectors; it is of type {field.type}")
        return path, kind
    if len(candidates) == 1:
        return next(iter(candidates.items()))
    if DEFAULT_VECTOR_COLUMN in candidates:
        return DEFAULT_VECTOR_COLUMN, candidates[DEFAULT_VECTOR_COLUMN]
    if not candidates:
        raise InvalidInput(f"Table '{label(table)}' has no column of vectors")
    raise InvalidInput(
        f"Table '{label(table)}' has several columns of vectors; name one as vector_column: "
        + ", ".join(sorted(candidates))
    )


def find_column(table: Identifier, schema: pa.Schema, path: str) -> pa.Field:
    field = lance_paths.find(schema, lance_paths.split(path))
    if field is None:
        raise ColumnNotFound(table, f"Column '{path}' does not exist")
    return field


def vector_fields(fields: Any, outer: tuple[str, ...] = ()) -> Iterator[tuple[str, pa.DataType]]:
    """The paths and the types of the columns of vectors, also inside structs."""
    for field in fields:
        kind = storage_type(field.type)
        if _is_vector(kind):
            yield lance_paths.join((*outer, field.name)), kind
        elif pa.types.is_struct(kind):
            yield from vector_fields(
                (kind.field(index) for index in range(kind.num_fields)), (*outer, field.name)
            )


def _is_vector(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        kind = kind.value_type
    if not pa.types.is_fixed_size_list(kind):
        return False
    of = storage_type(kind.value_type)
    return bool(
        pa.types.is_floating(of)
        or pa.types.is_uint8(of)
        or pa.types.is_int8(of)
        or pa.types.is_fixed_size_binary(of)  # bfloat16
    )


def storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
