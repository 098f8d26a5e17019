"""Expressions that would exhaust the memory of the process are refused, and no others."""

import tracemalloc

import pytest

from catalog.errors import InvalidInput
from catalog.formats.lance import sql as lance_sql


@pytest.mark.parametrize(
    "expression",
    [
        "repeat(s, 10) = 'a'",
        "lpad(s, 12, '0') = rpad(s, 12)",
        "array_length(range(3)) = 3 AND array_length(range(-3, 10, 2)) > 1",
        "array_resize(l, 3, 0) = l",
        "replace(replace(s, 'a', 'bb'), 'c', 'd') = regexp_replace(s, '(x)', 'y', 'g')",
        "range > 2000000000 AND price_range = 5000",
        "s = 'repeat(s, 2000000000)'",
        "repeat = 1 -- repeat",
        "arrow_cast(id, 'Int32') = 1",
        "regexp_replace(s, '\\d', 'x') = 'x'",
        "concat_ws('-', s, t) = 'a-b'",
        "length(s) > 2000000000",
    ],
)
def test_ordinary_functions(expression):
    lance_sql.check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "length(repeat('a', 2000000000)) > 0",
        "length(REPEAT(s, 1001)) > 0",
        "length(repeat(s, id)) > 0",
        "length(repeat(s, 10 * 1000000)) > 0",
        "length(repeat(s, 1e9)) > 0",
        "length(repeat(s, (1000000000))) > 0",
        "length(repeat(s, cast('1000000000' as bigint))) > 0",
        "length(`repeat`(s, 1000000000)) > 0",
        "length(repeat (s, 1000000000)) > 0",
        "length(repeat\n(s, 1000000000)) > 0",
        "length(repeat/* ( */(s, 1000000000)) > 0",
        "length(repeat(E'\\', 5)', 1000000000)) > 0",
        "length(repeat($$', 5)$$, 1000000000)) > 0",
        "length(repeat(repeat(s, 100), 100)) > 0",
        "length(lpad(s, 1000000000, 'x')) > 0",
        "length(rpad(s, 1000000000)) > 0",
        "array_length(range(300000000)) > 0",
        "array_length(range(0, 300000000)) > 0",
        "array_length(range(id)) > 0",
        "array_length(generate_series(1, 300000000)) > 0",
        "array_length(array_repeat(1, 1000000000)) > 0",
        "array_length(list_repeat(1, 1000000000)) > 0",
        "array_length(array_resize([1], 1000000000, 0)) > 0",
        "array_length(list_resize([1], 1000000000, 0)) > 0",
        "length(concat_ws(',', s" + ", s" * 1000 + ")) > 0",
        "length(repeat(s" + " || s" * 1000 + ", 2)) > 0",
        f"length(replace(replace(s, 'a', '{'a' * 100}'), 'a', '{'a' * 100}')) > 0",
        f"length(regexp_replace(s, '.', '{'a' * 1001}', 'g')) > 0",
        f"length(replace(s, 'a', concat('{'a' * 600}', '{'a' * 600}'))) > 0",
        f"length(array_to_string(l, '{'a' * 1001}')) > 0",
        "arrow_cast(NULL, 'FixedSizeBinary(2000000000)') is null",
        "arrow_cast(NULL, 'FixedSizeList(2000000000, Int64)') is null",
    ],
)
def test_functions_with_large_results(expression):
    with pytest.raises(InvalidInput):
        lance_sql.check(expression)


def test_long_lists_beside_such_functions_take_little_memory():
    expression = "repeat(s, 2) IN ('a'" + ", 'a'" * 300_000 + ")"
    tracemalloc.start()
    lance_sql.check(expression)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
