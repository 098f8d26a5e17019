"""Commit operations of the writes of the catalog to Lance tables, one per requested operation."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from django.db.models.functions import Now

from catalog import access
from catalog.access import Principal
from catalog.errors import BranchNotFound, CommitConflict
from catalog.identifiers import check_table, label
from catalog.models import StagedFile, Table, TableState
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.engine.statements import NewVersion
from catalog.services.lance.ledger import files
from catalog.services.lance.ledger.manifests import Look
from catalog.services.lance.ledger.version_operations import CreateVersion, find_branch
from catalog.services.lance.ledger.versions import has_version
from catalog.services.storage import recorded_references
from catalog.services.storage.file_owners import References
from catalog.services.tables.table_operations import NewTableOperation, already_exists, drop_tables
from catalog.storage import locations


@dataclass(frozen=True, kw_only=True)
class WriteVersion(CreateVersion):
    """A version that the catalog wrote for a caller. Subclasses have the spec's operation names."""

    summary: Mapping[str, Any] = field(default_factory=dict)
    """Details of the request in the audit trail, never the data itself."""
    location: str | None = None
    """Location of the table that the version was written to."""
    base: tuple[str, int, datetime] | None = None
    """Branch, number and creation time of the base version, if it may be deleted concurrently."""

    runs_auto_cleanup: ClassVar[bool] = True
    """True if Lance, after this commit, runs the automatic clean-up that the manifest configures."""

    def prepare(self) -> "WriteVersion":
        super().prepare()
        if self.location is not None and locations.is_object(self.location):
            return self.look_at(self.location)
        return self

    def locked(self, batch: Batch) -> Table:
        """Lock the table; refuse another table that got its name during the write."""
        row = super().locked(batch)
        if self.location not in {None, row.location}:
            raise CommitConflict(f"Table '{label(self.table)}' was replaced meanwhile")
        return row

    def only_adds(self) -> bool:
        return self.base is None and super().only_adds()

    def ensure_branch(self, batch: Batch, row: Table) -> None:
        """Refuse a version whose base is deleted or whose branch was created again."""
        if self.branch and not find_branch(row, self.branch):
            raise BranchNotFound(self.table, self.branch)
        self.require_base(row)

    def require_base(self, row: Table) -> None:
        """Require that the base version still exists unchanged. Raises CommitConflict.

        A cleanup removes versions from the ledger before it removes their files. Therefore the
        files of a version that is entered here stay.
        """
        if self.base is None:
            return
        branch, version, created_at = self.base
        if not has_version(row, branch, version, created_at):
            base = f"Branch '{branch}'" if branch else f"Version {version}"
            raise CommitConflict(f"{base} of table '{label(self.table)}' was deleted meanwhile")

    def facts(self) -> dict[str, Any]:
        return dict(self.summary)

    @staticmethod
    def record(actor: Principal, row: Table, references: References) -> None:
        """Require that other versions have the references already: the caller has named none.

        Lance continues from versions that others commit meanwhile, whose manifests they may replace.
        """
        recorded_references.require_recorded(row, references)
        files.record_references(actor, row, references.only(()))

    def _look(self, location: str) -> Look | None:
        """Refuse a version after which Lance would run its automatic clean-up in this process.

        It follows links in the table's directory, and removes versions that tags, clones or policies need.
        """
        look = super()._look(location)
        if self.runs_auto_cleanup and look is not None and look.head.auto_cleanup:
            raise CommitConflict(
                f"Lance's automatic clean-up was configured for table '{label(self.table)}' meanwhile",
                detail="The server never runs it. Repeat the request: the server removes the settings.",
            )
        return look


class RemoveAutoCleanup(WriteVersion):
    """Remove the settings of Lance's automatic clean-up from the manifest before another write."""

    name = "RemoveAutoCleanup"
    action = "table.remove_auto_cleanup"
    suits_views = True


class InsertIntoTable(WriteVersion):
    name = "InsertIntoTable"
    action = "table.insert"


class MergeInsertIntoTable(WriteVersion):
    name = "MergeInsertIntoTable"
    action = "table.merge_insert"


@dataclass(frozen=True, kw_only=True)
class UpdateTable(WriteVersion):
    name = "UpdateTable"
    action = "table.update"

    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties to set on the table; its other properties stay."""

    def only_adds(self) -> bool:
        return not self.properties and super().only_adds()

    def enter(self, batch: Batch, row: Table) -> NewVersion:
        if self.properties:
            row.properties = {**row.properties, **self.properties}
            Table.objects.filter(pk=row.pk).update(properties=row.properties, updated_at=Now())
        return super().enter(batch, row)


class DeleteFromTable(WriteVersion):
    name = "DeleteFromTable"
    action = "table.delete"


class RestoreTable(WriteVersion):
    name = "RestoreTable"
    action = "table.restore"


class UpdateTableSchemaMetadata(WriteVersion):
    name = "UpdateTableSchemaMetadata"
    action = "table.schema_metadata"
    suits_views = True


class UpdateFieldMetadata(WriteVersion):
    name = "UpdateFieldMetadata"
    action = "table.field_metadata"
    suits_views = True


class AlterTableAddColumns(WriteVersion):
    name = "AlterTableAddColumns"
    action = "table.add_columns"


class AlterTableAlterColumns(WriteVersion):
    name = "AlterTableAlterColumns"
    action = "table.alter_columns"


class AlterTableDropColumns(WriteVersion):
    name = "AlterTableDropColumns"
    action = "table.drop_columns"


class AlterTableBackfillColumns(WriteVersion):
    name = "AlterTableBackfillColumns"
    action = "table.backfill"


class CreateTableIndex(WriteVersion):
    name = "CreateTableIndex"
    action = "index.create"
    suits_views = True


class CreateTableScalarIndex(CreateTableIndex):
    name = "CreateTableScalarIndex"


class DropTableIndex(WriteVersion):
    name = "DropTableIndex"
    action = "index.drop"
    suits_views = True


class CompactTable(WriteVersion):
    """Compact fragments without changing rows.

    Lance creates two versions; the first one reserves fragment ids.
    """

    name = "CompactTable"
    action = "maintenance.compact"
    privilege = Privilege.MAINTAIN
    suits_views = True


class OptimizeIndexes(WriteVersion):
    """Extend indexes to unindexed rows."""

    name = "OptimizeIndexes"
    action = "maintenance.optimize_indexes"
    privilege = Privilege.MAINTAIN
    suits_views = True


class CreateMissingIndex(WriteVersion):
    """Create an index that queries lack."""

    name = "CreateMissingIndex"
    action = "maintenance.create_index"
    privilege = Privilege.MAINTAIN
    suits_views = True


class RebuildIndex(WriteVersion):
    """Replace an index with one built from all rows."""

    name = "RebuildIndex"
    action = "maintenance.rebuild_index"
    privilege = Privilege.MAINTAIN
    suits_views = True


@dataclass(frozen=True, kw_only=True)
class CreateTable(NewTableOperation):
    """Create a table whose first version is already in storage. The result is its row.

    With ``overwrite``, an existing table of this name is dropped in the same transaction.
    """

    name = "CreateTable"
    action = "table.create"

    location: str
    first: CreateVersion
    note: str | None = None
    """The note of a new location, which this commit deletes (StagedFile.path)."""
    overwrite: bool = False
    summary: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self) -> "CreateTable":
        check_table(self.table)
        if not locations.is_object(self.location):
            return self
        return replace(self, first=self.first.look_at(self.location))

    def apply(self, batch: Batch) -> Table:
        namespace = batch.namespace(self.table[:-1])
        access.require(batch.actor, Privilege.CREATE, namespace)
        holder = batch.find_table(self.table)
        if holder is not None:
            if not self.overwrite:
                raise already_exists(self.table, holder)
            self.require_own(holder)
            access.require(batch.actor, Privilege.MANAGE, holder)
            drop_tables(batch, [holder], {namespace.pk: namespace})
        if self.note is not None:
            staged_files = StagedFile.objects.filter(path=self.note, is_condemned=False)
            if not staged_files.delete()[0]:
                raise CommitConflict(
                    f"Table '{label(self.table)}' took too long to write: its files were given up"
                )
        row = self.add_table(batch, self.location, TableState.LIVE, facts=self.summary)
        self.first.enter(batch, row)
        return row
