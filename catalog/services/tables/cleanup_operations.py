"""Operations by which maintenance removes old versions of a Lance table from the ledger."""

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
    """Replace versions with tombstones before their files are removed. The result is their count.

    Raises CommitConflict when one of them has become the newest of its branch.
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
    """Replace versions with tombstones if their manifests were removed outside the catalog."""

    name = "ReconcileVersions"
    action = "version.reconcile"


@dataclass(frozen=True, kw_only=True)
class RecordCleanUp(TableOperation):
    """Record which files were removed, and restore versions that Lance kept.

    A client may have tagged a version in storage at the moment when it was retired: Lance keeps
    all files of such a version.
    """

    name = "CleanUpTable"
    action = "maintenance.clean_up"
    privilege = Privilege.MAINTAIN

    branch: str = ""
    kept_versions: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, batch: Batch) -> None:
        row = self.locked(batch)
        batch.flush()
        if self.kept_versions:
            TableVersion.objects.on(self.branch).filter(
                table=row, version__in=self.kept_versions
            ).update(deleted_at=None)
        batch.record(
            label(self.table),
            table=row,
            after={
                **({"branch": self.branch} if self.branch else {}),
                **({"kept": list(self.kept_versions)} if self.kept_versions else {}),
                **self.facts,
            },
        )


class RecordOrphans(RecordCleanUp):
    """Record which files were removed because no version refers to them."""

    name = "RemoveOrphans"
    action = "maintenance.remove_orphans"


def ranges(versions: Iterable[int]) -> list[list[int]]:
    """Return version numbers as ranges, start inclusive and end exclusive."""
    pairs: list[list[int]] = []
    for version in sorted(versions):
        if pairs and pairs[-1][1] == version:
            pairs[-1][1] = version + 1
        else:
            pairs.append([version, version + 1])
    return pairs
