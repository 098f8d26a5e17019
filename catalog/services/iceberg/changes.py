"""The change of one Iceberg table: from the current metadata to the file that is to become current.

    load     _load, or the result of the preceding commit: the current state of the table
    check    _check: the client's requirements
    apply    _apply: its updates; the new metadata
    locate   _locate: the location and the paths of the new metadata
    draft    metadata_files.draft: the metadata file, which is not written yet
    step     _step: the operation that makes the file current

Nothing is written here. ``commits`` stages the file and swaps the pointer.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from catalog.access import Principal
from catalog.errors import CatalogError, NamespaceNotFound, RequirementFailed
from catalog.formats.iceberg.metadata import requirements, updates
from catalog.identifiers import Identifier, digest
from catalog.models import Namespace, TableFormat, TableKind
from catalog.services.engine import table_cache
from catalog.services.engine.operation import Operation
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import metadata_files, metadata_removal
from catalog.services.iceberg.locations import check_paths, files_of
from catalog.services.iceberg.metadata_files import Document, MetadataFile
from catalog.services.iceberg.metadata_operations import CommitMetadata, CreateFromMetadata
from catalog.services.iceberg.tables import LoadedTable, find, require_kind
from catalog.services.storage.file_owners import FutureTable, References
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables.table_operations import already_exists


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """A client's requested change of one table (specification: CommitTableRequest)."""

    table: Identifier
    requirements: Sequence[Mapping[str, Any]]
    updates: Sequence[Mapping[str, Any]]

    @property
    def is_creation(self) -> bool:
        unchecked: Sequence[object] = self.requirements
        return any(
            isinstance(requirement, Mapping) and requirement.get("type") == "assert-create"
            for requirement in unchecked
        )


@dataclass(frozen=True, slots=True)
class Step:
    """The change of one table in a commit; without an operation if the updates change nothing."""

    result: LoadedTable
    operation: Operation | None = None
    file: MetadataFile | None = None


def prepare_steps(actor: Principal, changes: Sequence[TableChange]) -> list[Step]:
    """The steps of several tables from their current metadata. Errors name the change's index."""
    bases = _load([change.table for change in changes])
    steps = []
    for index, change in enumerate(changes):
        try:
            steps.append(prepare_step(actor, change, bases.get(digest(change.table))))
        except CatalogError as error:
            error.operation = index
            raise
    return steps


def prepare_step(actor: Principal, change: TableChange, base: LoadedTable | None) -> Step:
    """The step from the loaded state of a table to the requested one; nothing is written yet."""
    base = _check(change, base)
    if actor.job_kind and base is not None:
        _require_unreferenced(change, base)
    document = _apply(change, base)
    if base is not None and document is base.document:
        return Step(base)
    location, files, references = _locate(actor, change, base, document)
    file = metadata_files.draft(files, document, base.sequence + 1 if base is not None else 0)
    return _step(change, base, location, file, references)


def _check(change: TableChange, base: LoadedTable | None) -> LoadedTable | None:
    """The table to change, or None if the change creates it.

    Raises NamespaceNotFound, TableNotFound, ViewAlreadyExists, RequirementFailed.
    """
    is_creation = requirements.is_create(change.requirements)
    if base is None and is_creation:
        if not Namespace.objects.named(change.table[:-1]).exists():
            raise NamespaceNotFound(change.table[:-1])
    elif is_creation and base is not None and not base.is_table:
        raise already_exists(change.table, base)
    else:
        base = require_kind(change.table, base, TableKind.TABLE)
    requirements.check(change.requirements, base.document if base is not None else None)
    return base


def _require_unreferenced(change: TableChange, base: LoadedTable) -> None:
    """Refuse the removal of a snapshot to which a branch or tag refers. For jobs only.

    Iceberg's client removes snapshots without a requirement on the references. If a snapshot was tagged,
    or main was rolled back to it, after the job had read the table, the commit would remove that reference
    too, and the job would then delete its files. Raises RequirementFailed; the client reads the table again.
    """
    removed_refs = {
        update.get("ref-name")
        for update in change.updates
        if update.get("action") == "remove-snapshot-ref"
    }
    removed = {
        snapshot
        for update in change.updates
        if update.get("action") == "remove-snapshots"
        for snapshot in update.get("snapshot-ids") or ()
    }
    for name, reference in (base.document.get("refs") or {}).items():
        if reference["snapshot-id"] in removed and name not in removed_refs:
            raise RequirementFailed(
                f"snapshot {reference['snapshot-id']} is referenced by '{name}' and cannot be removed"
            )


def _apply(change: TableChange, base: LoadedTable | None) -> Document:
    """The new metadata; the same object if the updates change nothing. Raises InvalidMetadata."""
    return updates.apply(
        base.document if base is not None else None,
        change.updates,
        now_ms=now_ms(),
        previous_location=base.metadata_location if base is not None else None,
        is_replacement=requirements.is_replacement(change.requirements),
    )


def _locate(
    actor: Principal, change: TableChange, base: LoadedTable | None, document: Document
) -> tuple[str, TableFiles, References]:
    """The canonical location of the new metadata, the table's files there, and what else it refers to.

    Raises InvalidLocation, LocationTaken, ForeignFile.
    """
    location = check_paths(actor, change.table, document, base)
    holder = base if base is not None else FutureTable(change.table, location)
    files = files_of(holder, document, location, base=base)
    return location, files, iceberg_files.check_updates(actor, files, change.updates)


def _step(
    change: TableChange,
    base: LoadedTable | None,
    location: str,
    file: MetadataFile,
    references: References,
) -> Step:
    """The operation that makes the metadata file current, and its result."""
    operation: Operation
    if base is None:
        operation = CreateFromMetadata(
            table=change.table,
            file=file,
            location=location,
            references=references,
        )
    else:
        operation = CommitMetadata(
            table=change.table,
            base=base.metadata_location,
            base_id=base.pk,
            file=file,
            location=location if location != base.location else None,
            updates=tuple(str(update.get("action")) for update in change.updates),
            references=references,
            expired_files=metadata_removal.expired_files(base.document, file.document),
        )
    pk = base.pk if base is not None else 0
    result = loaded(change.table, pk, TableKind.TABLE, location, file)
    return Step(result, operation, file)


def _load(tables: Sequence[Identifier]) -> dict[uuid.UUID, LoadedTable]:
    """The current holders of these names. One statement, which leaves out cached metadata.

    Renamed tables may have exchanged their names since, so metadata is looked up by its ETag.
    """
    cached = [table_cache.documents.get(digest(table)) for table in tables]
    by_etag = {document.etag: document for document in cached if document is not None}
    holders = find(tables, list(by_etag))
    for name, table in holders.items():
        document = by_etag.get(table.etag)
        if table.answer is None and document is not None:
            loaded_table = replace(table, answer=document.answer)
            holders[name] = _with_document(loaded_table, document.document)
    return holders


def _with_document(table: LoadedTable, document: Document) -> LoadedTable:
    """Set the parsed metadata of a table."""
    vars(table)["document"] = document  # the attribute in which the property caches it
    return table


def loaded(
    table: Identifier, pk: int, kind: TableKind, location: str, file: MetadataFile
) -> LoadedTable:
    """The state of a table once this file is current."""
    table_ = LoadedTable(
        table,
        pk,
        TableFormat.ICEBERG,
        kind,
        location,
        file.location,
        file.sequence,
        file.etag,
        file.answer,
    )
    return _with_document(table_, file.document)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def cache_metadata(step: Step) -> None:
    """Cache the committed metadata for the next commit of this process."""
    file = step.file
    if file is not None:
        document = table_cache.CachedDocument(
            file.etag, file.answer, file.document, file.size, step.result
        )
        table_cache.documents.put(digest(step.result.identifier), document)


def cached_table(table: Identifier) -> LoadedTable | None:
    """The table as this process last committed it, which may be out of date."""
    document = table_cache.documents.get(digest(table))
    loaded_table: LoadedTable | None = None if document is None else document.table
    # A table that a commit created has no key there.
    return loaded_table if loaded_table is not None and loaded_table.pk else None
