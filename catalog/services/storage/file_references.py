"""Which tables refer to files of other tables, and on whose behalf.

A reference is recorded by the commit that brings it in. Readers of the table may then read those
files through it while that principal may read the source (``table_files``); removing files of the
source looks for its dependents first.
"""

from collections.abc import Collection

from django.db.models import Exists, OuterRef, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.models import FileReference, Job, JobKind, JobStatus, Table, TableState


def record_references(*, actor: Principal, table_id: int, sources: Collection[int]) -> None:
    """Note that a table refers to files of other tables, inside the commit that brings them in.

    Call it with sources that ``actor`` may read, as ``require_readable`` has found.
    """
    FileReference.objects.bulk_create(
        [
            FileReference(table_id=table_id, source_id=source, principal=actor.name)
            for source in sorted(set(sources) - {table_id})
        ],
        update_conflicts=True,
        unique_fields=["table", "source"],
        update_fields=["principal"],
    )


def dependents(table: Table) -> QuerySet[Table]:
    """The tables, not yet purged, that refer to files of this one."""
    purged = Job.objects.filter(
        table=OuterRef("pk"), kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED
    )
    references = FileReference.objects.filter(source=table, table=OuterRef("pk"))
    return Table.objects.filter(Exists(references)).exclude(
        Exists(purged), state=TableState.DROPPED
    )


def names_of_dependents(actor: Principal, table: Table, limit: int = 10) -> list[str]:
    """The names of those that ``actor`` may browse, and how many more there are."""
    rows = dependents(table).select_related("namespace")
    visible = list(rows.filter(access.visible_tables(actor)).order_by("pk")[: limit + 1])
    names = [f"'{row}'" for row in visible[:limit]]
    more = rows.count() - len(names)
    return names if more <= 0 else [*names, f"{more} more"]
