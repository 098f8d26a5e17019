"""Profiles of columns: nulls, distinct values, extremes, histograms, and maps of vectors."""

import itertools
import uuid
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from catalog.formats.rows import profiles
from catalog.formats.rows.profiles import Profile, Profiler


def profile(type_: pa.DataType, *batches: list[object]) -> Profile:
    profiler = Profiler(pa.field("value", type_))
    for batch in batches:
        profiler.add(pa.array(batch, type_))
    return profiler.profile()


def extremes(result: Profile) -> tuple[str, str]:
    assert result.lowest is not None
    assert result.highest is not None
    return result.lowest.text, result.highest.text


def top(result: Profile) -> list[tuple[str, int]]:
    return [(item.value.text, item.rows) for item in result.top]


def test_batches_are_combined():
    result = profile(pa.int64(), [3, None, 1], [3, 7], [None])
    assert (result.rows, result.nulls, result.distinct) == (6, 2, 3)
    assert extremes(result) == ("1", "7")
    assert top(result) == [("3", 2), ("1", 1), ("7", 1)]


def test_the_histogram_has_equal_ranges():
    result = profile(pa.float64(), list(map(float, range(24))), [23.0])
    assert result.histogram == [1] * 23 + [2]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        (pa.date32(), [date(2026, 1, 2), date(2025, 1, 1)], ("2025-01-01", "2026-01-02")),
        (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-2.00")], ("-2.00", "1.50")),
        (pa.large_string(), ["b", "a"], ("a", "b")),
        (pa.string_view(), ["b", "a"], ("a", "b")),
        (pa.dictionary(pa.int8(), pa.string()), ["b", "a"], ("a", "b")),
        (pa.bool_(), [True, False], ("false", "true")),
        (pa.float64(), [float("nan"), 1.0, 2.0], ("1.0", "2.0")),
        (pa.float16(), [1.0, 2.0], ("1.0", "2.0")),
        (pa.uint64(), [2**64 - 1, 0], ("0", str(2**64 - 1))),
    ],
)
def test_values_of_each_kind_have_extremes(type_, values, expected):
    result = profile(type_, values)
    assert extremes(result) == expected
    assert result.distinct == len(values)


def test_uuids_are_counted_without_extremes():
    value = uuid.UUID(int=7)
    result = profile(pa.uuid(), [value.bytes, value.bytes, uuid.UUID(int=8).bytes])
    assert (result.distinct, result.lowest) == (2, None)
    assert top(result) == [(str(value), 2), (str(uuid.UUID(int=8)), 1)]


def test_values_that_all_differ_have_no_most_frequent_ones():
    assert profile(pa.int64(), [1, 2, 3]).top == []


@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.list_(pa.float32(), 2)])
def test_a_column_without_values_has_no_figures(type_):
    for batches in ([], [[None, None]]):
        result = profile(type_, *batches)
        assert (result.nulls, result.lowest, result.histogram) == (result.rows, None, [])
        assert (result.top, result.points) == ([], [])


def test_many_distinct_values_are_not_counted(monkeypatch):
    monkeypatch.setattr(profiles, "_MOST_DISTINCT", 10)
    result = profile(pa.int64(), list(range(8)), list(range(8, 16)), [0])
    assert (result.distinct, result.top) == (None, [])
    assert extremes(result) == ("0", "15")


def test_a_histogram_of_many_values_uses_a_sample(monkeypatch):
    monkeypatch.setattr(profiles, "_SAMPLE", 100)
    result = profile(pa.int64(), *([n] * 50 for n in range(24)))
    assert 50 < sum(result.histogram) <= 200
    assert result.rows == 1200


def test_huge_numbers_have_a_histogram():
    assert sum(profile(pa.float64(), [-1.7e308, 0.0, 1.7e308, float("inf")]).histogram) == 3


def test_vectors_on_a_line_are_mapped_to_a_line():
    vectors = [[float(n), 2.0 * n, 0.0] for n in range(5)]
    points = profile(pa.list_(pa.float32(), 3), vectors[:2], [None, *vectors[2:]]).points
    steps = [b[0] - a[0] for a, b in itertools.pairwise(points)]
    assert len(points) == 5
    assert steps == pytest.approx([steps[0]] * 4)
    assert abs(steps[0]) > 0.1
    assert [y for _, y in points] == pytest.approx([0.0] * 5, abs=1e-6)


def test_groups_of_vectors_are_apart():
    groups = [[0.0] * 64, [0.0] * 32 + [9.0] * 32, [9.0] * 64]
    vectors = [[value + 0.01 * n for value in group] for group in groups for n in range(4)]
    points = profile(pa.list_(pa.float64(), 64), vectors).points
    for first in (0, 4, 8):
        inside = [points[first + n] for n in range(4)]
        assert max(x for x, _ in inside) - min(x for x, _ in inside) < 0.1
    assert abs(points[0][0] - points[8][0]) > 1


def test_vectors_of_one_value_are_on_a_line():
    points = profile(pa.list_(pa.float32(), 1), [[1.0], [2.0], [4.0]]).points
    assert [y for _, y in points] == [0.0] * 3
    assert abs(points[2][0] - points[1][0]) == pytest.approx(0.5)  # of the largest value


def test_equal_vectors_have_no_map():
    assert profile(pa.list_(pa.float32(), 2), [[1.0, 2.0]] * 5).points == []


def test_only_the_first_vectors_are_read(monkeypatch):
    monkeypatch.setattr(profiles, "MOST_VECTORS", 4)
    profiler = Profiler(pa.field("value", pa.list_(pa.float32(), 2)))
    profiler.add(pa.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], pa.list_(pa.float32(), 2)))
    assert not profiler.is_complete
    profiler.add(pa.array([[3.0, 0.0], [0.0, 4.0]], pa.list_(pa.float32(), 2)))
    assert profiler.is_complete
    assert len(profiler.profile().points) == 4


@pytest.mark.parametrize("type_", [pa.binary(), pa.list_(pa.int64()), pa.struct({"a": pa.int8()})])
def test_binary_and_nested_columns_have_no_profile(type_):
    assert not profiles.has_profile(pa.field("value", type_))
