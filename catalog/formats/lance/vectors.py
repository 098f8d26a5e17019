"""Columns of vectors in the schema of a Lance table."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from catalog.formats.lance import paths


def columns_of(fields: Any, outer: tuple[str, ...] = ()) -> Iterator[tuple[str, pa.DataType]]:
    """The paths and the types of the columns of vectors, also inside structs."""
    for field in fields:
        kind = storage_type(field.type)
        if is_vector(kind):
            yield paths.join((*outer, field.name)), kind
        elif pa.types.is_struct(kind):
            yield from columns_of(
                (kind.field(index) for index in range(kind.num_fields)), (*outer, field.name)
            )


def is_vector(kind: pa.DataType) -> bool:
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
