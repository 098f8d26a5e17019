"""Metadata files of Iceberg tables and views: from the document to a file that may become current.

    draft   serialize the document as the file and as the answer that clients get
    staged  record the files as staged, write them, and undo both when the commit has failed

A file is recorded before it is written, and the commit that makes it current deletes the record
(``unstage``, ``statements.Swap``). After a failure in between, the record and the ledger show whether
the file is in use.

An object store may still execute a write after the server has given it up. So the file and the record of
a failed commit to an object store remain until the sweep.
"""

import contextlib
import logging
import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import orjson
from django.db import DatabaseError
from django.db.models.functions import Now
from isal import igzip, isal_zlib

from catalog.errors import (
    CatalogError,
    CommitConflict,
    InvalidLocation,
    OutcomeUnknown,
    ServiceUnavailable,
)
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.identifiers import Identifier, digest
from catalog.models import Namespace, StagedFile, TableVersion
from catalog.models.versions import TableVersionQuerySet, file_name
from catalog.postgresql import outcomes
from catalog.postgresql.cursors import hot_cursor
from catalog.regular_files import NotRegular
from catalog.services.engine import locks
from catalog.services.iceberg import shared_files
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations, stores
from catalog.storage.object_locations import bucket_of
from catalog.storage.outages import large_inputs

log = logging.getLogger(__name__)

# Level 2 of isal: 840 KB in 1.1 ms; its strongest level saves 5 % more and takes twice as long.
_COMPRESSION = 2
# No commit takes this long from staging to its swap; one that does finds its record deleted.
_GRACE = timedelta(minutes=15)
_SWEPT_AT_ONCE = 1000

Document = dict[str, Any]

# The type hints of isal declare the class as an instance.
_IsalError = cast(type[Exception], isal_zlib.IsalError)
UNREADABLE = (_IsalError, OSError, EOFError, ValueError, LookupError, TypeError)
"""The errors of ``read_answer`` for a damaged answer."""


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A version of a table's metadata: the document, its file, and the answer for clients."""

    document: Document
    sequence: int
    location: str
    """The location in the metadata and for clients."""
    path: str
    """The canonical path."""
    content: bytes
    answer: bytes
    """The gzip-compressed JSON of LoadTableResult, or LoadViewResult."""
    etag: str
    size: int
    """The size of the document as JSON, in bytes."""


def draft(files: TableFiles, document: Document, sequence: int) -> MetadataFile:
    """The next metadata file of a table, which is not written yet.

    Raises InvalidLocation, and ForeignFile if a link leads to a directory that the table does not hold.
    """
    properties = document.get("properties", {})
    name = metadata_documents.file_name(sequence, uuid.uuid4(), properties=properties)
    location = f"{_directory(document, properties)}/{name}"
    path = locations.iceberg_path(location)
    files.require_new(path, location)
    text = metadata_documents.dump(document)
    content = _compress(text) if metadata_documents.is_gzip(properties) else text
    return MetadataFile(
        document, sequence, location, path, content, answer(location, text), new_etag(), len(text)
    )


def make_directory(files: TableFiles, document: Document) -> None:
    """Create the directory of a table's metadata files before the first file.

    A client writes the manifests of a staged table there, and DuckDB does not create the directory.
    Raises InvalidLocation, ForeignFile, and ServiceUnavailable when it cannot be created now.
    """
    path = locations.iceberg_path(_directory(document, document.get("properties", {})))
    files.require_new(f"{path}/metadata.json", document["location"])
    try:
        stores.store_of(path).make_directory(path)
    except OSError as error:
        raise _unwritable(
            document["location"], "The table's directory cannot be made", error
        ) from error


def existing(document: Document, location: str, path: str) -> MetadataFile:
    """A metadata file that exists in storage. Its sequence is taken from its name, if possible."""
    sequence = max(metadata_documents.sequence_of(location), 0)
    text = metadata_documents.dump(document)
    return MetadataFile(
        document, sequence, location, path, b"", answer(location, text), new_etag(), len(text)
    )


def answer(location: str | None, text: bytes) -> bytes:
    """The compressed answer for a table: the location of its metadata, and the metadata."""
    head = b'{"metadata-location":' + orjson.dumps(location) + b',"metadata":'
    return _compress(head + text + b',"config":{}}')


def read_answer(content: bytes) -> Document:
    """The metadata document in a stored answer."""
    text = decompress(content)
    large_inputs.count(2 * len(text))  # the document takes five times as much
    document: Document = orjson.loads(text)["metadata"]
    return document


def decompress(content: bytes) -> bytes:
    text: bytes = igzip.decompress(content)  # type: ignore[no-untyped-call]
    return text


def new_etag() -> str:
    """A unique ETag for an answer."""
    return f'"{uuid.uuid4().hex}"'


def _compress(text: bytes) -> bytes:
    return igzip.compress(text, compresslevel=_COMPRESSION, mtime=0)


def _directory(document: Document, properties: Mapping[str, str]) -> str:
    chosen = properties.get("write.metadata.path")
    directory = chosen or f"{document['location'].rstrip('/')}/metadata"
    return directory.rstrip("/")


# --- staging -----------------------------------------------------------------------------------


def staged(files: Sequence[MetadataFile]) -> AbstractContextManager[None]:
    """Stage and write the files for the commit inside; remove them when it has definitely failed.

    After a commit with unknown outcome both stay: the sweep determines the outcome. Raises
    ServiceUnavailable when a file cannot be written, InvalidLocation when it never can.
    """
    _stage(files)
    return written(files)


@contextlib.contextmanager
def written(files: Sequence[MetadataFile]) -> Iterator[None]:
    """``staged`` for files that are recorded already."""
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


# Usually one file: psycopg takes 30 µs to build an array.
_STAGE_ONE = "INSERT INTO catalog_stagedfile (path) SELECT %s::text AS path"
_STAGE_ALL = "INSERT INTO catalog_stagedfile (path) SELECT unnest(%s::text[]) AS path"
_UNLESS_STAGED = " ON CONFLICT (path) DO NOTHING"
# In its own transaction, which does not wait for the disk.
_UNFLUSHED = """
    WITH local AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    {} FROM local
"""


def _stage(files: Sequence[MetadataFile]) -> None:
    """Record the files as staged before they are written, so that a crash leaves no unknown file.

    A commit waits for the disk no more often than necessary, because the writers of one table wait
    for each other: once for the file and once for the swap, which flushes the record too. If the
    machine fails in the milliseconds between, a file may remain in the directory of its table, where
    the removal of orphan files finds it. The first file of a table would not be found this way, so
    its record is flushed.
    """
    is_creation = any(file.sequence == 0 for file in files)
    paths = [file.path for file in files]
    text, value = (_STAGE_ONE, paths[0]) if len(paths) == 1 else (_STAGE_ALL, paths)
    statement = (text if is_creation else _UNFLUSHED.format(text)) + _UNLESS_STAGED
    outcomes.repeated(lambda: hot_cursor().execute(statement, [value]))


_STAGE_NEW = """
    INSERT INTO catalog_stagedfile (path)
    SELECT %s::text FROM catalog_namespace n
    WHERE n.id = %s::bigint AND n.digest = %s AND n.dropped_at IS NULL
        AND NOT n.properties ? 'location'
        AND NOT EXISTS (
            SELECT FROM catalog_namespace above
            WHERE above.id = ANY(n.ancestors)
                AND (above.storage_profile_id IS NOT NULL OR above.location IS NOT NULL)
        )
        AND NOT EXISTS (
            SELECT FROM catalog_table t WHERE t.digest = %s AND t.state <> 'dropped'
        )
    ON CONFLICT (path) DO NOTHING
"""


def stage_in_warehouse(file: MetadataFile, table: Identifier, namespace: Namespace) -> bool:
    """Record the first file of a new table in the warehouse as staged.

    False, and nothing is recorded, if the namespace is not live, a location or storage profile applies
    to it, or the name of the table is taken.
    """
    values: list[Any] = [file.path, namespace.pk, namespace.digest, digest(table)]

    def stage() -> bool:
        cursor = hot_cursor()
        cursor.execute(_STAGE_NEW, values)
        return bool(cursor.rowcount)

    return outcomes.repeated(stage)


_STAGE_ON = f"""
    {_UNFLUSHED.format(_STAGE_ONE)}
    CROSS JOIN catalog_table t JOIN catalog_icebergmetadata m ON m.table_id = t.id
    WHERE t.id = %s::bigint AND t.digest = %s AND t.state <> 'dropped' AND m.etag = %s
"""


def stage_on(file: MetadataFile, pk: int, table: Identifier, etag: str) -> bool:
    """Record the next metadata file of a table as staged, if the metadata with this ETag is current.

    False, and nothing is recorded, if it is not, or the table is no longer the row of this key.
    """
    values: list[Any] = [file.path, pk, digest(table), etag]

    def stage() -> bool:
        cursor = hot_cursor()
        cursor.execute(_STAGE_ON + _UNLESS_STAGED, values)
        return bool(cursor.rowcount)

    return outcomes.repeated(stage)


def _write(files: Sequence[MetadataFile]) -> None:
    for file in files:
        try:
            stores.store_of(file.path).write_new(file.path, file.content)
        except OSError as error:
            raise _unwritable(
                file.location, "The metadata file cannot be written", error
            ) from error


def _unwritable(location: str, problem: str, error: OSError) -> CatalogError:
    if isinstance(error, NotRegular):
        return InvalidLocation(location, "cannot be: a link or a file is on its path")
    if error.errno in stores.IMPOSSIBLE:  # a retry does not help
        return InvalidLocation(location, f"cannot be: {error.strerror}")
    return ServiceUnavailable(
        f"{problem}: {error.strerror or error}", retry_seconds=stores.retry_seconds(error)
    )


def _discard(files: Sequence[MetadataFile], *, is_refused: bool) -> None:
    """Remove files that did not become current, then their records. The sweep repeats what fails.

    The files of a refused commit are not current anywhere. After any other failure the commit may
    stand, because the error may have followed it. Then it has deleted the records, and files without
    a record stay. Files in object stores are left to the sweep, with their records.
    """
    try:
        paths = [file.path for file in files]
        rows = StagedFile.objects.filter(path__in=paths)
        # Waits for a commit that is still running.
        rows.update(is_condemned=True)
        local_paths = [path for path in paths if not locations.is_object(path)]
        rows = rows.filter(path__in=local_paths)
        for path in local_paths if is_refused else list(rows.values_list("path", flat=True)):
            stores.store_of(path).remove(path)
        rows.delete()
    except (OSError, DatabaseError) as error:
        log.warning("The sweep will remove the files of a failed commit: %s", error)


def unstage(file: MetadataFile) -> None:
    """Delete a file's staging record, inside the commit that makes the file current.

    Raises CommitConflict when the record is missing: the sweep has given up the commit and removed
    the file.
    """
    cursor = hot_cursor()
    cursor.execute(
        "DELETE FROM catalog_stagedfile WHERE path = %s AND NOT is_condemned", [file.path]
    )
    if cursor.rowcount != 1:
        raise CommitConflict("The commit took too long, and its metadata file was removed")


def sweep() -> int:
    """Remove the files of interrupted commits; returns how many. Safe to run concurrently."""
    # Condemn the records first. A commit that is still running then finds its record missing and
    # fails; one that has ended has deleted its record, and its file is not touched.
    old = StagedFile.objects.filter(created_at__lt=Now() - _GRACE)
    old.filter(is_condemned=False).update(is_condemned=True)
    swept, last = 0, ""
    condemned = old.filter(is_condemned=True).order_by("path").values_list("path", flat=True)
    # In the order of paths, so that a file that cannot be removed does not block the others.
    while paths := list(condemned.filter(path__gt=last)[:_SWEPT_AT_ONCE]):
        last = paths[-1]
        current = _in(TableVersion.objects.visible(), paths)
        # These have been registered since, and must not be removed.
        StagedFile.objects.filter(path__in=current).delete()
        swept += remove_recorded(path for path in paths if path not in current)
    return swept


def remove_recorded(paths: Iterable[str]) -> int:
    """Remove files whose records are condemned, then the records; returns how many are gone.

    Failures are logged, and the sweep repeats them.
    """
    return sum(map(_remove, _groups(paths)))


def _groups(paths: Iterable[str]) -> Collection[list[str]]:
    """Paths to remove together: files of one object store; every other path is a group."""
    groups: dict[Hashable, list[str]] = {}
    for path in paths:
        is_object_file = locations.is_object(path) and not path.endswith("/")
        key = (stores.configuration_of(path), bucket_of(path)) if is_object_file else path
        groups.setdefault(key, []).append(path)
    return groups.values()


def _remove(group: Sequence[str]) -> int:
    """Remove the paths of a group, then their records; returns how many are gone."""
    removed: list[str] = []
    try:
        for path in _removed(group):
            removed.append(path)  # noqa: PERF402 -- what was removed before an error counts
    except OSError as error:
        log.warning("The next sweep will remove the remaining metadata files: %s", error)
    StagedFile.objects.filter(path__in=removed).delete()
    return len(removed)


def _removed(group: Sequence[str]) -> Iterator[str]:
    store = stores.store_of(group[0])
    if group[0].endswith("/"):  # a new table that the catalog itself was writing
        for _ in store.remove_tree(group[0].rstrip("/")):
            pass
        yield group[0]
    else:
        yield from store.remove_many(group)


def _in(versions: TableVersionQuerySet, paths: Collection[str]) -> set[str]:
    """The files among these that are metadata files of the versions."""
    named = versions.in_files_named({file_name(path) for path in paths})
    files = map(shared_files.path_of, named.values_list("manifest_path", flat=True))
    return set(paths).intersection(filter(None, files))


def require_lasting(path: str) -> None:
    """Refuse a file that is about to be removed, or was since the request has read it. Raises InvalidLocation.

    Takes the lock of locations. A commit that removes the file waits, and then finds it in the new table's ledger.
    """
    locks.lock_locations()
    if StagedFile.objects.filter(path=path).exists():
        raise InvalidLocation(path, "is about to be written or removed")
    if _in(TableVersion.objects.filter(deleted_at__gt=Now() - _GRACE), [path]):
        raise InvalidLocation(path, "was removed a few minutes ago")
