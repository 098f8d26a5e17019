"""Remove the files of a dropped Iceberg table: exactly those that its metadata refers to.

The order of removal keeps the remaining files reachable (``references``). The current metadata
comes last and is read from the database, not from a file. The work can therefore stop at any moment
and start again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from catalog.errors import ForeignFile
from catalog.formats.iceberg.metadata import references
from catalog.formats.iceberg.metadata.references import Kind, Reference
from catalog.formats.iceberg.reading import Document
from catalog.models import IcebergMetadata, Table, TableFormat
from catalog.regular_files import NotRegular, TooLarge
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.files import TableFileIO
from catalog.services.iceberg.shared_files import foreign_files, path_of
from catalog.services.storage import iceberg_paths
from catalog.services.storage.file_owners import Belonging, FileOwner
from catalog.services.storage.table_files import NOBODY, TableFiles
from catalog.storage import locations, stores
from catalog.storage.object_locations import bucket_of

log = logging.getLogger(__name__)

_MAX_MANIFEST_BYTES = 1024 * 1024 * 1024
_AT_ONCE = 500  # files between two checks of the job's row and of other owners
_OUTSIDE = "outside its directories"
_FOREIGN = "of other tables"
_MALFORMED = "malformed"


def holder(table: Table) -> Table | None:
    """Return another table, present or in the trash, that needs this table's files, else None.

    Such a table has an overlapping location. A purge of a Lance table removes everything at its
    location, so an Iceberg table with files there counts as well. For an Iceberg table, a table
    with the same metadata file in its ledger counts: it was registered from these files and moved
    since.
    """
    others = Table.objects.needed().exclude(pk=table.pk)
    other = others.meeting(table.location).select_related("namespace").first()
    if other is not None:
        return other
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
    """The number of files that a purge removed, and the files that it left in place.

    Object stores do not tell whether a removed file existed, so there every file counts once that is
    gone afterwards.
    """

    files: int = 0
    remaining: str = ""
    """The number of files left in place, by reason."""

    _paths: list[str] = field(default_factory=list)
    _objects: set[int] = field(default_factory=set)
    """Hashes of the removed files in object stores: metadata may name a file several times."""

    def add(self, path: str) -> None:
        self.files += 1
        self._paths.append(path)

    def add_object(self, path: str) -> None:
        if hash(path) not in self._objects:
            self._objects.add(hash(path))
            self.add(path)

    def take_paths(self) -> list[str]:
        """Return the paths of the files that were removed since the last call."""
        paths, self._paths = self._paths, []
        return paths


def remove_files(table: Table, report: Callable[[Sequence[str]], None]) -> Removed:
    """Remove a dropped Iceberg table's own files; report which files stay and why.

    Files that belong to other tables, to several tables or to none stay and are not opened.

    ``report`` is called repeatedly with the paths of the files removed since the last call; it may
    raise to stop. Raises OSError when the storage fails.
    """
    store = stores.store_of(table.location)
    store.require_reachable(table.location)
    document = _document(table)
    kept_counts: Counter[str] = Counter()
    removal = Removed()
    reader = partial(_read, TableFileIO(TableFiles(table), NOBODY))
    pending = _references(table, document, reader)
    while batch := list(islice(pending, _AT_ONCE)):
        report([])
        files = TableFiles(table)  # read again, because other tables may have come
        owners = files.classify({reference.location for reference in batch})
        own = {text: o.path for text, o in owners.items() if o.belonging == Belonging.OWN}
        foreign = foreign_files(table, {*own, *filter(None, own.values())})
        paths: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        for reference in batch:
            path = own.get(reference.location)
            if reference.is_malformed:
                kept_counts[_MALFORMED] += 1
            elif path is None:
                kept_counts[_why(owners[reference.location])] += 1
            elif path in foreign:
                kept_counts[_FOREIGN] += 1
            else:
                paths[reference.kind].append(path)
        try:
            for group in paths.values():
                remove_paths(group, removal)
        finally:
            report(removal.take_paths())
    for number, _ in enumerate(store.remove_empty_directories(table.location), 1):
        if number % _AT_ONCE == 0:
            report([])
    removal.remaining = ", ".join(
        f"{count} files {why}" for why, count in sorted(kept_counts.items())
    )
    return removal


def _why(owner: FileOwner) -> str:
    """Return the reason why a file that is not the table's own stays."""
    return _FOREIGN if owner.belonging == Belonging.OTHER else _OUTSIDE


def _document(table: Table) -> Document | None:
    current = IcebergMetadata.objects.filter(table=table).first()
    return metadata_files.read_answer(bytes(current.answer)) if current is not None else None


def _references(
    table: Table, document: Document | None, read: references.Read
) -> Iterator[Reference]:
    if document is not None:
        # As in Java's purge: such a table may share its data with others.
        keeps_data = document.get("properties", {}).get("gc.enabled", "true").lower() == "false"
        for reference in references.referenced(document, read):
            if not (keeps_data and reference.kind == Kind.DATA):
                yield reference
    # The ledger has the metadata files that the metadata log has dropped.
    ledger = table.versions.order_by("version").values_list("manifest_path", flat=True)
    for location in ledger.iterator():
        yield Reference(Kind.METADATA, location)


def _read(reader: TableFileIO, location: str) -> bytes | None:
    """Return a manifest's content; None if an earlier attempt removed it or it may not be read."""
    try:
        path = reader.real_path(location)
    except ForeignFile:
        return None
    store = stores.store_of(path)
    try:
        return store.read(path, _MAX_MANIFEST_BYTES)[0]
    except NotRegular as error:
        is_impossible = error.__cause__ is not None  # what is above it is no directory
        return None if is_impossible else b""
    except TooLarge:
        return b""  # not a manifest
    except OSError as error:
        if not stores.is_missing(error):
            raise
        store.require_reachable(path)
        return None


def remove_paths(paths: Iterable[str], removal: Removed) -> None:
    """Remove files of one kind, by their canonical paths. All are gone afterwards; otherwise raises OSError."""
    objects: dict[tuple[Hashable, str], set[str]] = {}
    for path in paths:
        if locations.is_object(path):
            key = (stores.configuration_of(path), bucket_of(path))
            objects.setdefault(key, set()).add(path)
        elif _remove_local(path):
            removal.add(path)
    for group in objects.values():
        remaining = set(group)
        for path in stores.store_of(min(group)).remove_many(sorted(group)):
            remaining.discard(path)
            removal.add_object(path)
        if remaining:
            raise OSError(f"{len(remaining)} files were not removed")


def _remove_local(path: str) -> bool:
    store = stores.store_of(path)
    try:
        if store.remove(path):
            return True
    except IsADirectoryError:  # not a file, so no reader can refer to it
        return False
    store.require_reachable(path)
    return False
