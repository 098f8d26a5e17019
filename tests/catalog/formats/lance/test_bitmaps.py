"""The numbers of values of Roaring bitmaps, read without expanding them."""

import random

import pytest
from pyroaring import BitMap

from catalog.formats.lance import bitmaps, wire
from catalog.formats.lance.wire import MalformedMessage
from tests.security.lance_attacks import bytes_field


def whole() -> bytes:
    bitmap = BitMap()
    bitmap.add_range(0, 2**32)
    bitmap.run_optimize()
    return bitmap.serialize()


@pytest.mark.parametrize("seed", range(20))
def test_cardinality(seed):
    random_ = random.Random(seed)
    bitmap = BitMap(random_.sample(range(2**22), random_.randrange(20_000)))
    for _ in range(random_.randrange(4)):
        start = random_.randrange(2**20)
        bitmap.add_range(start, start + random_.randrange(200_000))
    if seed % 2:
        bitmap.run_optimize()
    data = bitmap.serialize()
    assert bitmaps.cardinality(data) == len(bitmap)
    for end in (0, 3, 7, len(data) // 2, len(data) - 1):
        with pytest.raises(MalformedMessage):
            bitmaps.cardinality(data[:end])


def test_an_index_of_more_fragments_than_possible():
    index = bytes_field(5, whole())
    with pytest.raises(MalformedMessage, match=f"states {2**32} fragments"):
        bitmaps.check_index(index, wire.fields(index, 0, len(index)))
    bitmaps.check_index(b"", [])
