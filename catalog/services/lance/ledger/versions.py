"""Reading the ledger, and bringing staged manifests to their final names."""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, connection
from django.db.models import Max
from django.utils import timezone

from catalog import access
from catalog.access import On, Principal
from catalog.errors import BranchNotFound, InvalidInput, ManifestNotFound, VersionNotFound
from catalog.formats.lance import naming as lance_naming
from catalog.identifiers import Identifier, digest, label
from catalog.models import Branch, Table, TableVersion
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import Privilege
from catalog.services.lance.ledger import manifests
from catalog.services.lance.ledger.manifests import Look
from catalog.services.tables import tables
from catalog.storage import locations, stores
from catalog.storage.object_locations import bucket_of
from catalog.storage.stores import Move

log = logging.getLogger(__name__)

PAGE_SIZE = 10_000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Version(NamedTuple):
    """One entry of the ledger, as readers see it."""

    version: int
    manifest_path: str
    manifest_size: int | None
    e_tag: str | None
    metadata: dict[str, str] | None
    created_us: int
    """Microseconds since 1970: psycopg takes 2 µs to read a timestamp, and a list has thousands."""

    @property
    def created_at(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.created_us)

    @property
    def timestamp_millis(self) -> int:
        """Milliseconds since 1970, rounded as those of ``datetime.timestamp``."""
        return int(self.created_us / 1_000_000 * 1000)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def continues(table: Table, look: Look, branch: str, version: int) -> bool:
    """True if a new version needs no files of other tables but those that the version before it needs.

    A removal of such files spares these, because that version is in the ledger. One statement at most.
    """
    before = TableVersion.objects.visible().on(branch).filter(table=table, version=version - 1)
    return look.continues_files and before.exists()


COLUMNS = """v.id, v.staged_path, v.version, v.manifest_path, v.manifest_size, v.e_tag, v.metadata,
              (date_part('epoch', v.created_at) * 1000000)::bigint"""
_DESCRIBE = """
    SELECT t.id, t.location, t.format, {columns}
    FROM catalog_table t
    LEFT JOIN catalog_tableversion v
        ON v.table_id = t.id AND v.branch = %s AND v.version = %s AND v.deleted_at IS NULL
    WHERE t.digest = %s AND t.state <> 'dropped'
""".replace("{columns}", COLUMNS)
_LIST = """
    SELECT t.id, t.location, t.format, {columns}
    FROM catalog_table t
    LEFT JOIN LATERAL (
        SELECT * FROM catalog_tableversion v
        WHERE v.table_id = t.id AND v.branch = %s AND v.deleted_at IS NULL AND v.version {from_} %s
        ORDER BY v.version {direction} LIMIT %s
    ) v ON true
    WHERE t.digest = %s AND t.state <> 'dropped'
    ORDER BY v.version {direction}
"""
_ASCENDING = _LIST.format(columns=COLUMNS, from_=">=", direction="ASC")
_DESCENDING = _LIST.format(columns=COLUMNS, from_="<=", direction="DESC")


def describe_version(
    *, actor: Principal, table: Identifier, version: int | None = None, branch: str = ""
) -> Version:
    """One version, by default the latest. One statement, and a look whether its manifest is there.

    Raises NamespaceNotFound, TableNotFound, BranchNotFound, VersionNotFound, and ManifestNotFound for
    a version whose manifest was removed from storage.
    """
    if version is None:
        rows = _read(
            actor, table, _DESCENDING, [branch, lance_naming.MAX_VERSION, 1, digest(table)]
        )
    else:
        rows = _read(actor, table, _DESCRIBE, [branch, version, digest(table)])
    if rows[0][3] is None:
        _require_branch(rows[0][0], table, branch)
        raise not_found(table, version, branch)
    entry = from_row(rows[0][3:], rows[0][1])
    if manifests.is_gone(rows[0][1], entry.manifest_path):
        raise ManifestNotFound(table, entry.version, entry.manifest_path)
    return entry


def not_found(table: Identifier, version: int | None, branch: str) -> VersionNotFound:
    """The refusal for a version that is not in the ledger; it says so if the version was deleted."""
    refused = VersionNotFound(table, version, branch)
    if version is not None:
        deleted_at = TableVersion.objects.filter(
            table__in=Table.objects.named(table), branch=branch, version=version
        ).values_list("deleted_at", flat=True)
        moment = deleted_at.first()
        if moment is not None:
            refused.detail = f"It was deleted, or its files were removed, at {moment:%F %T} UTC."
    return refused


def require_near(table: Table, branch: str, version: int) -> None:
    """Require that a new version's number is not far above the newest one of its branch.

    A branch without versions continues the numbers of the table. Costs a statement only for numbers that
    would be too far above an empty branch. Raises InvalidInput.
    """
    if version <= lance_naming.MAX_STEP:
        return
    visible = TableVersion.objects.visible().filter(table_id=table.pk)
    newest = visible.filter(branch=branch).aggregate(most=Max("version"))["most"]
    if newest is None and branch:
        newest = visible.aggregate(most=Max("version"))["most"]
    if version - (newest or 0) > lance_naming.MAX_STEP:
        raise InvalidInput(
            f"Version {version} is more than {lance_naming.MAX_STEP} above the newest version of table"
            f" '{label(table.identifier)}', {newest or 0}"
        )


def list_versions(
    *,
    actor: Principal,
    table: Identifier,
    branch: str = "",
    descending: bool = False,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Version], str | None]:
    """A page of versions by number, and the token of the next page. One statement."""
    first, size = bounds(descending=descending, limit=limit, page_token=page_token)
    statement = _DESCENDING if descending else _ASCENDING
    rows = _read(actor, table, statement, [branch, first, size + 1, digest(table)])
    if rows[0][3] is None:
        _require_branch(rows[0][0], table, branch)
        return [], None
    return page_of([row[3:] for row in rows], rows[0][1], size)


def bounds(*, descending: bool, limit: int | None, page_token: str | None) -> tuple[int, int]:
    """The version at which a page begins, and its size. Raises InvalidInput."""
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    first = lance_naming.MAX_VERSION if descending else 0
    if page_token:
        first = _last_of_page(page_token) + (-1 if descending else 1)
    return first, size


def page_of(
    rows: Sequence[Sequence[Any]], location: str, size: int
) -> tuple[list[Version], str | None]:
    """The versions in the first of these rows of COLUMNS, and the token of the next page if there are more."""
    versions = [from_row(row, location) for row in rows[:size]]
    return versions, str(versions[-1].version) if len(rows) > size else None


def _last_of_page(token: str) -> int:
    """The version that a page token names: the last of the page before."""
    if not (token.isascii() and token.isdigit() and len(token) < 20):
        raise InvalidInput(f"Page token {token!r} is not one of this list")
    return int(token)


def _read(
    actor: Principal, table: Identifier, statement: str, parameters: list[Any]
) -> list[tuple[Any, ...]]:
    access.require(actor, Privilege.READ, On.table(table))
    cursor = hot_cursor()
    cursor.execute(statement, parameters)
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    if not rows or rows[0][2] != "lance":
        raise tables.not_found(table)
    return rows


def from_row(columns: Sequence[Any], location: str) -> Version:
    """The version in a row of COLUMNS; ``location`` is that of its table."""
    pk, staged, number, path, size, e_tag, metadata, created_us = columns
    if staged is not None:
        # Never name a staged file to a reader while its move may be under way: finish it.
        path = _finished(pk, staged, path, location)
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    return Version(number, path, size, e_tag, metadata, created_us)


def has_version(table: Table, branch: str, number: int, created_at: datetime | None = None) -> bool:
    """True if the ledger lists a version, and, with ``created_at``, the same as at that time."""
    rows = TableVersion.objects.visible().filter(table=table, branch=branch, version=number)
    return (rows if created_at is None else rows.filter(created_at=created_at)).exists()


def _require_branch(table_pk: int, table: Identifier, branch: str) -> None:
    if branch and not Branch.objects.filter(table=table_pk, name=branch).exists():
        raise BranchNotFound(table, branch)


# --- staged manifests --------------------------------------------------------------------------
#
# A committed row names both the staged file and the final one. Whoever meets it brings the file to
# its final name: the writer right after its commit, or a reader. A periodic pass then clears the
# staged name in bulk, which saves each commit a second write to the database. In an object store a
# look at a file takes longer than that write, so the writer clears the name at once there.


def move(rows: Sequence[TableVersion]) -> None:
    """Bring the staged manifests of committed versions to their final names.

    Any process may do it at any time and any number of times. It never raises for a storage that
    fails: the commit stands, and the next reader or the periodic pass tries again. The rows get
    the path of the readable file.
    """
    for row in rows:
        location, staged, final = row.table.location, row.staged_path, row.manifest_path
        row.manifest_path = _readable(row, location)
        row.staged_path = None
        if staged and row.manifest_path == final and len(rows) == 1:  # its next reader is near
            manifests.note_seen(_read_key(location, staged, final))


def move_committed(rows: Sequence[TableVersion]) -> None:
    """Do as ``move`` after the commit of the versions; settle those in object stores.

    It never raises for a storage or a database that fails.
    """
    final_paths = [row.manifest_path for row in rows]
    move(rows)
    moved = [
        (row.table.pk, row.branch, row.version)
        for row, final in zip(rows, final_paths, strict=True)
        if row.manifest_path == final and locations.is_object(row.table.location)
    ]
    if moved:
        try:
            _clear_staged(moved)
        except DatabaseError:  # the periodic pass tries again
            log.warning("Clearing the staged names of %s versions failed", len(moved))


def _clear_staged(keys: Sequence[tuple[int, str, int]]) -> None:
    """Clear the staged names of versions, given by table, branch and number, that were moved."""
    tables_, branches, numbers = zip(*keys, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE catalog_tableversion v SET staged_path = NULL
            FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS d (table_id, branch, version)
            WHERE v.table_id = d.table_id AND v.branch = d.branch AND v.version = d.version
                AND v.staged_path IS NOT NULL
            """,
            [list(tables_), list(branches), list(numbers)],
        )


def settle_pending(page: int = 1000) -> int:
    """Finish what is staged and clear the staged names; returns how many rows it settled."""
    settled, last = 0, 0
    while rows := list(
        TableVersion.objects.filter(staged_path__isnull=False, pk__gt=last)
        .select_related("table")
        .order_by("pk")[:page]
    ):
        last = rows[-1].pk
        settled += _settle(rows)
    return settled


def settle(table: Table) -> bool:
    """Finish what is staged of one table; returns whether all of that has its final path now.

    What is committed meanwhile may be staged again.
    """
    staged = TableVersion.objects.filter(table=table, staged_path__isnull=False)
    rows = list(staged.select_related("table"))
    _settle(rows)
    return not staged.filter(pk__in=[row.pk for row in rows]).exists()


def _settle(rows: Sequence[TableVersion]) -> int:
    settled_versions = []
    failed_buckets: set[str] = set()
    for row in rows:
        location = row.table.location
        bucket = bucket_of(location) if locations.is_object(location) else ""
        if bucket in failed_buckets:
            continue
        try:
            if not stores.store_of(location).can_see(location) and not _is_old(row):
                # This process may be without the volume that others see; then nothing looks moved.
                continue
            path = _move(row, location)
            if path != row.manifest_path and _may_be_elsewhere(row, location):
                continue
            settled_versions.append((row.pk, path))
        except OSError:
            log.warning("Moving the manifest of version %s failed", row.pk, exc_info=True)
            if bucket:  # the others would wait for it as long
                failed_buckets.add(bucket)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE catalog_tableversion v SET manifest_path = d.path, staged_path = NULL
            FROM unnest(%s::bigint[], %s::text[]) AS d (id, path)
            WHERE v.id = d.id AND v.staged_path IS NOT NULL
            """,
            [[pk for pk, _ in settled_versions], [path for _, path in settled_versions]],
        )
        settled: int = cursor.rowcount
    return settled


def _may_be_elsewhere(row: TableVersion, location: str) -> bool:
    """True if nothing of a new version's directory is in its object store: it may be the wrong one."""
    if not locations.is_object(location) or _is_old(row):
        return False
    relative = locations.path_in_table(location, row.manifest_path) or ""
    return not manifests.is_in_storage(location, relative.rpartition("/")[0])


def _is_old(row: TableVersion) -> bool:
    return timezone.now() - row.created_at > timedelta(days=1)


def _finished(pk: int, staged: str, final: str, location: str) -> str:
    """The path of a readable manifest, for a reader, who looks at a move once in a minute."""
    if was_moved(location, staged, final):
        return final
    path = _readable(TableVersion(pk=pk, manifest_path=final, staged_path=staged), location)
    if path == final:
        manifests.note_seen(_read_key(location, staged, final))
    return path


def was_moved(location: str, staged: str | None, final: str) -> bool:
    """True if a manifest has its final name, as far as that is known without a look at the storage."""
    return staged is None or manifests.was_seen(_read_key(location, staged, final))


def _read_key(location: str, staged: str, final: str) -> str:
    return f"{location}/{staged} read from {final}"


def _readable(row: TableVersion, location: str) -> str:
    """The path of a readable manifest, finishing the move on the way."""
    try:
        return _move(row, location)
    except OSError:
        log.warning("Moving the manifest of version %s failed", row.pk, exc_info=True)
        return row.staged_path or row.manifest_path


def _move(row: TableVersion, location: str) -> str:
    """Move one staged manifest, if it is not moved yet; returns its path. Raises OSError."""
    staged = row.staged_path or ""
    final = row.manifest_path.removeprefix(locations.store_path(location, ""))
    is_object = locations.is_object(location)
    # Not the final name alone: it may have been that of another table at this location.
    move_key = f"{location}/{staged} {final}"
    if is_object and manifests.was_seen(move_key):
        return row.manifest_path
    relative = locations.path_in_table(location, staged)
    if (
        relative is None
        or stores.store_of(location).move_manifest(location, relative, final) is not Move.DONE
    ):
        # Nothing is staged there, or another file has the final name: an entry as it was given.
        return staged
    if is_object:
        manifests.note_seen(move_key)
        manifests.note_seen(f"{location}/{final}")
    return row.manifest_path
