"""Lance manifests: their version, base paths and files.

A manifest file ends with its message, the message's position, the format's version and ``LANC``:

    [transaction] [index section] [u32 length] [Manifest] [u64 position] [u16 major] [u16 minor] "LANC"

The messages and field numbers are those of Lance's ``protos/table.proto``. Paths in a manifest are
relative to the table, or to one of its base paths, which may be any directory.
"""

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from catalog.formats.lance import bitmaps, external_files, features, row_ids, wire
from catalog.formats.lance.naming import is_plain_path
from catalog.formats.lance.wire import Field, MalformedMessage
from catalog.storage.outages import large_inputs

FOOTER_BYTES = 16
_MAGIC = b"LANC"
_LENGTH_BYTES = 4

# message Manifest
_FRAGMENTS, _VERSION, _INDEX_SECTION, _TRANSACTION_FILE, _BASE_PATHS, _BRANCH = 2, 3, 6, 12, 18, 20
_HEAD = frozenset({_VERSION, _BASE_PATHS, _BRANCH}) | features.FIELDS
# message BasePath
_BASE_ID, _BASE_IS_ROOT, _BASE_PATH = 1, 3, 4
# message DataFragment
_FRAGMENT_ID, _FILES, _DELETION_FILE, _OVERLAYS = 1, 2, 3, 11
_EXTERNAL_FILES = (6, 8, 10)
_FACTS = frozenset({_FRAGMENT_ID}) | row_ids.FACTS
# messages DataFile, DeletionFile, DataOverlayFile
_FILE_PATH, _FILE_BASE, _OVERLAY_FILE = 1, 7, 1
_DELETION_TYPE, _DELETION_READ_VERSION, _DELETION_ID = 1, 2, 3
# messages IndexSection, IndexMetadata, UUID, IndexFile, google.protobuf.Any
_INDICES, _INDEX_UUID, _INDEX_DETAILS, _INDEX_BASE, _INDEX_FILES = 1, 1, 6, 9, 10
_UUID_BYTES, _INDEX_FILE_PATH, _ANY_TYPE, _ANY_VALUE = 1, 1, 1, 2
_REUSE_DETAILS, _REUSE_EXTERNAL = "FragmentReuseIndexDetails", 2

_PARSED = 8
"""The memory of a parsed message relative to its size: 7 to 20."""
_MAX_BASES, _MAX_FILES = 1000, 2_000_000

_BLOB_TYPE = b"lance.blob.v2"
_DATA_ENDING = ".lance"
"""Blobs of a data file lie in the directory of its name without the ending."""


class NotAManifest(ValueError):
    """The file is not a manifest that Lance could have written; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class BasePath:
    """A directory that may hold files of the version."""

    id: int
    path: str
    is_root: bool
    """True if it has the layout of a table; False if it is a plain directory of data files."""


@dataclass(frozen=True, slots=True)
class Head:
    """The version, branch, base paths and settings of a manifest."""

    version: int
    branch: str
    """The branch; empty for main."""
    base_paths: tuple[BasePath, ...]
    obstacle: str = ""
    """Why clients cannot read the version or write a later one; empty if they can."""
    auto_cleanup: tuple[tuple[str, str], ...] = ()
    """The settings of Lance's automatic clean-up, which runs after each commit that has them."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that a version needs."""

    path: str
    """The path relative to the table or to its base path."""
    base_id: int | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """A manifest with the files that it refers to."""

    head: Head
    files: tuple[File, ...]
    directories: tuple[File, ...]
    """Where files lie that the manifest need not name: those of indexes, and blobs beside rows."""
    has_blobs: bool
    """True if columns may refer, by base paths, to files that the manifest does not list."""
    digest: bytes
    """Of the base paths, of the files with rows, and of whether there are blobs (``digest_of``)."""

    def needed_bases(self) -> dict[int, BasePath]:
        """The base paths from which a reader of this version may open files."""
        used = {file.base_id for file in (*self.files, *self.directories)}
        bases = {base.id: base for base in self.head.base_paths}
        return {key: base for key, base in bases.items() if self.has_blobs or key in used}

    def paths(self) -> Iterator[tuple[BasePath | None, str]]:
        """Each file as a base path (None for the table itself) and a path in it."""
        return self._placed(self.files)

    def directory_paths(self) -> Iterator[tuple[BasePath | None, str]]:
        """The same for the directories."""
        return self._placed(self.directories)

    def _placed(self, files: Sequence[File]) -> Iterator[tuple[BasePath | None, str]]:
        bases = {base.id: base for base in self.head.base_paths}
        for file in files:
            base = None if file.base_id is None else bases[file.base_id]
            # A plain directory of data files has no subdirectory 'data'.
            flat = base is not None and not base.is_root
            yield base, file.path.removeprefix("data/") if flat else file.path


def message_start(tail: bytes, size: int) -> int:
    """The position of the length and the message in a file, from its last bytes and its size.

    Raises NotAManifest.
    """
    if len(tail) < FOOTER_BYTES or tail[-4:] != _MAGIC:
        raise NotAManifest("it does not end as a Lance file does")
    start = int.from_bytes(tail[-16:-8], "little")
    if not 0 <= start <= size - FOOTER_BYTES - _LENGTH_BYTES:
        raise NotAManifest("its footer names a position outside the file")
    return start


def read_head(end: bytes) -> Head:
    """Read the head of a manifest. ``end`` is the file from ``message_start`` on.

    Reads only the top level of the message, and what decides of its fragments. Raises NotAManifest.
    """
    large_inputs.count(_PARSED * len(end))
    try:
        return _head(end, wire.fields(end, *_bounds(end, 0), _HEAD | {_FRAGMENTS}))
    except MalformedMessage as error:
        raise NotAManifest(f"its message is malformed: {error}") from None


def read(data: bytes) -> Contents:
    """Read a whole manifest file. Raises NotAManifest, also for a path that is not plain."""
    start = message_start(data[-FOOTER_BYTES:], len(data))
    large_inputs.count(_PARSED * (len(data) - start))
    try:
        top = _top(data, start)
        head = _head(data, top)
        of_fragments = tuple(wire.limited(_fragment_files(data, top), _MAX_FILES, "files"))
        of_indexes, directories = _index_files(data, top)
        files = (*of_fragments, *of_indexes, *_transaction(data, top))
    except MalformedMessage as error:
        raise NotAManifest(f"its message is malformed: {error}") from None
    has_blobs = _BLOB_TYPE in data
    if has_blobs:
        directories += [
            File(file.path.removesuffix(_DATA_ENDING), file.base_id)
            for file in of_fragments
            if file.path.endswith(_DATA_ENDING)
        ]
    base_ids = {base.id for base in head.base_paths}
    for file in (*files, *directories):
        if file.base_id is not None and file.base_id not in base_ids:
            raise NotAManifest(f"it names base path {file.base_id}, which it does not have")
    digest = _digest(head, of_fragments, has_blobs=data.find(_BLOB_TYPE, start) >= 0)
    return Contents(head, files, tuple(directories), has_blobs, digest)


def digest_of(message: bytes) -> bytes:
    """The digest of ``Contents`` of a message alone, which Lance may have encoded in another order.

    Raises NotAManifest.
    """
    try:
        top = wire.fields(message, 0, len(message))
        head = _head(message, [field for field in top if field[0] in _HEAD])
        return _digest(head, _fragment_files(message, top), has_blobs=_BLOB_TYPE in message)
    except MalformedMessage as error:
        raise NotAManifest(f"its message is malformed: {error}") from None


def _digest(head: Head, files: Iterable[File], *, has_blobs: bool) -> bytes:
    bases = sorted((base.id, base.path, base.is_root) for base in head.base_paths)
    names = sorted((file.path, -1 if file.base_id is None else file.base_id) for file in files)
    return hashlib.blake2b(repr((bases, names, has_blobs)).encode(), digest_size=16).digest()


def with_version(data: bytes, version: int) -> bytes:
    """A manifest with another version number. Raises NotAManifest.

    The bytes before the message keep their positions, so that positions in the message stay valid.
    """
    renumbered = wire.encode_varint(_VERSION << 3) + wire.encode_varint(version)
    return _without(data, lambda field: field[0] == _VERSION, renumbered)


def without_auto_cleanup(data: bytes) -> bytes:
    """A manifest without the settings of Lance's automatic clean-up. Raises NotAManifest."""
    return _without(data, partial(features.configures_auto_cleanup, data))


def _without(data: bytes, is_removed: Callable[[Field], bool], added: bytes = b"") -> bytes:
    """A manifest without some fields of its message, and with another field in their place or at its end."""
    start = message_start(data[-FOOTER_BYTES:], len(data))
    at = start + _LENGTH_BYTES
    message = bytearray()
    try:
        for field in _top(data, start):
            end = _end(data, at, field)
            if is_removed(field):
                message += added
                added = b""
            else:
                message += data[at:end]
            at = end
    except MalformedMessage as error:
        raise NotAManifest(f"its message is malformed: {error}") from None
    message += added
    length = len(message).to_bytes(_LENGTH_BYTES, "little")
    return data[:start] + length + message + data[-FOOTER_BYTES:]


def _end(data: bytes, at: int, field: Field) -> int:
    """The end of the field that begins at a position."""
    _, kind, _, end = field
    if kind != wire.VARINT:
        return end
    _, after_key = wire.varint(data, at)
    return wire.varint(data, after_key)[1]


# --- the message -------------------------------------------------------------------------------


def _bounds(data: bytes, start: int) -> tuple[int, int]:
    begin, end = start + _LENGTH_BYTES, len(data) - FOOTER_BYTES
    if int.from_bytes(data[start:begin], "little") != end - begin:
        raise NotAManifest("its footer does not lead to its message")
    return begin, end


def _top(data: bytes, start: int) -> list[Field]:
    return wire.fields(data, *_bounds(data, start))


def _head(data: bytes, top: Sequence[Field]) -> Head:
    fields = [field for field in top if field[0] in _HEAD]
    branch = wire.text(data, fields, _BRANCH) or ""
    of_fragments = _fragments_obstacle(data, fields, top)  # it also checks their numbers of rows
    return Head(
        wire.number(fields, _VERSION) or 0,
        "" if branch == "main" else branch,
        tuple(wire.limited(_bases(data, fields), _MAX_BASES, "base paths")),
        features.obstacle(fields) or of_fragments,
        features.auto_cleanup(data, fields),
    )


def _fragments_obstacle(data: bytes, fields: Sequence[Field], top: Sequence[Field]) -> str:
    # More fragments than the cache holds would only displace one another.
    has_room = len(top) < wire.CACHED
    fragments = _fragments(data, top)
    facts = [wire.cached(_fragment_facts, content, has_room=has_room) for content in fragments]
    row_ids.check_overlaps([span for _, _, spans in facts for span in spans])
    ids = [number for number, _, _ in facts]
    with_row_ids = sum(has_row_ids for _, has_row_ids, _ in facts)
    return features.fragments_obstacle(fields, ids, with_row_ids)


def _bases(data: bytes, message: Sequence[Field]) -> Iterator[BasePath]:
    return (read_base(data, base) for base in wire.messages(data, message, _BASE_PATHS))


def read_base(data: bytes, base: Sequence[Field]) -> BasePath:
    """The base path in the fields of its message. Raises MalformedMessage."""
    return BasePath(
        wire.number(base, _BASE_ID, bits=32) or 0,
        wire.text(data, base, _BASE_PATH) or "",
        bool(wire.number(base, _BASE_IS_ROOT)),
    )


def _fragments(data: bytes, top: Sequence[Field]) -> Iterator[bytes]:
    """The message of each fragment."""
    for number, kind, start, end in top:
        if number == _FRAGMENTS:
            if kind != wire.BYTES:
                raise MalformedMessage("a fragment is not a message")
            yield data[start:end]


@lru_cache(maxsize=wire.CACHED)
def _fragment_facts(data: bytes) -> tuple[int, bool, tuple[row_ids.Span, ...]]:
    """The id of a fragment, whether it has stable row ids, and their ranges.

    Cached, as the files: a version shares most fragments with the previous one.
    """
    fragment = wire.fields(data, 0, len(data), _FACTS)
    spans = row_ids.read(data, fragment)
    has_row_ids = any(number in row_ids.IDS for number, *_ in fragment)
    return wire.number(fragment, _FRAGMENT_ID) or 0, has_row_ids, spans


def _fragment_files(data: bytes, top: Sequence[Field]) -> Iterator[File]:
    return (file for content in _fragments(data, top) for file in wire.cached(_files_of, content))


@lru_cache(maxsize=wire.CACHED)
def _files_of(data: bytes) -> tuple[File, ...]:
    return tuple(_read_fragment(data, wire.fields(data, 0, len(data))))


def _read_fragment(data: bytes, fragment: Sequence[Field]) -> Iterator[File]:
    row_ids.read(data, fragment)
    for file in wire.messages(data, fragment, _FILES):
        yield _data_file(data, file)
    for overlay in wire.messages(data, fragment, _OVERLAYS):
        for file in wire.messages(data, overlay, _OVERLAY_FILE):
            yield _data_file(data, file)
    deletion = wire.message(data, fragment, _DELETION_FILE)
    if deletion is not None:
        yield _deletion_file(wire.number(fragment, _FRAGMENT_ID) or 0, deletion)
    for field in _EXTERNAL_FILES:
        for path in external_files.paths(data, fragment, field):
            yield _file(path, None)


def _data_file(data: bytes, file: Sequence[Field]) -> File:
    path = wire.text(data, file, _FILE_PATH) or ""
    return _file(f"data/{path}", wire.number(file, _FILE_BASE, bits=32))


def _deletion_file(fragment: int, deletion: Sequence[Field]) -> File:
    read_version = wire.number(deletion, _DELETION_READ_VERSION) or 0
    number = wire.number(deletion, _DELETION_ID) or 0
    ending = "bin" if wire.number(deletion, _DELETION_TYPE, bits=1) else "arrow"
    path = f"_deletions/{fragment}-{read_version}-{number}.{ending}"
    return _file(path, wire.number(deletion, _FILE_BASE, bits=32))


def _index_files(data: bytes, top: Sequence[Field]) -> tuple[list[File], list[File]]:
    """The files that indexes name, and their directories: Lance opens others there as well."""
    files: list[File] = []
    directories: list[File] = []
    position = wire.number(top, _INDEX_SECTION)
    if position is None:
        return files, directories
    begin = position + _LENGTH_BYTES
    end = begin + int.from_bytes(data[position:begin], "little")
    if end > len(data):
        raise MalformedMessage("the index section ends outside the file")
    for index in wire.messages(data, wire.fields(data, begin, end), _INDICES):
        identity = wire.message(data, index, _INDEX_UUID)
        raw = wire.content(data, identity or [], _UUID_BYTES) or b""
        if len(raw) != 16:
            raise MalformedMessage("an index has no UUID")
        bitmaps.check_index(data, index)
        base = wire.number(index, _INDEX_BASE, bits=32)
        directory = f"_indices/{uuid.UUID(bytes=raw)}"
        directories.append(File(directory, base))
        names = [
            wire.text(data, file, _INDEX_FILE_PATH) or ""
            for file in wire.messages(data, index, _INDEX_FILES)
        ]
        names += _reuse_file(data, index)
        files += [_file(f"{directory}/{name}", base) for name in names]
        if len(files) > _MAX_FILES:
            raise MalformedMessage(f"its indexes have more than {_MAX_FILES:,} files")
    return files, directories


def _reuse_file(data: bytes, index: Sequence[Field]) -> list[str]:
    """The external file of a fragment reuse index; other indexes have none in their details."""
    details = wire.message(data, index, _INDEX_DETAILS) or []
    if not (wire.text(data, details, _ANY_TYPE) or "").endswith(_REUSE_DETAILS):
        return []
    value = wire.message(data, details, _ANY_VALUE) or []
    return list(external_files.paths(data, value, _REUSE_EXTERNAL))


def _transaction(data: bytes, top: Sequence[Field]) -> Iterator[File]:
    if name := wire.text(data, top, _TRANSACTION_FILE):
        yield _file(f"_transactions/{name}", None)


def _file(path: str, base_id: int | None) -> File:
    if not is_plain_path(path):
        raise NotAManifest(f"it names the file {path[:200]!r}, which is not a plain path")
    return File(path, base_id)
