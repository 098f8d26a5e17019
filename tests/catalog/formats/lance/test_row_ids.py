"""Numbers of rows, and ranges of row ids, that fragments of a manifest state."""

import struct
from collections.abc import Sequence

import pytest

from catalog.formats.lance import row_ids, wire
from catalog.formats.lance.row_ids import Span
from catalog.formats.lance.wire import MalformedMessage
from catalog.storage.outages import large_inputs
from tests.security.lance_attacks import bytes_field, number_field


def read(fragment: bytes) -> Sequence[Span]:
    return row_ids.read(fragment, wire.fields(fragment, 0, len(fragment)))


def ids(*segments: bytes, rows: int = 10) -> bytes:
    return number_field(4, rows) + bytes_field(
        5, b"".join(bytes_field(1, segment) for segment in segments)
    )


def span(start: int, end: int) -> bytes:
    return number_field(1, start) + number_field(2, end)


def short(base: int, *values: int) -> bytes:
    """An EncodedU64Array of 16 bits."""
    offsets = struct.pack(f"<{len(values)}H", *values)
    return bytes_field(1, number_field(1, base) + bytes_field(2, offsets))


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        (bytes_field(1, span(5, 15)), (5, 15, 10)),
        (bytes_field(2, span(0, 12) + bytes_field(3, short(0, 3, 4))), (0, 12, 10)),
        (bytes_field(3, span(0, 16) + bytes_field(3, b"\x0f\x01")), (0, 16, 5)),
        (bytes_field(4, short(100, 1, 7)), (101, 108, 2)),
        (bytes_field(5, short(0, 7, 1)), (1, 8, 2)),
        (bytes_field(5, bytes_field(3, bytes_field(2, struct.pack("<Q", 2**63)))), (2**63, 2**63 + 1, 1)),
        (bytes_field(5, b""), (0, 0, 0)),
    ],
)  # fmt: skip
def test_segments(segment, expected):
    assert read(ids(segment)) == (expected,)


@pytest.mark.parametrize(
    ("fragment", "message"),
    [
        (ids(bytes_field(1, span(0, 11))), "ids of 11 rows, and has 10"),
        (ids(*[bytes_field(1, span(0, 6))] * 2), "ids of 12 rows, and has 10"),
        (ids(bytes_field(1, span(0, 2**33)), rows=0), f"ids of {2**33} rows, and has 0"),
        (
            ids(
                bytes_field(2, span(0, 2) + bytes_field(3, short(0, *[1] * 5))),
                bytes_field(1, span(0, 13)),
            ),
            "a range of 2 row ids has 5 holes",
        ),
        (ids(bytes_field(1, span(6, 5))), "ends at 5, before its start 6"),
        (ids(bytes_field(3, span(0, 2**40) + bytes_field(3, b"\xff" * 2))), "ids of 16 rows"),
        (ids(bytes_field(1, span(0, 1)) + bytes_field(4, b"")), "not of a single kind"),
        (ids(bytes_field(9, b"")), "is of kind 9"),
        (ids(bytes_field(5, bytes_field(1, bytes_field(2, b"abc")))), "ends within a value"),
        (ids(bytes_field(5, bytes_field(4, b""))), "not of a single kind"),
        (ids(bytes_field(5, short(2**64 - 1, 1))), "more than 64 bits"),
        (number_field(4, 2**32 + 1), "a fragment states 4294967297 rows"),
        (number_field(4, 3) + bytes_field(3, number_field(4, 4)), "4 deleted rows of 3"),
    ],
)
def test_impossible_numbers(fragment, message):
    with pytest.raises(MalformedMessage, match=message):
        read(fragment)


def test_overlapping_ids_count_as_memory(monkeypatch):
    counted: list[int] = []
    monkeypatch.setattr(large_inputs, "count", counted.append)
    million = 10**6
    apart = [(number * million, (number + 1) * million, million) for number in range(300)]
    row_ids.check_overlaps(apart)
    row_ids.check_overlaps([*apart, (5 * million, 7 * million, 9)])
    row_ids.check_overlaps([(0, 9, 9), (0, 9, 9)])
    assert counted == [0, 24 * (2 * million + 9), 0]
    with pytest.raises(MalformedMessage, match=f"have {300 * million + 1} ids"):
        row_ids.check_overlaps([*apart, (0, 300 * million, 1)])
