"""Removing the files of a dropped Iceberg table: those that its metadata refers to, and no others.

The files go in an order in which what is left can still be found (``references``), the current
metadata last of all, and from the database, not from a file. So the work may be stopped at any
moment and begun again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from catalog.errors import ForeignFile, InvalidLocation
from catalog.formats.iceberg.metadata import references
from catalog.formats.iceberg.metadata.references import Kind, Reference
from catalog.formats.iceberg.reading import Document
from catalog.models import IcebergMetadata, Table, TableFormat
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.files import TableFileIO
from catalog.services.iceberg.shared_files import foreign_files, path_of
from catalog.services.storage import iceberg_paths
from catalog.services.storage.table_files import NOBODY, Belonging, FileOwner, TableFiles
from catalog.storage import local_directories, local_files

log = logging.getLogger(__name__)

_MAX_MANIFEST_BYTES = 1024 * 1024 * 1024
_RECORDED = 100  # paths of removed files in the audit event
_AT_ONCE = 500  # files between two looks at the job's row, and at who else may own them
_OUTSIDE = "outside its directories"
_FOREIGN = "of other tables"
_MALFORMED = "malformed"


def holder(table: Table) -> Table | None:
    """Another table that needs this one's files, if there is one: a present one, or one in the trash.

    That is one whose location meets its location. Of a Lance table all goes that lies there, so it
    is also an Iceberg table that has files there; of an Iceberg table, one with the same metadata
    file in its ledger: such a table was registered from this one's files, and moved since.
    """
    others = Table.objects.needed().exclude(pk=table.pk)
    found = others.meeting(table.location).select_related("namespace").first()
    if found is not None:
        return found
    if table.format != TableFormat.ICEBERG:
        used = iceberg_paths.used_inside(table.location)
        return used.table if used is not None else None
    own = table.versions.values_list("manifest_path", flat=True).iterator(_AT_ONCE)
    while batch := set(islice(own, _AT_ONCE)):
        foreign = foreign_files(table, batch)
        for path in map(path_of, batch) if foreign else ():
            if path in foreign:
                return foreign[path]
    return None


@dataclass
class Removed:
    """What a purge removed, and what it left in place."""

    files: int = 0
    paths: list[str] = field(default_factory=list)
    """The first ones."""
    left: str = ""

    def add(self, path: str) -> None:
        self.files += 1
        if len(self.paths) < _RECORDED:
            self.paths.append(path)


def remove_files(table: Table, renew: Callable[[int], None]) -> Removed:
    """Remove a dropped Iceberg table's own files; tells what was left in place, and why.

    What belongs to others, to several tables or to none stays, and is not opened.

    ``renew`` is called again and again with how many files were removed since the last call; it may
    raise to stop. Raises OSError when the storage fails.
    """
    local_directories.require_reachable(table.location)
    document = _document(table)
    left: Counter[str] = Counter()
    gone = Removed()
    reader = partial(_read, TableFileIO(TableFiles(table), NOBODY))
    found = _references(table, document, reader)
    while batch := list(islice(found, _AT_ONCE)):
        renew(0)
        files = TableFiles(table)  # as it is now: others may have come
        owners = files.classify({reference.location for reference in batch})
        own = {text: o.path for text, o in owners.items() if o.belonging == Belonging.OWN}
        foreign = foreign_files(table, {*own, *filter(None, own.values())})
        removed = 0
        try:
            for reference in batch:
                path = own.get(reference.location)
                if reference.is_malformed:
                    left[_MALFORMED] += 1
                elif path is None:
                    left[_why(owners[reference.location])] += 1
                elif path in foreign:
                    left[_FOREIGN] += 1
                elif _remove(path):
                    removed += 1
                    gone.add(path)
        finally:
            renew(removed)
    for number, _ in enumerate(local_directories.remove_empty_directories(table.location), 1):
        if number % _AT_ONCE == 0:
            renew(0)
    gone.left = ", ".join(f"{count} files {why}" for why, count in sorted(left.items()))
    return gone


def _why(owner: FileOwner) -> str:
    """Why a file stays that is not the table's own."""
    return _FOREIGN if owner.belonging == Belonging.OTHER else _OUTSIDE


def _document(table: Table) -> Document | None:
    current = IcebergMetadata.objects.filter(table=table).first()
    return metadata_files.read_answer(bytes(current.answer)) if current is not None else None


def _references(
    table: Table, document: Document | None, read: references.Read
) -> Iterator[Reference]:
    if document is not None:
        # As Java's purge does: such a table may share its data with others.
        keeps_data = document.get("properties", {}).get("gc.enabled", "true").lower() == "false"
        for reference in references.referenced(document, read):
            if not (keeps_data and reference.kind == Kind.DATA):
                yield reference
    # The ledger knows the metadata files that the log forgot.
    ledger = table.versions.order_by("version").values_list("manifest_path", flat=True)
    for location in ledger.iterator():
        yield Reference(Kind.METADATA, location)


def _read(reader: TableFileIO, location: str) -> bytes | None:
    """A manifest's content; None when it is gone, as an earlier attempt was here, or not to be read."""
    try:
        path = reader.real_path(location)
    except ForeignFile:
        return None
    try:
        return local_files.read_real_file(path, _MAX_MANIFEST_BYTES)
    except (InvalidLocation, IsADirectoryError):
        return b""  # no manifest
    except OSError as error:
        if not local_files.is_missing(error):
            raise
        local_directories.require_reachable(path)
        return None


def _remove(path: str) -> bool:
    try:
        if local_files.remove_file(path):
            return True
    except IsADirectoryError:  # no file that a reader could have meant
        return False
    local_directories.require_reachable(path)
    return False
