"""Avro files of attackers: blocks of every codec are limited, and torn ones are no surprise."""

import bz2
import json
import zlib
from collections.abc import Callable

import pytest
import zstandard

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import avro, manifests

SCHEMA = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "length", "type": "long", "field-id": 501},
        {"name": "spec", "type": "int", "field-id": 502},
        {"name": "path", "type": "string", "field-id": 500},
        {"name": "sequence", "type": "long", "field-id": 515},
        {"name": "note", "type": ["null", "string"], "field-id": 9000},
        {"name": "added", "type": ["null", "long"], "field-id": 503},
        {"name": "rows", "type": "long", "field-id": 512},
    ],
}


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": raw_deflate,
    "bzip2": bz2.compress,
    "zstandard": lambda data: zstandard.ZstdCompressor().compress(data),
}
ROWS = [
    (2**40, -1, "a", -(2**63), "n", 7),
    (0, 0, "b\u00e9", 2**63 - 1, None, None),
]


def manifest_list(codec: str, compress: Callable[[bytes], bytes] | None = None) -> bytes:
    """A manifest list of two manifests in one block."""
    entries = {"avro.schema": json.dumps(SCHEMA), "avro.codec": codec}
    header = b"".join(text(name) + text(value) for name, value in entries.items())
    sync = b"s" * 16
    block = (compress or CODECS[codec])(b"".join(map(encode, ROWS)))
    return (
        b"Obj\x01" + number(len(entries)) + header + number(0) + sync
        + number(len(ROWS)) + number(len(block)) + block + sync
    )  # fmt: skip


def encode(row: tuple[int, int, str, int, str | None, int | None]) -> bytes:
    length, spec, path, sequence, note, added = row
    return b"".join(
        [
            number(length),
            number(spec),
            text(path),
            number(sequence),
            number(0) if note is None else number(1) + text(note),
            number(0) if added is None else number(1) + number(added),
            number(300),
        ]
    )


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """A number as Avro writes it: zigzag, seven bits in a byte."""
    rest = (value << 1) ^ (value >> 63)
    encoded = b""
    while rest >= 0x80:
        encoded += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return encoded + bytes([rest])


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_of_every_codec_are_read(codec):
    paths = manifests.paths_in_list(manifest_list(codec), 10)
    assert paths == [("a", 7), ("b\u00e9", None)]


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "zstandard"])
def test_a_block_that_expands_too_far_is_refused(codec, monkeypatch):
    content = manifest_list(codec)
    monkeypatch.setattr(avro, "_MAX_BLOCK", 20)
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(content, 10)


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "zstandard", "snappy", "none-such"])
def test_a_block_that_cannot_be_decompressed_is_refused(codec):
    content = manifest_list(codec, lambda data: b"garbage")
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(content, 10)


@pytest.mark.parametrize("count", [0, 10])
def test_a_skipped_number_of_more_than_64_bits_is_refused(count):
    decoder = avro._Decoder(b"\x80" * count + b"\x00" + b"\x80" * 10 + b"\x00")
    if count == 0:
        decoder.skip_ints(1)
    with pytest.raises(ValueError, match="longer than 64 bits"):
        decoder.skip_ints(1)


def test_skipping_stops_at_the_end():
    decoder = avro._Decoder(b"\x01\x80")
    decoder.skip_ints(1)
    with pytest.raises(EOFError):
        decoder.skip_int()
