"""The text form of sort orders, and layouts that fit the schema of a table."""

from typing import Any

import pytest

from catalog.errors import InvalidInput
from catalog.formats.iceberg import sorted_files
from catalog.formats.iceberg.maintenance import File, compaction
from catalog.layouts import Layout, Strategy, layout, parse
from catalog.policies import check

DOCUMENT: dict[str, Any] = {
    "current-schema-id": 2,
    "schemas": [
        {"schema-id": 1, "type": "struct", "fields": []},
        {
            "schema-id": 2,
            "type": "struct",
            "fields": [
                {"id": 1, "name": "country", "required": False, "type": "string"},
                {"id": 2, "name": "day", "required": False, "type": "date"},
                {"id": 3, "name": "price", "required": False, "type": "decimal(9, 2)"},
                {
                    "id": 4,
                    "name": "address",
                    "required": False,
                    "type": {
                        "type": "struct",
                        "fields": [{"id": 5, "name": "city", "required": False, "type": "string"}],
                    },
                },
                {
                    "id": 6,
                    "name": "tags",
                    "required": False,
                    "type": {
                        "type": "list",
                        "element-id": 7,
                        "element": "string",
                        "element-required": False,
                    },
                },
                {"id": 8, "name": "it's `odd`", "required": False, "type": "long"},
            ],
        },
    ],
    "default-spec-id": 1,
    "partition-specs": [
        {
            "spec-id": 1,
            "fields": [{"field-id": 1000, "source-id": 2, "name": "day", "transform": "identity"}],
        }
    ],
    "default-sort-order-id": 3,
    "sort-orders": [
        {"order-id": 0, "fields": []},
        {
            "order-id": 3,
            "fields": [
                {
                    "source-id": 1,
                    "transform": "identity",
                    "direction": "desc",
                    "null-order": "nulls-last",
                }
            ],
        },
    ],
}


@pytest.mark.parametrize(
    ("text", "canonical", "argument"),
    [
        ("country", "country", "`country` ASC NULLS FIRST"),
        (
            " Country  DESC ,day nulls last",
            "Country desc nulls last, day asc nulls last",
            "`Country` DESC NULLS LAST, `day` ASC NULLS LAST",
        ),
        ("address.city asc", "address.city asc nulls first", "`address`.`city` ASC NULLS FIRST"),
        ("`it's ``odd```", "`it's ``odd```", "`it's ``odd``` ASC NULLS FIRST"),
        ("`a, b` desc nulls first", "`a, b` desc nulls first", "`a, b` DESC NULLS FIRST"),
        ("desc", "desc", "`desc` ASC NULLS FIRST"),
    ],
)
def test_the_text_of_a_sort_order(text: str, canonical: str, argument: str) -> None:
    order = Layout(Strategy.SORT, parse(text))
    assert (order.text, order.procedure_argument) == (canonical, argument)
    assert parse(order.text) == order.columns


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a b",
            "a,,b",
            ",",
            "a.",
            ".a",
            "a..b",
            "a,",
            "a asc desc",
            "a nulls",
            "a nulls last desc",
        ),
        *("a; DROP TABLE t", "a)", "zorder(a)", "bucket(4, a)", "a'", "a`b", "`a", "``", "a\\"),
        *("a, a", "a, `a`", ", ".join(f"c{n}" for n in range(17)), "a" * 1001),
    ],
)
def test_other_texts_are_not_sort_orders(text: str) -> None:
    with pytest.raises(InvalidInput, match="sort order"):
        parse(text)


def test_a_zorder_takes_columns_alone() -> None:
    order = layout("zorder", "country, `a ``b`")
    assert order.procedure_argument == "zorder(`country`, `a ``b`)"
    with pytest.raises(InvalidInput, match="'country' has one"):
        layout("zorder", "country desc")
    with pytest.raises(InvalidInput, match="needs the columns"):
        layout("zorder", "")
    assert layout("binpack", "country desc") == Layout()


@pytest.mark.parametrize(
    ("strategy", "order", "message"),
    [
        ("sort", "region", "no column 'region'"),
        ("sort", "Country", "no column 'Country'"),
        ("sort", "address", "several values"),
        ("sort", "tags.element", "several values"),
        ("zorder", "country, price", "does not support column 'price'"),
        ("zorder", "country, address.city", "nested column 'address.city'"),
        ("zorder", "country, `it's ``odd```", "the name of column"),
        (
            "zorder",
            "day",
            "^Strategy 'zorder' needs a column that does not have one value in each partition$",
        ),
    ],
)
def test_layouts_that_do_not_fit_a_table(strategy: str, order: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sorted_files.check(DOCUMENT, layout(strategy, order))


def test_layouts_that_fit_a_table() -> None:
    for strategy, order in (
        ("sort", "country, price desc, address.city, `it's ``odd```"),
        ("sort", ""),
        ("zorder", "country, day"),
        ("binpack", "region"),
    ):
        sorted_files.check(DOCUMENT, layout(strategy, order))
    with pytest.raises(InvalidInput) as error:
        sorted_files.check({**DOCUMENT, "default-sort-order-id": 0}, layout("sort", ""))
    assert error.value.message == (
        "Strategy 'sort' without 'sort_order' uses the sort order of the table, and the table has"
        " none: set 'sort_order'"
    )


def test_the_equal_sort_order_of_a_table() -> None:
    assert sorted_files.order_id(DOCUMENT, layout("sort", "country desc")) == 3
    assert sorted_files.order_id(DOCUMENT, layout("sort", "")) == 3
    assert sorted_files.order_id(DOCUMENT, layout("sort", "country")) is None
    assert sorted_files.order_id(DOCUMENT, layout("sort", "country desc, day")) is None
    assert sorted_files.order_id(DOCUMENT, layout("zorder", "country")) is None


def test_settings_of_a_policy_must_agree() -> None:
    assert check({"strategy": "zorder", "sort_order": "a, b"}) == {
        "strategy": "zorder",
        "sort_order": "a, b",
    }
    for values, message in (
        ({"strategy": "zorder", "sort_order": "a desc"}, "'a' has one"),
        ({"strategy": "hilbert"}, "must be one of binpack, sort, zorder"),
        ({"sort_order": "a b"}, "must be a sort order"),
        ({"sort_order": 7}, "must be a text"),
        ({"engine_profile": "a b"}, "must be the name of an engine profile"),
    ):
        with pytest.raises(InvalidInput, match=message):
            check(values)


def test_a_rewrite_of_all_files_is_estimated() -> None:
    files = [File(("p",), 600, 10), File(("p",), 900, 10), File(("q",), 700, 10)]
    rules = {"target": 1000, "small_ratio": 0.5, "min_files": 5, "deleted_ratio": 0.1}
    assert compaction(files, **rules).files == 0
    rewrite = compaction(files, **rules, is_all=True)
    assert (rewrite.files, rewrite.bytes, rewrite.files_after) == (3, 2200, 3)
