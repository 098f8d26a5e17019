"""Files of a Lance table that other tables need: shallow clones do, by their base paths.

Whatever removes files of the table spares them, and removes nothing while it is unknown which they are. What a
clone that never went through the catalog needs is unknown here.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from django.db.models import BooleanField, Count, Q, QuerySet, Sum
from django.db.models.expressions import RawSQL

from catalog.errors import (
    CatalogError,
    ForeignFile,
    InvalidTableState,
    ManifestNotFound,
    ServiceUnavailable,
)
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.manifest import Contents
from catalog.models import JobStatus, Table, TableFormat, TableVersion
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import manifests
from catalog.services.storage import file_references, recorded_references
from catalog.services.storage.file_references import RETIRED
from catalog.storage import locations

log = logging.getLogger(__name__)

_REPORT_EVERY = 100
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that is read to learn what the dependents of a table need."""

    versions: int
    bytes: int
    """Of their manifests."""
    files: int


OF_JOBS = Limits(100_000, 16 * _GIB, 5_000_000)
OF_REQUESTS = Limits(1000, _GIB // 32, 200_000)


def _ignore() -> None:
    pass


class NeededFiles:
    """The files of a table that the versions of its dependents need.

    ``update`` reads the versions that it has not read yet. So it can be repeated right before files are removed.
    """

    def __init__(
        self,
        table: Table,
        *,
        below: str | None = None,
        limits: Limits = OF_JOBS,
        report: Callable[[], None] = _ignore,
    ) -> None:
        """``below`` limits it to a directory of the table. ``report`` is called repeatedly, and may raise to stop."""
        self._table, self._limits, self._report = table, limits, report
        self._below = below or table.location
        # A link may have been put on the path since.
        self._real = (
            self._below if locations.is_object(self._below) else os.path.realpath(self._below)
        )
        self._versions: set[int] = set()
        self._bytes = 0
        self.files: set[str] = set()
        """Those that Lance tables need, and the directories all of whose files they need."""
        self.has_others = False
        """True if Iceberg tables have files in the table's directories; which ones is not looked up."""

    def __bool__(self) -> bool:
        return bool(self.files)

    def update(self) -> None:
        """Read what dependents need by now.

        Nothing may be removed if it raises: ServiceUnavailable while a storage fails, or while snapshots of Iceberg
        tables are unread that may name files of the table; InvalidTableState if a version cannot be read,
        although it may exist, or if there are more than the limits.
        """
        recorded_references.require_none_unread(self._table)
        recorded_references.record_claimed(self._table)
        dependents = list(file_references.dependents(self._table).select_related("namespace"))
        holders = {row.pk: row for row in dependents if row.format == TableFormat.LANCE}
        self.has_others = len(holders) < len(dependents)
        rows = self._rows(holders)
        totals = rows.aggregate(number=Count("pk"), size=Sum("manifest_size"))
        self._require(totals["number"], self._limits.versions, "versions")
        self._require(totals["size"] or 0, self._limits.bytes, "bytes of manifests")
        for row in rows.order_by("pk").iterator():
            if row.pk in self._versions:
                continue
            if len(self._versions) % _REPORT_EVERY == 0:
                self._report()
            self._read(holders[row.table_id], row)
            self._versions.add(row.pk)

    def needs(self, path: str) -> bool:
        """True if dependents need a file, or may need it, as Iceberg tables do."""
        return self.has_others or self.has(path)

    def has(self, path: str) -> bool:
        """True if Lance tables need a file, or a directory above it."""
        return path in self.files or any(parent in self.files for parent in locations.parents(path))

    def unneeded(self, branch: str, versions: Collection[int]) -> list[int]:
        """The versions of a branch without files that dependents need. Raises ServiceUnavailable."""
        unneeded = []
        for number, version in enumerate(sorted(versions)):
            if number % _REPORT_EVERY == 0:
                self._report()
            own = files_of(self._table, branch, version)
            if own is not None and own.isdisjoint(self.files):
                unneeded.append(version)
        return unneeded

    def _rows(self, holders: Collection[int]) -> QuerySet[TableVersion]:
        """The versions that dependents have, or will have again after a clean-up that is running."""
        # In one statement: the clean-up of a dependent may retire and restore versions meanwhile. Without a join, as
        # PostgreSQL does not know how many versions are in the results.
        is_retired = RawSQL(
            """
            (catalog_tableversion.table_id, catalog_tableversion.branch, catalog_tableversion.version) IN (
                SELECT j.table_id, retired.branch, number.value::bigint
                FROM catalog_job j
                CROSS JOIN LATERAL jsonb_each(j.result -> %s) AS retired (branch, versions)
                CROSS JOIN LATERAL jsonb_array_elements(retired.versions) AS number (value)
                WHERE j.table_id = ANY(%s::bigint[]) AND j.status = ANY(%s)
            )
            """,
            [RETIRED, list(holders), [JobStatus.QUEUED.value, JobStatus.RUNNING.value]],
            output_field=BooleanField(),
        )
        condition = Q(deleted_at=None) | Q(is_retired)
        rows = TableVersion.objects.filter(condition, table__in=holders)
        return rows.only("table_id", "branch", "version", "manifest_path", "staged_path")

    def _read(self, dependent: Table, row: TableVersion) -> None:
        root = _root(dependent.location, row.branch)
        for contents, size in self._manifests(dependent, row):
            for path in lance_files.absolute_paths(contents, root):
                if path.startswith(f"{self._real}/"):
                    self.files.add(self._below + path[len(self._real) :])
            self._bytes += size
            self._require(self._bytes, self._limits.bytes, "bytes of manifests")
            self._require(len(self.files), self._limits.files, "needed files")

    def _manifests(self, dependent: Table, row: TableVersion) -> Iterator[tuple[Contents, int]]:
        """The manifest of a version, which may still have the name under which it was staged.

        If another file has its final name, both; nothing if the version was removed from storage.
        """
        # The last look finds a manifest that was moved after the first one.
        staged = [row.staged_path, row.manifest_path] if row.staged_path else []
        is_there = False
        for path in (row.manifest_path, *staged):
            if is_there and path == row.manifest_path:
                return
            try:
                contents, status = manifests.read(
                    table=dependent.identifier,
                    location=dependent.location,
                    manifest_path=path,
                    version=row.version,
                    branch=row.branch,
                )
            except ManifestNotFound:
                continue
            except ForeignFile:  # it was recorded outside the table, and nothing reads it there
                is_there = True
                continue
            except CatalogError as error:
                raise self._unknown(dependent, row, error) from error
            is_there = True
            yield contents, status.size
        if not is_there and not _is_removed(dependent, row):
            missing = ManifestNotFound(dependent.identifier, row.version, row.manifest_path)
            raise self._unknown(dependent, row, missing)

    def _unknown(self, dependent: Table, row: TableVersion, error: CatalogError) -> CatalogError:
        # Readers of the job may not browse the other table.
        log.warning(
            "No files of '%s' are removed: table '%s' refers to them, and its version %s cannot be read: %s",
            self._table,
            dependent,
            row.pk,
            error,
        )
        if isinstance(error, ServiceUnavailable):
            return ServiceUnavailable(
                "A table that refers to the files cannot be read, so none can be removed; try again",
                retry_seconds=error.retry_seconds,
            )
        return InvalidTableState("a table that refers to the files cannot be read")

    def _require(self, number: int, most: int, unit: str) -> None:
        if number > most:
            raise InvalidTableState(
                f"the tables that refer to the files have more than {most:,} {unit}"
            )


def files_of(table: Table, branch: str, version: int) -> frozenset[str] | None:
    """The files and directories that a version in storage needs; None if its manifest cannot be read.

    Raises ServiceUnavailable.
    """
    root = _root(table.location, branch)
    for scheme in lance_naming.NamingScheme:
        path = lance_naming.final_manifest_path(branch, version, scheme)
        try:
            contents, _ = manifests.read(
                table=table.identifier,
                location=table.location,
                manifest_path=f"{table.location}/{path}",
                version=version,
                branch=branch,
            )
        except ServiceUnavailable:
            raise
        except CatalogError:
            continue
        return frozenset(lance_files.absolute_paths(contents, root))
    return None


def _is_removed(table: Table, row: TableVersion) -> bool:
    """True if the manifest of a version was removed, and not the directory with all of them.

    That may be missing because the volume is not mounted on this machine.
    """
    relative = locations.path_in_table(table.location, row.manifest_path) or ""
    directory = relative.rpartition("/")[0]
    try:
        return manifests.is_in_storage(table.location, directory)
    except OSError:
        return False


def _root(location: str, branch: str) -> str:
    return f"{location}/tree/{branch}" if branch else location
