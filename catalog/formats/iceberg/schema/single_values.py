"""Values of primitive types as JSON and as PyIceberg literals.

Spec: JSON single-value serialization.
"""

import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from uuid import UUID

from pyiceberg.expressions.literals import (
    BinaryLiteral,
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FixedLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimeLiteral,
    TimestampLiteral,
    UUIDLiteral,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from catalog.formats.iceberg.reading import INT_MAX, LONG_MAX, kind, shown

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 -- plain arithmetic, in UTC throughout
_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_TIME = r"(?P<hm>\d\d:\d\d)(:(?P<s>\d\d)(\.(?P<fraction>\d{1,9}))?)?"
_ISO_TIME = re.compile(_TIME)
_ISO_TIMESTAMP = re.compile(
    rf"(?P<day>\d{{4}}-\d\d-\d\d)T{_TIME}(?P<zone>Z|[+-]\d\d:\d\d)?", re.IGNORECASE
)
_EXACTLY = Context(prec=60, traps=[Inexact, InvalidOperation])
_UUID_BYTES = 16
_WRITTEN_AS_TEXT = (
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
)


class NotExactError(Exception):
    """The type cannot represent a value that it can be compared with: 0.1 and a float, say."""


class OutOfRangeError(Exception):
    """The value is above or below all values of its type."""

    def __init__(self, *, above: bool) -> None:
        super().__init__()
        self.above = above


def parse_type(name: object) -> PrimitiveType | None:
    """The primitive type with this name; None if PyIceberg does not have it."""
    if not isinstance(name, str):
        return None
    try:
        type_ = IcebergType.model_validate(name)
    except (ValueError, TypeError):
        return None
    return type_ if isinstance(type_, PrimitiveType) else None


# --- from JSON ---------------------------------------------------------------------------------


def literal(type_: PrimitiveType, value: object) -> Literal[Any]:
    """The literal with which a filter compares a column of this type.

    Dates, times and timestamps may be integers, as Java's clients send them. Raises ValueError for
    a value of another type, NotExactError and OutOfRangeError.
    """
    read = _READERS.get(type(type_))
    if read is None:
        raise NotExactError  # PyIceberg reads this type but does not compare it
    return read(type_, value)


def _text(type_: PrimitiveType, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{kind(value)} is no value of type {type_}")
    return value


def _boolean(type_: PrimitiveType, value: object) -> Literal[bool]:
    if not isinstance(value, bool):
        raise ValueError(f"{kind(value)} is no value of type {type_}")
    return BooleanLiteral(value)


def _ranged(value: int, limit: int) -> int:
    if not -limit - 1 <= value <= limit:
        raise OutOfRangeError(above=value > 0)
    return value


def _integer(type_: PrimitiveType, value: object) -> Literal[int]:
    if type(value) is float and abs(value) > LONG_MAX:
        raise OutOfRangeError(above=value > 0)  # integers above 64 bits are decoded as floats
    if type(value) is not int:  # exactly: JSON's true is an int to Python
        raise ValueError(f"{kind(value)} is no value of type {type_}")
    return LongLiteral(_ranged(value, INT_MAX if isinstance(type_, IntegerType) else LONG_MAX))


def _double(type_: PrimitiveType, value: object) -> Literal[float]:
    if type(value) is not float and type(value) is not int:
        raise ValueError(f"{kind(value)} is no value of type {type_}")
    number = float(value)
    if number != value:
        raise NotExactError
    return DoubleLiteral(number)


def _float(type_: PrimitiveType, value: object) -> Literal[float]:
    number = _double(type_, value).value
    try:
        rounded = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        raise OutOfRangeError(above=number > 0) from None
    if rounded != number:
        # Some engines round the literal, others widen the column.
        raise NotExactError
    return FloatLiteral(number)


def _decimal(type_: PrimitiveType, value: object) -> Literal[Decimal]:
    assert isinstance(type_, DecimalType)  # noqa: S101 -- by the table of readers
    if type(value) not in {str, int, float}:
        raise ValueError(f"{kind(value)} is no value of type {type_}")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise ValueError(f"{shown(str(value))} is no value of type {type_}")
    try:
        exact = number.quantize(Decimal(1).scaleb(-type_.scale), context=_EXACTLY)
    except (Inexact, InvalidOperation):
        raise NotExactError from None
    if len(exact.as_tuple().digits) > type_.precision:
        raise NotExactError
    return DecimalLiteral(exact)


def _date(type_: PrimitiveType, value: object) -> Literal[int]:
    if type(value) is int:
        return DateLiteral(_ranged(value, INT_MAX))
    return DateLiteral((date.fromisoformat(_text(type_, value)) - _DAY).days)


def _time(type_: PrimitiveType, value: object) -> Literal[int]:
    return TimeLiteral(value if type(value) is int else _micros_of_day(_text(type_, value)))


def _moment(type_: PrimitiveType, value: object) -> Literal[int]:
    if type(value) is int:
        return TimestampLiteral(_ranged(value, LONG_MAX))
    return TimestampLiteral(_micros(type_, _text(type_, value)))


def _uuid(type_: PrimitiveType, value: object) -> Literal[bytes]:
    return UUIDLiteral(UUID(_text(type_, value)).bytes)


def _fixed(type_: PrimitiveType, value: object) -> Literal[bytes]:
    assert isinstance(type_, FixedType)  # noqa: S101 -- by the table of readers
    content = bytes.fromhex(_text(type_, value))
    if len(content) != len(type_):
        raise NotExactError
    return FixedLiteral(content)


_READERS: dict[type[PrimitiveType], Callable[[PrimitiveType, object], Literal[Any]]] = {
    BooleanType: _boolean,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _float,
    DoubleType: _double,
    DecimalType: _decimal,
    StringType: lambda type_, value: StringLiteral(_text(type_, value)),
    DateType: _date,
    TimeType: _time,
    TimestampType: _moment,
    TimestamptzType: _moment,
    UUIDType: _uuid,
    FixedType: _fixed,
    BinaryType: lambda type_, value: BinaryLiteral(bytes.fromhex(_text(type_, value))),
}


def _micros_of_day(text: str) -> int:
    match = _ISO_TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is no value of type time")
    clock = time.fromisoformat(f"{match['hm']}:{match['s'] or '00'}")
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second
    return seconds * 1_000_000 + _fraction(match["fraction"])


def _micros(type_: PrimitiveType, text: str) -> int:
    match = _ISO_TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is no value of type {type_}")
    zone = match["zone"]
    if zone and isinstance(type_, TimestampType):
        raise ValueError(f"{shown(text)} has a zone, and type {type_} has none")
    # PyIceberg omits the zone of a timestamptz and assumes UTC.
    moment = datetime.fromisoformat(
        f"{match['day']}T{match['hm']}:{match['s'] or '00'}{zone or ''}"
    )
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // _MICROSECOND + _fraction(match["fraction"])


def _fraction(digits: str | None) -> int:
    digits = digits or ""
    if digits[6:].strip("0"):
        raise NotExactError
    return int(digits[:6].ljust(6, "0"))


# --- to JSON -----------------------------------------------------------------------------------


def to_json(type_: PrimitiveType | None, value: Any) -> object:
    """A manifest's value as the JSON of its type, or by the value's own kind if that is None."""
    if value is None:
        return None
    if type(value) is int and isinstance(type_, _WRITTEN_AS_TEXT):
        try:
            return _iso(type_, value)
        except OverflowError:
            return str(value)  # after the year 9999
    if isinstance(value, (bytes, bytearray)):
        if isinstance(type_, UUIDType) and len(value) == _UUID_BYTES:
            return str(UUID(bytes=bytes(value)))
        return value.hex().upper()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, UUID) else value


def _iso(type_: PrimitiveType, value: int) -> str:
    if isinstance(type_, DateType):
        return (_DAY + timedelta(days=value)).isoformat()
    if isinstance(type_, TimeType):
        return (_EPOCH + value * _MICROSECOND).time().isoformat("microseconds")
    nanos = ""
    if isinstance(type_, (TimestampNanoType, TimestamptzNanoType)):
        value, remainder = divmod(value, 1000)
        nanos = f"{remainder:03}"
    zone = "+00:00" if isinstance(type_, (TimestamptzType, TimestamptzNanoType)) else ""
    return (_EPOCH + value * _MICROSECOND).isoformat(timespec="microseconds") + nanos + zone
