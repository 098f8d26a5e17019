"""Lance manifests of few megabytes with millions of fields, which would take gigabytes of memory to parse."""

import resource
import time
from pathlib import Path

import pytest

from catalog.formats.lance import history, wire
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance.manifest import NotAManifest
from tests.factories import make_lance_table
from tests.security import lance_attacks as attacks

MANY = wire.MAX_FIELDS + 1
VERSION = attacks.number_field(3, 2)


def _file(message: bytes, before: bytes = b"") -> bytes:
    length = len(message).to_bytes(4, "little")
    return before + length + message + len(before).to_bytes(8, "little") + b"\0\0\2\0LANC"


def _section(number: int, content: bytes) -> bytes:
    """A manifest with a section before its message, to which a field of the message leads."""
    before = len(content).to_bytes(4, "little") + content
    return _file(VERSION + attacks.number_field(number, 0), before)


def _files(count: int) -> bytes:
    data_file = attacks.bytes_field(2, attacks.text_field(1, "a"))
    fragments = attacks.bytes_field(2, data_file * (wire.MAX_FIELDS // 2))
    return _file(VERSION + fragments * (count // (wire.MAX_FIELDS // 2) + 1))


BOMBS = {
    "unknown numbers": lambda: _file(VERSION + b"\x20\x01" * MANY),
    "fragments": lambda: _file(VERSION + b"\x12\x00" * MANY),
    "base paths": lambda: _file(VERSION + attacks.base_path("/x") * 1001),
    "files of a fragment": lambda: _file(VERSION + attacks.bytes_field(2, b"\x12\x00" * MANY)),
}
INNER = {
    "indexes": lambda: _section(6, b"\x0a\x00" * MANY),
    "transaction": lambda: _section(23, b"\x20\x01" * MANY),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_manifest_of_many_fields_is_refused(bomb):
    data = BOMBS[bomb]()
    began = time.process_time()
    for read in (lance_manifest.read_head, lance_manifest.read):
        with pytest.raises(NotAManifest, match=r"more than 1,000"):
            read(data)
    assert time.process_time() - began < 10


def test_sections_of_many_fields_are_refused():
    with pytest.raises(NotAManifest, match="more than 1,000,000 fields"):
        lance_manifest.read(INNER["indexes"]())
    for read in (history.read, history.added_bases):
        with pytest.raises(NotAManifest, match="more than 1,000,000 fields"):
            read(INNER["transaction"]())


def test_the_files_of_all_fragments_are_limited(monkeypatch):
    monkeypatch.setattr(lance_manifest, "_MAX_FILES", 10)
    with pytest.raises(NotAManifest, match="more than 10 files"):
        lance_manifest.read(_files(11))


def test_large_fragments_are_not_cached():
    lance_manifest._files_of.cache_clear()
    lance_manifest.read(_files(1))
    assert lance_manifest._files_of.cache_info().currsize == 0


@pytest.mark.django_db
def test_a_version_of_many_fields_is_refused_with_little_memory(lance, warehouse):
    """The message of 64 MiB would become 22 million base paths, of 7 GiB."""
    table = make_lance_table(("w", "t"))
    staged = Path(f"{table.location}/_versions/{2**64 - 3:020d}.manifest-evil")
    staged.write_bytes(_file(VERSION + b"\x92\x01\x00" * (64 * 1024**2 // 3)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = {"version": 2, "manifest_path": str(staged)}
    lance.refused(400, 13, "more than 1,000,000 fields", "/v1/table/w$t/version/create", body)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024
