"""Checks whether references of a table to files outside its directories have been committed before."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL

from catalog import access
from catalog.access import Principal
from catalog.errors import ForeignFile
from catalog.models import FileReference, FreeDirectory, IcebergPath, Table, TableState
from catalog.services.storage import file_references
from catalog.services.storage.file_owners import Holder, References
from catalog.services.storage.namespace_locations import any_of
from catalog.services.storage.table_claims import claims_of, winners
from catalog.storage import locations


def _unrecorded(table_id: int, references: References) -> set[tuple[int, str]]:
    """The references to other tables' files that a table has not committed. One statement, or none."""
    if not references.foreign:
        return set()
    rows = FileReference.objects.filter(table_id=table_id, source_id__in=references.sources)
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
    for holder, path, name in rows.values_list("table", "path", "principal"):
        by_principal[name].append((holder, path))
    for name, directories in by_principal.items():
        committer = access.committer(name, counts_inactive=True)
        may_read = committer is not None and bool(access.readable_tables(committer, [table.pk]))
        by_holder: dict[int, set[str]] = defaultdict(set)
        for holder, path in directories:
            if may_read or file_references.was_readable(path, warehouse):
                by_holder[holder].add(path)
        FileReference.objects.bulk_create(
            [
                FileReference(
                    table_id=pk,
                    source=table,
                    principal=name,
                    directories=file_references.enclosing(paths),
                )
                for pk, paths in sorted(by_holder.items())
            ],
            ignore_conflicts=True,
        )


def record_successor(table: Table) -> None:
    """Record the references to former tables in directories of a table: it has their files now.

    They open files only while their principals may read this table. Call it before files of the table are removed.
    Two statements, and one if there are some.
    """
    directories = _directories(table)
    since = _around(directories)
    for path, moment in directories.items():
        since[path] = max(moment, since.get(path, moment))
    rows = FileReference.objects.filter(source__in=former_tables(table, directories))
    newest: dict[int, FileReference] = {}
    for row in rows.exclude(table=table).select_related("source").order_by("-source"):
        if row.source.location != table.location:
            # The former table has files elsewhere too, and this one may have further files.
            named = row.directories or []
            inside = [(path, own) for path in named for own in _line(path) if own in directories]
            times = [directories[own] for _, own in inside]
            times += [since[path] for path in named if path in since]
            if named and not times:
                continue
            # Commits since then named no files in its directories as files of the former table.
            if row.created_at > max(times or directories.values()) + file_references.COMMIT_TIME:
                continue
            row.directories = sorted({path for path, _ in inside})
        newest.setdefault(row.table_id, row)
    FileReference.objects.bulk_create(
        [
            FileReference(
                table_id=row.table_id,
                source=table,
                principal=row.principal,
                directories=row.directories,
            )
            for row in newest.values()
        ],
        ignore_conflicts=True,
    )


def _directories(table: Table) -> dict[str, datetime]:
    """The directories of a table, each with the time at which the table got it."""
    rows = list(
        Table.objects.filter(pk=table.pk).values_list(
            "located_at", "paths__path", "paths__created_at"
        )
    )
    # A table that moves back has had the location since it had the path.
    return {table.location: rows[0][0], **{path: since for _, path, since in rows if path}}


def former_tables(table: Table, directories: Mapping[str, datetime]) -> QuerySet[Table]:
    """The tables whose files a table may have got with its directories, and that were not purged.

    They are dropped tables with one of the directories, or with one around it, and tables in any state that had a path
    around it earlier. Only principals that may manage them get such directories. So strangers cannot prevent
    removals from the table.
    """
    around = _around(directories)
    lines = [path for directory in directories for path in _line(directory)]
    earlier = RawSQL(
        """
        SELECT p.id FROM unnest(%s::text[], %s::timestamptz[]) AS around (path, since)
        JOIN catalog_icebergpath p ON p.path = around.path AND p.created_at <= around.since
        """,
        [list(around), list(around.values())],
    )
    dropped = Table.objects.filter(state=TableState.DROPPED)
    paths = IcebergPath.objects.filter(
        path__in=any_of(directories), table__state=TableState.DROPPED
    )
    # As a union, each part of which uses an index.
    keys = dropped.filter(location__in=any_of(lines)).values("pk")
    keys = keys.union(
        paths.values("table"), IcebergPath.objects.filter(pk__in=earlier).values("table")
    )
    return file_references.not_purged(Table.objects.filter(pk__in=keys).exclude(pk=table.pk))


def former_pks(table: Table) -> tuple[set[int], datetime]:
    """The former tables of a table, and the time before which commits may have named their files in its directories."""
    directories = _directories(table)
    former = set(former_tables(table, directories).values_list("pk", flat=True))
    return former, max(directories.values()) + file_references.COMMIT_TIME


def formerly_readable(
    committer: Principal, tables: Collection[int], committed_at: datetime
) -> set[int]:
    """The tables among these whose files were those of tables that the principal may read when it committed a snapshot.

    One statement, and some for each table that has got a directory since.
    """
    since = committed_at - file_references.COMMIT_TIME
    moved = Q(located_at__gt=since) | Q(paths__created_at__gt=since)
    return {
        table.pk
        for table in Table.objects.filter(moved, pk__in=tables).distinct()
        if access.readable_tables(committer, former_pks(table)[0])
    }


def _line(path: str) -> list[str]:
    return [path, *locations.parents(path)]


def _around(directories: Mapping[str, datetime]) -> dict[str, datetime]:
    """What is above directories, each with the latest time of one below it."""
    around: dict[str, datetime] = {}
    for path, since in directories.items():
        for parent in locations.parents(path):
            around[parent] = max(since, around.get(parent, since))
    return around


def end_lapsed(source: Table) -> list[Table]:
    """Delete the references to files of a table whose principals may not read it; returns the tables that had some.

    A principal that cannot authenticate at the moment counts with its privileges. References to former tables at
    the location are deleted as well, and those to directories of the table that belonged to no table: they
    would be recorded again. Nobody can read the files through these references.
    """
    directories = _directories(source)
    former = Table.objects.filter(location=source.location, state=TableState.DROPPED)
    rows = FileReference.objects.filter(Q(source=source) | Q(source__in=former))
    inside = Q()
    for directory in directories:
        inside |= Q(path=directory) | Q(path__startswith=directory + "/")
    free = FreeDirectory.objects.filter(inside)
    # Tables that had only a path of it, or one around it: their principals may still read their other files.
    others_former = former_tables(source, directories).filter(state=TableState.DROPPED)
    others_former = others_former.exclude(location=source.location)
    others = [references.exclude(table=source) for references in (rows, free)]
    tables = {pk for references in others for pk in _end(references, [source])}
    for table in others_former:
        references = FileReference.objects.filter(source=table).exclude(table=source)
        tables |= _end(references, [source, table])
    return list(Table.objects.filter(pk__in=tables).select_related("namespace").order_by("pk"))


def _end(
    references: QuerySet[FileReference] | QuerySet[FreeDirectory], sources: Sequence[Table]
) -> set[int]:
    """Delete references whose principals may read none of the sources; returns the tables that had some."""
    names = set(references.values_list("principal", flat=True))
    lapsed = {name for name in names if not any(_may_read(name, source) for source in sources)}
    # A commit that has changed the principal meanwhile keeps its reference.
    ended = references.filter(principal__in=lapsed)
    tables = set(ended.values_list("table", flat=True))
    ended.delete()
    return tables


def _may_read(name: str, source: Table) -> bool:
    committer = access.committer(name, counts_inactive=True)
    return committer is not None and bool(access.readable_tables(committer, [source.pk]))
