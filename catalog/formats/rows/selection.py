"""Select a page of rows from a stream of batches, with bounded memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catalog.formats.rows.conditions import Condition, Kind, comparable, kind

MAX_START = 10_000
"""The maximum number of rows before a page."""
_PENDING_ROWS = 65_536
_MAX_KEY_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class Order:
    """The order of rows by a column. Null and NaN are last in both directions."""

    column: str
    is_descending: bool = False


def is_sortable(type_: pa.DataType) -> bool:
    """True if rows can be sorted by a column of this type."""
    return kind(type_) is not Kind.OTHER


class Selection:
    """The rows of a page: those that match all conditions, in an order or as they come.

    Rows have addresses: unique integers, in increasing order over all batches.
    """

    def __init__(
        self, conditions: Sequence[Condition], order: Order | None, *, start: int, count: int
    ) -> None:
        self._conditions = conditions
        self._order = order
        self._start, self._count = start, count
        self._needed = start + count + 1  # another row shows that there is a next page
        self._addresses: list[int] = []
        self._best: pa.Table | None = None
        self._limit: pa.Scalar | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that ``add`` reads."""
        names = [condition.column for condition in self._conditions]
        return list(dict.fromkeys([*names, *([self._order.column] if self._order else [])]))

    @property
    def is_complete(self) -> bool:
        """True if further batches cannot change the page."""
        return self._order is None and len(self._addresses) >= self._needed

    @property
    def is_too_large(self) -> bool:
        """True if the values of the order take too much memory."""
        return self._best is not None and self._best.nbytes > _MAX_KEY_BYTES

    def add(self, columns: dict[str, Any], addresses: Any) -> None:
        """Consider the rows of a batch, given as arrays by the names of ``columns``."""
        mask = None
        for condition in self._conditions:
            matches = condition.mask(columns[condition.column])
            mask = matches if mask is None else pc.and_kleene(mask, matches)
        if self._order is None:
            chosen = addresses if mask is None else addresses.filter(mask)
            self._addresses += chosen.slice(0, self._needed - len(self._addresses)).to_pylist()
            return
        rows = pa.table({"key": comparable(columns[self._order.column]), "address": addresses})
        if mask is not None:
            rows = rows.filter(mask)
        if self._limit is not None:
            better = pc.greater if self._order.is_descending else pc.less
            rows = rows.filter(better(rows["key"], self._limit))
        if not rows.num_rows:
            return
        self._best = rows if self._best is None else pa.concat_tables([self._best, rows])
        pending = _PENDING_ROWS if self._limit is None else _PENDING_ROWS // 64
        is_large = self._best.num_rows > 2 * self._needed + pending
        if is_large or self._best.nbytes > _MAX_KEY_BYTES // 2:
            self._reduce()

    def page(self) -> tuple[list[int], bool]:
        """The addresses of the rows of the page, and whether there are more rows after it."""
        if self._order is not None:
            self._reduce()
            self._addresses = [] if self._best is None else self._best["address"].to_pylist()
        end = self._start + self._count
        return self._addresses[self._start : end], len(self._addresses) > end

    def _reduce(self) -> None:
        """Drop the rows that cannot be on the page or before it."""
        if self._best is None or self._order is None:
            return
        direction = "descending" if self._order.is_descending else "ascending"
        indexes = pc.sort_indices(
            self._best,
            sort_keys=[("key", direction, "at_end"), ("address", "ascending", "at_end")],
        )
        self._best = self._best.take(indexes.slice(0, self._needed)).combine_chunks()
        if self._best.num_rows == self._needed:
            last = self._best["key"][-1]
            value = last.as_py() if pa.types.is_floating(last.type) else None
            if last.is_valid and not (value is not None and math.isnan(value)):
                self._limit = last
