"""Creating Iceberg tables, and committing to them.

A commit reads the current metadata, checks the client's requirements, applies its updates, writes
the new metadata files, and swaps the pointers if the metadata that it read is still current.
Otherwise it starts again from the new current metadata, as long as the requirements hold. A change
of several tables is one commit.
"""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from catalog import access
from catalog.access import On, Principal
from catalog.errors import CatalogError, CommitConflict, InvalidInput, NamespaceNotFound
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.metadata import requirements, updates
from catalog.identifiers import Identifier, check_table, digest
from catalog.models import Namespace, TableFormat, TableKind
from catalog.privileges import Privilege
from catalog.services.engine import table_cache
from catalog.services.engine.commit import commit
from catalog.services.engine.commit_queue import turn, turns
from catalog.services.engine.operation import Operation
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import metadata_files, metadata_removal
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.locations import check_paths, chosen_location, files_of
from catalog.services.iceberg.metadata_files import Document, MetadataFile
from catalog.services.iceberg.metadata_operations import (
    BaseChanged,
    CommitMetadata,
    CreateFromMetadata,
    RegisterFromMetadata,
)
from catalog.services.iceberg.tables import LoadedTable, find, require_kind
from catalog.services.storage.table_files import FutureTable
from catalog.services.tables.table_operations import already_exists, require_free_location

_T = TypeVar("_T")


# Commits take turns, so conflicts are rare (see ``commit_queue``).
_ATTEMPTS = 12
_PAUSE_SECONDS = 0.005
_MAX_METADATA_BYTES = 256 * 1024 * 1024


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


# --- creating ----------------------------------------------------------------------------------


def create_table(
    *,
    actor: Principal,
    table: Identifier,
    schema: Mapping[str, Any],
    partition_spec: Mapping[str, Any] | None = None,
    write_order: Mapping[str, Any] | None = None,
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
    stage: bool = False,
) -> LoadedTable:
    """Create an Iceberg table. With ``stage`` no file is written: ``metadata_location`` is empty.

    A commit that asserts creation creates the staged table. Raises NamespaceNotFound,
    TableAlreadyExists, ViewAlreadyExists, InvalidMetadata, InvalidLocation, LocationTaken.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    require_free(table)
    document = metadata_documents.new_table(
        schema=schema,
        partition_spec=partition_spec,
        write_order=write_order,
        location=chosen_location(actor, table, location),
        properties=properties,
        now_ms=now_ms(),
    )
    path = check_paths(actor, document)
    if location is not None:
        require_free_location(actor, path)
    if stage:
        metadata_files.make_directory(document)
        answer = metadata_files.answer(None, metadata_documents.dump(document))
        return LoadedTable(table, 0, TableFormat.ICEBERG, TableKind.TABLE, path, "", 0, "", answer)
    file = metadata_files.draft(document, 0)
    create = CreateFromMetadata(
        table=table, file=file, location=path, is_own_location=location is None
    )
    with metadata_files.staged([file]):
        row = commit([create], actor=actor).results[0]
    return loaded(table, row.pk, TableKind.TABLE, path, file)


def register_table(
    *,
    actor: Principal,
    table: Identifier,
    metadata_location: str,
    overwrite: bool = False,
) -> LoadedTable:
    """Register a table that exists in storage, by its metadata file; it keeps its uuid.

    With ``overwrite`` the table that has the name is deregistered first. Raises NamespaceNotFound,
    TableAlreadyExists, ViewAlreadyExists, InvalidLocation, InvalidMetadata, LocationTaken.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    if not overwrite:
        require_free(table)
    path = iceberg_files.require_registrable(actor, table, metadata_location)
    document = metadata_documents.parse(iceberg_files.read_metadata(path, _MAX_METADATA_BYTES))
    file = metadata_files.existing(document, metadata_location, path)
    location = check_paths(actor, document)
    files = files_of(FutureTable(table, location), document)
    references = iceberg_files.check_document(actor, files, document)
    sources = references.sources | files.foreign_sources([metadata_location])
    operation = RegisterFromMetadata(
        table=table,
        file=file,
        location=location,
        overwrite=overwrite,
        references=replace(references, sources=sources),
    )
    row = commit([operation], actor=actor).results[0]
    return loaded(table, row.pk, TableKind.TABLE, location, file)


def require_free(table: Identifier, kind: TableKind = TableKind.TABLE) -> None:
    """Refuse a taken name before anything is written for it; the commit checks again.

    Raises NamespaceNotFound, TableAlreadyExists, ViewAlreadyExists.
    """
    holder = find([table]).get(digest(table))
    if holder is not None:
        raise already_exists(table, holder, kind)
    if not Namespace.objects.named(table[:-1]).exists():
        raise NamespaceNotFound(table[:-1])


# --- committing --------------------------------------------------------------------------------


def commit_table(*, actor: Principal, change: TableChange) -> LoadedTable:
    """Commit to one table, or create it if the change asserts creation; returns the new state.

    Raises TableNotFound, ViewNotFound, RequirementFailed, InvalidMetadata, InvalidLocation,
    CommitConflict after too many conflicts, and OutcomeUnknown.
    """
    return commit_tables(actor=actor, changes=[change])[0]


def commit_tables(
    *, actor: Principal, changes: Sequence[TableChange], also: Sequence[Operation] = ()
) -> list[LoadedTable]:
    """Commit to several tables atomically; each table may occur once.

    ``also`` are operations of either format for the same transaction. Raises the exceptions of
    ``commit_table``; nothing has changed then, except possibly after OutcomeUnknown.
    """
    for index, change in enumerate(changes):
        try:
            if change.is_creation:
                access.require(actor, Privilege.CREATE, On.namespace(change.table[:-1]))
            else:
                access.require(actor, Privilege.WRITE, iceberg_tables.on(change.table))
        except CatalogError as error:
            error.operation = index if len(changes) > 1 else None
            raise
    names = [digest(check_table(change.table)) for change in changes]
    if len(set(names)) < len(names):
        raise InvalidInput("A table comes twice in one transaction; join its updates")
    if len(changes) == 1 and not also:
        return [_repeat(lambda: _commit_one(actor, changes[0]))]
    return with_retries(names, lambda: _commit_all(actor, changes, also))


def with_retries(names: Sequence[uuid.UUID], attempt: Callable[[], _T]) -> _T:
    """Repeat a commit to the tables of these digests while other commits conflict with it.

    Raises CommitConflict after too many conflicts, and other exceptions of ``attempt``.
    """

    def take_turns() -> _T:
        with turns(names):
            return attempt()

    return _repeat(take_turns)


def _repeat(attempt: Callable[[], _T]) -> _T:
    for number in range(_ATTEMPTS):
        if number:
            time.sleep(random.uniform(0, _PAUSE_SECONDS * 2 ** min(number, 6)))  # noqa: S311
        try:
            return attempt()
        except BaseChanged as error:
            conflict = error
    raise CommitConflict(
        "Cannot commit to {kind} {table}: others keep changing it; try again",
        kind=conflict.kind,
        table=conflict.table,
    ) from conflict


@dataclass(frozen=True, slots=True)
class _Step:
    """The change of one table in a commit; without an operation if the updates change nothing."""

    result: LoadedTable
    operation: Operation | None = None
    file: MetadataFile | None = None


def _commit_one(actor: Principal, change: TableChange) -> LoadedTable:
    """Commit to one table, prepared on the result of the preceding commit while that is running.

    If the preceding commit fails, so does this one, since its base never becomes current. Refusals,
    and the answer that nothing changes, would be final: they are based on current metadata only.
    """
    name = digest(change.table)
    with turn(name) as own:
        step = None
        if own.latest is not None:
            step = _prepare_on_uncommitted(actor, change, own.latest)
        if step is None:
            own.settle()
            step = _prepare_each(actor, [change])[0]
        if step.operation is None or step.file is None:
            return step.result
        own.prepared(step.result if step.result.pk else None)
        with metadata_files.staged([step.file]):
            if not own.is_next():
                raise BaseChanged(TableKind.TABLE, change.table)
            commit([step.operation], actor=actor)
        _cache(step)
    return step.result


def _prepare_on_uncommitted(
    actor: Principal, change: TableChange, base: LoadedTable
) -> _Step | None:
    """The step, if it takes effect only when ``base`` becomes current; otherwise None."""
    try:
        step = _prepare(actor, change, base)
    except CatalogError:
        return None
    return step if step.operation is not None else None


def _commit_all(
    actor: Principal, changes: Sequence[TableChange], also: Sequence[Operation]
) -> list[LoadedTable]:
    steps = _prepare_each(actor, changes)
    operations = [step.operation for step in steps if step.operation is not None]
    files = [step.file for step in steps if step.file is not None]
    if operations or also:
        with metadata_files.staged(files):
            commit([*operations, *also], actor=actor)
        for step in steps:
            _cache(step)
    return [step.result for step in steps]


def _prepare_each(actor: Principal, changes: Sequence[TableChange]) -> list[_Step]:
    bases = _current([change.table for change in changes])
    steps = []
    for index, change in enumerate(changes):
        try:
            steps.append(_prepare(actor, change, bases.get(digest(change.table))))
        except CatalogError as error:
            error.operation = index
            raise
    return steps


def _current(tables: Sequence[Identifier]) -> dict[uuid.UUID, LoadedTable]:
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


def _cache(step: _Step) -> None:
    """Cache the committed metadata for the next commit of this process."""
    file = step.file
    if file is not None:
        document = table_cache.CachedDocument(file.etag, file.answer, file.document, file.size)
        table_cache.documents.put(digest(step.result.identifier), document)


def _prepare(actor: Principal, change: TableChange, base: LoadedTable | None) -> _Step:
    """Check the requirements, apply the updates, and draft the resulting metadata file."""
    is_creation = requirements.is_create(change.requirements)
    if base is None and is_creation:
        if not Namespace.objects.named(change.table[:-1]).exists():
            raise NamespaceNotFound(change.table[:-1])
    elif is_creation and base is not None and not base.is_table:
        raise already_exists(change.table, base)
    else:
        base = require_kind(change.table, base, TableKind.TABLE)
    current = base.document if base is not None else None
    requirements.check(change.requirements, current)
    document = updates.apply(
        current,
        change.updates,
        now_ms=now_ms(),
        previous_location=base.metadata_location if base is not None else None,
        is_replacement=requirements.is_replacement(change.requirements),
    )
    if base is not None and document is current:
        return _Step(base)
    location = check_paths(actor, document, base)
    if base is None or location != base.location:
        require_free_location(actor, location, pk=base.pk if base is not None else 0)
    holder = base if base is not None else FutureTable(change.table, location)
    files = files_of(holder, document, location)
    references = iceberg_files.check_updates(actor, files, change.updates)
    file = metadata_files.draft(document, base.sequence + 1 if base is not None else 0)
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
            expired_files=metadata_removal.expired_files(base.document, document),
        )
    pk = base.pk if base is not None else 0
    result = loaded(change.table, pk, TableKind.TABLE, location, file)
    return _Step(result, operation, file)


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
