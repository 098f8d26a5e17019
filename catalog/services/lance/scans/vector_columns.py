"""The columns of a table that a query names, and the column of vectors that it searches."""

from collections.abc import Mapping

import pyarrow as pa

from catalog.errors import ColumnNotFound, InvalidInput
from catalog.formats.lance import paths as lance_paths
from catalog.formats.lance import vectors
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

    ``candidates`` are the columns of vectors in the schema (``vectors.columns_of``).
    """
    if path:
        field = find_column(table, schema, path)
        kind = vectors.storage_type(field.type)
        if not vectors.is_vector(kind):
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
