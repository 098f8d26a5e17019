"""What maintenance enters in the ledger when old versions of a Lance table go."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Max
from django.db.models.functions import Now

from catalog.errors import CommitConflict
from catalog.identifiers import label
from catalog.models import TableVersion
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.tables.table_operations import TableOperation


@dataclass(frozen=True, kw_only=True)
class RetireVersions(TableOperation):
    """Leave tombstones for versions whose files are about to be removed. The result is their count.

    Raises CommitConflict when one of them is the newest of its branch by now.
    """

    name = "CleanUpTable"
    action = "maintenance.retire_versions"
    privilege = Privilege.MAINTAIN

    versions: tuple[int, ...]
    branch: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, batch: Batch) -> int:
        row = self.locked(batch)
        batch.flush()
        visible = TableVersion.objects.visible().on(self.branch).filter(table=row)
        newest = visible.aggregate(newest=Max("version"))["newest"]
        if newest is None or max(self.versions) >= newest:
            raise CommitConflict(f"Versions of table '{label(self.table)}' were deleted meanwhile")
        retired = visible.filter(version__in=self.versions).update(deleted_at=Now())
        batch.record(
            label(self.table),
            table=row,
            after={
                **({"branch": self.branch} if self.branch else {}),
                "ranges": ranges(self.versions),
                "retired": retired,
                **self.facts,
            },
        )
        return retired


class RetireMissingVersions(RetireVersions):
    """Leave tombstones for versions whose manifests somebody removed past the catalog."""

    name = "ReconcileVersions"
    action = "version.reconcile"


@dataclass(frozen=True, kw_only=True)
class RecordCleanUp(TableOperation):
    """Record which files were removed, and bring back versions that were kept after all.

    Somebody may have named one by a tag in storage at the moment when it was retired: Lance keeps
    such a version whole.
    """

    name = "CleanUpTable"
    action = "maintenance.clean_up"
    privilege = Privilege.MAINTAIN

    branch: str = ""
    kept: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, batch: Batch) -> None:
        row = self.locked(batch)
        batch.flush()
        if self.kept:
            TableVersion.objects.on(self.branch).filter(table=row, version__in=self.kept).update(
                deleted_at=None
            )
        batch.record(
            label(self.table),
            table=row,
            after={
                **({"branch": self.branch} if self.branch else {}),
                **({"kept": list(self.kept)} if self.kept else {}),
                **self.facts,
            },
        )


class RecordOrphans(RecordCleanUp):
    """Record which files were removed that no version has."""

    name = "RemoveOrphans"
    action = "maintenance.remove_orphans"


def ranges(versions: Iterable[int]) -> list[list[int]]:
    """Numbers as ranges, start inclusive and end exclusive."""
    found: list[list[int]] = []
    for version in sorted(versions):
        if found and found[-1][1] == version:
            found[-1][1] = version + 1
        else:
            found.append([version, version + 1])
    return found
