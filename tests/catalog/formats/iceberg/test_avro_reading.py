"""Avro files written by PyIceberg, and truncated or forged files."""

import struct
import zlib
from pathlib import Path

import pytest
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile

from catalog.formats.iceberg import avro
from catalog.formats.iceberg.avro import _Decoder
from tests.catalog.formats.iceberg.written import POSITION, Written

SCHEMA = {"fields": [{"id": 1, "name": "id", "required": True, "type": "long"}]}
STATUS, SNAPSHOT, DATA_FILE, PATH, RECORDS, SIZE, BOUNDS = 0, 1, 2, 100, 103, 104, 125
TORN = (EOFError, ValueError, zlib.error)


@pytest.fixture
def table(tmp_path):
    table = Written(tmp_path / "t", SCHEMA)
    table.commit([table.file([{"id": n}] * (n + 1)) for n in range(3)])
    return table


def manifest(table, number=0):
    path = table.manifests[number].manifest_path
    return Path(path.removeprefix("file://")).read_bytes()


def manifest_list(table):
    path = table.document["snapshots"][-1]["manifest-list"]
    return Path(path.removeprefix("file://")).read_bytes()


def paths(table):
    return [f"file://{table.directory}/data/{n:05}.parquet" for n in (1, 2, 3)]


def test_selected_fields_are_read(table):
    content = manifest(table)
    rows = list(avro.read_fields(content, (STATUS, (DATA_FILE, (PATH, RECORDS)), SNAPSHOT)))
    assert rows == [(1, path, n + 1, None) for n, path in enumerate(paths(table))]
    rows = list(avro.read_fields(content, ((DATA_FILE, (SIZE,)), STATUS)))
    assert rows == [(1001 + n, 1) for n in range(3)]
    assert list(avro.read_fields(content, ((DATA_FILE, (PATH,)),))) == [
        (path,) for path in paths(table)
    ]


def test_fields_that_were_not_written_are_none(table):
    rows = avro.read_fields(manifest(table), (9999, STATUS, (8888, (1, 2)), (DATA_FILE, (9999,))))
    assert list(rows) == [(None, 1, None, None, None)] * 3


def test_maps_of_bytes_are_read(table):
    rows = avro.read_fields(manifest(table), ((DATA_FILE, (BOUNDS,)),))
    assert [bounds for (bounds,) in rows] == [{1: struct.pack("<q", n)} for n in range(3)]


def test_complete_records_are_read(table):
    table.commit([table.file([{"id": 1}], content=POSITION)])
    schema = MANIFEST_LIST_FILE_SCHEMAS[2]
    for _ in range(2):  # the second time with the same reader
        records = list(
            avro.read(manifest_list(table), schema, records={-1: ManifestFile}, enums={})
        )
        assert [record.manifest_path for record in records] == [
            written.manifest_path for written in table.manifests
        ]


def test_every_truncated_file_is_refused(table):
    content = manifest(table)
    whole = list(avro.read_fields(content, (STATUS,)))
    header_ends = content.index(b"avro.schema")
    for length in (*range(len(avro._MAGIC)), header_ends, *range(len(content) - 60, len(content))):
        with pytest.raises(TORN):
            list(avro.read_fields(content[:length], (STATUS,)))
    assert len(whole) == 3


def test_a_file_without_its_sync_markers_is_refused(table):
    content = manifest(table)
    with pytest.raises(ValueError, match=r"^not an Avro file$"):
        list(avro.read_fields(b"Obj\x02" + content[4:], (STATUS,)))
    with pytest.raises(ValueError, match=r"^a block has no end$"):
        list(avro.read_fields(content[:-1] + bytes([content[-1] ^ 1]), (STATUS,)))
    with pytest.raises(EOFError):
        list(avro.read_fields(content + b"\x02", (STATUS,)))


class OneByte:
    def read(self, decoder):
        return decoder.read(1)


def test_a_block_with_another_number_of_records_is_refused():
    assert list(avro._block(b"ab", 2, OneByte())) == [b"a", b"b"]
    assert list(avro._block(b"", 0, OneByte())) == []
    with pytest.raises(ValueError, match=r"^a block holds more than its records$"):
        list(avro._block(b"ab", 1, OneByte()))
    for count in (3, -1):
        with pytest.raises(EOFError):
            list(avro._block(b"ab", count, OneByte()))


def test_blocks_are_inflated_up_to_a_limit(monkeypatch):
    packed = zlib.compress(b"x" * 100, wbits=-zlib.MAX_WBITS)
    assert avro._decompress("deflate", packed) == b"x" * 100
    assert avro._decompress("null", b"x") == b"x"
    monkeypatch.setattr(avro, "_MAX_BLOCK", 101)
    assert avro._decompress("deflate", packed) == b"x" * 100
    monkeypatch.setattr(avro, "_MAX_BLOCK", 100)
    with pytest.raises(ValueError, match=r"^a block is too large$"):
        avro._decompress("deflate", packed)
    with pytest.raises(ValueError, match=r"^the codec 'other' is not supported$"):
        avro._decompress("other", packed)


# -- the decoder


def encoded(number):
    """A number in Avro's encoding: zigzag, then seven bits per byte, lowest first."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize(
    "number", [0, -1, 1, 63, -64, 64, -65, 8191, -8192, 8192, 2**31, -(2**31), 2**63 - 1, -(2**63)]
)
def test_numbers_are_read(number):
    decoder = _Decoder(encoded(number) + b"\x05")
    assert decoder.read_int() == number
    assert decoder.tell() == len(encoded(number))
    assert not decoder.is_at_end
    decoder = _Decoder(encoded(number))
    decoder.skip_int()
    assert decoder.is_at_end
    with pytest.raises(EOFError):
        _Decoder(encoded(number)[:-1]).read_int()


def test_a_number_has_at_most_ten_bytes():
    assert _Decoder(b"\x80" * 9 + b"\x01").read_int() == 1 << 62
    with pytest.raises(ValueError, match=r"^a number is longer than 64 bits$"):
        _Decoder(b"\x80" * 10 + b"\x01").read_int()


def test_bytes_are_read_and_skipped():
    decoder = _Decoder(b"abcdef")
    assert (decoder.read(2), decoder.tell()) == (b"ab", 2)
    decoder.skip(3)
    assert (decoder.read(1), decoder.is_at_end) == (b"f", True)
    assert decoder.read(0) == b""
    decoder.skip(0)
    for step in (decoder.read, decoder.skip):
        for count in (1, -1):
            with pytest.raises(EOFError):
                step(count)
    assert decoder.tell() == 6
    assert _Decoder(encoded(2) + b"abc").read_bytes() == b"ab"
    with pytest.raises(EOFError):
        _Decoder(encoded(-1) + b"abc").read_bytes()


def test_several_numbers_and_maps_are_read():
    decoder = _Decoder(encoded(300) + encoded(-2) + b"x")
    assert decoder.read_ints(2) == (300, -2)
    assert _Decoder(b"").read_ints(0) == ()
    entries = {}
    _Decoder(encoded(7) + encoded(2) + b"ab" + encoded(9) + encoded(0)).read_int_bytes_dict(
        2, entries
    )
    assert entries == {7: b"ab", 9: b""}
    for count in (3, -1):
        with pytest.raises(EOFError):
            _Decoder(b"\x02\x04").read_ints(count)
        with pytest.raises(EOFError):
            _Decoder(b"\x02\x00").read_int_bytes_dict(count, {})


def test_floating_point_numbers_are_read():
    decoder = _Decoder(struct.pack("<fd", 1.5, -2.25) + b"x")
    assert decoder.read_float() == 1.5
    assert decoder.read_double() == -2.25
    assert decoder.tell() == 12
