"""The files that a table's metadata refers to, each before the file that names it.

A removal in this order may be interrupted and restarted at any time: the remaining files can still
be found, and missing files were removed before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from pyiceberg.manifest import ManifestEntryStatus

from catalog.formats.iceberg import avro
from catalog.formats.iceberg.manifests import BROKEN
from catalog.formats.iceberg.reading import Document

# Ids of the fields of manifest lists and manifests (specification: Manifests).
_MANIFEST_PATH = 500
_STATUS = 0
_DATA_FILE = 2
_FILE_PATH = 100


class Kind(Enum):
    DATA = "data file"
    """Delete files and deletion vectors are data files too."""
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    STATISTICS = "statistics file"
    METADATA = "metadata file"


@dataclass(frozen=True, slots=True)
class Reference:
    """A file that metadata names, with the location as written."""

    kind: Kind
    location: str
    is_malformed: bool = False
    """True if the file cannot be parsed, so that its references are unknown."""


Read = Callable[[str], bytes | None]
"""Reads a file by its location. Returns None if it does not exist or may not be read."""


def referenced(document: Document, read: Read) -> Iterator[Reference]:
    """All files that the metadata refers to. Raises the errors of ``read``.

    A data file may occur several times. The metadata file itself does not occur: the document does
    not name it.
    """
    visited: set[str] = set()
    for snapshot in document["snapshots"]:
        location = snapshot.get("manifest-list")
        if location is None:  # v1 may name the manifests in the snapshot itself
            manifests: list[str] | None = snapshot.get("manifests") or []
        else:
            manifests = _manifests(location, read)
        for manifest in manifests or []:
            if manifest not in visited:
                visited.add(manifest)
                yield from _manifest(manifest, read)
        if location is not None:
            yield Reference(Kind.MANIFEST_LIST, location, is_malformed=manifests is None)
    for key in ("statistics", "partition-statistics"):
        for file in document.get(key) or []:
            yield Reference(Kind.STATISTICS, file["statistics-path"])
    for entry in document.get("metadata-log") or []:
        yield Reference(Kind.METADATA, entry["metadata-file"])


def _manifests(location: str, read: Read) -> list[str] | None:
    """The manifests in a manifest list; None if it cannot be parsed."""
    content = read(location)
    if content is None:
        return []
    try:
        return [_text(path) for (path,) in avro.read_fields(content, (_MANIFEST_PATH,))]
    except BROKEN:
        return None


def _manifest(location: str, read: Read) -> Iterator[Reference]:
    """The live files of a manifest, then the manifest."""
    content = read(location)
    if content is None:
        files: list[str] | None = []
    else:
        try:
            files = _live_files(content)
        except BROKEN:
            files = None
    for file in files or []:
        yield Reference(Kind.DATA, file)
    yield Reference(Kind.MANIFEST, location, is_malformed=files is None)


def _live_files(content: bytes) -> list[str]:
    """The files without deleted entries, which may have moved to another table."""
    rows = avro.read_fields(content, (_STATUS, (_DATA_FILE, (_FILE_PATH,))))
    return [_text(path) for status, path in rows if status != ManifestEntryStatus.DELETED.value]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a path is no text")
    return value
