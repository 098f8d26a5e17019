"""The profile of a column: nulls, distinct values, extremes, a histogram, and a map of its vectors.

A profile reads the values as a stream, with bounded memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.formats import arrow_values
from catalog.formats.arrow_values import Shown
from catalog.formats.lance import columns as lance_columns
from catalog.formats.rows.conditions import Kind, comparable, kind

SECONDS = 5.0
MOST_VECTORS = 1_000
"""Maximum number of vectors in the map; the first ones are used."""
BINS = 24
TOP = 10
_MOST_DISTINCT = 100_000
_MOST_DISTINCT_BYTES = 16 * 1024**2
_SAMPLE = 100_000  # numbers of a histogram
_MOST_VALUES = 4_000_000  # of vectors


@dataclass(frozen=True)
class Top:
    """A frequent value."""

    value: Shown
    rows: int


@dataclass(frozen=True)
class Profile:
    rows: int
    """The number of rows that were read."""
    nulls: int
    distinct: int | None = None
    """None: there are too many distinct values, or the column has vectors."""
    lowest: Shown | None = None
    highest: Shown | None = None
    """None: all values are null, or not comparable."""
    histogram: Sequence[int] = ()
    """The numbers of values in equal ranges from the lowest to the highest, perhaps of a sample."""
    top: Sequence[Top] = ()
    """The most frequent values; empty if all values differ or ``distinct`` is None."""
    points: Sequence[tuple[float, float]] = ()
    """The vectors in the plane of their two principal components, in the order of the rows."""
    stopped: str = ""
    """Why not all rows were read; empty if they were."""


def has_profile(field: pa.Field) -> bool:
    """True if the values of a column have a profile: those that can be compared, and vectors."""
    return not lance_columns.is_blob(field) and (
        kind(field.type) is not Kind.OTHER or is_vector(field)
    )


def is_vector(field: pa.Field) -> bool:
    return lance_columns.dimension(field.type) is not None


def late(rows: int) -> str:
    """The message of a profile that took too long."""
    return f"Stopped after {SECONDS:.0f} seconds: the profile covers the first {rows:,} rows."


class Profiler:
    """Computes a profile from the batches of a column."""

    def __init__(self, field: pa.Field) -> None:
        self._field = field
        self._is_vector = is_vector(field)
        self._rows = self._nulls = 0
        self._counts: pa.Table | None = None
        self._counts_all = not self._is_vector
        self._extremes: list[pa.Scalar] = []
        self._numbers: list[Any] = []
        self._every = 1  # of the numbers is in the sample
        self._sampled = 0
        self._vectors: list[Any] = []
        self._vector_rows = 0

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def is_complete(self) -> bool:
        """True if further rows add nothing: of vectors, only the first ones are used."""
        length = max(lance_columns.dimension(self._field.type) or 1, 1)
        most = max(min(MOST_VECTORS, _MOST_VALUES // length), 2)
        return self._is_vector and self._vector_rows >= most

    def add(self, array: Any) -> None:
        self._rows += len(array)
        self._nulls += array.null_count
        present = array.drop_null()
        if not len(present):
            return
        if self._is_vector:
            self._add_vectors(present)
            return
        values = comparable(present)
        self._add_extremes(values)
        self._add_numbers(values)
        if self._counts_all:
            self._add_counts(values)

    def profile(self, stopped: str = "") -> Profile:
        distinct = self._counts.num_rows if self._counts_all and self._counts is not None else None
        if self._counts_all and self._counts is None:
            distinct = 0
        low, high = self._extremes or (None, None)
        return Profile(
            rows=self._rows,
            nulls=self._nulls,
            distinct=distinct,
            lowest=None if low is None else self._show(low),
            highest=None if high is None else self._show(high),
            histogram=self._histogram(),
            top=self._top(distinct),
            points=self._points(),
            stopped=stopped,
        )

    def _show(self, scalar: pa.Scalar) -> Shown:
        if kind(self._field.type) is Kind.UUID:
            return Shown(arrow_values.Kind.TEXT, str(UUID(bytes=scalar.as_py())))
        return arrow_values.show(scalar, self._field)

    # --- comparable values

    def _add_extremes(self, values: Any) -> None:
        if pa.types.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        if not len(values) or kind(self._field.type) is Kind.UUID:
            return
        bounds = pc.min_max(values)
        low, high = bounds["min"], bounds["max"]
        if self._extremes:
            if not pc.less(low, self._extremes[0]).as_py():
                low = self._extremes[0]
            if not pc.greater(high, self._extremes[1]).as_py():
                high = self._extremes[1]
        self._extremes = [low, high]

    def _add_counts(self, values: Any) -> None:
        counted = pc.value_counts(values)
        rows = pa.table({"value": counted.field("values"), "rows": counted.field("counts")})
        if self._counts is not None:
            both = pa.concat_tables([self._counts, rows])
            rows = both.group_by("value").aggregate([("rows", "sum")])
            rows = rows.rename_columns(
                ["value" if name == "value" else "rows" for name in rows.column_names]
            )
        self._counts = rows.select(["value", "rows"])
        if rows.num_rows > _MOST_DISTINCT or rows.nbytes > _MOST_DISTINCT_BYTES:
            self._counts_all, self._counts = False, None

    def _top(self, distinct: int | None) -> list[Top]:
        if self._counts is None or not distinct or distinct == self._rows - self._nulls > 1:
            return []
        order = [("rows", "descending"), ("value", "ascending")]
        if kind(self._field.type) in {Kind.UUID, Kind.BOOLEAN}:
            order = order[:1]
        best = self._counts.take(pc.sort_indices(self._counts, sort_keys=order)[:TOP])
        return [
            Top(self._show(value), rows.as_py())
            for value, rows in zip(best["value"], best["rows"], strict=True)
        ]

    # --- histogram

    def _add_numbers(self, values: Any) -> None:
        numbers = _numbers(values)
        if numbers is None:
            return
        numbers = numbers[np.isfinite(numbers)][:: self._every]
        self._numbers.append(numbers)
        self._sampled += len(numbers)
        while self._sampled > 2 * _SAMPLE:
            thinned = np.concatenate(self._numbers)[::2]
            self._numbers, self._sampled = [thinned], len(thinned)
            self._every *= 2

    def _histogram(self) -> list[int]:
        if not self._numbers:
            return []
        numbers = np.concatenate(self._numbers)
        if len(numbers) < 2 or numbers.min() == numbers.max():
            return []
        with np.errstate(all="ignore"):
            scale = max(abs(numbers.min()), abs(numbers.max()))
            counts, _ = np.histogram(numbers / scale, bins=BINS)
        return [int(count) for count in counts]

    # --- vectors

    def _add_vectors(self, present: Any) -> None:
        if isinstance(present, pa.ChunkedArray):
            present = present.combine_chunks()
        length = present.type.list_size
        try:
            flat = present.flatten().cast(pa.float64(), safe=False)
        except pa.ArrowException:  # bfloat16
            return
        values = np.asarray(flat.fill_null(0.0), dtype=np.float64)
        self._vectors.append(
            np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).reshape(-1, length)
        )
        self._vector_rows += len(self._vectors[-1])

    def _points(self) -> list[tuple[float, float]]:
        """A principal component analysis; empty for fewer than three vectors, or equal ones."""
        if not self._vectors:
            return []
        length = max(self._vectors[0].shape[1], 1)
        vectors = np.concatenate(self._vectors)[: max(min(MOST_VECTORS, _MOST_VALUES // length), 2)]
        if len(vectors) < 3 or not vectors.shape[1]:
            return []
        vectors = vectors / (np.abs(vectors).max() or 1.0)
        centered = vectors - vectors.mean(axis=0)
        if vectors.shape[1] <= len(vectors):
            amounts, directions = np.linalg.eigh(centered.T @ centered)
            axes = centered @ directions[:, ::-1][:, :2]
        else:  # the Gram matrix is smaller, and has the same eigenvalues
            amounts, components = np.linalg.eigh(centered @ centered.T)
            axes = components[:, ::-1][:, :2] * np.sqrt(np.maximum(amounts[::-1][:2], 0.0))
        if amounts[-1] <= 1e-18 * len(vectors):
            return []
        if axes.shape[1] < 2:  # vectors of one value
            axes = np.column_stack([axes, np.zeros(len(axes))])
        # The sign of an eigenvector is arbitrary: the largest coordinate is positive.
        signs = np.sign(axes[np.abs(axes).argmax(axis=0), range(2)])
        return [(float(x), float(y)) for x, y in axes * np.where(signs == 0, 1.0, signs)]


def _numbers(values: Any) -> Any:
    """Comparable values as floats for a histogram; None if they have none."""
    try:
        match kind(values.type):
            case Kind.NUMBER:
                floats = values.cast(pa.float64(), safe=False)
            case Kind.DATE | Kind.TIMESTAMP | Kind.TIME:
                width = pa.int32() if values.type.bit_width == 32 else pa.int64()
                floats = values.cast(width).cast(pa.float64(), safe=False)
            case _:
                return None
    except pa.ArrowException:
        return None
    return np.asarray(floats, dtype=np.float64)
