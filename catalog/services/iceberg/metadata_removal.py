"""Removing metadata files that a commit's metadata log has forgotten.

A table asks for it with ``write.metadata.delete-after-commit.enabled``. The commit leaves tombstones
in the ledger and notes the files as condemned, in its own transaction; so nothing is removed before
it stands, and what a crash leaves is removed by the sweep of ``metadata_files``.
"""

import logging
from collections.abc import Sequence

from django.db import DatabaseError
from django.db.models.functions import Now

from catalog import storage
from catalog.formats.iceberg.reading import Document
from catalog.models import StagedFile, Table, TableVersion
from catalog.services.engine.batch import Batch
from catalog.services.iceberg import shared_files
from catalog.services.storage.table_files import TableFiles

log = logging.getLogger(__name__)

_ENABLED = "write.metadata.delete-after-commit.enabled"
# What a commit forgets beyond this many goes with the orphans.
_MAX_FILES = 1000


def forgotten(base: Document, document: Document) -> tuple[str, ...]:
    """The metadata files to remove once ``document`` has replaced ``base``, newest last."""
    properties = document.get("properties") or {}
    if str(properties.get(_ENABLED, "false")).lower() != "true":
        return ()
    kept = set(_logged(document))
    return tuple(file for file in _logged(base) if file not in kept)[-_MAX_FILES:]


def _logged(document: Document) -> list[str]:
    return [entry["metadata-file"] for entry in document.get("metadata-log") or []]


def retire(batch: Batch, row: Table, locations: Sequence[str]) -> list[int]:
    """Leave tombstones for versions of a locked table and have their files removed after the commit.

    Only for files of the ledger that belong to the table and that no other table's ledger has.
    Returns the numbers of the versions.
    """
    batch.flush()
    versions = TableVersion.objects.visible().on("").filter(table=row)
    numbers = dict(
        versions.filter(manifest_path__in=locations).values_list("manifest_path", "version")
    )
    own = TableFiles(row).own_paths(numbers)
    foreign = shared_files.foreign_files(row, {*own, *own.values()})
    going = {path: numbers[text] for text, path in own.items() if path not in foreign}
    versions.filter(version__in=going.values()).update(deleted_at=Now())
    notes = [StagedFile(path=path, is_condemned=True) for path in sorted(going)]
    StagedFile.objects.bulk_create(notes, ignore_conflicts=True)
    for note in notes:
        batch.after_commit(_remove, note)
    return sorted(going.values())


def _remove(notes: Sequence[StagedFile]) -> None:
    """Remove condemned files, then their notes. What fails is left to the sweep."""
    try:
        for note in notes:
            storage.remove_file_in_place(note.path)
        StagedFile.objects.filter(path__in=[note.path for note in notes]).delete()
    except (OSError, DatabaseError) as error:
        log.warning("Metadata files are left to the sweep: %s", error)
