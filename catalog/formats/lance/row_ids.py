"""Rows that the fragments of a Lance manifest state: their number, their stable ids, and the versions that wrote them.

Lance takes memory for each row of a range, and a request for more than the machine has ends the process. A range of any
size takes a few bytes in a manifest, so it may not have more rows than its fragment. The messages are those of
Lance's ``protos/rowids.proto``.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from catalog.formats.lance import wire
from catalog.formats.lance.wire import Field, MalformedMessage
from catalog.storage.outages import large_inputs

MAX_ROWS = 2**32
"""Lance numbers the rows of a fragment with 32 bits."""
_MAX_OVERLAPPING = 2**28
_OVERLAPPING_BYTES = 24
"""The memory that Lance takes for each row of ranges of ids that overlap, as updates make them."""

Span = tuple[int, int, int]
"""The lowest id, the end of the range and the number of the ids."""

# message DataFragment
_DELETION_FILE, _PHYSICAL_ROWS, _IDS, _EXTERNAL_IDS, _UPDATED_AT, _CREATED_AT = 3, 4, 5, 6, 7, 9
IDS = frozenset({_IDS, _EXTERNAL_IDS})
FACTS = IDS | {_DELETION_FILE, _PHYSICAL_ROWS, _UPDATED_AT, _CREATED_AT}
"""The fields of a fragment that ``read`` needs."""
# messages DeletionFile, RowIdSequence, RowDatasetVersionSequence, RowDatasetVersionRun
_DELETED_ROWS, _SEGMENTS, _RUNS, _RUN_SPAN = 4, 1, 1, 1
# messages U64Segment and its ranges, EncodedU64Array and its arrays
_RANGE, _WITH_HOLES, _WITH_BITMAP, _SORTED_ARRAY, _ARRAY = 1, 2, 3, 4, 5
_START, _END, _HOLES, _BASE, _OFFSETS = 1, 2, 3, 1, 2
_CODES = {1: "H", 2: "I", 3: "Q"}


def read(data: bytes, fragment: Sequence[Field]) -> tuple[Span, ...]:
    """Check the numbers of rows of a fragment, and return the ranges of its ids. Raises MalformedMessage."""
    rows = wire.number(fragment, _PHYSICAL_ROWS) or 0
    if rows > MAX_ROWS:
        raise MalformedMessage(f"a fragment states {rows} rows; {MAX_ROWS} are possible")
    deletion = wire.message(data, fragment, _DELETION_FILE) or []
    deleted_rows = wire.number(deletion, _DELETED_ROWS) or 0
    if rows and deleted_rows > rows:
        raise MalformedMessage(f"a fragment states {deleted_rows} deleted rows of {rows}")
    spans = tuple(_spans(data, wire.message(data, fragment, _IDS) or [], _SEGMENTS))
    _check_number("ids", spans, rows)
    for field in (_UPDATED_AT, _CREATED_AT):
        versions = wire.message(data, fragment, field) or []
        for run in wire.messages(data, versions, _RUNS):
            _check_number("versions", tuple(_spans(data, run, _RUN_SPAN)), rows)
    return spans


def _check_number(title: str, spans: Sequence[Span], rows: int) -> None:
    number = sum(length for _, _, length in spans)
    if number > (rows or MAX_ROWS):
        raise MalformedMessage(f"a fragment states {title} of {number} rows, and has {rows}")


def check_overlaps(spans: Sequence[Span]) -> None:
    """Count the memory for ids that occur in several ranges. Raises MalformedMessage if they are too many."""
    overlapping = 0
    if sum(length for _, _, length in spans) * _OVERLAPPING_BYTES > large_inputs.FREE_BYTES:
        overlapping = sum(_clusters(spans))
    if overlapping > _MAX_OVERLAPPING:
        raise MalformedMessage(
            f"its ranges of row ids overlap, and have {overlapping} ids; {_MAX_OVERLAPPING} are possible"
        )
    large_inputs.count(_OVERLAPPING_BYTES * overlapping)


def _clusters(spans: Iterable[Span]) -> Iterator[int]:
    """The number of ids of each group of ranges that overlap."""
    last, ids, members = 0, 0, 0
    for start, end, length in sorted(spans):
        if start >= last:
            if members > 1:
                yield ids
            ids = members = 0
        last, ids, members = max(last, end), ids + length, members + 1
    if members > 1:
        yield ids


def _spans(data: bytes, message: Sequence[Field], field: int) -> Iterator[Span]:
    for segment in wire.messages(data, message, field):
        if len(segment) != 1:
            raise MalformedMessage("a segment of row ids is not of a single kind")
        kind = segment[0][0]
        (content,) = wire.messages(data, segment, kind)
        if kind in {_SORTED_ARRAY, _ARRAY}:
            values = _values(data, content)
            yield (min(values), max(values) + 1, len(values)) if values else (0, 0, 0)
        elif kind in {_RANGE, _WITH_HOLES, _WITH_BITMAP}:
            yield _range(data, kind, content)
        else:
            raise MalformedMessage(f"a segment of row ids is of kind {kind}")


def _range(data: bytes, kind: int, content: Sequence[Field]) -> Span:
    start, end = wire.number(content, _START) or 0, wire.number(content, _END) or 0
    if end < start:
        raise MalformedMessage(f"a range of row ids ends at {end}, before its start {start}")
    length = end - start
    if kind == _WITH_BITMAP:
        bits = wire.content(data, content, _HOLES) or b""
        length = min(length, int.from_bytes(bits, "little").bit_count())
    elif kind == _WITH_HOLES:
        holes = len(_values(data, wire.message(data, content, _HOLES) or []))
        if holes > length:
            raise MalformedMessage(f"a range of {length} row ids has {holes} holes")
        length -= holes
    return start, end, length


def _values(data: bytes, encoded: Sequence[Field]) -> "array[int]":
    if not encoded:
        return array("Q")
    kind = encoded[0][0]
    if len(encoded) != 1 or kind not in _CODES:
        raise MalformedMessage("an array of row ids is not of a single kind")
    (content,) = wire.messages(data, encoded, kind)
    values = array(_CODES[kind])
    base = wire.number(content, _BASE) or 0
    try:
        values.frombytes(wire.content(data, content, _OFFSETS) or b"")
        return array("Q", (base + value for value in values)) if base else values
    except ValueError:
        raise MalformedMessage("an array of row ids ends within a value") from None
    except OverflowError:
        raise MalformedMessage("a row id has more than 64 bits") from None
