"""Creating Iceberg tables, and committing to them.

    prepare   ``changes``: check the requirements on the current metadata, apply the updates, draft the files
    stage     ``metadata_files.staged``: record the files and write them
    swap      the engine's commit, if the metadata is still current
    clean up  ``metadata_files.staged``: remove the files of a commit that failed

If the metadata is no longer current, the commit starts again from the new one, as long as the requirements
hold. A change of several tables is one commit.
"""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from catalog import access
from catalog.access import On, Principal
from catalog.errors import CatalogError, CommitConflict, InvalidInput, NamespaceNotFound
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.identifiers import Identifier, check_table, digest
from catalog.models import Namespace, Table, TableFormat, TableKind
from catalog.privileges import Privilege
from catalog.services.engine import table_cache
from catalog.services.engine.commit import commit
from catalog.services.engine.commit_queue import turn, turns
from catalog.services.engine.operation import Operation
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import (
    Step,
    TableChange,
    cache_metadata,
    cached_table,
    loaded,
    now_ms,
    prepare_step,
    prepare_steps,
)
from catalog.services.iceberg.locations import (
    check_paths,
    chosen_location,
    files_of,
    location_in_warehouse,
    read_metadata,
    require_registrable,
)
from catalog.services.iceberg.metadata_files import Document
from catalog.services.iceberg.metadata_operations import (
    BaseChanged,
    CreateFromMetadata,
    RegisterFromMetadata,
)
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.storage import namespace_locations, recorded_references
from catalog.services.storage.file_owners import FutureTable
from catalog.services.tables.namespace_operations import CreateNamespace
from catalog.services.tables.table_operations import already_exists

_T = TypeVar("_T")


# Commits take turns, so conflicts are rare (see ``commit_queue``).
_ATTEMPTS = 12
_PAUSE_SECONDS = 0.005
_MAX_METADATA_BYTES = 256 * 1024 * 1024


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

    def document_at(chosen: str) -> Document:
        return metadata_documents.new_table(
            schema=schema,
            partition_spec=partition_spec,
            write_order=write_order,
            location=chosen,
            properties=properties,
            now_ms=now_ms(),
        )

    if location is None and not stage:
        created = _create_in_warehouse(actor, table, document_at)
        if created is not None:
            return created
    namespaces = require_free(table)
    if namespace_locations.explicit_location_of(namespaces) is None:
        table_cache.unplaced_namespaces.put(namespaces[-1])
    document = document_at(chosen_location(actor, table, location, namespaces))
    path = check_paths(actor, table, document, is_new=location is None)
    files = files_of(FutureTable(table, path), document)
    if stage:
        metadata_files.make_directory(files, document)
        answer = metadata_files.answer(None, metadata_documents.dump(document))
        return LoadedTable(table, 0, TableFormat.ICEBERG, TableKind.TABLE, path, "", 0, "", answer)
    create = CreateFromMetadata(
        table=table,
        file=metadata_files.draft(files, document, 0),
        location=path,
        is_own_location=location is None,
        namespace=namespaces[-1],
    )
    return _commit_first(actor, create, metadata_files.staged([create.file]))


def _create_in_warehouse(
    actor: Principal, table: Identifier, document_at: Callable[[str], Document]
) -> LoadedTable | None:
    """Create a table in the warehouse, if its namespace is cached and no location applies to it.

    The statement that records the metadata file checks the namespace and the name, so that nothing is
    read before. None if the table has to be created otherwise, or refused: only the steps that read
    first refuse, in their order.
    """
    namespace = table_cache.unplaced_namespaces.cached(digest(table[:-1]))
    if namespace is None:
        return None
    try:
        document = document_at(location_in_warehouse(table))
        path = check_paths(actor, table, document, is_new=True)
        file = metadata_files.draft(files_of(FutureTable(table, path), document), document, 0)
    except CatalogError:
        return None
    if not metadata_files.stage_in_warehouse(file, table, namespace):
        table_cache.unplaced_namespaces.discard(namespace.digest)
        return None
    create = CreateFromMetadata(
        table=table, file=file, location=path, is_own_location=True, namespace=namespace
    )
    return _commit_first(actor, create, metadata_files.written([file]))


def _commit_first(
    actor: Principal, create: CreateFromMetadata, files: AbstractContextManager[None]
) -> LoadedTable:
    """Commit the creation of a table while its first metadata file is staged."""
    with files:
        row = commit([create], actor=actor).results[0]
    return loaded(create.table, row.pk, TableKind.TABLE, create.location, create.file)


def register_table(
    *,
    actor: Principal,
    table: Identifier,
    metadata_location: str,
    overwrite: bool = False,
    namespaces: Sequence[CreateNamespace] = (),
    require: Callable[[str], None] = lambda _: None,
) -> LoadedTable:
    """Register a table that exists in storage, by its metadata file; it keeps its uuid.

    With ``overwrite`` the table that has the name is deregistered first. ``namespaces`` creates those
    that are missing above the table, in the same transaction. ``require`` is called with the table's canonical location
    before the commit, and may refuse it. Raises NamespaceNotFound,
    TableAlreadyExists, ViewAlreadyExists, InvalidLocation, InvalidMetadata, LocationTaken.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    if not overwrite and not namespaces:
        require_free(table)
    path = require_registrable(actor, table, metadata_location)
    document = metadata_documents.parse(read_metadata(path, _MAX_METADATA_BYTES))
    file = metadata_files.existing(document, metadata_location, path)
    replaced = _replaceable(actor, table) if overwrite else 0
    location = check_paths(actor, table, document, replaced=replaced)
    require(location)
    files = files_of(FutureTable(table, location), document)
    references = iceberg_files.check_document(actor, files, document)
    references |= files.references([metadata_location])
    if references:
        former = recorded_references.former_holders(path)
        references = recorded_references.as_registered(former, references)
    operation = RegisterFromMetadata(
        table=table,
        file=file,
        location=location,
        overwrite=overwrite,
        references=references,
    )
    row = commit([*namespaces, operation], actor=actor).results[-1]
    return loaded(table, row.pk, TableKind.TABLE, location, file)


def _replaceable(actor: Principal, table: Identifier) -> int:
    """The key of the table that a registration is to replace; 0 if there is none.

    The registration may have its location, and the files there are read before the commit checks again. So the actor
    must hold MANAGE on it. Raises TableAlreadyExists, ViewAlreadyExists and PermissionDenied.
    """
    holder = Table.objects.named(table).select_related("namespace").first()
    if holder is None:
        return 0
    if (holder.format, holder.kind) != (TableFormat.ICEBERG, TableKind.TABLE):
        raise already_exists(table, holder, TableKind.TABLE)
    access.require(actor, Privilege.MANAGE, holder)
    return holder.pk


def require_free(table: Identifier, kind: TableKind = TableKind.TABLE) -> list[Namespace]:
    """Refuse a taken name before anything is written for it; the commit checks again.

    Returns its namespace and those above, the root first. Raises NamespaceNotFound,
    TableAlreadyExists, ViewAlreadyExists.
    """
    holder = iceberg_tables.holder_of(table)
    if holder is not None:
        raise already_exists(table, holder, kind)
    rows = namespace_locations.line(table[:-1])
    if not rows or len(rows[-1].path) != len(table) - 1:
        raise NamespaceNotFound(table[:-1])
    return rows


# --- committing --------------------------------------------------------------------------------


def commit_table(*, actor: Principal, change: TableChange) -> LoadedTable:
    """Commit to one table, or create it if the change asserts creation; returns the new state.

    Raises TableNotFound, ViewNotFound, RequirementFailed, InvalidMetadata, InvalidLocation,
    CommitConflict after too many conflicts, and OutcomeUnknown.
    """
    (table,) = commit_tables(actor=actor, changes=[change])
    return iceberg_tables.for_job(table) if actor.job_kind else table


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


def _commit_one(actor: Principal, change: TableChange) -> LoadedTable:
    """Commit to one table, prepared on the result of the preceding commit while that is running.

    If the preceding commit fails, so does this one, since its base never becomes current. Refusals,
    and the answer that nothing changes, would be final: they are based on current metadata only.
    """
    name = digest(change.table)
    with turn(name) as own:
        step, stage = None, metadata_files.staged
        if own.latest is not None:
            step = _prepare_on_unchecked(actor, change, own.latest)
        if step is None:
            own.settle()
            step, stage = _stage_on_cached(actor, change), metadata_files.written
        if step is None:
            step, stage = prepare_steps(actor, [change])[0], metadata_files.staged
        if step.operation is None or step.file is None:
            return step.result
        own.prepared(step.result if step.result.pk else None)
        with stage([step.file]):
            if not own.is_next():
                raise BaseChanged(TableKind.TABLE, change.table)
            commit([step.operation], actor=actor)
        cache_metadata(step)
    return step.result


def _stage_on_cached(actor: Principal, change: TableChange) -> Step | None:
    """The step on the result of this process's last commit to the table; its file is staged.

    The statement that stages the file checks that this result is still current, so that nothing is read
    before. None if it is not, or if the step takes no effect.
    """
    base = cached_table(change.table)
    step = None if base is None else _prepare_on_unchecked(actor, change, base)
    if base is None or step is None or step.file is None:
        return None
    return step if metadata_files.stage_on(step.file, base.pk, change.table, base.etag) else None


def _prepare_on_unchecked(actor: Principal, change: TableChange, base: LoadedTable) -> Step | None:
    """The step, if it takes effect only where ``base`` is or becomes current; otherwise None."""
    try:
        step = prepare_step(actor, change, base)
    except CatalogError:
        return None
    return step if step.operation is not None else None


def _commit_all(
    actor: Principal, changes: Sequence[TableChange], also: Sequence[Operation]
) -> list[LoadedTable]:
    steps = prepare_steps(actor, changes)
    operations = [step.operation for step in steps if step.operation is not None]
    files = [step.file for step in steps if step.file is not None]
    if operations or also:
        with metadata_files.staged(files):
            commit([*operations, *also], actor=actor)
        for step in steps:
            cache_metadata(step)
    return [step.result for step in steps]
