"""Metadata files of Iceberg tables and views: from the document to a file that may become current.

    draft   the document as the file and as the answer that clients get
    staged  note the files in the database, write them, and undo both when the commit surely failed

A file is noted before it is written, and the commit that makes it current removes the note
(``unstage``, ``statements.Swap``). Whatever happens in between, the note and the ledger tell what the file is.
"""

import contextlib
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
from django.db import DatabaseError
from django.db.models.functions import Now
from isal import igzip

from catalog.errors import (
    CatalogError,
    CommitConflict,
    InvalidLocation,
    OutcomeUnknown,
    ServiceUnavailable,
)
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.models import StagedFile, TableVersion
from catalog.models.versions import file_name
from catalog.postgresql import outcomes
from catalog.postgresql.cursors import hot_cursor
from catalog.storage import local_directories, local_files, locations

log = logging.getLogger(__name__)

# Level 2 of isal: 840 KB in 1.1 ms; its strongest level saves 5 % more and takes twice as long.
_COMPRESSION = 2
# No commit takes this long between its note and its swap, and one that did finds its note gone.
_GRACE = timedelta(minutes=15)
_SWEPT_AT_ONCE = 1000

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A version of a table's metadata: the document, its file, and the answer made of it."""

    document: Document
    sequence: int
    location: str
    """As the metadata and the clients name it."""
    path: str
    """Where it lies: an absolute local path."""
    content: bytes
    answer: bytes
    """The gzip-compressed JSON of LoadTableResult, or LoadViewResult."""
    etag: str
    size: int
    """How many bytes of JSON the document is."""


def draft(document: Document, sequence: int) -> MetadataFile:
    """The next metadata file of a table. Nothing is written. Raises InvalidLocation."""
    properties = document.get("properties", {})
    name = metadata_documents.file_name(sequence, uuid.uuid4(), properties=properties)
    location = f"{_directory(document, properties)}/{name}"
    path = locations.iceberg_path(location)
    text = metadata_documents.dump(document)
    content = _compress(text) if metadata_documents.is_gzip(properties) else text
    return MetadataFile(
        document, sequence, location, path, content, answer(location, text), new_etag(), len(text)
    )


def make_directory(document: Document) -> None:
    """Make the directory of a table's metadata files before there is one.

    A client writes the manifests of a staged table beside them, and DuckDB makes no directory for
    that. Raises InvalidLocation, and ServiceUnavailable when it cannot be made now.
    """
    path = locations.iceberg_path(_directory(document, document.get("properties", {})))
    try:
        local_directories.make_directory(path)
    except OSError as error:
        raise _unwritable(
            document["location"], "The table's directory cannot be made", error
        ) from error


def existing(document: Document, location: str, path: str) -> MetadataFile:
    """A metadata file that lies in storage already. Its name may tell its sequence."""
    sequence = max(metadata_documents.sequence_of(location), 0)
    text = metadata_documents.dump(document)
    return MetadataFile(
        document, sequence, location, path, b"", answer(location, text), new_etag(), len(text)
    )


def answer(location: str | None, text: bytes) -> bytes:
    """The compressed answer that tells a table: where its metadata lies, and the metadata."""
    head = b'{"metadata-location":' + orjson.dumps(location) + b',"metadata":'
    return _compress(head + text + b',"config":{}}')


def read_answer(content: bytes) -> Document:
    """The metadata document in a stored answer."""
    document: Document = orjson.loads(decompress(content))["metadata"]
    return document


def decompress(content: bytes) -> bytes:
    text: bytes = igzip.decompress(content)  # type: ignore[no-untyped-call]
    return text


def new_etag() -> str:
    """A name for an answer that no other answer ever had."""
    return f'"{uuid.uuid4().hex}"'


def _compress(text: bytes) -> bytes:
    return igzip.compress(text, compresslevel=_COMPRESSION, mtime=0)


def _directory(document: Document, properties: Mapping[str, str]) -> str:
    chosen = properties.get("write.metadata.path")
    directory = chosen or f"{document['location'].rstrip('/')}/metadata"
    return directory.rstrip("/")


# --- staging -----------------------------------------------------------------------------------


@contextlib.contextmanager
def staged(files: Sequence[MetadataFile]) -> Iterator[None]:
    """Note and write the files for the commit inside; remove them when it surely failed.

    A commit whose outcome is not known leaves both: the sweep sees what became of it. Raises
    ServiceUnavailable when a file cannot be written, InvalidLocation when it never can.
    """
    _note(files)
    try:
        _write(files)
        yield
    except OutcomeUnknown:
        raise
    except CatalogError:
        _discard(files, is_refused=True)
        raise
    except BaseException:
        _discard(files, is_refused=False)
        raise


# Of one file mostly: psycopg takes 30 µs to make an array.
_NOTE_ONE = "INSERT INTO catalog_stagedfile (path) SELECT %s::text AS path"
_NOTE_ALL = "INSERT INTO catalog_stagedfile (path) SELECT unnest(%s::text[]) AS path"
_NOTED_BEFORE = " ON CONFLICT (path) DO NOTHING"
# In a transaction of its own, which does not wait for the disk.
_UNFLUSHED = """
    WITH local AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    {} FROM local
"""


def _note(files: Sequence[MetadataFile]) -> None:
    """The note stands before its file does, whatever becomes of this process.

    A commit waits for the disk as often as it must, and the writers of one table wait one after
    another: for the file and for the swap, which takes the note along. Should the machine itself
    fail in the milliseconds between, a file may be left beside those of its table, where removing
    orphan files finds it. The first file of a table that will not be there is not to be found so.
    """
    is_creation = any(file.sequence == 0 for file in files)
    paths = [file.path for file in files]
    text, value = (_NOTE_ONE, paths[0]) if len(paths) == 1 else (_NOTE_ALL, paths)
    statement = (text if is_creation else _UNFLUSHED.format(text)) + _NOTED_BEFORE
    outcomes.repeated(lambda: hot_cursor().execute(statement, [value]))


def _write(files: Sequence[MetadataFile]) -> None:
    for file in files:
        try:
            local_files.write_new_file(file.path, file.content)
        except OSError as error:
            raise _unwritable(
                file.location, "The metadata file cannot be written", error
            ) from error


def _unwritable(location: str, what: str, error: OSError) -> CatalogError:
    if error.errno in local_files.IMPOSSIBLE:  # trying again does not help
        return InvalidLocation(location, f"cannot be: {error.strerror}")
    return ServiceUnavailable(f"{what}: {error.strerror or error}")


def _discard(files: Sequence[MetadataFile], *, is_refused: bool) -> None:
    """Remove files that did not become current, then their notes. What fails, the sweep repeats.

    What was refused is current nowhere. After any other failure the commit may stand all the same,
    as something may go wrong that follows it. Then it took the notes along, and files without one
    stay.
    """
    try:
        paths = [file.path for file in files]
        notes = StagedFile.objects.filter(path__in=paths)
        # Waits for a commit that is still under way.
        notes.update(is_condemned=True)
        for path in paths if is_refused else list(notes.values_list("path", flat=True)):
            local_files.remove_file(path)
        notes.delete()
    except (OSError, DatabaseError) as error:
        log.warning("Files of a failed commit are left to the sweep: %s", error)


def unstage(file: MetadataFile) -> None:
    """Take a file's note away, inside the commit that makes it current.

    Raises CommitConflict when the note is gone: the sweep held the commit for dead and removed the
    file.
    """
    cursor = hot_cursor()
    cursor.execute(
        "DELETE FROM catalog_stagedfile WHERE path = %s AND NOT is_condemned", [file.path]
    )
    if cursor.rowcount != 1:
        raise CommitConflict("The commit took too long, and its metadata file was removed")


def sweep() -> int:
    """Remove the files of commits that were cut off; returns how many. Safe to run twice at once."""
    # Condemned first. A commit that is still under way then finds no note of its own and fails; one
    # that has ended took its note with it, and its file is not touched.
    old = StagedFile.objects.filter(created_at__lt=Now() - _GRACE)
    old.filter(is_condemned=False).update(is_condemned=True)
    swept, last = 0, ""
    condemned = old.filter(is_condemned=True).order_by("path").values_list("path", flat=True)
    # By path, so that what cannot be removed keeps nothing else waiting.
    while paths := list(condemned.filter(path__gt=last)[:_SWEPT_AT_ONCE]):
        last = paths[-1]
        current = _in_ledgers(paths)
        for path in paths:
            if path in current:  # somebody registered it since: it is not ours to remove
                StagedFile.objects.filter(path=path).delete()
                continue
            try:
                if path.endswith("/"):  # a new table of the catalog's own writing
                    for _ in local_directories.remove_tree(path.rstrip("/")):
                        pass
                else:
                    local_files.remove_file_in_place(path)
            except OSError as error:
                log.warning("A file of a commit that was cut off cannot be removed: %s", error)
                continue
            StagedFile.objects.filter(path=path).delete()
            swept += 1
    return swept


def _in_ledgers(paths: Collection[str]) -> set[str]:
    """Those of these files that are versions of a table."""
    versions = TableVersion.objects.visible().in_files_named({file_name(path) for path in paths})
    found = set()
    for location in versions.values_list("manifest_path", flat=True):
        with contextlib.suppress(InvalidLocation):
            found.add(locations.iceberg_path(location))
    return found


def require_lasting(path: str) -> None:
    """Refuse a file that is about to be removed. Raises InvalidLocation."""
    if StagedFile.objects.filter(path=path).exists():
        raise InvalidLocation(path, "is about to be written or removed")
