"""Operations on tags and branches of Lance tables, in the ledger and the audit trail."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models.functions import Coalesce, Now

from catalog.errors import BranchAlreadyExists, BranchNotFound, VersionNotFound
from catalog.identifiers import label
from catalog.models import Branch, Table, TableVersion
from catalog.services.engine.batch import Batch
from catalog.services.lance.data_operations import WriteVersion
from catalog.services.lance.ledger.version_operations import find_branch, retired_name
from catalog.services.lance.ledger.versions import has_version
from catalog.services.tables.table_operations import TableOperation


@dataclass(frozen=True, kw_only=True)
class RecordTag(TableOperation):
    """Record a change of a tag that is already in storage. Subclasses are the spec's operations."""

    tag: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    named: tuple[str, int, datetime] | None = None
    """Branch, number and creation time of the version that the tag names from now on."""

    def apply(self, batch: Batch) -> None:
        row = self.locked(batch)
        self._require_version(row)
        tag = {"tag": self.tag}
        before = None if self.before is None else tag | self.before
        batch.record(label(self.table), table=row, before=before, after=tag | (self.after or {}))

    def _require_version(self, row: Table) -> None:
        """Require that the version still exists. Raises VersionNotFound.

        A clean-up removes a version from the ledger, reads the tags, and then removes the files. A version
        that is in the ledger after its tag was written therefore keeps its files.
        """
        if self.named is None:
            return
        branch, version, created_at = self.named
        if not has_version(row, branch, version, created_at):
            raise VersionNotFound(self.table, version, branch)


class CreateTableTag(RecordTag):
    name = "CreateTableTag"
    action = "tag.create"


class UpdateTableTag(RecordTag):
    name = "UpdateTableTag"
    action = "tag.update"


class DeleteTableTag(RecordTag):
    name = "DeleteTableTag"
    action = "tag.delete"


@dataclass(frozen=True, kw_only=True)
class CreateTableBranch(WriteVersion):
    """Enter the first version of a new branch."""

    name = "CreateTableBranch"
    action = "branch.create"
    suits_views = True
    runs_auto_cleanup = False  # it only follows commits that continue a branch

    def ensure_branch(self, batch: Batch, row: Table) -> None:
        # The lock of the table prevents a concurrent branch of this name.
        if not batch.claim("branch", row.uuid, self.branch) or find_branch(row, self.branch):
            raise BranchAlreadyExists(self.table, self.branch)
        self.require_base(row)
        batch.add(Branch(table=row, name=self.branch))


@dataclass(frozen=True, kw_only=True)
class DeleteTableBranch(TableOperation):
    """Remove a branch from the ledger; its files stay. The result is the number of its versions.

    The versions stay as tombstones under a name that no request can contain, so that a new branch
    of this name may begin with any number.
    """

    name = "DeleteTableBranch"
    action = "branch.delete"

    branch: str
    may_be_absent: bool = False
    """True if only files of the branch remain, which are removed afterwards."""

    def apply(self, batch: Batch) -> int:
        row = self.locked(batch)
        batch.flush()
        branch = Branch.objects.filter(table_id=row.pk, name=self.branch).first()
        if branch is None and not self.may_be_absent:
            raise BranchNotFound(self.table, self.branch)
        deleted = 0
        if branch is not None:
            deleted = TableVersion.objects.filter(table_id=row.pk, branch=self.branch).update(
                branch=retired_name(branch),
                deleted_at=Coalesce("deleted_at", Now()),
                staged_path=None,  # otherwise it would be moved into the next branch of this name
            )
            branch.delete()
        batch.record(
            label(self.table),
            table=row,
            before={"branch": self.branch},
            after={"branch": self.branch, "deleted": deleted},
        )
        return deleted
