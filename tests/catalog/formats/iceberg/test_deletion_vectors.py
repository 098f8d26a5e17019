"""Deletion vectors: what a bitmap of any kind of container means, and what is refused."""

import numpy as np
import pytest
from pyroaring import BitMap, BitMap64

from catalog.formats.iceberg.deletion_vectors import TooManyPositions, positions

MAGIC = bytes.fromhex("d1d33964")


def blob(bitmap: bytes) -> bytes:
    """A blob of type deletion-vector-v1; its checksum is not read."""
    content = MAGIC + bitmap
    return len(content).to_bytes(4, "big") + content + bytes(4)


def keyed(key: int, bitmap: bytes) -> bytes:
    return blob((1).to_bytes(8, "little") + key.to_bytes(4, "little") + bitmap)


def read(content: bytes, rows: int = 2**60, limit: int = 10**6) -> list[int]:
    return positions(content, rows=rows, limit=limit).tolist()


@pytest.mark.parametrize("is_optimized", [False, True])
def test_every_kind_of_container_is_read(is_optimized):
    random = np.random.default_rng(1)
    values = {
        0, 7, 65_535, 65_536, 2**32 - 1, 2**32, 2**33 + 5,
        *range(200_000, 280_000),  # runs
        *random.integers(400_000, 450_000, 30_000).tolist(),  # a bitset
    }  # fmt: skip
    bitmap = BitMap64(values)
    if is_optimized:
        bitmap.run_optimize()
    assert read(blob(bitmap.serialize())) == sorted(values)
    assert read(blob(bitmap.serialize()), rows=250_000) == sorted(v for v in values if v < 250_000)
    assert read(blob(BitMap64().serialize())) == []


def test_runs_are_read_in_more_than_eight_containers():
    values = {
        key * 65_536 + value
        for key in range(20)
        # Containers 0, 8, 9 and 19 have runs; the others have arrays.
        for value in (range(100, 900) if key in {0, 8, 9, 19} else (1, 5, 70))
    }
    bitmap = BitMap64(values)
    bitmap.run_optimize()
    assert read(blob(bitmap.serialize())) == sorted(values)


def test_a_small_vector_of_many_positions_is_refused():
    bitmap = BitMap()
    bitmap.add_range(0, 2**32)
    bitmap.run_optimize()
    content = keyed(0, bitmap.serialize())
    assert len(content) < 10**6
    with pytest.raises(TooManyPositions) as error:
        read(content)
    assert str(error.value) == "The deletion vector has more than 1,000,000 positions"
    assert len(read(content, rows=1000)) == 1000
    assert read(keyed(0, BitMap([3, 5]).serialize()), limit=2) == [3, 5]
    with pytest.raises(TooManyPositions):
        read(keyed(0, BitMap([3, 5]).serialize()), limit=1)


def test_distant_keys_take_no_memory():
    assert read(keyed(2**31 - 1, BitMap([5]).serialize())) == []
    assert read(keyed(2**20, BitMap([5]).serialize())) == [(2**20 << 32) + 5]


# A container with the runs 0 to 65,535 and 0 to 0: more positions than it may have.
TWO_RUNS = bytes.fromhex("3b300000 01 0000ffff 0200 0000ffff 00000000")


def test_malformed_vectors_are_refused():
    runs = BitMap(range(1000))
    runs.run_optimize()
    overlapping = bytearray(runs.serialize())
    overlapping[-4:] = b"\x01\x00\xff\xff"
    malformed, early = "is malformed", "ends early"
    for content, reason in (
        (b"", malformed),
        (bytes(8), malformed),
        (blob(b""), early),
        (blob(b"\xff" * 20), "has an unknown bitmap"),
        (blob((2**63).to_bytes(8, "little")), early),
        (keyed(0, b""), early),
        (keyed(0, b"\x3a\x30\x00\x00\xff\xff\xff\xff"), early),
        (keyed(0, BitMap(range(5)).serialize()[:-1]), early),
        (blob(BitMap64([1]).serialize())[:-1], malformed),
        (blob(BitMap64([1]).serialize()) + b"\0", malformed),
        (keyed(0, TWO_RUNS), "has runs that overlap"),
    ):
        with pytest.raises(ValueError, match=f"^The deletion vector {reason}$"):
            read(content)
    # Positions beyond a container are those of the next one, and no more than a container has.
    assert len(read(keyed(0, bytes(overlapping)))) <= 65_536
