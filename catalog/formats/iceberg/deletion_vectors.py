"""Deletion vectors: the positions of deleted rows of a data file, as a Roaring bitmap in a Puffin file.

Read here because a bitmap of a few bytes may stand for billions of positions, and libraries expand it
without a limit, or trust the numbers in it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

_MAGIC = bytes.fromhex("d1d33964")
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_CONTAINER = 1 << 16
_LARGEST_ARRAY = 4096
_BITSET_BYTES = 8192
_WITHOUT_OFFSETS = 4
"""Bitmaps with runs and fewer containers have no offsets."""


class TooManyPositions(ValueError):
    """A deletion vector has more positions than allowed."""


def positions(blob: bytes, *, rows: int, limit: int) -> Any:
    """The positions below ``rows`` in a blob of type ``deletion-vector-v1``, as an array of NumPy.

    Raises TooManyPositions for more than ``limit``, and ValueError for a malformed blob.
    """
    length = int.from_bytes(blob[:4], "big")
    if len(blob) != length + 8 or blob[4:8] != _MAGIC:
        raise ValueError("The deletion vector is malformed")
    cursor = _Cursor(memoryview(blob)[8 : 4 + length])
    parts: list[Any] = [np.zeros(0, np.int64)]
    total = 0
    for _ in range(cursor.number(8)):
        high = cursor.number(4) << 32
        for base, values in _containers(cursor, high, rows):
            total += len(values)
            if total > limit:
                raise TooManyPositions(f"The deletion vector has more than {limit:,} positions")
            parts.append(values.astype(np.int64) + base)
    every = np.concatenate(parts)
    return every[every < rows]


class _Cursor:
    def __init__(self, content: memoryview) -> None:
        self._content, self._position = content, 0

    def take(self, size: int) -> memoryview:
        start, self._position = self._position, self._position + size
        if self._position > len(self._content):
            raise ValueError("The deletion vector ends early")
        return self._content[start : self._position]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def numbers(self, count: int) -> Any:
        return np.frombuffer(self.take(2 * count), "<u2")


def _containers(cursor: _Cursor, high: int, rows: int) -> Iterator[tuple[int, Any]]:
    """The first position of each container below ``rows``, and its values relative to that."""
    cookie = cursor.number(4)
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    if not has_runs and cookie != _COOKIE:
        raise ValueError("The deletion vector has an unknown bitmap")
    count = (cookie >> 16) + 1 if has_runs else cursor.number(4)
    flags = bytes(cursor.take((count + 7) // 8)) if has_runs else b""
    header = cursor.numbers(2 * count).tolist()
    if not has_runs or count >= _WITHOUT_OFFSETS:
        cursor.take(4 * count)
    for index in range(count):
        key, cardinality = header[2 * index], header[2 * index + 1] + 1
        is_run = has_runs and flags[index // 8] >> index % 8 & 1
        base = high + key * _CONTAINER
        if is_run:
            runs = cursor.numbers(2 * cursor.number(2)).astype(np.int64)
            values = _expand(runs[::2], runs[1::2] + 1)
        elif cardinality <= _LARGEST_ARRAY:
            values = cursor.numbers(cardinality)
        else:
            bits = np.frombuffer(cursor.take(_BITSET_BYTES), np.uint8)
            values = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if base < rows:
            yield base, values


def _expand(starts: Any, lengths: Any) -> Any:
    """The values of runs in increasing order, of which a container has at most 65,536."""
    if lengths.sum() > _CONTAINER:
        raise ValueError("The deletion vector has runs that overlap")
    before = np.repeat(starts - np.concatenate([[0], lengths.cumsum()[:-1]]), lengths)
    return before + np.arange(len(before))
