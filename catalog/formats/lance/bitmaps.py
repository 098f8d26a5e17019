"""Roaring bitmaps in Lance manifests: the fragments of an index.

A bitmap of some kilobytes may stand for billions of numbers, and Lance takes memory and time for each of them.
The format is that of RoaringFormatSpec.
"""

import struct
from collections.abc import Sequence
from struct import unpack_from

from catalog.formats.lance import wire
from catalog.formats.lance.wire import Field, MalformedMessage

_FRAGMENTS = 5
"""The bitmap of a message IndexMetadata."""
_MAX_FRAGMENTS = 2_000_000
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_LARGEST_ARRAY, _BITSET_BYTES = 4096, 8192
_WITHOUT_OFFSETS = 4
"""Bitmaps with runs and fewer containers have no offsets."""


def check_index(data: bytes, index: Sequence[Field]) -> None:
    """Check the number of fragments of an index. Raises MalformedMessage."""
    bitmap = wire.content(data, index, _FRAGMENTS)
    if bitmap and (number := cardinality(bitmap)) > _MAX_FRAGMENTS:
        raise MalformedMessage(f"an index states {number} fragments; {_MAX_FRAGMENTS} are possible")


def cardinality(bitmap: bytes) -> int:
    """The number of values of a bitmap, or more, without expanding it. Raises MalformedMessage."""
    try:
        return _cardinality(bitmap)
    except struct.error:
        raise MalformedMessage("a bitmap ends early") from None


def _cardinality(bitmap: bytes) -> int:
    (cookie,) = unpack_from("<I", bitmap)
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    if has_runs:
        count = (cookie >> 16) + 1
        flags, at = bitmap[4:], 4 + (count + 7) // 8
    elif cookie == _COOKIE:
        (count,) = unpack_from("<I", bitmap, 4)
        flags, at = b"", 8
    else:
        raise MalformedMessage("a bitmap has an unknown format")
    if count > 2**16:
        raise MalformedMessage(f"a bitmap has {count} containers")
    header = unpack_from(f"<{2 * count}H", bitmap, at)
    at += 4 * count
    if not has_runs or count >= _WITHOUT_OFFSETS:
        at += 4 * count
    total = 0
    for number in range(count):
        if has_runs and flags[number // 8] >> number % 8 & 1:
            (runs,) = unpack_from("<H", bitmap, at)
            lengths = unpack_from(f"<{2 * runs}H", bitmap, at + 2)[1::2]
            total += sum(lengths) + runs
            at += 2 + 4 * runs
        else:
            size = header[2 * number + 1] + 1
            total += size
            at += 2 * size if size <= _LARGEST_ARRAY else _BITSET_BYTES
    if at > len(bitmap):
        raise MalformedMessage("a bitmap ends early")
    return total
