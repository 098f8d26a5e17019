from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Now

from catalog import storage
from catalog.errors import (
    BranchNotFound,
    CatalogError,
    InvalidInput,
    InvalidLocation,
    InvalidManifestPath,
    InvalidTableState,
    VersionAlreadyExists,
)
from catalog.formats import lance, lance_refs
from catalog.identifiers import Identifier, check_table, label
from catalog.models import Branch, Table, TableState, TableVersion
from catalog.services import versions
from catalog.services.commit import VERSIONS, Batch
from catalog.services.operations.tables import TableOperation
from catalog.services.statements import NewVersion

_CREATED = VERSIONS.labels("created")
_MAX_SIZE = 2**63 - 1
_MAX_MANIFEST = 64 * 1024**2


@dataclass(frozen=True, kw_only=True)
class CreateVersion(TableOperation):
    """Enter a version in the ledger if its number was never used. The result is its row.

    The insert decides between rivals. A manifest staged inside the table is moved to its final
    name after the commit; a path elsewhere is recorded as given and never touched.
    """

    name = "CreateTableVersion"
    action = "version.create"

    suits_views: ClassVar[bool] = False
    """Whether a materialized view may get such a version: its rows are its query's."""

    version: int
    manifest_path: str
    branch: str = ""
    manifest_size: int | None = None
    e_tag: str | None = None
    metadata: Mapping[str, str] | None = None
    naming_scheme: str | None = None

    def prepare(self) -> "CreateVersion":
        check_table(self.table)
        if not 0 <= self.version <= lance.MAX_VERSION:
            raise InvalidInput(f"Version {self.version} is not between 0 and 2^63-1")
        if not 0 <= (self.manifest_size or 0) <= _MAX_SIZE:
            raise InvalidInput(f"Manifest size {self.manifest_size} is not between 0 and 2^63-1")
        if self.branch:
            lance.check_branch(self.branch)
        return self

    def only_adds(self) -> bool:
        return not self.branch

    def apply(self, batch: Batch) -> NewVersion:
        row = self.locked(batch)
        if row.is_materialized and not self.suits_views:
            raise is_view(self.table)
        version = self.enter(batch, row)
        after = {"version": self.version, "manifest_path": version.manifest_path}
        batch.record(
            label(self.table),
            table=row,
            after=after | ({"branch": self.branch} if self.branch else {}) | self.facts(),
        )
        return version

    def facts(self) -> dict[str, Any]:
        """What the audit trail tells of it beside the version."""
        return {}

    def enter(self, batch: Batch, row: Table) -> NewVersion:
        """Add the version to the ledger, and bring its manifest to its name after the commit."""
        self.ensure_branch(batch, row)
        if not batch.claim("version", row.uuid, self.branch, self.version):
            raise self._refused()
        final = self._final_path(row)
        if row.state == TableState.DECLARED:
            row.state = TableState.LIVE
            Table.objects.filter(pk=row.pk).update(state=TableState.LIVE, updated_at=Now())
        version = NewVersion(
            table=row,
            branch=self.branch,
            version=self.version,
            manifest_path=final or self.manifest_path,
            staged_path=self.manifest_path if final else None,
            manifest_size=self.manifest_size,
            e_tag=self.e_tag,
            metadata=dict(self.metadata) if self.metadata is not None else None,
            transaction_id=batch.transaction.pk,
        )
        batch.add(version)
        if final:
            batch.after_commit(versions.move, version)
        batch.after_commit(_count_created, version)
        return version

    def conflict(self, constraint: str) -> CatalogError | None:
        if constraint != "table_version_unique":
            return None
        taken = TableVersion.objects.filter(
            table__in=Table.objects.named(self.table), branch=self.branch, version=self.version
        )
        return self._refused() if taken.exists() else None

    def ensure_branch(self, batch: Batch, row: Table) -> None:
        """A branch begins with its first version: that is how Lance clients create one.

        One that was deleted is not brought back by who still had it open: only a manifest that
        says so begins it again.
        """
        if not self.branch or not batch.claim("branch", row.uuid, self.branch):
            return
        if find_branch(row, self.branch):
            return
        if was_deleted(row, self.branch) and not self._begins_branch(row):
            raise BranchNotFound(self.table, self.branch)
        batch.add(Branch(table=row, name=self.branch))

    def _begins_branch(self, row: Table) -> bool:
        # A file is read with the table locked; it is a small one, of a name that was used before.
        relative = storage.path_in_table(row.location, self.manifest_path)
        try:
            content = storage.read_whole_file(f"{row.location}/{relative}", _MAX_MANIFEST)
        except (OSError, InvalidLocation):
            return False
        return lance_refs.begins_branch(content, self.version)

    def _refused(self) -> VersionAlreadyExists:
        return VersionAlreadyExists(self.table, self.version, self.branch)

    def _final_path(self, row: Table) -> str | None:
        """Where the staged manifest goes (as an object store names it); None if it stays put."""
        relative = storage.path_in_table(row.location, self.manifest_path)
        scheme = lance.naming_scheme(self.naming_scheme, self.manifest_path.rpartition("/")[2])
        may_move = relative is not None and lance.may_be_staged(relative)
        must_be_inside = settings.MONODON_MANIFEST_PATHS == "inside"
        if not (may_move or must_be_inside):
            return None  # wherever it is; looking for it costs 5 µs
        if relative is None or not storage.is_surely_in_table(row.location, relative):
            if must_be_inside:
                raise InvalidManifestPath(
                    self.manifest_path, f"is outside the table's location '{row.location}'"
                )
            return None
        if not may_move:
            return None
        return storage.store_path(
            row.location, lance.final_manifest_path(self.branch, self.version, scheme)
        )


@dataclass(frozen=True, kw_only=True)
class DeleteVersions(TableOperation):
    """Delete ranges of ledger entries, leaving tombstones; files stay. The result is their count.

    A range is (start, end), start inclusive and end exclusive; an end of -1 means no end.
    """

    name = "DeleteTableVersions"
    action = "version.delete"

    ranges: tuple[tuple[int, int], ...]
    branch: str = ""

    def prepare(self) -> "DeleteVersions":
        check_table(self.table)
        for start, end in self.ranges:
            if not (0 <= start <= lance.MAX_VERSION and -1 <= end <= lance.MAX_VERSION):
                raise InvalidInput(f"Version range {start} to {end} is out of bounds")
            if end != -1 and end < start:
                raise InvalidInput(f"Version range {start} to {end} ends before it starts")
        return self

    def apply(self, batch: Batch) -> int:
        row = self.locked(batch)
        batch.flush()
        if not find_branch(row, self.branch):
            raise BranchNotFound(self.table, self.branch)
        if not self.ranges:
            return 0
        chosen = reduce(
            or_,
            (
                Q(version__gte=start) & (Q() if end == -1 else Q(version__lt=end))
                for start, end in self.ranges
            ),
        )
        deleted = (
            TableVersion.objects.visible()
            .filter(chosen, table=row, branch=self.branch)
            .update(deleted_at=Now())
        )
        batch.record(
            label(self.table),
            table=row,
            after={"ranges": [list(r) for r in self.ranges], "deleted": deleted},
        )
        return deleted


def _count_created(rows: list[NewVersion]) -> None:
    _CREATED.inc(len(rows))


def is_view(table: Identifier) -> InvalidTableState:
    """The refusal owed to who wants to change the rows of a materialized view."""
    return InvalidTableState(
        f"Table '{label(table)}' is a materialized view, whose rows come from its query",
        detail="Change its source and refresh it, or drop the view.",
    )


def find_branch(table: Table, name: str) -> bool:
    """Whether the table has this branch. The empty name, main, is always there."""
    return not name or Branch.objects.filter(table_id=table.pk, name=name).exists()


def retired_name(branch: Branch) -> str:
    """The name under which the ledger keeps the versions of a deleted branch; no client can ask it."""
    return f"{branch.name}//{branch.pk}"


def was_deleted(table: Table, name: str) -> bool:
    """Whether a branch of this name was deleted."""
    return TableVersion.objects.filter(table_id=table.pk, branch__startswith=f"{name}//").exists()
