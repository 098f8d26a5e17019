"""Queries whose results are sorted (``order_by`` of LanceDB's clients).

Lance would hold all rows to sort them, in any amount of memory. So the columns to sort by are read alone and
sorted in bounded memory, and then the other columns of the results in that order.
"""

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from lance.dataset import LanceDataset
from lance_namespace_urllib3_client import models as m

from catalog.errors import InvalidInput, Unsupported
from catalog.formats.lance import paths as lance_paths
from catalog.formats.lance import sorting
from catalog.formats.lance.sorting import Direction
from catalog.services.lance import time_limits
from catalog.services.lance.scans.scanners import Ordering

MAX_SORTED_BYTES = 256 << 20
"""Maximum size of the row ids and of the values to sort by, of all results."""
_ROW_ID = "_rowid"
_OWN = frozenset({_ROW_ID, "_distance", "_score"})
"""Columns that only the search has."""
_BATCH_BYTES = 4 << 20
_FIRST_ROWS, _MOST_ROWS = 64, 8192


def keys_of(query: Any, orderings: Sequence[Ordering], schema: pa.Schema) -> Any:
    """Return the query for the row ids and the values to sort by, of all results.

    ``schema`` is that of the table. Raises InvalidInput for a malformed path, and Unsupported for a query with several vectors, whose results belong to one of them.
    """
    if query.vector.multi_vector and len(query.vector.multi_vector) > 1:
        raise Unsupported(
            "order_by is not supported in a query with several vectors",
            detail="Sort the result in the client.",
        )
    # In a scan, the limit applies to the sorted rows.
    k = query.k + (query.offset or 0) if _is_search(query) else 0
    columns = {
        str(number): _quoted(ordering.column_name, schema)
        for number, ordering in enumerate(orderings)
    }
    return query.model_copy(
        update={
            "columns": m.QueryTableRequestColumns(column_aliases=columns),
            "with_row_id": True,
            "k": k,
            "offset": None,
        }
    )


def title(orderings: Sequence[Ordering]) -> str:
    """A line that describes the order, above the plan of ``keys_of``."""
    terms = (
        f"{ordering.column_name} {'ASC' if ordering.ascending else 'DESC'}"
        f" NULLS {'FIRST' if ordering.nulls_first else 'LAST'}"
        for ordering in orderings
    )
    return f"Sort: {', '.join(terms)}\n"


def sort(
    *,
    dataset: LanceDataset,
    principal: str,
    keys: pa.RecordBatchReader,
    orderings: Sequence[Ordering],
    limit: int | None,
    expressions: Sequence[str],
) -> pa.Table:
    """Sort the rows of ``keys_of``, whose query has these expressions. Raises InvalidInput, and as ``time_limits.run``."""
    for field, ordering in zip(keys.schema, orderings, strict=False):
        if not sorting.is_sortable(field.type):
            raise InvalidInput(
                f"Column '{ordering.column_name}' is of type {field.type}, which has no order"
            )
    directions = [Direction(ordering.ascending, ordering.nulls_first) for ordering in orderings]

    def work(batches: pa.RecordBatchReader) -> pa.Table:
        return sorting.sort(
            batches, keys.schema, directions, limit=limit, max_bytes=MAX_SORTED_BYTES
        )

    try:
        return time_limits.read(
            dataset, principal, lambda: time_limits.write_all(keys, work), expressions
        )
    except sorting.TooLarge:
        raise InvalidInput(
            f"The values to sort by take more than {MAX_SORTED_BYTES >> 20} MiB",
            detail="Use a filter or a smaller limit.",
        ) from None


def read(
    *,
    dataset: LanceDataset,
    principal: str,
    keys: pa.Table,
    schema: pa.Schema,
    columns: m.QueryTableRequestColumns | None,
) -> Generator[pa.RecordBatch, None, None]:
    """Read the columns of the results in the order of the sorted keys."""
    aliases = (columns.column_aliases if columns else None) or {}
    expressions = {
        name: aliases.get(name) or _quoted(name, dataset.schema) for name in schema.names
    }
    own = {
        name: expression.strip("`")
        for name, expression in expressions.items()
        if expression.strip("`") in _OWN & {*keys.schema.names}
    }
    taken_columns = {name: text for name, text in expressions.items() if name not in own}
    start, rows = 0, _FIRST_ROWS
    while start < len(keys):
        chunk = keys.slice(start, rows)
        row_ids = chunk[_ROW_ID].combine_chunks()
        take = partial(dataset._take_rows, row_ids, columns=taken_columns)  # noqa: SLF001 -- keeps their order
        texts = taken_columns.values()
        taken = time_limits.read(dataset, principal, take, texts) if taken_columns else chunk
        arrays = [chunk[own[name]] if name in own else taken[name] for name in schema.names]
        batch = pa.table(arrays, names=schema.names).cast(schema)
        yield from batch.to_batches()
        start += rows
        is_small = batch.nbytes < _BATCH_BYTES // 2
        rows = min(rows * 2, _MOST_ROWS) if is_small else max(rows // 2, 1)


def _is_search(query: Any) -> bool:
    return bool(
        query.vector.single_vector or query.vector.multi_vector or query.full_text_query is not None
    )


def _quoted(name: str, schema: pa.Schema) -> str:
    return lance_paths.quoted(name) if name in schema.names else lance_paths.quoted_path(name)
