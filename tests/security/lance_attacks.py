"""Lance manifests that refer to files outside their table, derived from real ones."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance

from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import wire as lance_wire
from catalog.models import Table

Change = Callable[[bytes], bytes]


def manifest_of(table: Table) -> bytes:
    """The newest manifest of an unmodified table."""
    return manifest_in(Path(table.location))


def manifest_in(directory: Path) -> bytes:
    return min((directory / "_versions").glob("*.manifest")).read_bytes()


def clone_of(table: Table, version: int, directory: Path) -> bytes:
    """A shallow clone's manifest with the number that the attacker's table needs."""
    shutil.rmtree(directory, ignore_errors=True)
    source = lance.dataset(table.location)
    source.shallow_clone(str(directory), source.version)
    (path,) = Path(f"{directory}/_versions").glob("*.manifest")
    return lance_manifest.with_version(path.read_bytes(), version)


def indexed(table: Table, version: int, directory: Path) -> tuple[bytes, Path]:
    """The manifest, and the directory, of an index that a copy of the attacker's table has."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(table.location, directory)
    lance.dataset(str(directory)).create_scalar_index("id", "BTREE")
    (index,) = (directory / "_indices").iterdir()
    return lance_manifest.with_version(manifest_in(directory), version), index


def edited(manifest: bytes, path: Sequence[int], change: Change, *, index: bool = False) -> bytes:
    """The manifest with the field at a path of field numbers changed, in every place.

    With ``index`` the path begins in its index section.
    """
    start = lance_manifest.message_start(manifest[-16:], len(manifest))
    message = manifest[start + 4 : -16]
    if not index:
        message = _edit(message, path, change)
        return assemble(manifest[:start], message, manifest[-16:])
    top = lance_wire.fields(message, 0, len(message))
    position = lance_wire.number(top, 6)
    assert position is not None
    size = int.from_bytes(manifest[position : position + 4], "little")
    section = _edit(manifest[position + 4 : position + 4 + size], path, change)
    before = manifest[:start] + len(section).to_bytes(4, "little") + section
    message = _edit(message, [6], lambda _: lance_wire.encode_varint(start))
    return assemble(before, message, manifest[-16:])


def with_field(manifest: bytes, path: Sequence[int], field: bytes) -> bytes:
    """The manifest with a field added to each message at a path; the empty path is the manifest."""
    return edited(manifest, path, lambda content: content + field)


def without_field(number: int) -> Change:
    """A change that removes a field from a message."""

    def change(message: bytes) -> bytes:
        remaining = b""
        for field, kind, first, second in lance_wire.fields(message, 0, len(message)):
            if field == number:
                continue
            if kind == lance_wire.VARINT:
                remaining += number_field(field, first)
            elif kind == lance_wire.BYTES:
                remaining += bytes_field(field, message[first:second])
            else:
                remaining += lance_wire.encode_varint(field << 3 | kind) + message[first:second]
        return remaining

    return change


def base_path(path: str, number: int = 0, *, is_root: bool = True) -> bytes:
    content = number_field(1, number) + number_field(3, int(is_root)) + text_field(4, path)
    return bytes_field(18, content)


def with_added_base(manifest: bytes, path: str) -> bytes:
    """The manifest with a base path that its own transaction brings in, as a client's ``add_bases`` writes it."""
    added = base_path(path)
    start = lance_manifest.message_start(manifest[-16:], len(manifest))
    message = without_field(23)(manifest[start + 4 : -16]) + added + number_field(23, start)
    base = lance_wire.fields(added, 0, len(added))[0]
    transaction = bytes_field(114, bytes_field(1, added[base[2] : base[3]]))
    section = len(transaction).to_bytes(4, "little") + transaction
    return assemble(manifest[:start] + section, message, manifest[-16:])


def with_auto_cleanup(manifest: bytes, **settings: str) -> bytes:
    """The manifest with settings of Lance's automatic clean-up, by default to keep nothing."""
    settings = {"interval": "1", "older_than": "0s"} | settings
    entries = [
        bytes_field(16, text_field(1, f"lance.auto_cleanup.{key}") + text_field(2, value))
        for key, value in settings.items()
    ]
    return with_field(manifest, [], b"".join(entries))


def number_field(field: int, value: int) -> bytes:
    return lance_wire.encode_varint(field << 3) + lance_wire.encode_varint(value)


def text_field(field: int, text: str) -> bytes:
    return bytes_field(field, text.encode())


def bytes_field(field: int, content: bytes) -> bytes:
    return (
        lance_wire.encode_varint(field << 3 | 2) + lance_wire.encode_varint(len(content)) + content
    )


def padded(manifest: bytes, number: int) -> bytes:
    """The manifest with bytes that nobody reads before its message."""
    start = lance_manifest.message_start(manifest[-16:], len(manifest))
    return assemble(manifest[:start] + bytes(number), manifest[start + 4 : -16], manifest[-16:])


def assemble(before: bytes, message: bytes, footer: bytes) -> bytes:
    start = len(before)
    length = len(message).to_bytes(4, "little")
    return before + length + message + start.to_bytes(8, "little") + footer[8:]


def _edit(message: bytes, path: Sequence[int], change: Change) -> bytes:
    if not path:
        return change(message)
    parts = []
    for number, kind, first, second in lance_wire.fields(message, 0, len(message)):
        if kind == lance_wire.VARINT:
            if [number] == list(path):
                parts.append(lance_wire.encode_varint(number << 3) + change(b""))
            else:
                parts.append(number_field(number, first))
        elif kind == lance_wire.BYTES:
            content = message[first:second]
            if number == path[0]:
                content = _edit(content, path[1:], change)
            parts.append(bytes_field(number, content))
        else:
            parts.append(lance_wire.encode_varint(number << 3 | kind) + message[first:second])
    return b"".join(parts)


def always(value: str) -> Callable[[Any], bytes]:
    return lambda _: value.encode()
