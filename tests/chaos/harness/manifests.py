"""Files that clients stage before they commit: Lance manifests and Iceberg manifest lists.

They are complete files of empty tables, so that the server can read and check them.
"""

import functools
import os
import struct
import tempfile
from pathlib import Path

import lance
import pyarrow as pa
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest_list

_FOOTER = struct.Struct("<QHH4s")
_VERSION_FIELD = 3  # of the message Manifest in Lance's table.proto


def lance_manifest(version: int, value: str) -> bytes:
    """The manifest of this version of an empty table. It contains ``value`` as readable text."""
    head, message, footer = _template()
    content = b"".join(
        raw if number != _VERSION_FIELD else b"\x18" + _varint(version) for number, raw in message
    )
    head += f"\n{value}\n".encode()
    major, minor, magic = _FOOTER.unpack(footer)[1:]
    end = _FOOTER.pack(len(head), major, minor, magic)
    return head + struct.pack("<I", len(content)) + content + end


def stage_lance(location: str, version: int, value: str) -> tuple[str, int]:
    """Write a staged manifest; returns its path as clients send it, and its size."""
    path = Path(location) / "_versions" / f"{2**64 - 1 - version:020d}.manifest-{value}"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = lance_manifest(version, value)
    path.write_bytes(content)
    return str(path).lstrip("/"), len(content)


def stage_iceberg(location: str, snapshot: int, parent: int | None, sequence: int) -> str:
    """Write an empty manifest list; returns its location."""
    path = Path(location) / "metadata" / f"snap-{snapshot}.avro"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_manifest_list(snapshot, parent, sequence))
    return f"file://{path}"


_MARKS = (7_000_000_000_000_000_001, 7_000_000_000_000_000_002, 7_000_000_000_000_000_003)
"""Values of the template: its snapshot id, the parent's id and the sequence number."""


def _manifest_list(snapshot: int, parent: int | None, sequence: int) -> bytes:
    """A manifest list like PyIceberg's, which takes ten times as long to write.

    The three numbers are written as texts with their lengths, as in Avro.
    """
    content = _list_template()
    for mark, number in zip(_MARKS, (snapshot, parent, sequence), strict=True):
        text = b"null" if number is None else b"%d" % number
        content = content.replace(b"\x26%d" % mark, bytes([2 * len(text)]) + text)
    return content


@functools.cache
def _list_template() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "list.avro"
        output = PyArrowFileIO().new_output(str(path))
        snapshot, parent, sequence = _MARKS
        with write_manifest_list(2, output, snapshot, parent, sequence, "null"):
            pass
        return path.read_bytes()


@functools.cache
def _template() -> tuple[bytes, list[tuple[int, bytes]], bytes]:
    """Bytes before the manifest's message, the fields of the message, and the footer."""
    with tempfile.TemporaryDirectory() as directory:
        lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), directory)
        (manifest,) = (
            os.path.join(directory, "_versions", name)  # noqa: PTH118
            for name in os.listdir(os.path.join(directory, "_versions"))  # noqa: PTH118, PTH208
            if name.endswith(".manifest")
        )
        content = Path(manifest).read_bytes()
    footer = content[-_FOOTER.size :]
    start = _FOOTER.unpack(footer)[0]
    return content[:start], _fields(content[start + 4 : -_FOOTER.size]), footer


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _fields(message: bytes) -> list[tuple[int, bytes]]:
    """The top-level fields of a protocol buffer: number and encoded bytes."""
    fields, at = [], 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        match tag & 7:
            case 0:
                _, at = _read_varint(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _read_varint(message, at)
                at += length
            case 5:
                at += 4
            case kind:
                raise ValueError(f"wire type {kind}")
        fields.append((tag >> 3, message[start:at]))
    return fields
