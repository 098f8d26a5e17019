"""Removing metadata files that a commit drops from the metadata log.

Enabled by the table property ``write.metadata.delete-after-commit.enabled``. The commit leaves
tombstones in the ledger and records the files as condemned, in its own transaction. So no file is
removed before the commit stands, and after a crash the sweep of ``metadata_files`` removes them.
"""

import logging
from collections.abc import Sequence

from django.db import DatabaseError
from django.db.models.functions import Now

from catalog.formats.iceberg.reading import Document
from catalog.models import StagedFile, Table, TableVersion
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.iceberg import metadata_files, shared_files
from catalog.services.storage.table_files import TableFiles

log = logging.getLogger(__name__)

_ENABLED = "write.metadata.delete-after-commit.enabled"
# Further files that a commit drops from its log are removed with the orphan files.
_MAX_FILES = 1000


def expired_files(base: Document, document: Document) -> tuple[str, ...]:
    """The metadata files to remove once ``document`` has replaced ``base``, newest last."""
    properties = document.get("properties") or {}
    if str(properties.get(_ENABLED, "false")).lower() != "true":
        return ()
    logged = set(_logged(document))
    return tuple(file for file in _logged(base) if file not in logged)[-_MAX_FILES:]


def _logged(document: Document) -> list[str]:
    return [entry["metadata-file"] for entry in document.get("metadata-log") or []]


def retire(batch: Batch, row: Table, locations: Sequence[str]) -> list[int]:
    """Mark versions of a locked table as deleted, and remove their files after the commit.

    Applies only to files of the ledger that belong to the table and are in no other table's ledger.
    Returns the numbers of the versions.
    """
    batch.flush()
    if row.paths.exists():
        # Another table can be registered from a file in a former location: ``metadata_files.require_lasting``.
        if batch.shares_locations:
            locks.share_locations()
        else:  # a later operation would wait for the others that share it, and they for this one
            locks.lock_locations()
    versions = TableVersion.objects.visible().on("").filter(table=row)
    numbers = dict(
        versions.filter(manifest_path__in=locations).values_list("manifest_path", "version")
    )
    own = TableFiles(row).own_paths(numbers)
    foreign = shared_files.foreign_files(row, {*own, *own.values()})
    removed = {path: numbers[text] for text, path in own.items() if path not in foreign}
    versions.filter(version__in=removed.values()).update(deleted_at=Now())
    rows = [StagedFile(path=path, is_condemned=True) for path in sorted(removed)]
    StagedFile.objects.bulk_create(rows, ignore_conflicts=True)
    for staged_file in rows:
        batch.after_commit(_remove, staged_file)
    return sorted(removed.values())


def _remove(rows: Sequence[StagedFile]) -> None:
    """Remove condemned files, then their records. The sweep repeats what fails."""
    try:
        metadata_files.remove_recorded(row.path for row in rows)
    except DatabaseError as error:
        log.warning("The sweep will remove the expired metadata files: %s", error)
