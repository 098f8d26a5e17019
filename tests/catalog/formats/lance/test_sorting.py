"""Rows are sorted as Lance sorts them, in bounded memory."""

import itertools
import math
import random
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.dataset import ColumnOrdering

from catalog.formats.lance import sorting
from catalog.formats.lance.sorting import Direction

DIRECTIONS = [Direction(*flags) for flags in itertools.product((True, False), repeat=2)]
INFINITY = float("inf")
COLUMNS = {
    "integers": pa.array([3, None, -1, 7, 0, None, 2, 3], pa.int16()),
    "numbers": pa.array([math.nan, None, -INFINITY, 1.5, INFINITY, math.nan, 0.5, None]),
    "halves": pa.array([math.nan, None, -INFINITY, 1.5, INFINITY, -3.0, 0.5, None], pa.float16()),
    "texts": pa.array(["b", None, "", "ä", "B", "ab", "a", "b"]),
    "views": pa.array(["b", None, "", "ä", "B", "ab", "a", "b"], pa.string_view()),
    "words": pa.array(["b", None, "a", "b", "c", "a", "b", "b"]).dictionary_encode(),
    "bytes": pa.array([b"\xff", None, b"", b"\0", b"\x7f", b"\x80", b"a", b"b"]),
    "codes": pa.array([b"ab", None, b"aa", b"zz", b"\0\0", b"\xff\0", b"ab", b"b\0"], pa.binary(2)),
    "flags": pa.array([True, None, False, True, False, None, True, False]),
    "days": pa.array([3, None, -1, 7, 0, None, 2, 3], pa.int32()).cast(pa.date32()),
    "moments": pa.array([3, None, -1, 7, 0, None, 2, 3], pa.int64()).cast(
        pa.timestamp("us", "UTC")
    ),
    "durations": pa.array([3, None, -1, 7, 0, None, 2, 3], pa.int64()).cast(pa.duration("s")),
    "prices": pa.array([3, None, -1, 7, 0, None, 2, 3], pa.int32()).cast(pa.decimal128(12, 2)),
}


@pytest.mark.parametrize("direction", DIRECTIONS, ids=str)
@pytest.mark.parametrize("name", COLUMNS)
def test_the_order_is_that_of_lance(tmp_path: Path, name: str, direction: Direction) -> None:
    rows = pa.table({"value": COLUMNS[name], "row": range(8)})
    dataset = lance.write_dataset(rows, tmp_path)
    ordering = ColumnOrdering("value", direction.ascending, direction.nulls_first)
    expected = dataset.to_table(order_by=[ordering, ColumnOrdering("row")])
    keys = dataset.to_table(columns=["value", "row"])
    directions = [direction, Direction()]
    result = sorting.sort(keys.to_batches(), keys.schema, directions, limit=None, max_bytes=10_000)
    assert result["row"].to_pylist() == expected["row"].to_pylist()


@pytest.mark.parametrize("limit", [1, 10, 5_000, 200_000])
def test_the_first_rows_of_many_batches(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "_PENDING_BYTES", 10_000)
    numbers = random.Random(3).sample(range(100_000), 100_000)
    rows = pa.table({"value": pa.array(numbers), "row": range(100_000)})
    result = sorting.sort(
        rows.to_batches(max_chunksize=700),
        rows.schema,
        [Direction(ascending=False)],
        limit=limit,
        max_bytes=10**7,
    )
    assert result["value"].to_pylist() == sorted(numbers, reverse=True)[:limit]
    assert [numbers[row] for row in result["row"].to_pylist()] == result["value"].to_pylist()


def test_equal_rows_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "_PENDING_BYTES", 100)
    rows = pa.table({"value": [1] * 1000, "row": range(1000)})
    batches = rows.to_batches(max_chunksize=10)
    result = sorting.sort(batches, rows.schema, [Direction()], limit=100, max_bytes=10**6)
    assert result["row"].to_pylist() == list(range(100))


def test_no_rows() -> None:
    schema = pa.schema({"value": pa.string()})
    assert sorting.sort([], schema, [Direction()], limit=3, max_bytes=1).num_rows == 0


def test_memory_is_bounded() -> None:
    """Of ten thousand texts of a kilobyte, the hundred first ones fit into a megabyte."""
    batch = pa.record_batch({"value": ["x" * 1000] * 100})
    read = 0

    def batches():
        nonlocal read
        for _ in range(100):
            read += 1
            yield batch

    kept = sorting.sort(batches(), batch.schema, [Direction()], limit=100, max_bytes=1 << 20)
    assert (kept.num_rows, read) == (100, 100)
    for limit in (None, 5_000):
        read = 0
        with pytest.raises(sorting.TooLarge):
            sorting.sort(batches(), batch.schema, [Direction()], limit=limit, max_bytes=1 << 20)
    assert read <= 100


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int8()),
        pa.list_(pa.float32(), 2),
        pa.struct({"x": pa.int8()}),
        pa.null(),
        pa.map_(pa.string(), pa.int8()),
        pa.dictionary(pa.int8(), pa.list_(pa.int8())),
    ],
    ids=str,
)
def test_types_without_an_order(kind: pa.DataType) -> None:
    assert not sorting.is_sortable(kind)
    assert all(sorting.is_sortable(values.type) for values in COLUMNS.values())
