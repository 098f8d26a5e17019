"""Compressed request bodies: Content-Encoding is gzip or absent."""

import zlib
from typing import Any

from django.conf import settings

from api.errors import BodyTooLarge, UnsupportedEncoding
from catalog.errors import InvalidInput

_GZIP = zlib.MAX_WBITS | 16
_READ_BYTES = 1 << 18


def is_gzip(encoding: str) -> bool:
    """True for gzip, False for no encoding. Raises UnsupportedEncoding for others."""
    name = encoding.strip().lower()
    if name in {"gzip", "x-gzip"}:
        return True
    if name in {"", "identity"}:
        return False
    raise UnsupportedEncoding(encoding)


def decode(content: bytes, encoding: str) -> bytes:
    """Decompress a complete body. Raises BodyTooLarge, UnsupportedEncoding and InvalidInput."""
    if not is_gzip(encoding) or not content:
        return content
    unpacker = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacker.decompress(content, settings.MONODON_MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise InvalidInput(f"The request body is not valid gzip: {error}") from None
    if len(unpacked) > settings.MONODON_MAX_BODY_BYTES:
        raise BodyTooLarge(settings.MONODON_MAX_BODY_BYTES)
    _check_end(unpacker)
    return unpacked


class Reader:
    """A compressed body that is read in pieces; ``source`` has ``read(size)``."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._unpacker = zlib.decompressobj(_GZIP)

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, and none at the end. Raises InvalidInput."""
        unpacker = self._unpacker
        while not unpacker.eof:
            packed = unpacker.unconsumed_tail or self._source.read(_READ_BYTES)
            try:
                content = unpacker.decompress(packed, size)
            except zlib.error as error:
                raise InvalidInput(f"The request body is not valid gzip: {error}") from None
            if content:
                return content
            if not packed:
                break
        if not unpacker.eof or unpacker.unused_data or self._source.read(1):
            _check_end(unpacker, has_more=unpacker.eof)
        return b""


def _check_end(unpacker: Any, *, has_more: bool = False) -> None:
    if not unpacker.eof:
        raise InvalidInput("The request body ended early: its gzip stream is incomplete")
    if has_more or unpacker.unused_data:
        raise InvalidInput("The request body has more content after its gzip stream")
