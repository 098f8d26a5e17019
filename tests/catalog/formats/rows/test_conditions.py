"""Conditions: texts of a form, parsed by the type of the column and evaluated by Arrow."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from catalog.formats.rows import conditions
from catalog.formats.rows.conditions import InvalidCondition, Kind, Operator

NAIVE = datetime(2026, 1, 31, 22, 30, tzinfo=UTC).replace(tzinfo=None)
TEXTS = ["b", None, "a", "a'b", "%", "ä", "<script>"]
COLUMNS: dict[str, Any] = {
    "tiny": pa.array([1, None, -128, 127], pa.int8()),
    "large": pa.array([2**64 - 1, None, 0, 1], pa.uint64()),
    "text": pa.array(TEXTS, pa.string()),
    "view": pa.array(TEXTS, pa.string_view()),
    "words": pa.array(TEXTS, pa.string()).dictionary_encode(),
    "price": pa.array([Decimal("0.25"), None, Decimal("-3.10")], pa.decimal128(9, 2)),
    "half": pa.array([0.5, None, 1.5], pa.float16()),
    "single": pa.array([0.1, None, float("nan"), 2.5], pa.float32()),
    "day": pa.array([date(2026, 1, 31), None, date(1969, 12, 31)]),
    "at": pa.array([NAIVE, None], pa.timestamp("us")),
    "zoned": pa.array([datetime(2026, 1, 31, 22, 30, tzinfo=UTC), None], pa.timestamp("ms", "UTC")),
    "clock": pa.array([time(22, 30), None], pa.time64("us")),
    "ok": pa.array([True, None, False]),
    "uuid": pa.array([UUID(int=7).bytes, None], pa.uuid()),
    "bytes": pa.array([b"x", None]),
    "vector": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
}


def matching(column: str, operator: str, text: str) -> list[object]:
    """The matching values of a column."""
    schema = pa.schema([(name, values.type) for name, values in COLUMNS.items()])
    condition = conditions.parse(schema, column, operator, text)
    array = COLUMNS[column]
    matches = condition.mask(array).to_pylist()
    return [value for value, is_match in zip(array.to_pylist(), matches, strict=True) if is_match]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (("tiny", "eq", " 127 "), [127]),
        (("tiny", "ne", "127"), [1, -128]),
        (("tiny", "null", ""), [None]),
        (("tiny", "notnull", "ignored"), [1, -128, 127]),
        (("large", "ge", "18446744073709551615"), [2**64 - 1]),
        (("text", "eq", "a'b"), ["a'b"]),
        (("text", "lt", "a"), ["%", "<script>"]),
        (("text", "contains", "%"), ["%"]),
        (("text", "contains", ""), ["b", "a", "a'b", "%", "ä", "<script>"]),
        (("text", "starts", "a"), ["a", "a'b"]),
        (("text", "contains", "' OR '1'='1"), []),
        (("view", "eq", "ä"), ["ä"]),
        (("view", "starts", "<"), ["<script>"]),
        (("words", "contains", "b"), ["b", "a'b"]),
        (("words", "ge", "b"), ["b", "ä"]),
        (("price", "le", "-3.1"), [Decimal("-3.10")]),
        (("half", "gt", "0.5"), [1.5]),
        (("single", "gt", "2"), [2.5]),
        (("day", "lt", "1970-01-01"), [date(1969, 12, 31)]),
        (("at", "eq", "2026-01-31 22:30"), [NAIVE]),
        (("zoned", "eq", "2026-02-01T00:30+02:00"), [datetime(2026, 1, 31, 22, 30, tzinfo=UTC)]),
        (("zoned", "eq", "2026-01-31T22:30"), [datetime(2026, 1, 31, 22, 30, tzinfo=UTC)]),
        (("clock", "lt", "23:00"), [time(22, 30)]),
        (("ok", "eq", "TRUE"), [True]),
        (("ok", "ne", "true"), [False]),
        (("uuid", "eq", str(UUID(int=7))), [UUID(int=7)]),
        (("bytes", "null", ""), [None]),
        (("vector", "notnull", ""), [[1.0, 2.0]]),
    ],
)
def test_a_condition_matches(condition, expected):
    assert matching(*condition) == expected


def test_a_stored_single_equals_its_text():
    (value,) = matching("single", "eq", "0.1")
    assert value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("condition", "field", "message"),
    [
        (("nope", "eq", "1"), "column", "Column 'nope' does not exist."),
        (("tiny", "contains", "1"), "operator", "Column 'tiny' can be tested with: ="),
        (("tiny", "; DROP", "1"), "operator", "Column 'tiny' can be tested with: ="),
        (("vector", "eq", "1"), "operator", "can be tested with: is null, is not null."),
        (("ok", "lt", "true"), "operator", "can be tested with: =, ≠, is null, is not null."),
        (("tiny", "eq", "128"), "value", "'128' is not a number of type int8."),
        (("tiny", "eq", "1 OR 1=1"), "value", "'1 OR 1=1' is not a number of type int8."),
        (("tiny", "eq", "1.5"), "value", "'1.5' is not a number of type int8."),
        (("tiny", "eq", ""), "value", "'' is not a number of type int8."),
        (("large", "eq", "9" * 900), "value", "is not a number of type uint64."),
        (("price", "eq", "0.123"), "value", "is not a number of type decimal128(9, 2)."),
        (("price", "eq", "1e999999999"), "value", "is not a number of type decimal128(9, 2)."),
        (("price", "eq", "NaN"), "value", "is not a number of type decimal128(9, 2)."),
        (("single", "eq", "nan"), "value", "'nan' is not a number."),
        (("day", "eq", "31.1.2026"), "value", "is not a date, such as 2026-01-31."),
        (("at", "eq", "2026-01-31 22:30Z"), "value", "22:30:00, without a time zone."),
        (
            ("zoned", "eq", "soon"),
            "value",
            "is not a timestamp, such as 2026-01-31 22:30:00+00:00.",
        ),
        (("clock", "eq", "25:00"), "value", "is not a time, such as 22:30:00."),
        (("ok", "eq", "maybe"), "value", "'maybe' is not true or false."),
        (("uuid", "eq", "7"), "value", "'7' is not a UUID."),
        (("text", "eq", "a\x00"), "value", "The value has a NUL character."),
        (("text", "eq", "x" * 1001), "value", "The value is longer than 1,000 characters."),
    ],
)
def test_an_invalid_condition_names_its_field(condition, field, message):
    with pytest.raises(InvalidCondition) as refused:
        matching(*condition)
    assert refused.value.field == field
    assert message in refused.value.message


def test_a_name_of_two_columns_is_refused():
    schema = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(InvalidCondition, match="does not exist"):
        conditions.parse(schema, "a", "eq", "1")


def test_only_exact_values_skip_files_of_iceberg():
    schema = pa.schema([(name, values.type) for name, values in COLUMNS.items()])
    filters = {
        name: conditions.parse(schema, name, "eq", text).iceberg_filter()
        for name, text in {
            "tiny": "1",
            "text": "x'",
            "day": "2026-01-31",
            "ok": "true",
            "price": "1",
            "single": "1",
            "at": "2026-01-31",
            "clock": "10:00",
        }.items()
    }
    assert filters == {
        "tiny": {"type": "eq", "term": "tiny", "value": 1},
        "text": {"type": "eq", "term": "text", "value": "x'"},
        "day": {"type": "eq", "term": "day", "value": "2026-01-31"},
        "ok": {"type": "eq", "term": "ok", "value": True},
        **dict.fromkeys(("price", "single", "at", "clock")),
    }
    contains = conditions.parse(schema, "text", "contains", "x").iceberg_filter()
    assert contains is None
    assert conditions.parse(schema, "text", "null", "").iceberg_filter() == {
        "type": "is-null",
        "term": "text",
    }


def test_every_operator_has_a_title():
    assert set(conditions.TITLES) == set(Operator)
    assert {conditions.kind(values.type) for values in COLUMNS.values()} == set(Kind)
