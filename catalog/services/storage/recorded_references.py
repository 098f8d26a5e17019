"""Checks whether references of a table to files outside its directories have been committed before."""

from collections.abc import Collection
from dataclasses import replace

from django.db.models import Q

from catalog import access
from catalog.errors import ForeignFile
from catalog.models import FileReference, FreeDirectory, Table, TableState
from catalog.services.storage import file_references
from catalog.services.storage.file_owners import Holder, References
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

    ``path`` is canonical. Two statements.
    """
    above = locations.parents(path)
    claims = claims_of(Q(path__in=above), Q(location__in=above))
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
            file_references.record_claimed(source)
        else:
            file_references.record_successor(source)


def end_lapsed(source: Table) -> list[Table]:
    """Delete the references to files of a table whose principals may not read it; returns the tables that had some.

    A principal that cannot authenticate at the moment counts with its privileges. References to former tables at
    the location are deleted as well, and those to directories of the table that belonged to no table: they
    would be recorded again. Nobody can read the files through these references.
    """
    former = Table.objects.filter(location=source.location, state=TableState.DROPPED)
    rows = FileReference.objects.filter(Q(source=source) | Q(source__in=former))
    inside = Q()
    for directory in (source.location, *source.paths.values_list("path", flat=True)):
        inside |= Q(path=directory) | Q(path__startswith=directory + "/")
    free = FreeDirectory.objects.filter(inside)
    others = [references.exclude(table=source) for references in (rows, free)]
    names = {
        name for references in others for name in references.values_list("principal", flat=True)
    }
    lapsed = {name for name in names if not _may_read(name, source)}
    tables: set[int] = set()
    for references in others:
        # A commit that has changed the principal meanwhile keeps its reference.
        ended = references.filter(principal__in=lapsed)
        tables.update(ended.values_list("table", flat=True))
        ended.delete()
    return list(Table.objects.filter(pk__in=tables).select_related("namespace").order_by("pk"))


def _may_read(name: str, source: Table) -> bool:
    committer = access.committer(name, counts_inactive=True)
    return committer is not None and bool(access.readable_tables(committer, [source.pk]))
