"""Expressions that would exhaust the memory of the process are refused, and no others."""

import tracemalloc

import pytest

from catalog.errors import InvalidInput
from catalog.formats.lance import sql as lance_sql
from catalog.formats.lance import sql_growth


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
        "regexp_like(s, '^a$') AND regexp_like(concat(s, 'b'), 'x--|y', 'i')",
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
        "regexp_like(s, t)",
        "REGEXP_COUNT(s, concat('\\w{1,100}', s)) > 0",
        "regexp_replace(s, upper(s), '') = 'a'",
        "regexp_match(s, 'a' || s) is null",
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


def text(size: int) -> str:
    return f"'{'x' * size}'"


def many(value: str, count: int) -> str:
    return ", ".join([value] * count)


BUILT = {
    "a text at each row": f"s || {text(17_000)} = 'a'",
    "the same after a comparison": f"s = 'a' OR s = s || {text(17_000)}",
    "the same in brackets": f"(s || {text(17_000)}) = 'a'",
    "a text in other quotes": 's || "' + "x" * 17_000 + '"',
    "a default": f"coalesce(s, {text(17_000)}) = 'a'",
    "a function of the name in quotes": f"`coalesce` (s, {text(17_000)}) = 'a'",
    "arguments": f"array_length(make_array({many('s', 3000)})) = 1",
    "arguments in arguments": f"concat({many('concat(' + many('s', 60) + ')', 60)}) = 'a'",
    "a list": f"array_append([{many('1', 3000)}], id) is null",
    "below a test": f"contains(concat(s, {text(17_000)}), 'a')",
    "a repeated text": f"length(repeat({text(100)}, 1000)) = 1",
    "digits for bytes": "encode(" * 8 + f"concat({many('s', 1000)})" + ", 'hex')" * 8 + " = 'a'",
    "elements for letters": f"string_to_array(concat({many('s', 1000)}), NULL) is null",
    "dollar quotes": f"s || $${'x' * 17_000}$$ = 'a'",
    "a comment": f"s || {text(10)} /* ' */ || {text(17_000)}",
}


@pytest.mark.parametrize("name", BUILT)
def test_values_that_are_large_for_each_row(name):
    with pytest.raises(InvalidInput):
        lance_sql.check(BUILT[name])


NOT_BUILT = {
    "a comparison": f"s = {text(900_000)}",
    "a comparison with signs": "s = '" + "costs $5 -- or /* more */ " * 2000 + "'",
    "a list": f"id IN ({many('1', 100_000)}) AND NOT (s IN ({many(text(10), 10_000)}))",
    "a search": f"contains(s, {text(100_000)}) AND array_has_any(l, [{many('1', 10_000)}])",
    "a default": f"coalesce(s, {many('t', 5000)}) = 'a'",
    "many conditions": " OR ".join(["lower(s) LIKE '%some text%'"] * 9000),
    "many arguments": f"concat_ws(', ', {many('s', 900)}) = 'a'",
    "a long pattern": f"regexp_like(s, {text(10_000)})",
}


@pytest.mark.parametrize("name", NOT_BUILT)
def test_long_texts_and_lists_that_are_not_built(name):
    lance_sql.check(NOT_BUILT[name])


def test_expressions_for_columns_are_limited_together():
    sql_growth.check_values([*["`a column`"] * 10_000, *["lower(s)"] * 1000, text(30_000)])
    with pytest.raises(InvalidInput, match="more than 64 KiB"):
        sql_growth.check_values([text(30_000)] * 3)
    with pytest.raises(InvalidInput, match="more than 64 KiB"):
        sql_growth.check_values([f"make_array({many('s', 250)})"] * 100)
