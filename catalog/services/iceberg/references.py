"""Reading the manifests that a commit did not read to the end, for the references in them.

A commit looks at so much of what it brings in, and notes the snapshots of which there is more. They are
read before files of any table are removed: until then nobody knows whose files they name.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from django.db import transaction

from catalog import access
from catalog.errors import ForeignFile, InvalidMetadata
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.reading import Document
from catalog.models import IcebergMetadata, UnreadSnapshot
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.files import TableFileIO, data_files
from catalog.services.storage import file_references
from catalog.services.storage.table_files import TableFiles
from catalog.storage import local_directories, locations

_AT_ONCE = 10_000


def read_unread(renew: Callable[[], object] = lambda: None) -> None:
    """Read all snapshots that are noted as unread, and record the references in them.

    ``renew`` is called again and again, and may raise to stop; the next call goes on. A manifest that
    is torn, or may not be read, names nothing: nobody reads the table by it. Raises OSError and
    ServiceUnavailable when the storage cannot be reached.
    """
    while (row := _first()) is not None:
        renew()
        committer = access.committer(row.principal, counts_inactive=True)
        sources: set[int] = set()
        # Where no table may lie any more, nobody reads one.
        if committer is not None and locations.is_below_any(
            row.table.location, locations.allowed_roots()
        ):
            local_directories.require_reachable(row.table.location)
            files = TableFiles(row.table)
            paths = _paths(row, TableFileIO(files, committer))
            while batch := list(islice(paths, _AT_ONCE)):
                renew()
                sources |= files.foreign_sources(batch)
            sources = access.readable_tables(committer, sources)
        with transaction.atomic():
            if committer is not None:
                file_references.record_references(
                    actor=committer, table_id=row.table_id, sources=sources
                )
            row.delete()


def _first() -> UnreadSnapshot | None:
    return UnreadSnapshot.objects.select_related("table__namespace").order_by("pk").first()


def _paths(row: UnreadSnapshot, reader: TableFileIO) -> Iterator[str]:
    """The files of a snapshot, and of those the manifests that it brought in."""
    snapshot = next(
        (candidate for candidate in _snapshots(row) if candidate["snapshot-id"] == row.snapshot_id),
        None,
    )
    if snapshot is None:  # it was removed meanwhile
        return
    location = snapshot.get("manifest-list")
    if location:
        yield location
        try:
            listed = manifests.read_list(reader, location)
        except (InvalidMetadata, ForeignFile):
            return
        manifest_paths = [
            manifest.manifest_path
            for manifest in listed
            if row.is_whole or manifest.added_snapshot_id in {None, row.snapshot_id}
        ]
    else:
        manifest_paths = list(snapshot.get("manifests") or ())
    for path in manifest_paths:
        yield path
        try:
            yield from data_files(reader, path)
        except (InvalidMetadata, ForeignFile):
            continue


def _snapshots(row: UnreadSnapshot) -> list[Document]:
    current = IcebergMetadata.objects.filter(table=row.table_id).first()
    if current is None:
        return []
    return metadata_files.read_answer(bytes(current.answer)).get("snapshots") or []
