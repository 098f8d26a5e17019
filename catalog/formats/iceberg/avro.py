"""Avro files, read with PyIceberg's schemas and readers over bytes that are checked.

PyIceberg's own compiled decoder trusts what it reads: a torn or garbled manifest makes it read
memory beyond the file's, or end the process. And its reader takes a torn file for a shorter one.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import orjson
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_INT_BYTES = 10  # of the longest number of 64 bits
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_MAX_BLOCK = 256 * 1024 * 1024


class _Decoder(BinaryDecoder):
    """Never reads past the end: that is an EOFError."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def tell(self) -> int:
        return self._at

    def read(self, n: int) -> bytes:
        start, end = self._at, self._at + n
        if n < 0 or end > len(self._data):
            raise EOFError
        self._at = end
        return self._data[start:end]

    def skip(self, n: int) -> None:
        if n < 0 or self._at + n > len(self._data):
            raise EOFError
        self._at += n

    def read_int(self) -> int:
        data, at = self._data, self._at
        try:
            byte = data[at]
            at += 1
            if byte < 0x80:  # as most are
                self._at = at
                return (byte >> 1) ^ -(byte & 1)
            number, shift = byte & 0x7F, 7
            while byte >= 0x80:
                byte = data[at]
                at += 1
                number |= (byte & 0x7F) << shift
                shift += 7
        except IndexError:
            raise EOFError from None
        if at - self._at > _INT_BYTES:
            raise ValueError("a number is longer than 64 bits")
        self._at = at
        return (number >> 1) ^ -(number & 1)

    def skip_int(self) -> None:
        self.read_int()

    def read_ints(self, n: int) -> tuple[int, ...]:
        self._check_count(n)
        read = self.read_int
        return tuple([read() for _ in range(n)])

    def read_int_bytes_dict(self, n: int, dest: dict[int, bytes]) -> None:
        self._check_count(n)
        for _ in range(n):
            key = self.read_int()
            dest[key] = self.read(self.read_int())

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())

    def read_float(self) -> float:
        number: float = _FLOAT.unpack(self.read(4))[0]
        return number

    def read_double(self) -> float:
        number: float = _DOUBLE.unpack(self.read(8))[0]
        return number

    def _check_count(self, n: int) -> None:
        if n < 0 or n > len(self._data) - self._at:
            raise EOFError


def read(
    content: bytes,
    schema: Schema,
    *,
    records: dict[int, Callable[..., Any]],
    enums: dict[int, Callable[..., Enum]],
) -> Iterator[Any]:
    """The records of an Avro file, with the fields of ``schema``.

    Raises EOFError, ValueError, and what PyIceberg raises, for anything but a whole Avro file.
    """
    decoder = _Decoder(content)
    if decoder.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("not an Avro file")
    header = _header(decoder)
    sync = decoder.read(_SYNC_BYTES)
    written = AvroSchemaConversion().avro_to_iceberg(orjson.loads(header["avro.schema"]))
    reader: Reader = resolve_reader(written, schema, records, enums)
    decompress = _codec(header.get("avro.codec", b"null").decode())
    while not decoder.is_at_end:
        count, size = decoder.read_int(), decoder.read_int()
        block = decompress(decoder.read(size))
        if decoder.read(_SYNC_BYTES) != sync:
            raise ValueError("a block has no end")
        yield from _block(block, count, reader)


def _block(block: bytes, count: int, reader: Reader) -> Iterator[Any]:
    if not 0 <= count <= len(block):
        raise EOFError
    decoder = _Decoder(block)
    for _ in range(count):
        yield reader.read(decoder)
    if not decoder.is_at_end:
        raise ValueError("a block holds more than its records")


def _header(decoder: _Decoder) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while count := decoder.read_int():
        if count < 0:
            count = -count
            decoder.skip_int()
        for _ in range(count):
            key = decoder.read_utf8()
            found[key] = decoder.read_bytes()
    return found


def _codec(name: str) -> Callable[[bytes], bytes]:
    if name == "deflate":
        return _inflate
    codec = KNOWN_CODECS[name]  # type: ignore[index]
    return codec.decompress if codec is not None else lambda data: data


def _inflate(data: bytes) -> bytes:
    """What nearly all manifests need; a small block must not become a huge one."""
    found = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, _MAX_BLOCK)
    if len(found) == _MAX_BLOCK:
        raise ValueError("a block is too large")
    return found
