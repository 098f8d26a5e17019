"""Conditions on rows: a column, an operator and a value as text, which is parsed by the type of the column.

Arrow compares the values. No text reaches an SQL parser.
"""

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MAX_CONDITIONS = 5
LONGEST_VALUE = 1000
"""Characters of a value."""


class Operator(StrEnum):
    EQUAL = "eq"
    NOT_EQUAL = "ne"
    LESS = "lt"
    LESS_EQUAL = "le"
    GREATER = "gt"
    GREATER_EQUAL = "ge"
    CONTAINS = "contains"
    STARTS = "starts"
    NULL = "null"
    NOT_NULL = "notnull"


TITLES: Mapping[Operator, str] = {
    Operator.EQUAL: "=",
    Operator.NOT_EQUAL: "≠",
    Operator.LESS: "<",
    Operator.LESS_EQUAL: "≤",
    Operator.GREATER: ">",
    Operator.GREATER_EQUAL: "≥",
    Operator.CONTAINS: "contains",
    Operator.STARTS: "starts with",
    Operator.NULL: "is null",
    Operator.NOT_NULL: "is not null",
}
_NULLNESS = (Operator.NULL, Operator.NOT_NULL)
_EQUALITY = (Operator.EQUAL, Operator.NOT_EQUAL)
_ORDER = (Operator.LESS, Operator.LESS_EQUAL, Operator.GREATER, Operator.GREATER_EQUAL)
_PATTERNS = (Operator.CONTAINS, Operator.STARTS)
_COMPARE: Mapping[Operator, Callable[[Any, Any], Any]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_EQUAL: pc.greater_equal,
}
_PARSE_ERRORS = (ValueError, ArithmeticError, TypeError, NotImplementedError, pa.ArrowException)


class Kind(StrEnum):
    """What the values of a column are, as far as conditions and orders are concerned."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "true or false"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIME = "time"
    UUID = "UUID"
    OTHER = "other"
    """Values that can only be null or not: vectors, nested values, binary data."""


class InvalidCondition(ValueError):
    """A condition that does not fit the columns; ``field`` is column, operator or value."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def kind(type_: pa.DataType) -> Kind:
    """The kind of a column's values."""
    if isinstance(type_, pa.UuidType):
        return Kind.UUID
    type_ = _plain_type(type_)
    for is_kind, result in (
        (pa.types.is_boolean, Kind.BOOLEAN),
        (pa.types.is_integer, Kind.NUMBER),
        (pa.types.is_floating, Kind.NUMBER),
        (pa.types.is_decimal, Kind.NUMBER),
        (pa.types.is_date, Kind.DATE),
        (pa.types.is_timestamp, Kind.TIMESTAMP),
        (pa.types.is_time, Kind.TIME),
        (_is_text, Kind.TEXT),
    ):
        if is_kind(type_):
            return result
    return Kind.OTHER


def operators(type_: pa.DataType) -> Sequence[Operator]:
    """The operators that apply to a column of this type."""
    match kind(type_):
        case Kind.OTHER:
            return _NULLNESS
        case Kind.BOOLEAN | Kind.UUID:
            return (*_EQUALITY, *_NULLNESS)
        case Kind.TEXT:
            return (*_EQUALITY, *_ORDER, *_PATTERNS, *_NULLNESS)
    return (*_EQUALITY, *_ORDER, *_NULLNESS)


def comparable(array: Any) -> Any:
    """The values of a column as a type that Arrow compares and sorts."""
    if isinstance(array.type, pa.DictionaryType):
        array = array.cast(array.type.value_type)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.cast(array.type.storage_type)
    if pa.types.is_float16(array.type):
        return array.cast(pa.float32())
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array


@dataclass(frozen=True)
class Condition:
    """A condition on the values of a column. Null matches only ``NULL``, as in SQL."""

    column: str
    operator: Operator
    value: pa.Scalar | None = None

    def mask(self, array: Any) -> Any:
        """Whether each value matches; null counts as no match."""
        if self.value is None:
            return pc.is_null(array) if self.operator is Operator.NULL else pc.is_valid(array)
        values = comparable(array)
        if self.operator is Operator.CONTAINS:
            return pc.match_substring(values, self.value.as_py())
        if self.operator is Operator.STARTS:
            return pc.starts_with(values, self.value.as_py())
        return _COMPARE[self.operator](values, self.value)

    def iceberg_filter(self) -> dict[str, Any] | None:
        """The condition as a filter of Iceberg's protocol, which skips files; None if it has none.

        Floats are left out: NaN, and values that a file stores with fewer bits, compare differently.
        """
        operator = _OF_ICEBERG.get(self.operator)
        if operator is None:
            return None
        predicate: dict[str, Any] = {"type": operator, "term": self.column}
        if self.value is None:
            return predicate
        value = self.value.as_py()
        if isinstance(value, bool | int | str):
            return predicate | {"value": value}
        if isinstance(value, date) and not isinstance(value, datetime):
            return predicate | {"value": value.isoformat()}
        return None


_OF_ICEBERG: Mapping[Operator, str] = {
    Operator.EQUAL: "eq",
    Operator.LESS: "lt",
    Operator.LESS_EQUAL: "lt-eq",
    Operator.GREATER: "gt",
    Operator.GREATER_EQUAL: "gt-eq",
    Operator.STARTS: "starts-with",
    Operator.NULL: "is-null",
    Operator.NOT_NULL: "not-null",
}


def parse(schema: pa.Schema, column: str, operator: str, text: str) -> Condition:
    """A condition from the texts of a form. Raises InvalidCondition."""
    indexes = schema.get_all_field_indices(column)
    if len(indexes) != 1:
        raise InvalidCondition("column", f"Column '{column[:100]}' does not exist.")
    type_ = schema.field(indexes[0]).type
    allowed = operators(type_)
    if operator not in allowed:
        names = ", ".join(TITLES[item] for item in allowed)
        raise InvalidCondition("operator", f"Column '{column[:100]}' can be tested with: {names}.")
    chosen = Operator(operator)
    if chosen in _NULLNESS:
        return Condition(column, chosen)
    if len(text) > LONGEST_VALUE:
        raise InvalidCondition("value", f"The value is longer than {LONGEST_VALUE:,} characters.")
    if "\x00" in text:
        raise InvalidCondition("value", "The value has a NUL character.")
    return Condition(column, chosen, _scalar(type_, text))


def _scalar(type_: pa.DataType, text: str) -> pa.Scalar:
    """A text as a value of a column. Raises InvalidCondition."""
    kind_, plain = kind(type_), _plain_type(type_)
    if kind_ is not Kind.TEXT:
        text = text.strip()
    try:
        if kind_ is Kind.TEXT:
            target = pa.large_string() if pa.types.is_string_view(plain) else plain
            return pa.scalar(text, target)
        if kind_ is Kind.BOOLEAN:
            return pa.scalar({"true": True, "false": False}[text.lower()], plain)
        if kind_ is Kind.UUID:
            return pa.scalar(uuid.UUID(text).bytes, type_.storage_type)
        if kind_ is Kind.DATE:
            return pa.scalar(date.fromisoformat(text), plain)
        if kind_ is Kind.TIMESTAMP:
            return pa.scalar(_moment(text, has_zone=plain.tz is not None), plain)
        if kind_ is Kind.TIME:
            return pa.scalar(time.fromisoformat(text), plain)
        return _number(plain, text)
    except (*_PARSE_ERRORS, KeyError) as error:
        message = f"'{text[:100]}' is not {_EXPECTED[kind_](plain)}."
        raise InvalidCondition("value", message) from error


_EXPECTED: Mapping[Kind, Callable[[Any], str]] = {
    Kind.TEXT: lambda _: "a text",
    Kind.BOOLEAN: lambda _: "true or false",
    Kind.UUID: lambda _: "a UUID",
    Kind.DATE: lambda _: "a date, such as 2026-01-31",
    Kind.TIMESTAMP: lambda type_: (
        "a timestamp, such as 2026-01-31 22:30:00"
        + ("+00:00" if type_.tz is not None else ", without a time zone")
    ),
    Kind.TIME: lambda _: "a time, such as 22:30:00",
    Kind.NUMBER: lambda type_: (
        "a number" if pa.types.is_floating(type_) else f"a number of type {type_}"
    ),
}


def _number(type_: pa.DataType, text: str) -> pa.Scalar:
    if pa.types.is_integer(type_):
        return pa.scalar(int(text), type_)
    if pa.types.is_decimal(type_):
        number = Decimal(text)
        if not number.is_finite() or abs(number.adjusted()) > 100:
            raise ValueError("not a decimal number")
        return pa.scalar(number, type_)
    real = float(text)
    if math.isnan(real):
        raise ValueError("NaN is not comparable")
    return pa.scalar(real, pa.float32() if pa.types.is_float16(type_) else type_)


def _moment(text: str, *, has_zone: bool) -> datetime:
    moment = datetime.fromisoformat(text)
    if not has_zone:
        if moment.tzinfo is not None:
            raise ValueError("the column has no time zone")
        return moment
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.DictionaryType):
        type_ = type_.value_type
    return type_


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )
