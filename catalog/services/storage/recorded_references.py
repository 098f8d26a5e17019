"""Checks whether references of a table to files outside its directories have been committed before."""

from catalog.errors import ForeignFile
from catalog.models import FileReference, FreeDirectory, Table
from catalog.services.storage import file_references
from catalog.services.storage.file_owners import Holder, References


def unrecorded(table_id: int, references: References) -> list[str]:
    """The directories of other tables to which a table has no recorded reference. One statement, or none."""
    if not references.foreign:
        return []
    rows = FileReference.objects.filter(table_id=table_id, source_id__in=references.sources)
    recorded = dict(rows.values_list("source_id", "directories"))
    return sorted(
        directory
        for source, directory in references.foreign
        if source not in recorded or not file_references.is_within(directory, recorded[source])
    )


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
    missing = unrecorded(table.pk, references)
    if missing:
        record_implied(table.pk, references)
        missing = unrecorded(table.pk, references)
    if missing:
        raise ForeignFile(missing[0], table.identifier)


def record_implied(table_id: int, references: References) -> None:
    """Record the references that follow from committed ones: to what has become another table's since."""
    is_claimed = FreeDirectory.objects.filter(table_id=table_id).exists()
    for source in Table.objects.filter(pk__in=references.sources):
        if is_claimed:
            file_references.record_claimed(source)
        else:
            file_references.record_successor(source)
