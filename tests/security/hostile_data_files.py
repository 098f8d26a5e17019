"""Data files of Lance whose metadata states numbers that no honest writer states."""

import struct
from pathlib import Path

import lance
import pyarrow as pa

from catalog.formats.lance import wire
from tests.security import lance_attacks as attacks
from tests.security.lance_attacks import Change

ROWS = 2000
_FOOTER = "<QQQIIHH4s"
_PAGES = 2
_SIZES = 2
_ENCODING = 4
_FILE_SIZE = 6


def is_good(directory: Path) -> None:
    """Write a table that Lance can read."""
    _write(directory, lambda column: column)


def ends_the_process(directory: Path) -> None:
    """Write a table; to read its rows, Lance allocates petabytes, and the process aborts."""
    # page → encoding → its bytes → Any → layout of small blocks → their number of buffers
    path = [_PAGES, _ENCODING, 2, 1, 2, 1, 7]
    _write(
        directory, lambda column: attacks._edit(column, path, lambda _: wire.encode_varint(2**46))
    )


def takes_memory(directory: Path, page: int = 2**46) -> None:
    """Write a table; to read its rows, Lance divides a page of that many bytes into millions of reads."""
    sizes = wire.encode_varint(page)

    def change(column: bytes) -> bytes:
        (start, end) = next(
            (s, e) for n, _, s, e in wire.fields(column, 0, len(column)) if n == _PAGES
        )
        before = next(column[s:e] for n, _, s, e in wire.fields(column, start, end) if n == _SIZES)
        _, after = wire.varint(before, 0)
        return attacks._edit(column, [_PAGES, _SIZES], lambda _: sizes + before[after:])

    _write(directory, change)


def _write(directory: Path, change: Change) -> None:
    """Write a table, and change the metadata of its first column."""
    lance.write_dataset(pa.table({"id": range(ROWS)}), str(directory), data_storage_version="2.1")
    (file,) = (directory / "data").iterdir()
    content = file.read_bytes()
    start, columns, buffers, buffer_count, count, *version = struct.unpack(_FOOTER, content[-40:])
    assert count == 1
    position, size = struct.unpack_from("<QQ", content, columns)
    column = change(content[position : position + size])
    moved = len(column) - size
    table = content[buffers : buffers + 16 * buffer_count]
    file.write_bytes(
        content[:position]
        + column
        + struct.pack("<QQ", position, len(column))
        + table
        + struct.pack(
            _FOOTER, start, columns + moved, buffers + moved, buffer_count, count, *version
        )
    )
    (manifest,) = (directory / "_versions").glob("*.manifest")
    fragment_file = [2, 2]
    manifest.write_bytes(
        attacks.edited(manifest.read_bytes(), fragment_file, attacks.without_field(_FILE_SIZE))
    )
