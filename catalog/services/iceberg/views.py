"""Creating, registering, replacing, dropping and renaming Iceberg views.

A view has metadata files like a table, written and swapped in the same way, and shares the tables'
name space. It has no data, so no files are removed when it is dropped. Reading and listing are in
``tables``, with the kind VIEW.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    CannotRename,
    NamespaceNotFound,
    TableAlreadyExists,
    TableNotFound,
    ViewAlreadyExists,
    ViewNotFound,
)
from catalog.formats.iceberg.views import documents as view_documents
from catalog.identifiers import Identifier, check_table, digest
from catalog.models import Table, TableFormat, TableKind
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.engine.commit import commit
from catalog.services.iceberg import metadata_files, tables
from catalog.services.iceberg.changes import loaded, now_ms
from catalog.services.iceberg.commits import require_free, with_retries
from catalog.services.iceberg.locations import (
    check_paths,
    chosen_location,
    files_of,
    read_metadata,
    require_registrable,
)
from catalog.services.iceberg.metadata_operations import (
    CommitMetadata,
    CreateFromMetadata,
    RegisterFromMetadata,
)
from catalog.services.iceberg.tables import LoadedTable, find, require_kind
from catalog.services.storage.file_owners import FutureTable
from catalog.services.tables.table_operations import (
    DropTable,
    RenameTable,
    TableOperation,
)

_MAX_METADATA_BYTES = 64 * 1024 * 1024


# --- operations --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ViewOperation(TableOperation):
    """The base class of the operations on views, which extend those on tables."""

    format: TableFormat = TableFormat.ICEBERG
    kind: TableKind = TableKind.VIEW

    def locked(self, batch: Batch) -> Table:
        try:
            return super().locked(batch)
        except (NamespaceNotFound, TableNotFound):
            raise ViewNotFound(self.table) from None


@dataclass(frozen=True, kw_only=True)
class CreateView(ViewOperation, CreateFromMetadata):
    name = "CreateView"
    action = "view.create"


@dataclass(frozen=True, kw_only=True)
class RegisterView(ViewOperation, RegisterFromMetadata):
    name = "RegisterView"
    action = "view.register"


@dataclass(frozen=True, kw_only=True)
class ReplaceView(ViewOperation, CommitMetadata):
    name = "ReplaceView"
    action = "view.replace"


@dataclass(frozen=True, kw_only=True)
class DropView(ViewOperation, DropTable):
    name = "DropView"
    action = "view.drop"

    purge: bool = False


@dataclass(frozen=True, kw_only=True)
class RenameView(ViewOperation, RenameTable):
    name = "RenameView"
    action = "view.rename"


# --- creating ----------------------------------------------------------------------------------


def create_view(
    *,
    actor: Principal,
    view: Identifier,
    schema: Mapping[str, Any],
    view_version: Mapping[str, Any],
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> LoadedTable:
    """Create a view.

    Raises NamespaceNotFound, TableAlreadyExists, ViewAlreadyExists, InvalidMetadata,
    InvalidLocation, LocationTaken.
    """
    check_table(view)
    access.require(actor, Privilege.CREATE, On.namespace(view[:-1]))
    namespaces = require_free(view, TableKind.VIEW)
    document = view_documents.new_view(
        schema=schema,
        view_version=view_version,
        location=chosen_location(actor, view, location, namespaces),
        properties=properties,
        now_ms=now_ms(),
    )
    path = check_paths(actor, view, document, is_new=location is None)
    files = files_of(FutureTable(view, path), document)
    file = metadata_files.draft(files, document, 0)
    create = CreateView(
        table=view,
        file=file,
        location=path,
        is_own_location=location is None,
        namespace=namespaces[-1],
    )
    with metadata_files.staged([file]):
        row = commit([create], actor=actor).results[0]
    return loaded(view, row.pk, TableKind.VIEW, path, file)


def register_view(*, actor: Principal, view: Identifier, metadata_location: str) -> LoadedTable:
    """Register a view that exists in storage, by its metadata file; it keeps its uuid.

    Raises NamespaceNotFound, TableAlreadyExists, ViewAlreadyExists, InvalidLocation,
    InvalidMetadata, LocationTaken.
    """
    check_table(view)
    access.require(actor, Privilege.CREATE, On.namespace(view[:-1]))
    require_free(view, TableKind.VIEW)
    path = require_registrable(actor, view, metadata_location)
    document = view_documents.parse(read_metadata(path, _MAX_METADATA_BYTES))
    file = metadata_files.existing(document, metadata_location, path)
    location = check_paths(actor, view, document)
    files = files_of(FutureTable(view, location), document)
    references = files.references([metadata_location])
    register = RegisterView(table=view, file=file, location=location, references=references)
    row = commit([register], actor=actor).results[0]
    return loaded(view, row.pk, TableKind.VIEW, location, file)


# --- replacing ---------------------------------------------------------------------------------


def replace_view(
    *,
    actor: Principal,
    view: Identifier,
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
) -> LoadedTable:
    """Commit updates to a view if the requirements hold; returns the new state.

    After a conflict the commit starts again from the current metadata. Raises ViewNotFound,
    RequirementFailed, InvalidMetadata, InvalidLocation, LocationTaken, CommitConflict after too many
    conflicts, and OutcomeUnknown.
    """
    check_table(view)
    access.require(actor, Privilege.WRITE, tables.on(view, TableKind.VIEW))
    return with_retries([digest(view)], lambda: _attempt(actor, view, requirements, updates))


def _attempt(
    actor: Principal,
    view: Identifier,
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
) -> LoadedTable:
    base = require_kind(view, find([view]).get(digest(view)), TableKind.VIEW)
    current = base.document
    view_documents.check(requirements, current)
    document = view_documents.apply(current, updates, now_ms=now_ms())
    if document is current:
        return base
    location = check_paths(actor, view, document, base)
    is_moved = location != base.location
    files = files_of(base, document, location, base=base)
    file = metadata_files.draft(files, document, base.sequence + 1)
    replace = ReplaceView(
        table=view,
        base=base.metadata_location,
        file=file,
        location=location if is_moved else None,
        updates=tuple(str(update.get("action")) for update in updates),
    )
    with metadata_files.staged([file]):
        commit([replace], actor=actor)
    return loaded(view, base.pk, TableKind.VIEW, location, file)


# --- names -------------------------------------------------------------------------------------


def drop_view(*, actor: Principal, view: Identifier) -> None:
    """Drop a view; its row and its metadata files remain. Raises ViewNotFound."""
    commit([DropView(table=view)], actor=actor)


def rename_view(*, actor: Principal, view: Identifier, new: Identifier) -> None:
    """Rename a view, within its namespace or into another one.

    Raises ViewNotFound, NamespaceNotFound, and CannotRename when the new name is taken.
    """
    try:
        commit([RenameView(table=view, new=new)], actor=actor)
    except TableAlreadyExists:
        raise CannotRename(view, new, "Table") from None
    except ViewAlreadyExists:
        raise CannotRename(view, new, "View") from None
