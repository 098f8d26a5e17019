"""The operations that make metadata files current: creating, registering and committing."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from catalog import access
from catalog.errors import CommitConflict
from catalog.identifiers import Identifier, check_table, label
from catalog.models import (
    IcebergMetadata,
    Namespace,
    Table,
    TableFormat,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.engine.prepared.new_rows import new_row
from catalog.services.engine.statements import NewVersion, Swap
from catalog.services.iceberg import metadata_files, metadata_removal
from catalog.services.iceberg.metadata_files import MetadataFile
from catalog.services.storage import (
    file_references,
    iceberg_paths,
    object_placement,
    recorded_references,
)
from catalog.services.storage.file_owners import References
from catalog.services.tables import trash
from catalog.services.tables.cleanup_operations import ranges
from catalog.services.tables.table_operations import (
    NewTableOperation,
    TableOperation,
    already_exists,
    claim_location,
    replace_table,
)
from catalog.storage import locations


class BaseChanged(CommitConflict):
    """The base of a commit is no longer current; nothing was changed."""

    def __init__(self, kind: str, table: Identifier) -> None:
        self.kind, self.table = kind, table
        super().__init__(
            "Cannot commit to {kind} {table}: another commit changed it", kind=kind, table=table
        )


@dataclass(frozen=True, kw_only=True)
class CreateFromMetadata(NewTableOperation):
    """Create an Iceberg table or view whose first metadata file is staged.

    With ``overwrite`` the current holder of the name, of the same kind, is deregistered first. The
    result is the new row.
    """

    name = "CreateTable"
    action = "table.create"

    format: TableFormat = TableFormat.ICEBERG
    file: MetadataFile
    location: str
    """Canonical, already checked."""
    is_own_location: bool = False
    """True if the server chose the location: no other table has it, but one may have a directory
    above it."""
    is_staged: bool = True
    """True if the file was written for this commit, False if it existed in storage."""
    overwrite: bool = False
    paths: frozenset[str] = frozenset()
    """The paths for files in its properties, from ``prepare``."""
    references: References = field(default_factory=References)
    """What it refers to outside its directories; only sources that the actor may read."""
    namespace: Namespace | None = field(default=None, compare=False)
    """The row of its namespace, if the request has read it."""

    is_whole: ClassVar[bool] = False
    """True if the older manifests of unread snapshots are unread too."""

    def prepare(self) -> "CreateFromMetadata":
        check_table(self.table)
        paths = iceberg_paths.named(self.file.document.get("properties", {}))
        return replace(self, paths=paths) if paths else self

    def creates_in(self) -> Identifier | None:
        is_simple = self.is_staged and not (self.overwrite or self.paths or self.references)
        return self.table[:-1] if is_simple and self._is_in_warehouse else None

    def parent_row(self) -> Namespace | None:
        return self.namespace

    @property
    def _is_in_warehouse(self) -> bool:
        return self.is_own_location and locations.is_directly_in_warehouse(self.location)

    def apply(self, batch: Batch) -> Table:
        namespace = batch.namespace(self.table[:-1])
        access.require(batch.actor, Privilege.CREATE, namespace)
        holder = batch.find_table(self.table)
        if holder is not None:
            if not (self.overwrite and self.is_own(holder)):
                raise already_exists(self.table, holder, self.kind)
            access.require(batch.actor, Privilege.MANAGE, holder)
            replace_table(batch, holder)
        if not (batch.is_one_statement or self._is_in_warehouse):
            claim_location(batch, self.location, namespace, format=self.format)
        row = self.add_table(batch, self.location, TableState.LIVE)
        batch.add(
            new_row(
                IcebergMetadata,
                {"table": row},
                metadata_location=self.file.location,
                sequence=self.file.sequence,
                answer=self.file.answer,
                etag=self.file.etag,
            )
        )
        enter_version(batch, row, self.file)
        if self.paths:
            batch.flush()
            _claim_paths(batch, row, self.paths)
        if self.references:
            batch.flush()
            file_references.require_no_removal(self.references.sources)
            file_references.record(
                actor=batch.actor,
                table_id=row.pk,
                references=self.references,
                is_whole=self.is_whole,
            )
        if self.is_staged and batch.is_one_statement:
            batch.staged_path = self.file.path
        elif self.is_staged:
            metadata_files.unstage(self.file)
        return row


@dataclass(frozen=True, kw_only=True)
class RegisterFromMetadata(CreateFromMetadata):
    """Register an Iceberg table or view that exists in storage."""

    name = "RegisterTable"
    action = "table.register"

    is_staged: bool = False
    is_whole: ClassVar[bool] = True

    def apply(self, batch: Batch) -> Table:
        metadata_files.require_lasting(self.file.path)
        row = super().apply(batch)
        batch.flush()
        iceberg_paths.enter_unheld(batch.actor, row, self.file.path.rpartition("/")[0])
        recorded_references.record_successor(row)
        return row


@dataclass(frozen=True, kw_only=True)
class CommitMetadata(TableOperation):
    """Make a staged metadata file current if ``base`` is current. The result is the table's row.

    Raises BaseChanged otherwise: the caller may retry with the current metadata.
    """

    name = "UpdateTable"
    action = "table.commit"
    swaps = True

    format: TableFormat = TableFormat.ICEBERG
    base: str
    """The metadata location on which this commit is based."""
    base_id: int | None = None
    """The row that had this metadata: a file may be registered again, for a different row."""
    file: MetadataFile
    location: str | None = None
    """The table's new location, canonical, when the commit moves it."""
    updates: tuple[str, ...] = ()
    """The actions of the commit's updates, for the audit trail."""
    expired_files: tuple[str, ...] = ()
    """Metadata files to remove after the commit, if the table's properties request it."""
    paths: frozenset[str] = frozenset()
    """The paths for files in its properties, if the commit sets properties; from ``prepare``."""
    references: References = field(default_factory=References)
    """What it refers to outside the table's directories; only sources that the actor may read."""

    def prepare(self) -> "CommitMetadata":
        check_table(self.table)
        if "set-properties" not in self.updates:
            return self
        paths = iceberg_paths.named(self.file.document.get("properties", {}))
        return replace(self, paths=paths) if paths else self

    def shares_locations(self) -> bool:
        return self.location is None and not self.paths

    def only_adds(self) -> bool:
        return self.shares_locations() and not self.references and not self.expired_files

    def apply(self, batch: Batch) -> Table:
        row = self.locked(batch)
        if self.base_id is not None and row.pk != self.base_id:
            raise self._base_changed()
        file = self.file
        swap = Swap(
            table_id=row.pk,
            base=self.base,
            path=file.path,
            location=file.location,
            sequence=file.sequence,
            answer=file.answer,
            etag=file.etag,
        )
        if not batch.swap(swap):
            raise self._base_changed()
        before: dict[str, Any] = {"metadata_location": self.base}
        after: dict[str, Any] = {
            "metadata_location": self.file.location,
            "updates": list(self.updates),
        }
        if self.location is not None and self.location != row.location:
            object_placement.require_usable_in(
                batch, batch.parent(row, self.table[:-1]), self.location
            )
            claim_location(batch, self.location, row.namespace, format=self.format, pk=row.pk)
            before["location"], after["location"] = row.location, self.location
            iceberg_paths.move(row, self.location)
        if self.paths:
            batch.flush()
            _claim_paths(batch, row, self.paths)
        if self.references:
            file_references.require_no_removal(self.references.sources)
            file_references.record(actor=batch.actor, table_id=row.pk, references=self.references)
        enter_version(batch, row, self.file)
        if self.expired_files:
            removed = metadata_removal.retire(batch, row, self.expired_files)
            if removed:
                after["removed_versions"] = ranges(removed)
        batch.record(label(self.table), table=row, before=before, after=after)
        return row

    def _base_changed(self) -> BaseChanged:
        return BaseChanged(self.kind, self.table)


def _claim_paths(batch: Batch, row: Table, paths: frozenset[str]) -> None:
    """Enter the paths of the properties. Raises LocationTaken and PermissionDenied."""
    new = iceberg_paths.claim(batch.actor, row, paths)
    if new:
        trash.require_rules_kept_at(new, row.namespace, pk=row.pk, is_location=False)


def enter_version(batch: Batch, row: Table, file: MetadataFile) -> None:
    """Add a metadata file to the ledger."""
    batch.add(
        NewVersion(
            table=row,
            branch="",
            version=file.sequence,
            manifest_path=file.location,
            staged_path=None,
            manifest_size=len(file.content) or None,
            e_tag=file.etag.strip('"'),
            metadata=None,
            transaction_id=batch.transaction.id,
        )
    )
