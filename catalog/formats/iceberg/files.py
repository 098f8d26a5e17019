"""Metadata files: names, encoding and decoding."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson
from isal import isal_zlib
from isal.igzip_lib import IsalError

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import Document, as_object
from catalog.storage.outages import large_inputs

PATH_PROPERTIES = (
    "write.metadata.path",
    "write.data.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""The properties that name a directory for a table's files."""
_CODEC = "write.metadata.compression-codec"
_GZIP_MAGIC = b"\x1f\x8b"
# A table with 100,000 snapshots and its logs takes about 80 MB.
MAX_BYTES = 256 * 1024 * 1024
_BEGINNING = 16 * 1024 * 1024
"""Of compressed metadata: what follows is expanded when the request has its turn (``large_inputs``)."""
MAX_VALUES = 10_000_000
"""About the values in ``MAX_BYTES`` of snapshots. An empty list has 3 bytes, and takes 70 in memory."""
_NAME = re.compile(r"v?(?P<number>[0-9]{1,18})(-[^/]*)?(\.gz)?\.metadata\.json(\.gz)?")


def is_gzip(properties: Mapping[str, str]) -> bool:
    """True if the table's properties request compressed metadata files."""
    return properties.get(_CODEC, "none").lower() == "gzip"


def file_name(sequence: int, uuid: UUID | str, *, properties: Mapping[str, str]) -> str:
    """``00012-<uuid>.metadata.json``, or ``….gz.metadata.json``."""
    suffix = ".gz.metadata.json" if is_gzip(properties) else ".metadata.json"
    return f"{sequence:05d}-{uuid}{suffix}"


def sequence_of(location: str) -> int:
    """The number in a metadata file's name, including ``v12.metadata.json`` of older catalogs.

    -1 for other names.
    """
    match = _NAME.fullmatch(location.rpartition("/")[2])
    return int(match["number"]) if match else -1


def dump(document: Document) -> bytes:
    """The document as JSON.

    Raises InvalidMetadata if it is nested too deeply to be written, or if ``load`` would not accept
    its size.
    """
    try:
        content = orjson.dumps(document)
    except TypeError as exc:  # orjson's own error is one
        raise InvalidMetadata(f"The metadata cannot be written as JSON: {exc}") from None
    if len(content) > MAX_BYTES or _has_too_many_values(content):
        raise InvalidMetadata(
            f"The metadata would have {len(content)} bytes; {MAX_BYTES} are allowed, with"
            f" {MAX_VALUES} values. Expire snapshots, or remove what is not used any more"
        )
    return content


def _has_too_many_values(content: bytes) -> bool:
    """True if a JSON text separates or begins too many values. A file below 20 MB is not examined."""
    return len(content) > 2 * MAX_VALUES and sum(map(content.count, b",[{")) > MAX_VALUES


def check_depth(value: object, path: str) -> None:
    """Raise InvalidMetadata for a value that is nested too deeply for the JSON writer.

    The reader accepts 1,024 levels, the writer 254. Some levels are reserved for the enclosing
    response. Checked before any recursion into the value.
    """
    try:
        orjson.dumps([[[[[[[[value]]]]]]]])
    except TypeError as exc:
        raise InvalidMetadata(f"{path} cannot be written as JSON: {exc}") from None


def load(content: bytes) -> Document:
    """The JSON object in a metadata file, plain or gzip. Raises InvalidMetadata."""
    if content.startswith(_GZIP_MAGIC):
        content = _unzip(content)
    if len(content) > MAX_BYTES:
        raise InvalidMetadata(f"The metadata file is larger than {MAX_BYTES} bytes")
    if _has_too_many_values(content):
        raise InvalidMetadata(f"The metadata file has more than {MAX_VALUES} values")
    large_inputs.count(2 * len(content))  # the document takes five times as much
    try:
        value: Any = orjson.loads(content)
    except orjson.JSONDecodeError as exc:
        raise InvalidMetadata(f"The metadata file is not JSON: {exc}") from None
    check_depth(value, "The metadata file")
    return as_object(value, "")


def _unzip(content: bytes) -> bytes:
    """Decompress, to at most one byte above the limit: a small file may expand to any size."""
    plain = b""
    try:
        while content.startswith(_GZIP_MAGIC) and len(plain) <= MAX_BYTES:
            stream = isal_zlib.decompressobj(wbits=31)
            plain += stream.decompress(content, min(_BEGINNING, MAX_BYTES + 1 - len(plain)))
            if len(plain) >= _BEGINNING:
                large_inputs.count(MAX_BYTES)
                plain += stream.decompress(stream.unconsumed_tail, MAX_BYTES + 1 - len(plain))
            if not stream.eof and len(plain) <= MAX_BYTES:
                raise InvalidMetadata("The metadata file ends within its gzip stream")
            content = stream.unused_data
    except IsalError as exc:  # type: ignore[misc]  # its stub says otherwise
        raise InvalidMetadata(f"The metadata file is not valid gzip: {exc}") from None
    return plain
