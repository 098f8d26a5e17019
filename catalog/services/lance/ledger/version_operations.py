import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from django.db.models.functions import Now

from catalog.errors import (
    BranchNotFound,
    CatalogError,
    InvalidInput,
    InvalidManifestPath,
    InvalidTableState,
    VersionAlreadyExists,
)
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance import refs as lance_refs
from catalog.identifiers import Identifier, check_table, digest, label
from catalog.models import Branch, Table, TableState, TableVersion
from catalog.postgresql.cursors import hot_cursor
from catalog.services.engine.batch import Batch
from catalog.services.engine.commit import VERSIONS
from catalog.services.engine.statements import NewVersion
from catalog.services.lance.ledger import files, manifests, references, versions
from catalog.services.lance.ledger.manifests import Look
from catalog.services.storage import file_references
from catalog.services.tables.table_operations import TableOperation
from catalog.storage import locations, stores

_CREATED = VERSIONS.labels("created")
_MAX_SIZE = 2**63 - 1
_MAX_MANIFEST = 64 * 1024**2


@dataclass(frozen=True, kw_only=True)
class CreateVersion(TableOperation):
    """Enter a version in the ledger if its number was never used. The result is its row.

    The insert decides between rivals. The manifest must be that version's, inside the table; one
    that is staged is moved to its final name after the commit. A path elsewhere is refused, or, with
    one of the prefixes of MONODON_MANIFEST_PATHS, recorded as given and never opened.
    """

    name = "CreateTableVersion"
    action = "version.create"

    suits_views: ClassVar[bool] = False
    """True if a materialized view accepts such a version; its rows come from its query."""
    record = staticmethod(files.record_references)

    version: int
    manifest_path: str
    branch: str = ""
    manifest_size: int | None = None
    e_tag: str | None = None
    metadata: Mapping[str, str] | None = None
    naming_scheme: str | None = None
    looked: tuple[str, Look | CatalogError | None] | None = None
    """The table's location before it was locked, and what the manifest showed by then, or its refusal."""

    def keeps_locations(self) -> bool:
        return True

    def prepare(self) -> "CreateVersion":
        check_table(self.table)
        if not 0 <= self.version <= lance_naming.MAX_NEW_VERSION:
            raise InvalidInput(f"Version {self.version} is not between 0 and 2^62")
        if not 0 <= (self.manifest_size or 0) <= _MAX_SIZE:
            raise InvalidInput(f"Manifest size {self.manifest_size} is not between 0 and 2^63-1")
        if self.branch:
            lance_naming.check_branch(self.branch)
        return self

    def only_adds(self) -> bool:
        return not self.branch

    def look(self, tables: Mapping[uuid.UUID, Table]) -> "CreateVersion":
        row = tables.get(digest(self.table))
        if row is None or (self.looked is not None and self.looked[0] == row.location):
            return self
        return self.look_at(row.location)

    def look_at(self, location: str) -> Self:
        """Return the operation with what the manifest shows; called before any lock."""
        return replace(self, looked=(location, self._outcome(location)))

    def _outcome(self, location: str) -> Look | CatalogError | None:
        try:
            return self._look(location)
        except CatalogError as refused:
            return refused

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
        """The values that the audit event has beside the version."""
        return {}

    def enter(self, batch: Batch, row: Table) -> NewVersion:
        """Add the version to the ledger, and bring its manifest to its name after the commit."""
        self.ensure_branch(batch, row)
        if not batch.claim("version", row.uuid, self.branch, self.version):
            raise self._refused()
        self.require_near(row)
        look = self._manifest(batch, row)
        self._record_references(batch, row, look)
        final = None if look is None else self._final_path(row, look)
        if row.state == TableState.DECLARED:
            row.state = TableState.LIVE
            if row.pk is not None:
                batch.defer(_set_live, [row])
        version = NewVersion(
            table=row,
            branch=self.branch,
            version=self.version,
            manifest_path=final or self.manifest_path,
            staged_path=self.manifest_path if final else None,
            manifest_size=self.manifest_size if look is None else look.size,
            e_tag=self.e_tag,
            metadata=dict(self.metadata) if self.metadata is not None else None,
            transaction_id=batch.transaction.id,
        )
        batch.add(version)
        if final:
            batch.after_commit(versions.move_committed, version)
        batch.after_commit(_count_created, version)
        return version

    def require_near(self, row: Table) -> None:
        """See ``versions.require_near``."""
        versions.require_near(row, self.branch, self.version)

    def conflict(self, constraint: str) -> CatalogError | None:
        return self._refused() if constraint == "table_version_unique" else None

    def ensure_branch(self, batch: Batch, row: Table) -> None:
        """A branch begins with its first version: that is how Lance clients create one.

        One that was deleted begins again only with a manifest that says so.
        """
        if not self.branch or not batch.claim("branch", row.uuid, self.branch):
            return
        if find_branch(row, self.branch):
            return
        if was_deleted(row, self.branch) and not self._begins_branch(batch, row):
            raise BranchNotFound(self.table, self.branch)
        batch.add(Branch(table=row, name=self.branch))

    def _begins_branch(self, batch: Batch, row: Table) -> bool:
        # A file is read with the table locked; it is a small one, of a name that was used before.
        try:
            look = self._manifest(batch, row)
        except CatalogError:
            return False
        if look is None:
            return False
        try:
            store = stores.store_of(row.location)
            content, _ = store.read(f"{row.location}/{look.relative}", _MAX_MANIFEST)
        except OSError:
            return False
        return lance_refs.begins_branch(content, self.version)

    def _refused(self) -> VersionAlreadyExists:
        return VersionAlreadyExists(self.table, self.version, self.branch)

    # -- the manifest

    def _manifest(self, batch: Batch, row: Table) -> Look | None:
        """The facts of the manifest, read here unless they were read before the lock.

        A version that is there already is refused as such, whatever became of its staged manifest.
        """
        location, outcome = self.looked or ("", None)
        if location != row.location:
            if locations.is_object(row.location):
                batch.require_looked()
            outcome = self._outcome(row.location)
        if isinstance(outcome, CatalogError):
            raise self._refused() if self._is_taken(row) else outcome
        return outcome

    def _is_taken(self, row: Table) -> bool:
        taken = TableVersion.objects.filter(table_id=row.pk, branch=self.branch)
        return taken.filter(version=self.version).exists()

    def _look(self, location: str) -> Look | None:
        """Look at the manifest; None: it is at a path that is only recorded."""
        lance_naming.naming_scheme(self.naming_scheme, "")
        relative = locations.path_in_table(location, self.manifest_path)
        if relative is None or not locations.is_surely_in_table(location, relative):
            if manifests.may_only_be_recorded(self.manifest_path):
                return None
            raise InvalidManifestPath(
                self.manifest_path, f"is outside the table's location '{location}'"
            )
        if not lance_naming.may_be_staged(relative) and relative not in {
            lance_naming.final_manifest_path(self.branch, self.version, scheme)
            for scheme in lance_naming.NamingScheme
        }:
            raise InvalidManifestPath(
                self.manifest_path, f"is not where a manifest of version {self.version} may lie"
            )
        return manifests.look(
            table=self.table,
            location=location,
            path=self.manifest_path,
            relative=relative,
            version=self.version,
            branch=self.branch,
        )

    def _record_references(self, batch: Batch, row: Table, look: Look | None) -> None:
        """Record the tables to which the manifest's base paths lead. Raises ForeignFile."""
        if look is None or not (bases := look.foreign_bases(row.location)):
            return
        batch.require_locks()
        batch.flush()
        old = () if files.is_first(row) else look.continued_bases(row.location)
        references = files.require_bases(batch.actor, row, bases, old)
        if len(old) < len(bases) or not versions.continues(row, look, self.branch, self.version):
            file_references.require_no_removal(references.sources)
        self.record(batch.actor, row, files.as_cloned(references, row, look.added.source))

    def _final_path(self, row: Table, look: Look) -> str | None:
        """Where the staged manifest goes (as an object store names it); None if it stays put."""
        if not lance_naming.may_be_staged(look.relative):
            return None
        scheme = lance_naming.naming_scheme(
            self.naming_scheme, self.manifest_path.rpartition("/")[2]
        )
        return locations.store_path(
            row.location, lance_naming.final_manifest_path(self.branch, self.version, scheme)
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
    needed: tuple[str, Mapping[str, int]] | None = None
    """The table's location before it was locked, and what needed which versions by then."""

    def keeps_locations(self) -> bool:
        return True

    def prepare(self) -> "DeleteVersions":
        check_table(self.table)
        for start, end in self.ranges:
            if not (
                0 <= start <= lance_naming.MAX_VERSION and -1 <= end <= lance_naming.MAX_VERSION
            ):
                raise InvalidInput(f"Version range {start} to {end} is out of bounds")
            if end != -1 and end < start:
                raise InvalidInput(f"Version range {start} to {end} ends before it starts")
        return self

    def look(self, tables: Mapping[uuid.UUID, Table]) -> "DeleteVersions":
        row = tables.get(digest(self.table))
        if row is None or not locations.is_object(row.location):
            return self
        return replace(self, needed=(row.location, references.needed_versions(row, self.branch)))

    def apply(self, batch: Batch) -> int:
        row = self.locked(batch)
        batch.write_versions()
        if not find_branch(row, self.branch):
            raise BranchNotFound(self.table, self.branch)
        if not self.ranges:
            return 0
        self._require_unneeded(batch, row)
        starts = [start for start, _ in self.ranges]
        ends = [lance_naming.MAX_VERSION if end == -1 else end - 1 for _, end in self.ranges]
        cursor = hot_cursor()
        cursor.execute(
            _DELETE, {"starts": starts, "ends": ends, "table": row.pk, "branch": self.branch}
        )
        newest: int | None
        deleted: int
        newest, deleted = cursor.fetchone()
        if newest is not None and self._covers(newest):
            on = f" on branch '{self.branch}'" if self.branch else ""
            raise InvalidTableState(
                f"Version {newest} is the newest of table '{label(self.table)}'{on},"
                " and cannot be deleted",
                detail="Restore an older version first, which makes a newer one,"
                " or delete up to the newest.",
            )
        batch.record(
            label(self.table),
            table=row,
            after={"ranges": [list(r) for r in self.ranges], "deleted": deleted},
        )
        return deleted

    def _require_unneeded(self, batch: Batch, row: Table) -> None:
        """Refuse to delete versions that tags or branches need."""
        location, needed = self.needed or ("", {})
        if location != row.location:
            if locations.is_object(row.location):
                batch.require_looked()
            needed = references.needed_versions(row, self.branch)
        visible = TableVersion.objects.visible().filter(table=row, branch=self.branch)
        for name, version in sorted(needed.items()):
            if self._covers(version) and visible.filter(version=version).exists():
                raise InvalidTableState(
                    f"Version {version} of table '{label(self.table)}' cannot be deleted:"
                    f" {name} needs it"
                )

    def _covers(self, version: int) -> bool:
        return any(start <= version and (end == -1 or version < end) for start, end in self.ranges)


# Deletes nothing if the ranges cover the newest version: without it, writers would ask for its
# number, which never comes back.
_DELETE = """
    WITH ranges AS (
        SELECT * FROM unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS r (first, last)
    ), newest AS (
        SELECT max(version) AS version FROM catalog_tableversion
        WHERE table_id = %(table)s AND branch = %(branch)s AND deleted_at IS NULL
    ), deleted AS (
        UPDATE catalog_tableversion v SET deleted_at = now()
        FROM ranges r
        WHERE v.table_id = %(table)s AND v.branch = %(branch)s
            AND v.version BETWEEN r.first AND r.last AND v.deleted_at IS NULL
            AND NOT EXISTS (
                SELECT FROM newest n, ranges c WHERE n.version BETWEEN c.first AND c.last
            )
        RETURNING v.version
    )
    SELECT (SELECT version FROM newest), (SELECT count(*) FROM deleted)
"""


def _set_live(_: Batch, rows: list[Table]) -> None:
    pks = [row.pk for row in rows]
    Table.objects.filter(pk__in=pks).update(state=TableState.LIVE, updated_at=Now())


def _count_created(rows: list[NewVersion]) -> None:
    _CREATED.inc(len(rows))


def is_view(table: Identifier) -> InvalidTableState:
    """The refusal of a change to the rows of a materialized view."""
    return InvalidTableState(
        f"Table '{label(table)}' is a materialized view, whose rows come from its query",
        detail="Change its source and refresh it, or drop the view.",
    )


def find_branch(table: Table, name: str) -> bool:
    """True if the table has this branch. The empty name stands for main, which always exists."""
    return not name or _exists(_FIND_BRANCH, table, name)


def retired_name(branch: Branch) -> str:
    """The name under which the ledger keeps the versions of a deleted branch; no client can ask it."""
    return f"{branch.name}//{branch.pk}"


def was_deleted(table: Table, name: str) -> bool:
    """True if a branch of this name was deleted."""
    return _exists(_FIND_DELETED, table, f"{name}//")


# Django compiles a query for each call, which takes longer than PostgreSQL does.
_FIND_BRANCH = "SELECT EXISTS (SELECT FROM catalog_branch WHERE table_id = %s AND name = %s)"
_FIND_DELETED = """
    SELECT EXISTS (
        SELECT FROM catalog_tableversion WHERE table_id = %s AND starts_with(branch, %s)
    )
"""


def _exists(statement: str, table: Table, name: str) -> bool:
    cursor = hot_cursor()
    cursor.execute(statement, [table.pk, name])
    return bool(cursor.fetchone()[0])
