"""Valid Avro files, and hostile files, which are refused quickly and without much memory."""

import bz2
import json
import zlib
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import avro, manifests
from catalog.formats.iceberg.metadata import references
from catalog.formats.iceberg.metadata.references import Kind, Reference
from tests.cases import shared_cases

pytestmark = pytest.mark.timeout(30)
SYNC = b"S" * 16
ENDLESS = 1 << 40


def number(value: int) -> bytes:
    value, encoded = (value << 1) ^ (value >> 63), b""
    while value > 0x7F:
        encoded, value = encoded + bytes([value & 0x7F | 0x80]), value >> 7
    return encoded + bytes([value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def record(type_: Any, *, field_id: int = 500) -> bytes:
    field = {"name": "f", "type": type_, "field-id": field_id}
    return json.dumps({"type": "record", "name": "r", "fields": [field]}).encode()


def file(schema: bytes, block: bytes, *, count: int = 1, codec: bytes = b"null") -> bytes:
    header = number(2) + text(b"avro.schema") + text(schema) + text(b"avro.codec") + text(codec)
    return b"Obj\x01" + header + number(0) + SYNC + number(count) + text(block) + SYNC


def raw_deflate(content: bytes) -> bytes:
    return zlib.compress(content)[2:-4]


def snappy(content: bytes) -> bytes:
    compressed = pa.Codec("snappy").compress(content, asbytes=True)
    return compressed + zlib.crc32(content).to_bytes(4, "big")


CODECS = {
    b"null": bytes,
    b"deflate": raw_deflate,
    b"bzip2": bz2.compress,
    b"snappy": snappy,
    b"zstandard": zstandard.compress,
}
STRING = record("string")


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "element-id": 501}


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_of_every_codec_are_read(codec):
    paths = [f"file:///t/{i}.avro" for i in range(100)]
    block = b"".join(text(path.encode()) for path in paths)
    content = file(STRING, CODECS[codec](block), count=100, codec=codec)
    assert list(avro.read_fields(content, (500,))) == [(path,) for path in paths]


@pytest.mark.parametrize(
    ("type_", "items", "expected"),
    [
        (array("long"), number(3) + number(400), [3, 400]),
        (
            {"type": "map", "values": "long", "key-id": 501, "value-id": 502},
            text(b"a") + number(3) + text(b"b") + number(400),
            {"a": 3, "b": 400},
        ),
    ],
    ids=["array", "map"],
)
def test_blocks_of_items_have_the_size_that_they_state(type_, items, expected):
    """A reader that jumps over the items would see another rest of the record."""
    ((value,),) = avro.read_fields(_with_size(type_, items, len(items)), (500,))
    assert value == expected
    for size in (len(items) - 1, len(items) + 1):
        content = _with_size(type_, items, size)
        with pytest.raises(
            ValueError, match=r"^a block of an array or map has another size than it states$"
        ):
            list(avro.read_fields(content, (500,)))


def _with_size(type_: Any, items: bytes, size: int) -> bytes:
    """A file with two items in a block that states this size."""
    return file(record(type_), number(-2) + number(size) + items + number(0))


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != b"null"])
def test_a_block_that_expands_beyond_the_limit_is_refused(codec, monkeypatch):
    monkeypatch.setattr(avro, "_MAX_BLOCK", 1 << 20)
    block = text(bytes((1 << 20) - 10))
    fits = file(STRING, CODECS[codec](block), codec=codec)
    assert len(list(avro.read_fields(fits, (500,)))) == 1
    bomb = file(STRING, CODECS[codec](bytes(64 << 20)), codec=codec)
    assert len(bomb) < 4 << 20
    with pytest.raises(ValueError, match=r"^a block is too large$"):
        list(avro.read_fields(bomb, (500,)))


def test_a_snappy_block_with_a_wrong_checksum_is_refused():
    block = bytearray(snappy(text(b"file:///t/1.avro")))
    block[-1] ^= 1
    with pytest.raises(ValueError, match=r"^a block has a wrong checksum$"):
        list(avro.read_fields(file(STRING, bytes(block), codec=b"snappy"), (500,)))


HOSTILE = {
    "records without bytes": file(
        b'{"type": "record", "name": "r", "fields": []}', b"", count=ENDLESS
    ),
    "a list of nulls": file(record(array("null")), number(ENDLESS) + number(0)),
    "a list of empty records": file(
        record(array({"type": "record", "name": "e", "fields": []})), number(ENDLESS) + number(0)
    ),
    "a list of fixed values without bytes": file(
        record(array({"type": "fixed", "name": "e", "size": 0})), number(ENDLESS) + number(0)
    ),
    "a list in a list": file(record(array(array("null"))), number(1) + number(ENDLESS) + number(0)),
    "a list with more items than bytes": file(record(array("long")), number(ENDLESS) + number(1)),
    "text longer than the file": file(STRING, number(ENDLESS)),
    "text of a negative length": file(STRING, number(-5)),
    "a number longer than 64 bits": file(STRING, b"\xff" * 100_000 + b"\0"),
    "bytes after the last record": file(STRING, text(b"x") + b"more"),
    "no end of the block": file(STRING, text(b"x"))[:-16] + b"X" * 16,
    "an unknown codec": file(STRING, text(b"x"), codec=b"lzma"),
    "a schema that contains itself": file(record(["null", "r"]), number(1) * 100_000 + number(0)),
    "a schema nested too deeply": file(
        b'{"type": "array", "items": ' * 100_000 + b'"long"' + b"}" * 100_000, b"\0"
    ),
    "no schema": file(b"", b"\0"),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused(content):
    with pytest.raises(InvalidMetadata, match="torn, or none at all"):
        manifests.paths_in_list(content, 10)
    with pytest.raises(InvalidMetadata, match="torn, or none at all"):
        list(manifests.paths_in_manifest(content))


NO_BYTES = "the items of an array or map take no bytes"
TWICE = {"name": "g", "type": "long", "field-id": 500}
REASONS = {
    "a list of nulls": NO_BYTES,
    "a list of empty records": NO_BYTES,
    "a list of fixed values without bytes": NO_BYTES,
    "a list in a list": NO_BYTES,
    "a number longer than 64 bits": "a number is longer than 64 bits",
    "bytes after the last record": "a block holds more than its records",
    "no end of the block": "a block has no end",
    "an unknown codec": "the codec 'lzma' is not supported",
    "a schema nested too deeply": "the schema is too large",
}


@shared_cases(
    ("content", "reason"),
    [
        *((HOSTILE[name], reason) for name, reason in REASONS.items()),
        (b"no Avro file", "not an Avro file"),
        (
            file(
                json.dumps(
                    {"type": "record", "name": "r", "fields": [TWICE, {**TWICE, "name": "f"}]}
                ).encode(),
                b"\0",
            ),
            "two fields have the same id",
        ),
    ],
)
def test_the_reasons_for_which_a_file_is_refused(content, reason):
    with pytest.raises((ValueError, TypeError)) as error:
        list(avro.read_fields(content, (500,)))
    assert str(error.value) == reason


def test_nested_fields_are_read_from_records_only():
    nested = {
        "type": "record",
        "name": "x",
        "fields": [{"name": "y", "type": "long", "field-id": 501}],
    }
    fields = (500, (501,))
    assert list(avro.read_fields(file(record(nested), number(7)), (fields,))) == [(7,)]
    with pytest.raises(TypeError) as error:
        list(avro.read_fields(file(record(["null", nested]), number(0)), (fields,)))
    assert str(error.value) == "a record is expected"


def test_files_as_large_as_the_limits_are_read(monkeypatch):
    content = file(STRING, (text(b"abc") * 2), count=2)
    monkeypatch.setattr(avro, "_MAX_CONTENT", 8)
    assert list(avro.read_fields(content, (500,))) == [("abc",), ("abc",)]
    monkeypatch.setattr(avro, "_MAX_CONTENT", 7)
    with pytest.raises(ValueError, match=r"^the file is too large$"):
        list(avro.read_fields(content, (500,)))
    schema = Schema(NestedField(500, "f", StringType(), required=True))

    def read() -> int:
        return len(list(avro.read(content, schema, records={}, enums={})))

    monkeypatch.setattr(avro, "_MAX_RECORDS", 2)
    assert read() == 2
    monkeypatch.setattr(avro, "_MAX_RECORDS", 1)
    with pytest.raises(ValueError, match=r"^the file has too many records$"):
        read()


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_removal_reports_hostile_files_as_malformed(content):
    document = {"snapshots": [{"manifest-list": "list"}]}
    assert list(references.referenced(document, lambda location: content)) == [
        Reference(Kind.MANIFEST_LIST, "list", is_malformed=True)
    ]


def test_every_truncated_file_is_refused():
    content = file(STRING, text(b"a") + text(b"b"), count=2)
    header = len(content) - len(number(2) + text(text(b"a") + text(b"b")) + SYNC)
    assert manifests.paths_in_list(content[:header], 10) == []  # a whole file without records
    for end in set(range(len(content))) - {header}:
        with pytest.raises(InvalidMetadata):
            manifests.paths_in_list(content[:end], 10)


@pytest.mark.parametrize("codec", [b"deflate", b"bzip2", b"zstandard", b"snappy", b"none-such"])
def test_a_block_that_cannot_be_decompressed_is_refused(codec):
    content = file(STRING, b"garbage", codec=codec)
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
