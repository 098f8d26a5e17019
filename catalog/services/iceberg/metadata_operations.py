from dataclasses import dataclass, replace
from typing import Any, ClassVar

from catalog import access, storage
from catalog.errors import CommitConflict
from catalog.identifiers import Identifier, check_table, label
from catalog.models import (
    IcebergMetadata,
    Table,
    TableFormat,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.engine.commit import Batch
from catalog.services.engine.statements import NewVersion, Swap
from catalog.services.iceberg import metadata_files, metadata_removal
from catalog.services.iceberg.metadata_files import MetadataFile
from catalog.services.storage import file_references, iceberg_paths
from catalog.services.tables.cleanup_operations import ranges
from catalog.services.tables.table_operations import (
    NewTableOperation,
    TableOperation,
    already_exists,
    claim_location,
    replace_table,
)


class BaseChanged(CommitConflict):
    """The table is no longer what the commit was made from; nothing was changed."""

    def __init__(self, kind: str, table: Identifier) -> None:
        self.kind, self.table = kind, table
        super().__init__(
            "Cannot commit to {kind} {table}: another commit changed it", kind=kind, table=table
        )


@dataclass(frozen=True, kw_only=True)
class CreateFromMetadata(NewTableOperation):
    """Give a name to an Iceberg table or view whose first metadata file is staged.

    With ``overwrite`` the name's present holder of the same kind is forgotten first. The result is
    the new row.
    """

    name = "CreateTable"
    action = "table.create"

    format: TableFormat = TableFormat.ICEBERG
    file: MetadataFile
    location: str
    """Canonical local path, already checked."""
    is_own_location: bool = False
    """Whether the server chose it: then nobody else can hold it, but somebody what is around it."""
    is_staged: bool = True
    """Whether the file was written for this commit, rather than found in storage."""
    overwrite: bool = False
    paths: frozenset[str] = frozenset()
    """Where its properties put its files, from ``prepare``."""
    sources: frozenset[int] = frozenset()
    """Other tables whose files it refers to, as the actor may."""
    unread: frozenset[int] = frozenset()
    """Snapshots of which not every manifest was read."""

    is_whole: ClassVar[bool] = False
    """Whether of unread snapshots the older manifests are unread as well."""

    def prepare(self) -> "CreateFromMetadata":
        check_table(self.table)
        return replace(self, paths=iceberg_paths.named(self.file.document.get("properties", {})))

    def apply(self, batch: Batch) -> Table:
        namespace = batch.namespace(self.table[:-1])
        access.require(batch.actor, Privilege.CREATE, namespace)
        holder = batch.find_table(self.table)
        if holder is not None:
            if not (self.overwrite and self.is_own(holder)):
                raise already_exists(self.table, holder, self.kind)
            access.require(batch.actor, Privilege.MANAGE, holder)
            replace_table(batch, holder)
        if not (self.is_own_location and storage.is_directly_in_warehouse(self.location)):
            claim_location(batch, self.location, format=self.format)
        row = self.add_table(batch, self.location, TableState.LIVE)
        batch.add(
            IcebergMetadata(
                table=row,
                metadata_location=self.file.location,
                sequence=self.file.sequence,
                answer=self.file.answer,
                etag=self.file.etag,
            )
        )
        enter_version(batch, row, self.file)
        if self.paths:
            batch.flush()
            iceberg_paths.claim(batch.actor, row, self.paths)
        if self.sources or self.unread:
            batch.flush()
            file_references.record_references(
                actor=batch.actor, table_id=row.pk, sources=self.sources
            )
            file_references.record_unread(
                actor=batch.actor, table_id=row.pk, snapshots=self.unread, is_whole=self.is_whole
            )
        if self.is_staged:
            metadata_files.unstage(self.file)
        return row


@dataclass(frozen=True, kw_only=True)
class RegisterFromMetadata(CreateFromMetadata):
    """Give a name to an Iceberg table or view that lies in storage already."""

    name = "RegisterTable"
    action = "table.register"

    is_staged: bool = False
    is_whole: ClassVar[bool] = True

    def apply(self, batch: Batch) -> Table:
        metadata_files.require_lasting(self.file.path)
        row = super().apply(batch)
        batch.flush()
        iceberg_paths.enter_unheld(row, self.file.path.rpartition("/")[0])
        return row


@dataclass(frozen=True, kw_only=True)
class CommitMetadata(TableOperation):
    """Make a staged metadata file current, if ``base`` still is. The result is the table's row.

    Raises BaseChanged when it is not: the caller may try again on what is current now.
    """

    name = "UpdateTable"
    action = "table.commit"
    swaps = True

    format: TableFormat = TableFormat.ICEBERG
    base: str
    """The metadata location that this one was made from."""
    base_id: int | None = None
    """The row whose metadata that was. A file may be registered again, by which it is another's."""
    file: MetadataFile
    location: str | None = None
    """The table's new location, canonical, when the commit moves it."""
    updates: tuple[str, ...] = ()
    """The actions of the commit's updates, for the audit trail."""
    forgotten: tuple[str, ...] = ()
    """Metadata files to remove once the commit stands, as the table's properties ask for it."""
    paths: frozenset[str] = frozenset()
    """Where its properties put its files, if the commit sets some; from ``prepare``."""
    sources: frozenset[int] = frozenset()
    """Other tables whose files the commit refers to, as the actor may."""
    unread: frozenset[int] = frozenset()
    """Snapshots of which not every manifest was read."""

    def prepare(self) -> "CommitMetadata":
        check_table(self.table)
        if "set-properties" not in self.updates:
            return self
        return replace(self, paths=iceberg_paths.named(self.file.document.get("properties", {})))

    def only_adds(self) -> bool:
        return self.location is None and not self.paths and not self.sources and not self.forgotten

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
            claim_location(batch, self.location, format=self.format, pk=row.pk)
            before["location"], after["location"] = row.location, self.location
            row.location = self.location
            row.save(update_fields=["location", "updated_at"])
            # What it has written so far stays where it is.
            iceberg_paths.enter(row, [before["location"]])
        if self.paths:
            batch.flush()
            iceberg_paths.claim(batch.actor, row, self.paths)
        if self.sources or self.unread:
            file_references.record_references(
                actor=batch.actor, table_id=row.pk, sources=self.sources
            )
            file_references.record_unread(actor=batch.actor, table_id=row.pk, snapshots=self.unread)
        enter_version(batch, row, self.file)
        if self.forgotten:
            removed = metadata_removal.retire(batch, row, self.forgotten)
            if removed:
                after["removed_versions"] = ranges(removed)
        batch.record(label(self.table), table=row, before=before, after=after)
        return row

    def _base_changed(self) -> BaseChanged:
        return BaseChanged(self.kind, self.table)


def enter_version(batch: Batch, row: Table, file: MetadataFile) -> None:
    """Enter a metadata file in the ledger."""
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
            transaction_id=batch.transaction.pk,
        )
    )
