"""A reader of the Protocol Buffers wire format, as far as Lance manifests need it.

It is as strict as Lance's own reader, and stricter where lenient readers may disagree: groups are
refused, and so is a second occurrence of a singular field.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_UINT64 = 2**64 - 1
_MAX_NUMBER = 2**29
MAX_FIELDS = 1_000_000
"""The most fields of a message: each takes some hundred bytes of memory here, but may have two bytes in a file."""

CACHED = 32_768
"""The most messages of which a function caches something (``cached``)."""
_CACHED_BYTES = 1024

Field = tuple[int, int, int, int]
"""Field number, wire type, and either the value of a varint and 0, or the start and end of the
content."""


class Cached(Protocol[T_co]):
    """A function of the bytes of a message, decorated with ``functools.lru_cache``."""

    @property
    def __wrapped__(self) -> Callable[[bytes], T_co]: ...
    def __call__(self, data: bytes, /) -> T_co: ...


class MalformedMessage(ValueError):
    """The bytes are not a valid message."""


def fields(  # noqa: C901, PLR0912 -- the loop over all fields of a manifest, without calls
    data: bytes, start: int, end: int, only: Container[int] | None = None
) -> list[Field]:
    """The fields of the message between two positions, in order; only some numbers if given.

    Raises MalformedMessage.
    """
    result: list[Field] = []
    at = start
    try:
        for _ in range(MAX_FIELDS):
            if at >= end:
                break
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = varint(data, at - 1)
            wire, number = tag & 7, tag >> 3
            if wire == BYTES:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = varint(data, at - 1)
                first, second = at, at + size
                at = second
            elif wire == VARINT:
                first, second = data[at], 0
                at += 1
                if first > 127:
                    first, at = varint(data, at - 1)
            elif wire in {FIXED64, FIXED32}:
                first, second = at, at + (8 if wire == FIXED64 else 4)
                at = second
            else:
                raise MalformedMessage(f"wire type {wire}")
            if not 0 < number < _MAX_NUMBER:
                raise MalformedMessage(f"field number {number}")
            if only is None or number in only:
                result.append((number, wire, first, second))
    except IndexError:
        raise MalformedMessage("it ends within a field") from None
    if at < end:
        raise MalformedMessage(f"it has more than {MAX_FIELDS:,} fields")
    if at != end:
        raise MalformedMessage("a field ends outside its message")
    return result


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position and its end. Raises MalformedMessage and IndexError."""
    value = shift = 0
    for _ in range(_MAX_VARINT_BYTES):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > _UINT64:
                break
            return value, at
        shift += 7
    raise MalformedMessage("a number has more than 64 bits")


def encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(message: Sequence[Field], field: int, *, bits: int = 64) -> int | None:
    """The value of a numeric field; None if it is absent. Raises MalformedMessage.

    Lance drops the upper half of a number that is too large for a field of 32 bits; it is refused here.
    """
    occurrence = _once(message, field, VARINT)
    if occurrence is None:
        return None
    if occurrence[2] >> bits:
        raise MalformedMessage(f"field {field} has more than {bits} bits")
    return occurrence[2]


def text(data: bytes, message: Sequence[Field], field: int) -> str | None:
    """The value of a text field; None if it is absent. Raises MalformedMessage."""
    occurrence = _once(message, field, BYTES)
    if occurrence is None:
        return None
    try:
        return data[occurrence[2] : occurrence[3]].decode()
    except UnicodeDecodeError:
        raise MalformedMessage(f"field {field} is not UTF-8") from None


def content(data: bytes, message: Sequence[Field], field: int) -> bytes | None:
    """The bytes of a field; None if it is absent. Raises MalformedMessage."""
    occurrence = _once(message, field, BYTES)
    return None if occurrence is None else data[occurrence[2] : occurrence[3]]


def messages(data: bytes, message: Sequence[Field], field: int) -> Iterator[list[Field]]:
    """The messages of a repeated field, one after another. Raises MalformedMessage."""
    for field_number, wire, start, end in message:
        if field_number == field:
            if wire != BYTES:
                raise MalformedMessage(f"field {field} has wire type {wire}")
            yield fields(data, start, end)


def cached(function: Cached[T], data: bytes, *, has_room: bool = True) -> T:
    """The value of a cached function of a message. Large messages, without limit in files, are not cached."""
    if has_room and len(data) <= _CACHED_BYTES:
        return function(data)
    return function.__wrapped__(data)


def limited(values: Iterable[T], limit: int, title: str) -> Iterator[T]:
    """The values. Raises MalformedMessage if there are more than the limit."""
    for number, value in enumerate(values):
        if number == limit:
            raise MalformedMessage(f"it has more than {limit:,} {title}")
        yield value


def message(data: bytes, outer: Sequence[Field], field: int) -> list[Field] | None:
    """The message in a singular field; None if it is absent. Raises MalformedMessage."""
    occurrence = _once(outer, field, BYTES)
    return None if occurrence is None else fields(data, occurrence[2], occurrence[3])


def _once(message: Sequence[Field], field: int, wire: int) -> Field | None:
    occurrence = None
    for candidate in message:
        if candidate[0] == field:
            if occurrence is not None or candidate[1] != wire:
                raise MalformedMessage(f"field {field} occurs twice, or with another wire type")
            occurrence = candidate
    return occurrence
