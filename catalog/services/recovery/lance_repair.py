"""Comparing the ledger of a Lance table with its storage, and publishing a complete newest version.

A table cannot be read or written if the manifest or files of its newest version are missing, if no client can
write after that version, or if the ledger has used numbers above the newest version that it lists: writers
request the next number, and a used number is never available again. The repair publishes a copy of the newest complete version under an unused number, so that
the next writer requests the number after it.
Versions without manifests, or with numbers that leave no room for later ones, are retired in the same commit.
"""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from django.db.models import Max

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    CatalogError,
    ForeignFile,
    InvalidTableState,
    ManifestNotFound,
    ServiceUnavailable,
    TableHasNoData,
)
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.naming import NamingScheme
from catalog.identifiers import Identifier, label
from catalog.models import Table, TableFormat, TableState, TableVersion
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import manifests, versions
from catalog.services.recovery import lance_repair_operations
from catalog.services.tables import tables
from catalog.storage import locations, stores
from catalog.storage.stores import AccessDenied, StorageUnavailable

_MOST_TRIED = 1000
_MAX_STEP = lance_naming.MAX_STEP
_MAX_MANIFEST = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class BranchReport:
    """The state of a branch in the ledger and in storage (empty: main)."""

    branch: str
    newest: int | None
    """The newest version in the ledger."""
    fault: str
    """Why it has to be repaired; empty: it is well."""
    last_complete: int | None
    """The newest version whose files are all there."""
    missing: tuple[int, ...]
    """Versions in the ledger without a manifest."""
    unlisted: tuple[int, ...]
    """Versions in storage that are newer than the ledger's newest and not in the ledger."""
    next_number: int
    """The first number that neither has used, apart from numbers that leave no room for later ones."""
    above: tuple[int, ...] = ()
    """Versions in the ledger whose numbers leave no room for later ones."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The state of a table, and the versions that the repair published."""

    branches: tuple[BranchReport, ...]
    published: dict[str, int]
    """The version that was published, or would be, by branch."""
    is_dry_run: bool
    transaction_id: str | None = None


def repair(*, actor: Principal, table: Identifier, is_dry_run: bool = False) -> Repair:
    """Compare a table's ledger with its storage, and repair its branches, all or none of them.

    Raises TableNotFound, PermissionDenied, TableHasNoData, and InvalidTableState when a branch has to be
    repaired and has no complete version, or its directory cannot be seen.
    """
    access.require(actor, Privilege.MANAGE, On.table(table))
    row = Table.objects.named(table).select_related("namespace").first()
    if row is None or row.format != TableFormat.LANCE:
        raise tables.not_found(table)
    if row.state == TableState.DECLARED:
        raise TableHasNoData(table)
    if not stores.store_of(row.location).can_see(row.location):
        raise InvalidTableState(f"The directory of table '{label(table)}' cannot be seen")
    if is_dry_run:  # readers move staged manifests as well; the ledger stays as it is
        staged_rows = TableVersion.objects.filter(table=row, staged_path__isnull=False)
        versions.move(list(staged_rows.select_related("table")))
    else:
        versions.settle(row)
    names = ["", *row.branches.order_by("name").values_list("name", flat=True)]
    reports = tuple(_report(row, name) for name in names)
    faulty = [report for report in reports if report.fault]
    published = {
        report.branch: report.next_number for report in faulty if report.last_complete is not None
    }
    if is_dry_run or not faulty:
        return Repair(reports, published, is_dry_run)
    lost = next((report for report in faulty if report.last_complete is None), None)
    if lost is not None:
        raise InvalidTableState(
            f"{_name(lost.branch)} of table '{label(table)}' has no version whose files are complete",
            detail=lost.fault,
        )
    staged: list[str] = []
    try:
        operations = [_publish(row, report, staged) for report in faulty]
        committed = commit(operations, actor=actor)
    except BaseException:
        for path in staged:
            with suppress(OSError):
                stores.store_of(path).remove(path)
        raise
    return Repair(reports, published, is_dry_run, committed.id)


def _publish(
    row: Table, report: BranchReport, staged: list[str]
) -> lance_repair_operations.RepairTable:
    """Stage a copy of the last complete version with the next number."""
    path = _stored(row, report.branch)[report.last_complete or 0]
    store = stores.store_of(row.location)
    content, _ = store.read(f"{row.location}/{path}", _MAX_MANIFEST)
    directory = lance_naming.versions_directory(report.branch)
    name = lance_naming.manifest_name(report.next_number, NamingScheme.V2)
    draft = f"{directory}/{name}-{uuid.uuid4()}"
    copy = lance_manifest.with_version(content, report.next_number)
    staged.append(f"{row.location}/{draft}")
    store.write_new_in_place(f"{row.location}/{draft}", copy)
    return lance_repair_operations.RepairTable(
        table=row.identifier,
        branch=report.branch,
        version=report.next_number,
        manifest_path=locations.store_path(row.location, draft),
        location=row.location,
        head=report.newest,
        retired=tuple(sorted({*report.missing, *report.above})),
        summary={"from_version": report.last_complete, "fault": report.fault},
    )


# --- what is there ------------------------------------------------------------------------------


def _report(row: Table, branch: str) -> BranchReport:
    rows = TableVersion.objects.filter(table=row).on(branch)
    visible = dict(rows.visible().values_list("version", "manifest_path"))
    newest = max(visible, default=None)
    above = tuple(sorted(version for version in visible if version > lance_naming.MAX_CONTINUED))
    used_numbers = rows.filter(version__lte=lance_naming.MAX_CONTINUED)
    used = used_numbers.aggregate(most=Max("version"))["most"] or 0
    stored = _stored(row, branch)
    unlisted = tuple(sorted(set(stored) - set(visible) - _deleted(row, branch)))
    last_complete = next(_complete_versions(row, branch, visible, stored), None)
    return BranchReport(
        branch=branch,
        newest=newest,
        fault=_fault(row, branch, visible, used),
        last_complete=last_complete,
        missing=tuple(sorted(version for version in visible if version not in stored)),
        unlisted=tuple(version for version in unlisted if newest is None or version > newest),
        # Clients can place manifests of any number in storage.
        next_number=max([used, *(number for number in stored if number <= used + _MAX_STEP)]) + 1,
        above=above,
    )


def _fault(row: Table, branch: str, visible: dict[int, str], used: int) -> str:
    if not visible:
        return "the ledger has no version"
    newest = max(visible)
    if newest > lance_naming.MAX_CONTINUED:
        return f"version {newest}, the newest: its number leaves no room for later versions"
    fault = _fault_of(row, branch, newest, visible[newest])
    if fault:
        return f"version {newest}, the newest: {fault}"
    if used > newest:
        return f"version {used} was deleted, and its number never comes back"
    return ""


def _complete_versions(
    row: Table, branch: str, visible: dict[int, str], stored: dict[int, str]
) -> Iterator[int]:
    """The versions whose files are complete, the newest first."""
    for version in islice(sorted(visible, reverse=True), _MOST_TRIED):
        path = stored.get(version)
        if path and not _fault_of(row, branch, version, f"{row.location}/{path}"):
            yield version


def _fault_of(row: Table, branch: str, version: int, manifest_path: str) -> str:
    """The fault of the files of a version; empty if they are complete."""
    try:
        contents, _ = manifests.read(
            table=row.identifier,
            location=row.location,
            manifest_path=manifest_path,
            version=version,
            branch=branch,
        )
    except ManifestNotFound:
        return "its manifest is missing"
    except ForeignFile:
        return "its manifest lies outside the table"
    except CatalogError as error:
        if isinstance(error, ServiceUnavailable) and locations.is_object(row.location):
            raise  # the object store may answer later
        return error.message
    if contents.head.obstacle:
        return f"no client can write after it: {contents.head.obstacle}"
    root = f"{row.location}/tree/{branch}" if branch else row.location
    store = stores.store_of(row.location)
    for base, path in contents.paths():
        if base is None or manifests.is_location(base, row.location):
            if path.startswith("_transactions/"):
                continue  # read only by writers that were slower; clean-up removes them early
            try:
                store.status(f"{root if base is None else row.location}/{path}")
            except (AccessDenied, StorageUnavailable):
                raise
            except OSError:
                return f"its file '{path}' is missing"
    return ""


def _stored(row: Table, branch: str) -> dict[int, str]:
    """The manifests in storage by version, of which V2's names win as they do for readers."""
    directory = lance_naming.versions_directory(branch)
    paths: dict[int, str] = {}
    for file in stores.store_of(row.location).list_files(row.location, directory):
        name = lance_naming.parse_manifest_name(file.name)
        if name is not None and len(paths.get(name.version, "")) < len(f"{directory}/{file.name}"):
            paths[name.version] = f"{directory}/{file.name}"
    return paths


def _deleted(row: Table, branch: str) -> set[int]:
    rows = TableVersion.objects.filter(table=row, deleted_at__isnull=False).on(branch)
    return set(rows.values_list("version", flat=True))


def _name(branch: str) -> str:
    return f"Branch '{branch}'" if branch else "Main"
