"""Columns that filters compare."""

import pytest

from catalog.formats.lance.filters import Comparison, compared_columns, read_columns

VALUE, LABELS, SUBSTRING = Comparison.VALUE, Comparison.LABELS, Comparison.SUBSTRING


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        ("", {}),
        ("id = 5", {"id": VALUE}),
        ("5 < id", {"id": VALUE}),
        ("id IN (1, 2) AND kind = 'a = b'", {"id": VALUE, "kind": VALUE}),
        ("(a.b >= 1 or `c d` between 2 and 3)", {"a.b": VALUE, "`c d`": VALUE}),
        ("array_has(tags, 'x') AND contains(body, 'y')", {"tags": LABELS, "body": SUBSTRING}),
        ("array_has_any(tags, ['x'])", {"tags": LABELS}),
        ("it = 'x''y' and id == 1", {"it": VALUE, "id": VALUE}),
        ("NOT id = 5", {}),
        ("id NOT IN (1)", {}),
        ("id != 5", {}),
        ("id IS NULL", {}),
        ("a + b = 5", {}),
        ("5 = a + b", {}),
        ("lower(name) = 'x'", {}),
        ("name LIKE '%x'", {}),
        ("true", {}),
        ("a.", {}),
        ("'id' = 'id'", {}),
        ("id = 1 " + "OR id = 1 " * 2000, {}),
    ],
)
def test_columns_that_an_index_could_look_up(expression, columns):
    assert dict(compared_columns(expression)) == columns


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a + point.x", {"a", "point.x"}),
        ("upper(a) || 'b' || \"c\"", {"a"}),
        ("`f`(a)", {"f", "a"}),
        ("CASE WHEN `a b` IS NULL THEN 1.5 ELSE _x END", {"`a b`", "_x", "THEN", "ELSE", "END"}),
        ("1", set()),
    ],
)
def test_names_that_an_expression_may_read(expression, expected):
    assert read_columns(expression) == expected


def test_a_long_expression_is_not_parsed():
    assert read_columns("a + " * 5_000 + "a") is None
