"""Scanners for vector searches, made without the copies that the Lance package makes of their options."""

from typing import Annotated, Any, Literal

from lance.dataset import LanceDataset, LanceScanner, ScannerBuilder
from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StrictStr

_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 64 << 20
_READAHEAD = 4
_ROWS = 8192
_VALUES = 50 * _ROWS
"""The most values of a batch with expressions or other names."""


class Ordering(BaseModel):
    """A column to sort the results by."""

    column_name: Annotated[StrictStr, Field(min_length=1)]
    ascending: StrictBool = True
    nulls_first: StrictBool = False


class SearchOptions(BaseModel):
    """Options of a search that the specification does not have."""

    search_effort: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)] | None = None
    """The share of partitions to search, from the minimum to the maximum; it replaces ``nprobes``."""
    approx_mode: Literal["fast", "normal", "accurate"] | None = None
    """Faster or more accurate distances, in indexes of type IVF_RQ."""
    order_by: Annotated[list[Ordering], Field(max_length=16)] | None = None
    """Columns to sort the results by."""


class _Builder(ScannerBuilder):
    """A builder whose scanners keep no deep copy of its options.

    Scanners need the copy only to be built again with other blob handling, in ``to_pandas``. It takes a tenth of
    the time of a search.
    """

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return {}  # ``vars(builder)``: the options to copy


def more_options(query: Any) -> dict[str, Any]:
    """Return the options of a query that the specification does not have, for ``nearest``."""
    if not isinstance(query, SearchOptions):
        return {}
    return query.model_dump(include={"search_effort", "approx_mode"}, exclude_none=True)


def orderings(query: Any) -> list[Ordering]:
    """Return the columns to sort the results of a query by."""
    return (query.order_by or []) if isinstance(query, SearchOptions) else []


def nearest(dataset: LanceDataset, search: dict[str, Any], options: dict[str, Any]) -> LanceScanner:
    """Return a scanner for the rows nearest to a vector.

    ``search`` has the arguments of ``ScannerBuilder.nearest``. ``options`` has the arguments of further
    methods of the builder by their names; those that are None are not set. Raises ValueError, TypeError.
    """
    builder = _Builder(dataset)
    for name, value in options.items():
        if value is not None:
            getattr(builder, name)(value)
    builder.nearest(**search)
    return builder.to_scanner()


def bounds(columns: list[str] | dict[str, str] | None) -> dict[str, Any]:
    """The arguments that bound the memory of a scan, also if the client reads slowly."""
    bounds: dict[str, Any] = {
        "batch_size_bytes": _BATCH_BYTES,
        "io_buffer_size": _BUFFER_BYTES,
        "batch_readahead": _READAHEAD,
    }
    if isinstance(columns, dict):
        # The size of a batch is that of the columns in the table, which may be requested many times.
        bounds["batch_size"] = max(min(_VALUES // len(columns), _ROWS), 1)
    return bounds
