"""Selections of a page of rows from batches."""

import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from catalog.formats.rows import conditions, selection
from catalog.formats.rows.selection import Order, Selection


def select(array: Any, *, start: int = 0, count: int = 5, batch: int = 7, **options: Any) -> Any:
    """The page of a column ``x``, given in batches; rows are addressed by their index."""
    chosen = Selection(
        options.get("conditions", ()), options.get("order"), start=start, count=count
    )
    for first in range(0, len(array), batch):
        part = array.slice(first, batch)
        chosen.add({"x": part}, pa.array(range(first, first + len(part))))
        if chosen.is_complete:
            break
    return chosen.page()


def key(value: Any) -> tuple[bool, bool, Any]:
    """Null is after NaN, and NaN after all other values."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None, is_nan, 0 if is_nan or value is None else value


def expected(values: list[Any], *, descending: bool) -> list[int]:
    indexes = range(len(values))
    ordinary = [i for i in indexes if not key(values[i])[0] and not key(values[i])[1]]
    ordinary.sort(key=lambda i: values[i], reverse=False)
    if descending:  # equal values stay in the order of their addresses
        ordinary.sort(key=lambda i: values[i], reverse=True)
    last = [i for i in indexes if key(values[i])[1]] + [i for i in indexes if values[i] is None]
    return ordinary + last


CHANCE = random.Random(7)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [CHANCE.choice([None, *range(20)]) for _ in range(200)]),
    "real": (pa.float64(), [CHANCE.choice([None, math.nan, 1.5, -2.5, 7.0]) for _ in range(200)]),
    "text": (pa.string(), [CHANCE.choice([None, "", "a", "ab", "b", "ä"]) for _ in range(200)]),
    "decimal": (pa.decimal128(9, 2), [Decimal(CHANCE.randrange(900)) / 4 for _ in range(200)]),
    "bool": (pa.bool_(), [CHANCE.choice([None, True, False]) for _ in range(200)]),
    "view": (pa.string_view(), [CHANCE.choice("abcdef") for _ in range(200)]),
    "nulls": (pa.int8(), [None] * 50),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("descending", [False, True])
def test_an_order_is_the_same_as_sorting_all_rows(name, descending, monkeypatch):
    monkeypatch.setattr(selection, "_PENDING_ROWS", 10)
    type_, values = COLUMNS[name]
    for start, count in ((0, 5), (3, 10), (190, 20), (200, 5)):
        page, has_more = select(
            pa.array(values, type_), start=start, count=count, order=Order("x", descending)
        )
        rows = expected(values, descending=descending)
        assert page == rows[start : start + count]
        assert has_more is (start + count < len(values))


def test_dictionaries_are_sorted_by_their_values():
    array = pa.array(["b", "a", None, "c"]).dictionary_encode()
    assert select(array, order=Order("x"))[0] == [1, 0, 3, 2]


def test_conditions_apply_before_the_order():
    array = pa.array([5, 1, 9, None, 7, 3])
    above = conditions.parse(pa.schema([("x", array.type)]), "x", "gt", "2")
    assert select(array, conditions=[above], count=2) == ([0, 2], True)
    assert select(array, conditions=[above], start=2, count=9) == ([4, 5], False)
    assert select(array, conditions=[above], order=Order("x"), count=2) == ([5, 0], True)


def test_rows_without_an_order_end_the_scan():
    chosen = Selection((), None, start=2, count=3)
    chosen.add({}, pa.array(range(5)))
    assert not chosen.is_complete
    chosen.add({}, pa.array(range(5, 10)))
    assert chosen.is_complete
    assert chosen.page() == ([2, 3, 4], True)


def test_keys_that_take_too_much_memory_are_reported(monkeypatch):
    monkeypatch.setattr(selection, "_MAX_KEY_BYTES", 1000)
    chosen = Selection((), Order("x"), start=0, count=5)
    chosen.add({"x": pa.array(["a" * 10])}, pa.array([0]))
    assert not chosen.is_too_large
    chosen.add({"x": pa.array(["a" * 2000])}, pa.array([1]))
    assert chosen.is_too_large


def test_an_order_by_long_texts_keeps_only_the_rows_of_the_page():
    selection = Selection([], Order("t"), start=0, count=1)
    for number in range(10):
        texts = pa.array([f"{9 - number}{'x' * 100_000}"] * 100)
        selection.add({"t": texts}, pa.array(range(100 * number, 100 * number + 100)))
        assert not selection.is_too_large
    assert selection.page() == ([900], True)
