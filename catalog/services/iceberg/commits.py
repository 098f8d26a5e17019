"""Creating Iceberg tables, and committing to them.

A commit reads the current metadata, checks the client's requirements, applies its updates, writes
the new metadata files, and swaps the pointers if what it read is still current; else it starts
again from what is current now, as long as the requirements hold. Several tables are one commit.
"""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from catalog import access, storage
from catalog.access import On, Principal
from catalog.errors import (
    CatalogError,
    CommitConflict,
    InvalidInput,
    NamespaceNotFound,
)
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.metadata import requirements, updates
from catalog.identifiers import Identifier, check_table, digest, slug
from catalog.models import Namespace, Table, TableFormat, TableKind
from catalog.privileges import Privilege
from catalog.services.engine import table_cache
from catalog.services.engine.commit import Operation, commit
from catalog.services.engine.commit_queue import turn, turns
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import metadata_files, metadata_removal
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.metadata_files import Document, MetadataFile
from catalog.services.iceberg.metadata_operations import (
    BaseChanged,
    CommitMetadata,
    CreateFromMetadata,
    RegisterFromMetadata,
)
from catalog.services.iceberg.tables import LoadedTable, find, require_kind
from catalog.services.storage import iceberg_paths, namespace_locations
from catalog.services.storage.table_files import FutureTable, Holder, TableFiles
from catalog.services.tables.table_operations import already_exists, require_free_location

_T = TypeVar("_T")


# Commits take turns, so others are met seldom (see turns.py).
_ATTEMPTS = 12
_PAUSE_SECONDS = 0.005
_MAX_METADATA_BYTES = 256 * 1024 * 1024
_PATH_PROPERTIES = (
    "write.metadata.path",
    "write.data.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """What a client asks of one table (specification: CommitTableRequest)."""

    table: Identifier
    requirements: Sequence[Mapping[str, Any]]
    updates: Sequence[Mapping[str, Any]]

    @property
    def is_creation(self) -> bool:
        unchecked: Sequence[object] = self.requirements
        return any(
            isinstance(each, Mapping) and each.get("type") == "assert-create" for each in unchecked
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
    """A new Iceberg table. With ``stage`` no file is written: its ``metadata_location`` is empty.

    A commit that asserts creation makes a staged table real. Raises NamespaceNotFound,
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
    """Give a name to a table that lies in storage, by its metadata file; its uuid stays.

    With ``overwrite`` the table that has the name is forgotten first. Raises NamespaceNotFound,
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
    operation = RegisterFromMetadata(
        table=table,
        file=file,
        location=location,
        overwrite=overwrite,
        sources=references.sources | files.foreign_sources([metadata_location]),
        unread=references.unread,
    )
    row = commit([operation], actor=actor).results[0]
    return loaded(table, row.pk, TableKind.TABLE, location, file)


def require_free(table: Identifier, wanted: TableKind = TableKind.TABLE) -> None:
    """Refuse a name that is taken before anything is written for it; the commit looks again.

    Raises NamespaceNotFound, TableAlreadyExists, ViewAlreadyExists.
    """
    holder = find([table]).get(digest(table))
    if holder is not None:
        raise already_exists(table, holder, wanted)
    if not Namespace.objects.named(table[:-1]).exists():
        raise NamespaceNotFound(table[:-1])


def new_location(actor: Principal, table: Identifier) -> str:
    """A location of its own for a new table: below its namespace's ``location``, if that has one or
    inherits it.

    Raises InvalidLocation and LocationTaken for a ``location`` where no table may lie.
    """
    rows = namespace_locations.line(table[:-1])
    base = namespace_locations.explicit_location_of(rows) if rows else None
    if base:
        location = f"{base.rstrip('/')}/{slug(table[-1:], 60)}-{uuid.uuid4().hex}"
        require_free_location(actor, storage.iceberg_path(location))
        return location
    return storage.iceberg_uri(storage.new_location(slug(table[-1:], 60)))


def chosen_location(actor: Principal, table: Identifier, location: str | None) -> str:
    """The location of a new table: the client's, or one of its own.

    A relative one is taken relative to the namespace's location. Raises InvalidLocation and
    LocationTaken.
    """
    if location is None:
        return new_location(actor, table)
    if storage.is_relative_iceberg_path(location):
        return namespace_locations.resolve(table[:-1], location)
    return location


def check_paths(actor: Principal, document: Document, base: LoadedTable | None = None) -> str:
    """The canonical local path of a document's location; its other paths are checked with it.

    What ``base`` has already was checked then. Raises InvalidLocation, LocationTaken.
    """
    known = base.document if base is not None else {}
    properties, checked = document.get("properties", {}), known.get("properties", {})
    new = {
        storage.iceberg_path(properties[name])
        for name in _PATH_PROPERTIES
        if name in properties and properties[name] != checked.get(name)
    }
    if base is not None and document["location"] == known["location"]:
        location = base.location
    else:
        location = storage.iceberg_path(document["location"])
    _refuse_paths_of_others(actor, new, location, base.pk if base is not None else 0)
    for path in sorted(new):
        if location not in (path, *storage.parents(path)):
            namespace_locations.require_path(actor, path)
    return location


def files_of(table: Holder, document: Document, *locations: str) -> TableFiles:
    """The files of a table that has, or gets, this metadata: those in the paths that it names, too."""
    return TableFiles(
        table, also=(*iceberg_paths.named(document.get("properties", {})), *locations)
    )


def _refuse_paths_of_others(actor: Principal, paths: set[str], location: str, pk: int) -> None:
    """Refuse files inside another table: they would go when that is purged.

    Tables may lie in a directory where a table has its files. In one that another table has, only
    who may manage that one has a table's files too: neither may change them any more.
    """
    above = {
        directory
        for path in paths
        if location not in (own := (path, *storage.parents(path)))
        for directory in own
    }
    if not above:
        return
    iceberg_paths.require_unheld(actor, pk, paths)
    others = Table.objects.present().exclude(pk=pk).filter(location__in=above)
    holder = others.select_related("namespace").first()
    if holder is not None:
        raise iceberg_paths.taken(actor, holder.location, holder)


# --- committing --------------------------------------------------------------------------------


def commit_table(*, actor: Principal, change: TableChange) -> LoadedTable:
    """Commit to one table, or create it if the change asserts that; returns it as it is then.

    Raises TableNotFound, ViewNotFound, RequirementFailed, InvalidMetadata, InvalidLocation,
    CommitConflict when others kept committing, and OutcomeUnknown.
    """
    return commit_tables(actor=actor, changes=[change])[0]


def commit_tables(
    *, actor: Principal, changes: Sequence[TableChange], also: Sequence[Operation] = ()
) -> list[LoadedTable]:
    """Commit to several tables, all or none; a table may come once.

    ``also`` are operations of either format for the same transaction. Raises what ``commit_table``
    does; nothing has changed then, unless it is OutcomeUnknown.
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
    return until_it_stands(names, lambda: _commit_all(actor, changes, also))


def until_it_stands(names: Sequence[uuid.UUID], attempt: Callable[[], _T]) -> _T:
    """Try a commit to the tables of these digests again while others come between.

    Raises CommitConflict when they do not leave off, and what ``attempt`` raises otherwise.
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
            met = error
    raise CommitConflict(
        "Cannot commit to {kind} {table}: others keep changing it; try again",
        kind=met.kind,
        table=met.table,
    ) from met


@dataclass(frozen=True, slots=True)
class _Step:
    """What a commit does to one table. Nothing, if the updates change nothing."""

    result: LoadedTable
    operation: Operation | None = None
    file: MetadataFile | None = None


def _commit_one(actor: Principal, change: TableChange) -> LoadedTable:
    """Prepare on what the commit before this one makes of the table, while it is under way.

    If that comes to nothing, so does this, since its base is never current. But a refusal would
    stand, and so would the answer that nothing changes: they are given on what is current.
    """
    name = digest(change.table)
    with turn(name) as own:
        step = None
        if own.latest is not None:
            step = _prepare_on_trust(actor, change, own.latest)
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
        _keep(step)
    return step.result


def _prepare_on_trust(actor: Principal, change: TableChange, base: LoadedTable) -> _Step | None:
    """The step, if it is one that only takes effect when ``base`` becomes current."""
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
            _keep(step)
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
    """What holds these names now. One statement, which leaves out the metadata that is kept here.

    Renamed tables may have exchanged their names since, so a table's metadata is looked up by its ETag.
    """
    kept = [table_cache.documents.get(digest(table)) for table in tables]
    by_etag = {document.etag: document for document in kept if document is not None}
    found = find(tables, list(by_etag))
    for name, table in found.items():
        document = by_etag.get(table.etag)
        if table.answer is None and document is not None:
            found[name] = _with_document(replace(table, answer=document.answer), document.document)
    return found


def _with_document(table: LoadedTable, document: Document) -> LoadedTable:
    """The table with its metadata parsed already."""
    vars(table)["document"] = document  # where the property keeps it
    return table


def _keep(step: _Step) -> None:
    """Keep what was committed for the next commit of this process."""
    file = step.file
    if file is not None:
        name = digest(step.result.identifier)
        kept = table_cache.SeenDocument(file.etag, file.answer, file.document, file.size)
        table_cache.documents.put(name, kept)


def _prepare(actor: Principal, change: TableChange, base: LoadedTable | None) -> _Step:
    """Check the requirements, apply the updates, and draft the file that holds the result."""
    is_creation = requirements.is_create(change.requirements)
    if base is None and is_creation:
        if not Namespace.objects.named(change.table[:-1]).exists():
            raise NamespaceNotFound(change.table[:-1])
    elif is_creation and base is not None and not base.is_table:
        raise already_exists(change.table, base)
    else:
        base = require_kind(change.table, base, TableKind.TABLE)
    known = base.document if base is not None else None
    requirements.check(change.requirements, known)
    document = updates.apply(
        known,
        change.updates,
        now_ms=now_ms(),
        previous_location=base.metadata_location if base is not None else None,
        is_replacement=requirements.is_replacement(change.requirements),
    )
    if base is not None and document is known:
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
            sources=references.sources,
            unread=references.unread,
        )
    else:
        operation = CommitMetadata(
            table=change.table,
            base=base.metadata_location,
            base_id=base.pk,
            file=file,
            location=location if location != base.location else None,
            updates=tuple(str(update.get("action")) for update in change.updates),
            sources=references.sources,
            unread=references.unread,
            forgotten=metadata_removal.forgotten(base.document, document),
        )
    pk = base.pk if base is not None else 0
    result = loaded(change.table, pk, TableKind.TABLE, location, file)
    return _Step(result, operation, file)


def loaded(
    table: Identifier, pk: int, kind: TableKind, location: str, file: MetadataFile
) -> LoadedTable:
    """The table as it is once this file is current."""
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
