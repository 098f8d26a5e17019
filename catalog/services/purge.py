"""Removing the files of a dropped Iceberg table: those that its metadata refers to, and no others.

The files go in an order in which what is left can still be found (``references``), the current
metadata last of all, and from the database, not from a file. So the work may be stopped at any
moment and begun again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from django.db.models import QuerySet

from catalog import storage
from catalog.errors import InvalidLocation
from catalog.formats.iceberg import references
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.references import Kind, Reference
from catalog.models import IcebergMetadata, Table, TableFormat, TableVersion
from catalog.models.versions import file_name
from catalog.services import iceberg_paths, metadata_files

log = logging.getLogger(__name__)

_MAX_MANIFEST_BYTES = 1024 * 1024 * 1024
_AT_ONCE = 500  # files between two looks at the job's row, and at who else may own them
_OUTSIDE = "outside the allowed directories"
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
        foreign = _foreign_files(table, batch)
        for path in map(_path, batch) if foreign else ():
            if path in foreign:
                return foreign[path]
    return None


def remove_files(table: Table, renew: Callable[[int], None]) -> str:
    """Remove a dropped Iceberg table's files; returns what was left in place, and why.

    ``renew`` is called again and again with how many files were removed since the last call; it may
    raise to stop. Raises OSError when the storage fails.
    """
    storage.require_reachable(table.location)
    document = _document(table)
    left: Counter[str] = Counter()
    found = _references(table, document)
    while batch := list(islice(found, _AT_ONCE)):
        renew(0)
        paths = {reference: _path_to_remove(reference) for reference in batch}
        taken = _inside_other_tables(table, {path for path in paths.values() if path is not None})
        spelled = {reference.location for reference in batch}
        foreign = _foreign_files(table, spelled.union(filter(None, paths.values())))
        removed = 0
        try:
            for reference, path in paths.items():
                if reference.is_malformed:
                    left[_MALFORMED] += 1
                elif path is None:
                    left[_OUTSIDE] += 1
                elif path in taken or path in foreign:
                    left[_FOREIGN] += 1
                elif _remove(path):
                    removed += 1
        finally:
            renew(removed)
    for number, _ in enumerate(storage.remove_empty_directories(table.location), 1):
        if number % _AT_ONCE == 0:
            renew(0)
    return ", ".join(f"{count} files {why}" for why, count in sorted(left.items()))


def _document(table: Table) -> Document | None:
    current = IcebergMetadata.objects.filter(table=table).first()
    return metadata_files.read_answer(bytes(current.answer)) if current is not None else None


def _references(table: Table, document: Document | None) -> Iterator[Reference]:
    if document is not None:
        # As Java's purge does: such a table may share its data with others.
        keeps_data = document.get("properties", {}).get("gc.enabled", "true").lower() == "false"
        for reference in references.referenced(document, _read):
            if not (keeps_data and reference.kind == Kind.DATA):
                yield reference
    # The ledger knows the metadata files that the log forgot.
    ledger = table.versions.order_by("version").values_list("manifest_path", flat=True)
    for location in ledger.iterator():
        yield Reference(Kind.METADATA, location)


def _read(location: str) -> bytes | None:
    """A manifest's content; None when it is gone: an earlier attempt was here."""
    try:
        path = storage.iceberg_path(location)
    except InvalidLocation:
        return None
    try:
        return storage.read_whole_file(path, _MAX_MANIFEST_BYTES)
    except (InvalidLocation, IsADirectoryError):
        return b""  # no manifest
    except OSError as error:
        if not storage.is_missing(error):
            raise
        storage.require_reachable(path)
        return None


def _path(location: str) -> str | None:
    """Where a file lies; None when it is where tables may not lie."""
    try:
        return storage.iceberg_path(location)
    except InvalidLocation:
        return None


def _path_to_remove(reference: Reference) -> str | None:
    try:
        return storage.iceberg_path(reference.location)
    except InvalidLocation as error:
        log.warning("A purge leaves a %s: %s", reference.kind.value, error.message)
        return None


def _remove(path: str) -> bool:
    try:
        if storage.remove_file(path):
            return True
    except IsADirectoryError:  # no file that a reader could have meant
        return False
    storage.require_reachable(path)
    return False


def _inside_other_tables(table: Table, paths: set[str]) -> set[str]:
    """Those of the paths that lie at or inside the location of another table that needs its files."""
    above = {path: {path, *storage.parents(path)} for path in paths}
    locations = set(
        Table.objects.needed()
        .exclude(pk=table.pk)
        .filter(location__in=set().union(*above.values()))
        .values_list("location", flat=True)
    )
    return {path for path in paths if above[path] & locations}


def _foreign_files(table: Table, locations: Iterable[str]) -> dict[str, Table]:
    """The metadata files of other Iceberg tables, present or in the trash, that have names of these.

    By their paths: each ledger spells them as its clients did.
    """
    versions = list(_foreign_versions(table, locations))
    if not versions:
        return {}
    owners = Table.objects.needed().filter(format=TableFormat.ICEBERG).select_related("namespace")
    present = owners.in_bulk({pk for pk, _ in versions})
    files = {_path(location): present[pk] for pk, location in versions if pk in present}
    return {path: owner for path, owner in files.items() if path is not None}


def _foreign_versions(table: Table, locations: Iterable[str]) -> QuerySet[Any, tuple[int, str]]:
    found = TableVersion.objects.in_files_named({file_name(location) for location in locations})
    return found.exclude(table=table).values_list("table_id", "manifest_path")
