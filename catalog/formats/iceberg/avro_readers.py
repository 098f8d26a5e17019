"""Readers of Avro values that agree with those of other libraries.

An array or a map is written in blocks, which may state their size in bytes. A reader that needs the items
ignores the size, a reader that does not need them jumps over it. If the size is wrong, the two see
different values in the rest of the record: different paths of files, for example. So sizes are compared
with what the items take. PyIceberg also skips a decimal in another way than it reads it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import (
    DecimalReader,
    DefaultReader,
    FixedReader,
    ListReader,
    MapReader,
    NoneReader,
    OptionReader,
    Reader,
    StructReader,
    UnknownReader,
)
from pyiceberg.utils.lazydict import LazyDict


def strict(reader: Reader) -> Reader:
    """A reader of the same values. Raises ValueError for items that take no bytes.

    A few bytes could state any number of such items.
    """
    match reader:
        case StructReader():
            fields = tuple((position, strict(field)) for position, field in reader.field_readers)
            return StructReader(fields, reader.create_struct, reader.struct)
        case OptionReader():
            return OptionReader(strict(reader.option))
        case ListReader():
            _require_bytes(reader.element)
            return _ListReader(strict(reader.element))
        case MapReader():
            _require_bytes(reader.key)
            return _MapReader(strict(reader.key), strict(reader.value))
        case DecimalReader():
            return _DecimalReader(reader.precision, reader.scale)
    return reader


def _require_bytes(reader: Reader) -> None:
    if _is_empty(reader):
        raise ValueError("the items of an array or map take no bytes")


def _is_empty(reader: Reader) -> bool:
    match reader:
        case StructReader():
            return all(_is_empty(field) for _, field in reader.field_readers)
        case FixedReader():
            return len(reader) == 0
    return isinstance(reader, NoneReader | UnknownReader | DefaultReader)


def _blocks(decoder: BinaryDecoder) -> Iterator[int]:
    """The number of items of each block, which the caller reads before the next one."""
    while count := decoder.read_int():
        end = None
        if count < 0:
            count, size = -count, decoder.read_int()
            end = decoder.tell() + size
        yield count
        if end is not None and decoder.tell() != end:
            raise ValueError("a block of an array or map has another size than it states")


class _ListReader(ListReader):
    __slots__ = ()

    def read(self, decoder: BinaryDecoder) -> list[Any]:
        items: list[Any] = []
        for count in _blocks(decoder):
            if self._is_int_list:
                items.extend(decoder.read_ints(count))
            else:
                items.extend(self.element.read(decoder) for _ in range(count))
        return items

    def skip(self, decoder: BinaryDecoder) -> None:
        for count in _blocks(decoder):
            for _ in range(count):
                self.element.skip(decoder)


class _MapReader(MapReader):
    __slots__ = ()

    def read(self, decoder: BinaryDecoder) -> Mapping[Any, Any]:
        if self._is_int_int:
            return LazyDict([decoder.read_ints(count * 2) for count in _blocks(decoder)])
        items: dict[Any, Any] = {}
        for count in _blocks(decoder):
            if self._is_int_bytes:
                decoder.read_int_bytes_dict(count, items)
            else:
                for _ in range(count):
                    key = self.key.read(decoder)
                    items[key] = self.value.read(decoder)
        return items

    def skip(self, decoder: BinaryDecoder) -> None:
        for count in _blocks(decoder):
            for _ in range(count):
                self.key.skip(decoder)
                self.value.skip(decoder)


class _DecimalReader(DecimalReader):
    def skip(self, decoder: BinaryDecoder) -> None:
        decoder.skip(self._length)
