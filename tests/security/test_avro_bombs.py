"""Avro files of an attacker that overload the server, or that readers interpret differently."""

import bz2
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import avro, manifests
from tests.catalog.formats.iceberg.scans.test_planning import SIMPLE
from tests.catalog.formats.iceberg.written import AnyIO, Written
from tests.security.foreign import local

OWN, FOREIGN = b"file:///own", b"file:///foreign"
BIG = 2**60
EMPTY: dict[str, dict[str, Any]] = {
    "record": {"type": "record", "name": "e", "fields": []},
    "fixed": {"type": "fixed", "name": "e", "size": 0},
    "null": {"type": "null"},
}
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "bzip2": bz2.compress,
    "zstandard": zstandard.ZstdCompressor().compress,
}


def number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def text(content: bytes) -> bytes:
    return number(len(content)) + content


def avro_file(schema: Any, *blocks: bytes, codec: str = "null") -> bytes:
    """A file with one record in each block."""
    header = text(b"avro.schema") + text(json.dumps(schema).encode())
    header += text(b"avro.codec") + text(codec.encode())
    sync = b"S" * 16
    content = b"Obj\x01" + number(2) + header + number(0) + sync
    for block in blocks:
        content += number(1) + text(block) + sync
    return content


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "manifest_file", "fields": list(fields)}


PATH = {"name": "manifest_path", "type": "string", "field-id": 500}


def other(kind: Any) -> dict[str, Any]:
    return {"name": "other", "type": kind, "field-id": 9}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "element-id": 10, "items": items}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", EMPTY)
def test_any_number_of_items_without_bytes(kind):
    items = EMPTY[kind] if kind != "null" else "null"
    content = avro_file(record(PATH, other(array(items))), text(OWN) + number(BIG) + number(0))
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(content, 10)


@pytest.mark.timeout(20)
def test_any_number_of_entries_without_bytes():
    key = {"name": "key", "field-id": 11, "type": EMPTY["fixed"]}
    value = {"name": "value", "field-id": 12, "type": EMPTY["fixed"] | {"name": "f"}}
    items = {"type": "record", "name": "entry", "fields": [key, value]}
    kind = {"type": "array", "logicalType": "map", "items": items}
    content = avro_file(record(PATH, other(kind)), text(OWN) + number(BIG) + number(0))
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(content, 10)


def test_a_block_of_items_with_a_wrong_size():
    """A reader that skips the items gets the table's own path; one that reads them gets the foreign
    path."""
    schema = record(other(array("int")), PATH, other("bytes") | {"name": "last", "field-id": 13})
    hidden = number(1) + number(0) + text(FOREIGN)
    tail = number(0) + text(OWN) + text(b"")
    size = len(hidden) + len(number(len(tail)))
    items = number(-1) + number(size) + hidden + number(len(tail)) + tail
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(avro_file(schema, items), 10)


def test_a_block_of_items_with_its_size():
    items = number(-2) + number(2) + number(1) + number(2) + number(0)
    content = avro_file(record(other(array("int")), PATH), items + text(OWN))
    assert manifests.paths_in_list(content, 10) == [(OWN.decode(), None)]


def test_two_fields_with_the_id_of_the_path():
    schema = record(PATH, PATH | {"name": "second"})
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(avro_file(schema, text(FOREIGN) + text(OWN)), 10)


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_expands(monkeypatch, codec):
    monkeypatch.setattr(avro, "_MAX_BLOCK", 1 << 20)
    monkeypatch.setattr(avro, "_BEGINNING", 1 << 19)
    block = text(OWN) + text(bytes(2 << 20))
    content = avro_file(record(PATH, other("bytes")), CODECS[codec](block), codec=codec)
    assert len(content) < 10_000
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(content, 10)


@pytest.mark.parametrize("codec", CODECS)
def test_many_blocks_that_expand(monkeypatch, codec):
    monkeypatch.setattr(avro, "_MAX_CONTENT", 1 << 20)
    block = CODECS[codec](text(OWN) + text(bytes(500_000)))
    schema = record(PATH, other("bytes"))
    two = avro_file(schema, block, block, codec=codec)
    assert manifests.paths_in_list(two, 10) == [(OWN.decode(), None)] * 2
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(avro_file(schema, block, block, block, codec=codec), 10)


@pytest.mark.parametrize("codec", ["snappy", "lzma"])
def test_a_codec_that_is_not_supported(codec):
    with pytest.raises(InvalidMetadata):
        manifests.paths_in_list(avro_file(record(PATH), text(OWN), codec=codec), 10)


def test_a_decimal_is_skipped_as_it_is_read():
    decimal = {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal"}
    decimal |= {"precision": 9, "scale": 2}
    content = avro_file(record(other(decimal), PATH), bytes([0, 0, 1, 7]) + text(OWN))
    assert manifests.paths_in_list(content, 10) == [(OWN.decode(), None)]


@pytest.mark.timeout(60)
def test_equal_entries_are_limited(tmp_path):
    """Half a megabyte of a manifest would stand for a million entries: a gigabyte, and a minute of a request."""
    made = Written(tmp_path, SIMPLE)
    made.commit([made.file([{"id": 1, "day": None, "name": None}], metrics=False)])
    path = local(made.manifests[0].manifest_path)
    content = path.read_bytes()
    decoder, _, sync = avro._begin(content)
    header = content[: decoder.tell()]
    decoder.read_int()
    entry = zlib.decompress(decoder.read(decoder.read_int()), wbits=-15)
    count = 1_000_000
    block = CODECS["deflate"](entry * count)
    path.write_bytes(header + number(count) + text(block) + sync)
    assert path.stat().st_size < 500_000
    with pytest.raises(InvalidMetadata, match="it is too large"):
        manifests.read(AnyIO(), made.manifests[0])
