"""The stored answer to loadTable, with further fields for one client.

The answer is stored compressed. To compress it again for every client would take longer than all else, so
its beginning is cached as a deflate stream that ends at a byte, behind which the fields are appended.
"""

import struct
import threading
import zlib
from typing import Any

from cachetools import LRUCache
from isal import isal_zlib

from catalog.services.iceberg import metadata_files

_END = b',"config":{}}'
"""How every stored answer ends."""
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LEVEL = 2
_MAX_CACHED_BYTES = 32 * 1024 * 1024

_Beginning = tuple[bytes, int, int]
"""A deflate stream without its last block; the CRC and the size of its text."""

_lock = threading.Lock()
_beginnings: Any = LRUCache(_MAX_CACHED_BYTES, getsizeof=lambda beginning: len(beginning[0]))


def with_fields(answer: bytes, fields: bytes, *, etag: str = "", gzip: bool) -> bytes:
    """A stored answer with ``fields`` in place of its empty ``config``.

    ``fields`` are members of a JSON object, ``etag`` is that of the stored answer, if it is one. The
    result is compressed with ``gzip``, and else plain.
    """
    end = b"," + fields + b"}"
    if not gzip:
        return _text(answer) + end
    stream, checksum, size = _beginning(answer, etag)
    return b"".join(
        (
            _GZIP_HEADER,
            stream,
            _deflated(end),
            struct.pack("<II", isal_zlib.crc32(end, checksum), (size + len(end)) & 0xFFFFFFFF),
        )
    )


def _text(answer: bytes) -> bytes:
    text = metadata_files.decompress(answer)
    if not text.endswith(_END):
        raise ValueError("the stored answer does not end with an empty config")
    return text[: -len(_END)]


def _beginning(answer: bytes, etag: str) -> _Beginning:
    with _lock:
        cached: _Beginning | None = _beginnings.get(etag) if etag else None
    if cached is not None:
        return cached
    text = _text(answer)
    compressor = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, -15)
    stream = compressor.compress(text) + compressor.flush(isal_zlib.Z_SYNC_FLUSH)
    beginning = (stream, isal_zlib.crc32(text), len(text))
    if etag and len(stream) <= _MAX_CACHED_BYTES // 4:
        with _lock:
            _beginnings[etag] = beginning
    return beginning


def _deflated(text: bytes) -> bytes:
    compressor = zlib.compressobj(1, zlib.DEFLATED, -15)
    return compressor.compress(text) + compressor.flush()
