"""Checks whether references of a table to files outside its directories have been committed before."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.errors import ForeignFile, ServiceUnavailable
from catalog.models import FileReference, FreeDirectory, Table, UnreadSnapshot
from catalog.postgresql.cursors import hot_cursor
from catalog.services.storage import file_references
from catalog.services.storage.file_owners import Holder, References
from catalog.services.storage.table_claims import claims_of, winners
from catalog.storage import locations


def _unrecorded(table_id: int, references: References) -> set[tuple[int, str]]:
    """The references to other tables' files that a table has not committed. One statement, or none."""
    if not references.foreign:
        return set()
    rows = FileReference.objects.attached().filter(
        table_id=table_id, source_id__in=references.sources
    )
    recorded = dict(rows.values_list("source_id", "directories"))
    return {
        (source, directory)
        for source, directory in references.foreign
        if source not in recorded or not file_references.is_within(directory, recorded[source])
    }


def _uncommitted(table_id: int, references: References) -> set[tuple[int, str]]:
    """The same, without those that follow from committed ones."""
    missing = _unrecorded(table_id, references)
    if missing:
        record_implied(table_id, references)
        missing = _unrecorded(table_id, references)
    return missing


def recorded_directories(table_id: int) -> list[str]:
    """The directories of other tables, and of no table, to which a table ever had a reference. Two statements."""
    references = FileReference.objects.filter(table_id=table_id)
    free = FreeDirectory.objects.filter(table_id=table_id).values_list("path", flat=True)
    return [
        directory
        for directories, location in references.values_list("directories", "source__location")
        for directory in ([location] if directories is None else directories)
    ] + list(free)


def require_recorded(table: Holder, references: References) -> None:
    """Raise ForeignFile unless references of a table to files of other tables have been committed before."""
    missing = _uncommitted(table.pk, references)
    if missing:
        raise ForeignFile(min(directory for _, directory in missing), table.identifier)


def former_holders(path: str, table_id: int = 0) -> set[int]:
    """The tables, present or dropped, that hold a file, apart from the table that is being registered.

    ``path`` is canonical. One statement.
    """
    above = locations.parents(path)
    claims = claims_of(above)
    for directory in above:
        held = [claim for claim in claims.get(directory, ()) if claim.table_id != table_id]
        if held:
            return {claim.table_id for claim in winners(held)}
    return set()


def as_registered(former: Collection[int], references: References) -> References:
    """The references of a table that is registered by files of the ``former`` tables.

    The writers of those tables may have put references into the files. The principal that registers them opens
    only those that the former tables have committed, and their own files.
    """
    if not (former and references):
        return references
    others = frozenset(pair for pair in references.foreign if pair[0] not in former)
    closed = {
        pair for pk in former for pair in _uncommitted(pk, replace(references, foreign=others))
    }
    free = FreeDirectory.objects.filter(table_id__in=former).values_list("path", flat=True)
    return replace(
        references,
        foreign=references.foreign - closed,
        free=frozenset(path for path in references.free if locations.is_below_any(path, free)),
        continued=references.continued | closed,
    )


def record_implied(table_id: int, references: References) -> None:
    """Record the references that follow from committed ones: to what has become another table's since."""
    is_claimed = FreeDirectory.objects.filter(table_id=table_id).exists()
    for source in Table.objects.filter(pk__in=references.sources):
        if is_claimed:
            record_claimed(source)
        else:
            record_successor(source)


def record_claimed(table: Table) -> None:
    """Record the references to files of a table that belonged to no table when they were committed.

    Call it before files of the table are removed. Files that lay in the warehouse or in an object
    store could not be read then, so they count only if the principal that committed the reference
    may read the table.
    """
    record_successor(table)
    matches, above = Q(), set[str]()
    for directory in (table.location, *table.paths.values_list("path", flat=True)):
        matches |= Q(path=directory) | Q(path__startswith=directory + "/")
        above.update(locations.parents(directory))
    claimed_at = file_references.was_free_before([table.pk]).get(table.pk)
    if claimed_at is not None:
        matches |= Q(is_prefix=True, path__in=above, created_at__lt=claimed_at)
    warehouse = locations.allowed_roots()[0]
    rows = FreeDirectory.objects.exclude(table=table).filter(matches)
    by_principal: dict[str, list[tuple[int, str]]] = defaultdict(list)
    committed_at: dict[int, datetime] = {}
    for holder, path, name, moment in rows.values_list("table", "path", "principal", "created_at"):
        by_principal[name].append((holder, path))
        committed_at[holder] = min(moment, committed_at.get(holder, moment))
    for name, directories in by_principal.items():
        committer = access.committer(name, counts_inactive=True)
        may_read = committer is not None and bool(access.readable_tables(committer, [table.pk]))
        by_holder: dict[int, set[str]] = defaultdict(set)
        for holder, path in directories:
            if may_read or file_references.was_readable(path, warehouse):
                by_holder[holder].add(path)
        file_references.add(
            FileReference(
                table_id=pk,
                source=table,
                principal=name,
                directories=file_references.enclosing(paths),
                created_at=committed_at[pk],
            )
            for pk, paths in sorted(by_holder.items())
        )


def record_successor(table: Table) -> None:
    """Record the references to former tables in directories of a table: it has their files now.

    They open files only while their principals may read this table. Call it before files of the table are removed.
    Two statements, and two to four more if there are former tables.
    """
    former = _former_directories(table)
    rows = FileReference.objects.filter(source__in=former).exclude(table=table)
    rows = rows.select_related("source")
    references = []
    for row in rows.order_by("-source"):
        meeting = [own.path for own in former[row.source_id] if own.may_hold_files_of(row)]
        if not meeting:
            continue
        if row.directories is not None or row.source.location != table.location:
            # In the others, the former table has files that this one has not, or the reverse.
            row.directories = [
                path for path in row.directories or () if locations.is_below_any(path, meeting)
            ]
        references.append(
            FileReference(
                table_id=row.table_id,
                source=table,
                principal=row.principal,
                directories=row.directories,
                created_at=row.created_at,
            )
        )
    file_references.add(references)


@dataclass(frozen=True, slots=True)
class _FormerDirectory:
    """A directory of a table in which another one had files before."""

    path: str
    until: datetime
    """The time before which commits may have named the files there as those of the other table."""

    def may_hold_files_of(self, reference: FileReference) -> bool:
        """True if a reference to the other table may lead to files in the directory, or it is unknown where it leads."""
        if reference.created_at >= self.until:
            return False
        return not reference.directories or any(
            locations.is_below_any(path, [self.path]) or locations.is_below(self.path, path)
            for path in reference.directories
        )


_FORMER = """
    WITH own (path, since, present_since) AS (
        SELECT location, located_at, restored_at FROM catalog_table WHERE id = %(table)s
        UNION ALL
        SELECT p.path, p.created_at, t.restored_at
        FROM catalog_icebergpath p JOIN catalog_table t ON t.id = p.table_id WHERE t.id = %(table)s
    ), at (path, until) AS (
        -- A table that moves back has had the location since it had the path.
        SELECT path, GREATEST(min(since), max(present_since)) FROM own GROUP BY path
    ), around (path, own, since) AS (
        SELECT line.path, line.own, min(own.since)
        FROM unnest(%(paths)s::text[], %(owns)s::text[]) AS line (path, own) JOIN own ON own.path = line.own
        GROUP BY line.path, line.own
    )
    SELECT t.id, at.path, at.until FROM at JOIN catalog_table t ON t.location = at.path
    WHERE t.state = 'dropped' AND t.id <> %(table)s
    UNION
    SELECT t.id, at.path, at.until FROM at
    JOIN catalog_icebergpath p ON p.path = at.path JOIN catalog_table t ON t.id = p.table_id
    WHERE t.state = 'dropped' AND t.id <> %(table)s
    UNION
    SELECT t.id, around.own, around.since FROM around JOIN catalog_table t ON t.location = around.path
    WHERE t.state = 'dropped' AND t.id <> %(table)s
    UNION
    SELECT p.table_id, around.own, around.since
    FROM around JOIN catalog_icebergpath p ON p.path = around.path
    WHERE p.created_at <= around.since AND p.table_id <> %(table)s
"""


def _former_directories(table: Table) -> dict[int, list[_FormerDirectory]]:
    """The tables whose files a table may have got with its directories, and that were not purged, with these directories.

    They are dropped tables with one of the directories, or with one around it, and tables in any state that had a path
    around it earlier. Only principals that may manage them get such directories. So strangers cannot prevent
    removals from the table. A table that was restored may have got files of tables that had its directories meanwhile.
    """
    own = [table.location, *table.paths.values_list("path", flat=True)]
    lines = [(parent, path) for path in own for parent in locations.parents(path)]
    cursor = hot_cursor()
    cursor.execute(
        _FORMER,
        {
            "table": table.pk,
            "paths": [parent for parent, _ in lines],
            "owns": [path for _, path in lines],
        },
    )
    former: dict[int, list[_FormerDirectory]] = defaultdict(list)
    for pk, path, until in cursor.fetchall():
        former[pk].append(_FormerDirectory(path, until + file_references.COMMIT_TIME))
    if former:
        present = file_references.not_purged(Table.objects.filter(pk__in=list(former)))
        remaining = set(present.values_list("pk", flat=True))
        former = {pk: former[pk] for pk in former if pk in remaining}
    return former


def former_tables(table: Table) -> dict[int, datetime]:
    """The former tables in directories of a table, each with the time before which commits may have named its files there."""
    return {
        pk: max(directory.until for directory in directories)
        for pk, directories in _former_directories(table).items()
    }


def formerly_readable(
    committer: Principal, tables: Collection[int], committed_at: datetime
) -> set[int]:
    """The tables among these whose files were those of tables that the principal may read when it committed a snapshot.

    One statement, and some for each table that has got a directory since, or was restored.
    """
    since = committed_at - file_references.COMMIT_TIME
    moved = Q(located_at__gt=since) | Q(paths__created_at__gt=since) | Q(restored_at__gt=since)
    readable = set()
    for table in Table.objects.filter(moved, pk__in=tables).distinct():
        former = former_tables(table)
        holders = {pk for pk, until in former.items() if committed_at < until}
        if holders and access.readable_tables(committer, holders):
            readable.add(table.pk)
    return readable


def unread_leading_to(table: Table) -> QuerySet[UnreadSnapshot]:
    """The notes of snapshots that may name files of a table."""
    notes = UnreadSnapshot.objects.exclude(table=table)
    names = set(notes.values_list("principal", flat=True).distinct())
    former = former_tables(table) if names else {}
    leading, readers = UnreadSnapshot.objects.none(), []
    for name in names:
        committer = access.committer(name, counts_inactive=True)
        if committer is None:
            continue
        if access.readable_tables(committer, [table.pk]):
            readers.append(name)
        elif former and (readable := access.readable_tables(committer, former)):
            until = max(former[pk] for pk in readable)
            leading |= notes.filter(principal=name, created_at__lt=until)
    leading |= notes.filter(principal__in=readers)
    free_until = file_references.was_free_before([table.pk]).get(table.pk) if names else None
    if free_until is not None:
        leading |= notes.filter(created_at__lt=free_until)
    return leading


def require_none_unread(table: Table) -> None:
    """Require that no unread snapshot may name files of a table. Raises ServiceUnavailable."""
    if unread_leading_to(table).exists():
        raise ServiceUnavailable(
            f"Snapshots that may refer to files of '{table}' are still being read, so no files are"
            " removed yet"
        )


def end_lapsed(source: Table) -> list[Table]:
    """Detach the tables whose references to files of a table are of principals that may not read it; returns these.

    A principal that cannot authenticate at the moment counts with its privileges. The references include those that follow
    from references to former tables, and to directories that belonged to no table. Nobody can read the files through these
    references. They are attached again when a principal that may read the table commits one.
    """
    record_claimed(source)
    references = FileReference.objects.attached().filter(source=source)
    names = set(references.values_list("principal", flat=True))
    lapsed = {name for name in names if not file_references.may_read(name, source.pk)}
    # A commit that has changed the principal meanwhile keeps its reference.
    ended = references.filter(principal__in=lapsed)
    tables = list(ended.values_list("table", flat=True))
    ended.update(is_detached=True)
    return list(Table.objects.filter(pk__in=tables).select_related("namespace").order_by("pk"))
