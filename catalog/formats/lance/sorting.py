"""Sort rows by columns in bounded memory.

The order is that of Lance: NaN is greater than all numbers, and the place of nulls does not depend on the direction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_PENDING_BYTES = 16 << 20
"""Rows of this size are compared with the first rows at a time."""


@dataclass(frozen=True, slots=True)
class Direction:
    """How to sort by a column."""

    ascending: bool = True
    nulls_first: bool = False


class TooLarge(Exception):
    """The rows that must be compared do not fit into the memory."""


def is_sortable(kind: pa.DataType) -> bool:
    """True for numbers, truth values, text, binary values, dates and times."""
    if pa.types.is_dictionary(kind):
        return is_sortable(kind.value_type)
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_decimal256(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind in _COMPARED
        or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    )


def sort(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    directions: Sequence[Direction],
    *,
    limit: int | None,
    max_bytes: int,
) -> pa.Table:
    """Return the rows in the order of the first columns, of which each has a direction.

    With a limit, only that many first rows. Rows that are equal keep their order. Raises TooLarge if the rows
    to return take more than ``max_bytes``.
    """
    first = schema.empty_table()
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in batches:
        pending.append(batch)
        pending_bytes += batch.nbytes
        if limit is not None and pending_bytes > max(_PENDING_BYTES, first.nbytes):
            first = _sorted(first, pending, directions, limit)
            pending, pending_bytes = [], 0
        if first.nbytes > max_bytes or (limit is None and pending_bytes > max_bytes):
            raise TooLarge
    first = _sorted(first, pending, directions, limit)
    if first.nbytes > max_bytes:
        raise TooLarge
    return first


def _sorted(
    first: pa.Table,
    pending: list[pa.RecordBatch],
    directions: Sequence[Direction],
    limit: int | None,
) -> pa.Table:
    rows = pa.concat_tables([first, pa.Table.from_batches(pending, first.schema)])
    keys: dict[str, pa.ChunkedArray] = {}
    order: list[tuple[str, str]] = []

    def add(values: pa.ChunkedArray, *, ascending: bool) -> None:
        name = str(len(keys))
        keys[name] = values
        order.append((name, "ascending" if ascending else "descending"))

    for column, direction in zip(rows.columns, directions, strict=False):
        values = _comparable(column)
        add(pc.is_null(values), ascending=not direction.nulls_first)
        if pa.types.is_floating(values.type):
            is_nan = pc.fill_null(pc.is_nan(values), fill_value=False)
            add(is_nan, ascending=direction.ascending)
        add(values, ascending=direction.ascending)
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=order)[:limit])


_COMPARED = {
    pa.float16(): pa.float32(),
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}
"""Types that Arrow cannot compare, and those of equal values in the same order."""


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(_COMPARED.get(column.type, column.type))
