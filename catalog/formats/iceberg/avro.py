"""Avro files, read with PyIceberg's schemas and readers over a checked decoder.

PyIceberg's compiled decoder trusts its input: a torn or garbled manifest makes it read memory beyond
the file, or end the process. Its reader also accepts a torn file as a shorter one, and is replaced
where it may see other values than Iceberg's Java library (``avro_readers``).
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import IntegerReader, Reader, StringReader, StructReader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from catalog.formats.iceberg import avro_readers
from catalog.storage.outages import large_inputs

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_INT_BYTES = 10  # the longest encoding of a 64-bit number
_SNAPPY_SIZE_BYTES = 5
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_MAX_BLOCK = 256 * 1024 * 1024
_BEGINNING = 16 * 1024 * 1024
"""Of a block: what follows is expanded when the request has its turn (``large_inputs``)."""
# Of all blocks of a file, decompressed. Records of ``read`` are kept in memory, which takes more.
_MAX_CONTENT, _MAX_READ_CONTENT = 1024 * 1024 * 1024, 256 * 1024 * 1024
_MAX_RECORDS = 250_000  # of ``read``; manifests are written of 8 MB
_MAX_WRITTEN_SCHEMA = 1024 * 1024
# A writer uses one schema for all its files, and building a reader takes about 1 ms.
_MAX_READERS = 128
_MAX_SCHEMA_BYTES = 64 * 1024

Fields = tuple[int | tuple[int, tuple[int, ...]], ...]
"""Field ids; for a nested struct, its own id and the ids of its fields."""


class _Oversized(ValueError):
    strerror = "it is too large"


class _Decoder(BinaryDecoder):
    """A decoder that raises EOFError instead of reading past the end."""

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
            if byte < 0x80:  # the most frequent case
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
        self.skip_ints(1)

    def skip_ints(self, n: int) -> None:
        data, at = self._data, self._at
        try:
            for _ in range(n):
                start = at
                while data[at] >= 0x80:
                    at += 1
                at += 1
                if at - start > _INT_BYTES:
                    raise ValueError("a number is longer than 64 bits")
        except IndexError:
            raise EOFError from None
        self._at = at

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

    def read_utf8(self) -> str:
        return self.read(self.read_int()).decode()

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

    Equal records take almost no space in a file, so their number is limited. Raises EOFError, ValueError,
    and PyIceberg's errors, unless the content is a whole Avro file.
    """
    decoder, header, sync = _begin(content)
    reader = _reader(header["avro.schema"], schema, records, enums)
    records_read = _records(decoder, header, sync, reader, _MAX_READ_CONTENT)
    for number, record in enumerate(records_read):
        if number >= _MAX_RECORDS:
            raise _Oversized("the file has too many records")
        yield record


def read_fields(content: bytes, fields: Fields) -> Iterator[tuple[Any, ...]]:
    """A few fields of each record, in the order of ``fields``; the others are skipped.

    Takes a fifth of the time of ``read`` for records as long as those of manifests. Raises the same
    errors.
    """
    decoder, header, sync = _begin(content)
    written = header["avro.schema"]
    is_kept = len(written) <= _MAX_SCHEMA_BYTES
    make = _fields_reader if is_kept else _fields_reader.__wrapped__
    yield from _records(decoder, header, sync, make(written, fields), _MAX_CONTENT)


def _begin(content: bytes) -> tuple[_Decoder, dict[str, bytes], bytes]:
    decoder = _Decoder(content)
    if decoder.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("not an Avro file")
    header = _header(decoder)
    return decoder, header, decoder.read(_SYNC_BYTES)


def _records(
    decoder: _Decoder, header: dict[str, bytes], sync: bytes, reader: Any, remaining: int
) -> Iterator[Any]:
    """``remaining``: the largest content."""
    codec = header.get("avro.codec", b"null").decode()
    while not decoder.is_at_end:
        count, size = decoder.read_int(), decoder.read_int()
        block = _decompress(codec, decoder.read(size))
        remaining -= len(block)
        if remaining < 0:
            raise _Oversized("the file is too large")
        if decoder.read(_SYNC_BYTES) != sync:
            raise ValueError("a block has no end")
        yield from _block(block, count, reader)


_readers: dict[tuple[bytes, int], tuple[Schema, Reader]] = {}


def _reader(
    written: bytes,
    schema: Schema,
    records: dict[int, Callable[..., Any]],
    enums: dict[int, Callable[..., Enum]],
) -> Reader:
    """The cached reader of files with the written schema.

    The cache key omits ``records`` and ``enums``: they are the same in every call with ``schema``.
    """
    key = (written, id(schema))
    cached = _readers.get(key)
    if cached is not None and cached[0] is schema:
        return cached[1]
    reader: Reader = avro_readers.strict(
        resolve_reader(_written_schema(written), schema, records, enums)
    )
    if len(written) <= _MAX_SCHEMA_BYTES:
        if len(_readers) >= _MAX_READERS:
            _readers.clear()
        _readers[key] = (schema, reader)
    return reader


@lru_cache(maxsize=_MAX_READERS)
def _fields_reader(written: bytes, fields: Fields) -> "_FieldsReader":
    schema = _written_schema(written)
    return _FieldsReader(schema.fields, avro_readers.strict(construct_reader(schema)), fields)


def _written_schema(written: bytes) -> Schema:
    """The schema in the header of a file. Raises ValueError if two fields have the same id."""
    if len(written) > _MAX_WRITTEN_SCHEMA:
        raise ValueError("the schema is too large")
    schema: Schema = AvroSchemaConversion().avro_to_iceberg(orjson.loads(written))
    _check_ids(schema.as_struct())
    return schema


def _check_ids(kind: IcebergType) -> None:
    match kind:
        case StructType():
            if len({field.field_id for field in kind.fields}) < len(kind.fields):
                raise ValueError("two fields have the same id")
            for field in kind.fields:
                _check_ids(field.field_type)
        case ListType():
            _check_ids(kind.element_type)
        case MapType():
            _check_ids(kind.key_type)
            _check_ids(kind.value_type)


class _FieldsReader:
    """Reads some fields of a struct, including nested fields, into one flat tuple."""

    def __init__(self, written: Sequence[NestedField], reader: Reader, fields: Fields) -> None:
        if not isinstance(reader, StructReader):
            raise TypeError("a record is expected")
        self._width = 0
        positions: dict[int, int] = {}
        nested: dict[int, tuple[int, Fields]] = {}
        for field in fields:
            if isinstance(field, int):
                positions[field] = self._width
                self._width += 1
            else:
                nested[field[0]] = (self._width, field[1])
                self._width += len(field[1])
        self._steps: list[tuple[int, Callable[[Any], Any], int]] = []
        skipped = 0  # numbers before the field, which are skipped in one call
        for field_, (_, field_reader) in zip(written, reader.field_readers, strict=True):
            is_read = field_.field_id in positions or field_.field_id in nested
            if isinstance(field_reader, IntegerReader) and not is_read:
                skipped += 1
                continue
            self._skip_numbers(skipped)
            skipped = 0
            if field_.field_id in positions:
                self._steps.append((positions[field_.field_id], _step(field_reader), 1))
            elif field_.field_id in nested and isinstance(field_.field_type, StructType):
                position, inner = nested[field_.field_id]
                sub = _FieldsReader(field_.field_type.fields, field_reader, inner)
                self._steps.append((position, sub.read, len(inner)))
            else:
                self._steps.append((-1, field_reader.skip, 0))
        self._skip_numbers(skipped)

    def _skip_numbers(self, count: int) -> None:
        if count:
            self._steps.append((-1, lambda decoder: decoder.skip_ints(count), 0))

    def read(self, decoder: BinaryDecoder) -> tuple[Any, ...]:
        values: list[Any] = [None] * self._width
        for position, step, width in self._steps:
            if position < 0:
                step(decoder)
            elif width == 1:
                value = step(decoder)
                values[position] = value[0] if isinstance(value, tuple) else value
            else:
                values[position : position + width] = step(decoder)
        return tuple(values)


def _step(reader: Reader) -> Callable[[Any], Any]:
    """The function that reads a field; that of the decoder itself for the most frequent types."""
    if isinstance(reader, IntegerReader):
        return _Decoder.read_int
    return _Decoder.read_utf8 if isinstance(reader, StringReader) else reader.read


def _block(block: bytes, count: int, reader: Any) -> Iterator[Any]:
    if not 0 <= count <= len(block):
        raise EOFError
    decoder = _Decoder(block)
    for _ in range(count):
        yield reader.read(decoder)
    if not decoder.is_at_end:
        raise ValueError("a block holds more than its records")


def _header(decoder: _Decoder) -> dict[str, bytes]:
    entries: dict[str, bytes] = {}
    while count := decoder.read_int():
        if count < 0:
            count = -count
            decoder.skip_int()
        for _ in range(count):
            key = decoder.read_utf8()
            entries[key] = decoder.read_bytes()
    return entries


def _decompress(codec: str, data: bytes) -> bytes:
    """The content of a block. Its size is limited, because a small block may expand to a huge one."""
    match codec:
        case "null":
            return data
        case "deflate":
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)
            first = inflater.decompress(data, min(_BEGINNING, _MAX_BLOCK))
            content = _whole(first, lambda n: inflater.decompress(inflater.unconsumed_tail, n))
        case "snappy":
            return _snappy(data)
        case "bzip2" | "zstandard":
            name = {"bzip2": "bz2", "zstandard": "zstd"}[codec]
            with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
                content = _whole(stream.read(min(_BEGINNING, _MAX_BLOCK)), stream.read)
        case _:
            raise ValueError(f"the codec {codec[:40]!r} is not supported")
    if len(content) == _MAX_BLOCK:
        raise ValueError("a block is too large")
    return content


def _whole(beginning: bytes, read: Callable[[int], bytes]) -> bytes:
    """The content of a block: what follows a large beginning is expanded when it is this request's turn."""
    if len(beginning) < _BEGINNING:
        large_inputs.count(len(beginning))
        return beginning
    large_inputs.count(_MAX_BLOCK)
    remaining = _MAX_BLOCK - len(beginning)
    return beginning + read(remaining) if remaining > 0 else beginning


def _snappy(data: bytes) -> bytes:
    """Snappy begins with the size of its content; in Avro, a checksum of the content follows it."""
    size = 0
    for i, byte in enumerate(data[:_SNAPPY_SIZE_BYTES]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            break
    if size >= _MAX_BLOCK:
        raise ValueError("a block is too large")
    large_inputs.count(size)
    content: bytes = pa.Codec("snappy").decompress(data[:-4], size, asbytes=True)
    if zlib.crc32(content) != int.from_bytes(data[-4:], "big"):
        raise ValueError("a block has a wrong checksum")
    return content
