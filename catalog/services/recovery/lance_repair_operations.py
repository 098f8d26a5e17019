"""Repairing a Lance table: the changes of the ledger when a complete version is published again."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from django.db.models import Max
from django.db.models.functions import Now

from catalog.errors import CommitConflict
from catalog.identifiers import label
from catalog.models import Table, TableVersion
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.engine.statements import NewVersion
from catalog.services.lance.data_operations import WriteVersion
from catalog.services.tables.cleanup_operations import ranges


@dataclass(frozen=True, kw_only=True)
class RepairTable(WriteVersion):
    """Publish a copy of a complete version under a new number, and retire versions without files."""

    name = "RepairTable"
    action = "version.repair"
    privilege: ClassVar[Privilege] = Privilege.MANAGE
    suits_views = True
    runs_auto_cleanup = False  # the catalog writes the manifest without Lance

    head: int | None
    """The newest version that the repair was planned with."""
    retired: tuple[int, ...] = field(default=())

    def only_adds(self) -> bool:
        return False

    def enter(self, batch: Batch, row: Table) -> NewVersion:
        batch.flush()
        visible = TableVersion.objects.visible().on(self.branch).filter(table=row)
        if visible.aggregate(newest=Max("version"))["newest"] != self.head:
            raise CommitConflict(f"Table '{label(self.table)}' was changed by others meanwhile")
        visible.filter(version__in=self.retired).update(deleted_at=Now())
        return super().enter(batch, row)

    def require_near(self, row: Table) -> None:
        """The number follows those that were used, which may be far above the newest version."""

    def facts(self) -> dict[str, Any]:
        retired = {"retired": ranges(self.retired)} if self.retired else {}
        return {**super().facts(), **retired}
