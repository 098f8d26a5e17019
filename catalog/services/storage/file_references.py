"""References of tables to files of other tables, each with its principal.

A reference is recorded by the commit that brings it in. Readers of the table may then read those
files through it while that principal may read the source (``table_files``); removing files of the
source looks for its dependents first.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Exists, Max, OuterRef, Q, QuerySet
from django.db.models.functions import Greatest

from catalog import access
from catalog.access import Principal
from catalog.errors import CommitConflict
from catalog.identifiers import Identifier, label
from catalog.models import (
    FileReference,
    FreeDirectory,
    Job,
    JobKind,
    JobStatus,
    Table,
    TableFormat,
    TableState,
    UnreadSnapshot,
)
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.database_clock import database_now
from catalog.services.storage.file_owners import References
from catalog.storage import locations

_SHOWN = 100
_MAX_DIRECTORIES = 100
"""The most free directories of one commit; of more, those above them are recorded."""
_REMOVALS = ("clean_up", "remove_orphans", JobKind.PURGE_TABLE)
RETIRED = "retired"
"""Key in the result of an unfinished job that removes files of a Lance table: the retired versions, by branch."""
COMMIT_TIME = timedelta(minutes=1)
"""Longer than a commit needs from the check of its files to the record of them."""


@dataclass(frozen=True, slots=True)
class Dependents:
    """The tables that refer to files of a table, as a principal may see them."""

    visible: tuple[Identifier, ...] = ()
    """The first of those that they may browse."""
    others: int = 0
    """The number of the others. Without those that the principal may not browse, unless it may maintain the table."""

    def __len__(self) -> int:
        return len(self.visible) + self.others

    def __str__(self) -> str:
        """As part of a sentence; empty without dependents."""
        names = [f"'{label(name)}'" for name in self.visible]
        return ", ".join([*names, f"{self.others} more"] if self.others else names)


def record(
    *, actor: Principal, table_id: int, references: References, is_whole: bool = False
) -> None:
    """Record what a table refers to, inside the commit that brings it in.

    ``actor`` may read the sources. ``is_whole``: of its unread snapshots, all manifests are unread.
    """
    record_references(actor=actor, table_id=table_id, foreign=references.foreign)
    record_dependence(
        actor=actor, table_id=table_id, foreign=references.continued, is_as_committed=False
    )
    record_free(actor=actor, table_id=table_id, directories=references.free)
    _record_unread(actor=actor, table_id=table_id, snapshots=references.unread, is_whole=is_whole)


def require_no_removal(sources: Collection[int]) -> None:
    """Require that nothing removes files of these tables until the transaction ends. Raises CommitConflict.

    A job waits for the commits in progress (``locks.await_commits``), and then looks for dependents. Jobs of a Lance
    table have ``RETIRED`` in their result by then. The deletion of a branch is no job, and excludes commits itself
    (``locks.exclude_commits``). The error names no table: the principal may not know the source. Two statements, or none.
    """
    if not sources:
        return
    is_removed = not locks.share_sources(sources)
    jobs = Job.objects.filter(table__in=sources, kind__in=_REMOVALS, is_dry_run=False)
    running = jobs.filter(status=JobStatus.RUNNING, lease_until__gt=database_now())
    begins_at_once = Q(table__format=TableFormat.ICEBERG) | Q(kind=JobKind.PURGE_TABLE)
    if is_removed or running.filter(begins_at_once | Q(result__has_key=RETIRED)).exists():
        raise CommitConflict(
            "A job is removing files of another table to which the commit refers:"
            " commit again when it has ended"
        )


_RECORD = """
    INSERT INTO catalog_filereference AS present (table_id, source_id, principal, directories)
    SELECT %s::bigint, %s::bigint, %s::text, %s::text[]
    ON CONFLICT (table_id, source_id) DO UPDATE SET principal = excluded.principal, is_detached = false,
    directories = CASE
        WHEN present.principal = %s::text OR present.is_detached THEN excluded.directories
        WHEN present.directories IS NOT NULL THEN ARRAY(
            SELECT unnest(excluded.directories) UNION SELECT unnest(present.directories)
        )
    END
    RETURNING id, directories
"""


def record_references(
    *, actor: Principal, table_id: int, foreign: Collection[tuple[int, str]]
) -> None:
    """Record that a table refers to files in directories of other tables, which ``actor`` may read.

    It takes over the directories that another principal has recorded, if that one may still read the source.
    """
    by_source = _by_source(table_id, foreign)
    lapsed = _lapsed(actor, table_id, by_source)
    for source, directories in sorted(by_source.items()):
        cursor = hot_cursor()
        cursor.execute(
            _RECORD, [table_id, source, actor.name, sorted(directories), lapsed.get(source)]
        )
        pk, recorded = cursor.fetchone()
        if recorded is not None and len(recorded) > _MAX_DIRECTORIES:
            FileReference.objects.filter(pk=pk).update(directories=enclosing(recorded))


def record_dependence(
    *,
    actor: Principal,
    table_id: int,
    foreign: Collection[tuple[int, str]],
    is_as_committed: bool = True,
) -> None:
    """The same for ``actor`` that may not read the sources now: it takes over no reference of another one.

    References that it may not have committed open no directories.
    """
    add(
        FileReference(
            table_id=table_id,
            source_id=source,
            principal=actor.name,
            directories=enclosing(directories) if is_as_committed else [],
        )
        for source, directories in sorted(_by_source(table_id, foreign).items())
    )


def add(references: Iterable[FileReference]) -> None:
    """Insert references, apart from those of tables that have one to the same source.

    Detached ones are replaced by those whose principal may read the source. Two statements as a rule, or none.
    """
    rows = list(references)
    if not rows:
        return
    FileReference.objects.bulk_create(rows, ignore_conflicts=True)
    detached = FileReference.objects.filter(
        is_detached=True,
        table__in={row.table_id for row in rows},
        source__in={row.source_id for row in rows},
    )
    pairs = set(detached.values_list("table", "source"))
    for row in rows:
        if (row.table_id, row.source_id) in pairs and may_read(row.principal, row.source_id):
            detached.filter(table=row.table_id, source=row.source_id).update(
                principal=row.principal, directories=row.directories, is_detached=False
            )


def may_read(name: str, source: int) -> bool:
    """True if a principal may read a table, even if it cannot authenticate at the moment."""
    committer = access.committer(name, counts_inactive=True)
    return committer is not None and bool(access.readable_tables(committer, [source]))


def is_within(path: str, directories: Collection[str] | None) -> bool:
    """True if a path is in the directories of a reference. None: in any directory of the table."""
    return directories is None or locations.is_below_any(path, directories)


def _by_source(table_id: int, foreign: Collection[tuple[int, str]]) -> dict[int, set[str]]:
    by_source: dict[int, set[str]] = defaultdict(set)
    for source, directory in foreign:
        if source != table_id:
            by_source[source].add(directory)
    return by_source


def _lapsed(actor: Principal, table_id: int, sources: Collection[int]) -> dict[int, str]:
    """The sources to which another principal has a reference that is no longer valid, with this principal.

    One statement as a rule.
    """
    rows = FileReference.objects.filter(table_id=table_id, source_id__in=sources)
    others = dict(rows.exclude(principal=actor.name).values_list("source_id", "principal"))
    return {source: others[source] for source in others.keys() - valid_sources(others)}


def valid_sources(principals: Mapping[int, str]) -> set[int]:
    """The sources that the principals of a table's references may still read.

    Takes the principal of each source. Two statements for each principal.
    """
    by_principal: dict[str, set[int]] = defaultdict(set)
    for source, name in principals.items():
        by_principal[name].add(source)
    valid: set[int] = set()
    for name, sources in by_principal.items():
        committer = access.committer(name)
        if committer is not None:
            valid |= access.readable_tables(committer, sources)
    return valid


def enclosing(directories: Collection[str]) -> list[str]:
    """Directories that contain all of these: at most ``_MAX_DIRECTORIES``, none inside another one."""
    paths = set(directories)
    while len(paths) > _MAX_DIRECTORIES:
        depths = {path: len(locations.parents(path)) for path in paths}
        depth = max(depths.values())
        paths = {locations.parents(path)[0] if depths[path] == depth else path for path in paths}
    return sorted(path for path in paths if paths.isdisjoint(locations.parents(path)))


def record_free(*, actor: Principal, table_id: int, directories: Collection[str]) -> None:
    """Record that a table refers to files in directories of no table (``recorded_references.record_claimed``)."""
    paths, prefixes = set(directories), set[str]()
    while len(paths) + len(prefixes) > _MAX_DIRECTORIES:
        above = {path: locations.parents(path) for path in paths | prefixes}
        depth = max(map(len, above.values()))
        if depth == 0:  # buckets, or directories in the root of the file system
            break
        deepest = {path for path, parents in above.items() if len(parents) == depth}
        paths -= deepest
        prefixes = (prefixes - deepest) | {above[path][0] for path in deepest}
    FreeDirectory.objects.bulk_create(
        [
            FreeDirectory(table_id=table_id, path=path, is_prefix=is_prefix, principal=actor.name)
            for is_prefix, directories_ in ((False, paths), (True, prefixes))
            for path in sorted(directories_)
        ],
        ignore_conflicts=True,
    )


def _record_unread(
    *, actor: Principal, table_id: int, snapshots: Collection[int], is_whole: bool
) -> None:
    """Note snapshots whose manifests may name files of other tables: ``iceberg.references`` reads them."""
    UnreadSnapshot.objects.bulk_create(
        [
            UnreadSnapshot(
                table_id=table_id, snapshot_id=snapshot, is_whole=is_whole, principal=actor.name
            )
            for snapshot in sorted(snapshots)
        ],
        ignore_conflicts=True,
    )


def was_free_before(tables: Collection[int]) -> dict[int, datetime]:
    """For tables with directories in the other allowed roots, the time before which these directories may have been free.

    Directories in the warehouse and in object stores were no table's either, but nobody could read
    files there.
    """
    warehouse = locations.allowed_roots()[0]
    rows = Table.objects.filter(pk__in=tables).annotate(
        claimed_at=Greatest("located_at", Max("paths__created_at")),
        directories=ArrayAgg("paths__path", default=[], filter=Q(paths__isnull=False)),
    )
    return {
        pk: claimed_at + COMMIT_TIME
        for pk, location, claimed_at, directories in rows.values_list(
            "pk", "location", "claimed_at", "directories"
        )
        if any(was_readable(path, warehouse) for path in (location, *directories))
    }


def was_readable(path: str, warehouse: str) -> bool:
    """True if files of a directory could be read while no table had it."""
    return not locations.is_object(path) and not locations.is_below_any(path, [warehouse])


def dependents(table: Table) -> QuerySet[Table]:
    """The tables, not yet purged, that refer to files of this one."""
    references = FileReference.objects.attached().filter(source=table, table=OuterRef("pk"))
    return not_purged(Table.objects.filter(Exists(references)))


_COUNT = """
    SELECT count(*) FROM catalog_table t
    WHERE EXISTS (
        SELECT FROM catalog_filereference r
        WHERE r.source_id = %s::bigint AND r.table_id = t.id AND NOT r.is_detached
    ) AND NOT (t.state = 'dropped' AND (EXISTS (
        SELECT FROM catalog_job j
        WHERE j.table_id = t.id AND j.kind = 'purge_table' AND j.status = 'succeeded'
    ) OR t.format = 'lance' AND EXISTS (
        SELECT FROM catalog_table later JOIN catalog_job j ON j.table_id = later.id
        WHERE later.location = t.location AND later.format = 'lance'
            AND j.kind = 'purge_table' AND j.status = 'succeeded' AND j.created_at >= t.dropped_at
            AND NOT EXISTS (SELECT FROM catalog_remainingfiles f WHERE f.table_id = later.id)
    )))
"""


def count_dependents(table: Table) -> int:
    """The number of ``dependents``. One prepared statement, as every drop counts them."""
    cursor = hot_cursor()
    cursor.execute(_COUNT, [table.pk])
    number: int = cursor.fetchone()[0]
    return number


def with_dependents(tables: QuerySet[Table]) -> QuerySet[Table]:
    """Those of these tables to whose files other tables refer, which are not yet purged."""
    holders = not_purged(Table.objects.all())
    references = FileReference.objects.attached().filter(source=OuterRef("pk"), table__in=holders)
    return tables.filter(Exists(references))


def dependents_of(
    actor: Principal, tables: Collection[int], limit: int = _SHOWN
) -> dict[int, Dependents]:
    """The dependents of each of these tables that has some, as the actor may see them. Three statements at most."""
    holders = not_purged(Table.objects.all())
    rows = FileReference.objects.attached().filter(source__in=tables, table__in=holders)
    pairs = list(rows.order_by("table").values_list("source", "table"))
    if not pairs:
        return {}
    browsed = Table.objects.filter(access.visible_tables(actor), pk__in={pk for _, pk in pairs})
    names = {row.pk: row.identifier for row in browsed.select_related("namespace")}
    of_hidden = {source for source, pk in pairs if pk not in names}
    maintained = access.tables_with(actor, Privilege.MAINTAIN, of_hidden)
    by_source = defaultdict(list)
    for source, pk in pairs:
        if pk in names or source in maintained:
            by_source[source].append(pk)
    dependents_by_source = {}
    for source, holders_of in by_source.items():
        visible = tuple(names[pk] for pk in holders_of if pk in names)[:limit]
        dependents_by_source[source] = Dependents(visible, len(holders_of) - len(visible))
    return dependents_by_source


def describe_dependents(table: Table) -> str:
    """How many tables refer to files of this one; empty without dependents. Without names, as for readers of jobs."""
    number = count_dependents(table)
    if not number:
        return ""
    return "1 other table refers" if number == 1 else f"{number} other tables refer"


def not_purged(tables: QuerySet[Table]) -> QuerySet[Table]:
    """Those of these tables that were not purged.

    A Lance table also counts as purged if a later one at its location was: that removed the whole directory.
    """
    purged = Job.objects.purges().filter(table=OuterRef("pk"))
    with_another = Job.objects.complete_purges().filter(
        table__format=TableFormat.LANCE,
        table__location=OuterRef("location"),
        created_at__gte=OuterRef("dropped_at"),
    )
    is_purged = Exists(purged) | Q(Exists(with_another), format=TableFormat.LANCE)
    return tables.exclude(is_purged, state=TableState.DROPPED)
