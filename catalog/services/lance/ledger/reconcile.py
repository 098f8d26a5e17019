"""Retiring versions whose manifests were removed from storage without the catalog.

A client's own ``cleanup_old_versions`` removes files and does not call the catalog. Such a version is
retired when it is read, and by a periodic task that checks a bounded number of tables. A read that retires
a version makes its table due: usually the files of other versions are gone, too. The newest version of a
branch is never retired: its number is not given again, so a repair has to publish another version.
"""

import logging
from collections.abc import Collection
from datetime import timedelta

from django.db.models import F, Q
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.errors import CatalogError, CommitConflict, ManifestNotFound, VersionNotFound
from catalog.formats.lance import naming as lance_naming
from catalog.identifiers import Identifier
from catalog.models import LedgerCheck, Table, TableFormat, TableState, TableVersion
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import manifests, versions
from catalog.services.lance.ledger.versions import Version
from catalog.services.tables import cleanup_operations
from catalog.storage import locations, stores
from catalog.storage.object_locations import bucket_of

log = logging.getLogger(__name__)

_TABLES_AT_ONCE = 100
_VERSIONS_AT_ONCE = 10_000
_EVERY = timedelta(hours=1)


def describe_version(
    *, actor: Principal, table: Identifier, version: int | None = None, branch: str = ""
) -> Version:
    """A version as ``versions.describe_version`` finds it; one whose manifest is gone is retired.

    Raises as that does.
    """
    try:
        return versions.describe_version(actor=actor, table=table, version=version, branch=branch)
    except ManifestNotFound as refused:
        location = Table.objects.named(table).values_list("location", flat=True).first()
        raise retired(refused, location or "", branch) from None


def retired(refused: ManifestNotFound, location: str, branch: str) -> CatalogError:
    """The refusal owed to the reader of a version without a manifest, which is retired if it may be.

    The newest version of its branch stays; so does every version while its directory is not there,
    which may be on a volume that this process cannot see.
    """
    if not manifests.is_in_storage(location, lance_naming.versions_directory(branch)):
        return refused
    if not _retire(refused.table, branch, [refused.version]):
        refused.detail = (
            "It is the newest version; its manifest was removed from storage. Repair the table."
        )
        return refused
    LedgerCheck.objects.filter(table__in=Table.objects.named(refused.table)).delete()
    missing: VersionNotFound = versions.not_found(refused.table, refused.version, branch)
    missing.detail = "Its manifest was removed from storage, so the version was retired."
    return missing


def reconcile_due() -> int:
    """Reconcile the tables that were not looked at for the longest time.

    Returns how many versions were retired.
    """
    due = (
        Table.objects.filter(state=TableState.LIVE, format=TableFormat.LANCE)
        .filter(Q(ledger_check=None) | Q(ledger_check__checked_at__lt=timezone.now() - _EVERY))
        .order_by(F("ledger_check__checked_at").asc(nulls_first=True), "pk")
        .select_related("namespace")[:_TABLES_AT_ONCE]
    )
    number = 0
    failed_buckets: set[str] = set()
    for table in due:
        bucket = bucket_of(table.location) if locations.is_object(table.location) else ""
        try:
            if bucket not in failed_buckets:
                number += reconcile(table)
        except (CatalogError, OSError) as error:
            log.warning("Reconciling table '%s' failed", table, exc_info=True)
            if bucket and isinstance(error, OSError):  # the others would wait for it as long
                failed_buckets.add(bucket)
        LedgerCheck.objects.update_or_create(table=table, defaults={"checked_at": timezone.now()})
    return number


def reconcile(table: Table) -> int:
    """Retire the versions of a table whose manifests are gone; returns how many."""
    number = 0
    for branch in ["", *table.branches.values_list("name", flat=True)]:
        missing = missing_versions(table, branch)
        if missing:
            number += _retire(table.identifier, branch, missing)
    return number


def missing_versions(table: Table, branch: str) -> list[int]:
    """The versions of a branch, without the newest, whose manifests are not in storage.

    None while the newest one's is not: then the directory may not be the one that it was.
    """
    directory = lance_naming.versions_directory(branch)
    prefix = locations.store_path(table.location, f"{directory}/")
    rows = TableVersion.objects.visible().on(branch).filter(table=table, staged_path=None)
    paths = dict(
        rows.filter(manifest_path__startswith=prefix)
        .order_by("-version")
        .values_list("version", "manifest_path")[:_VERSIONS_AT_ONCE]
    )
    # After the rows: the file of a version that is committed meanwhile is no reason to retire it.
    files = stores.store_of(table.location).list_files(table.location, directory)
    names = {file.name for file in files}
    if not paths:
        return []
    newest = max(paths)
    if paths[newest].removeprefix(prefix) not in names:
        return []
    return sorted(
        version for version, path in paths.items() if path.removeprefix(prefix) not in names
    )


def _retire(table: Identifier, branch: str, missing: Collection[int]) -> int:
    """Leave tombstones; returns how many. None of them when the newest is among them by now."""
    retire = cleanup_operations.RetireMissingVersions(
        table=table,
        branch=branch,
        versions=tuple(missing),
        facts={"reason": "the manifests were removed from storage"},
    )
    try:
        number: int = commit([retire], actor=SYSTEM).results[0]
    except CommitConflict:
        return 0
    return number
