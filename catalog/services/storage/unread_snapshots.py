"""Snapshots of Iceberg tables of which commits left manifests unread, and the tables to whose files these may refer.

``iceberg.references`` reads them, before files of such a table are removed.
"""

from django.db.models import QuerySet

from catalog import access
from catalog.errors import ServiceUnavailable
from catalog.models import Table, UnreadSnapshot
from catalog.services.storage import file_references, recorded_references


def leading_to(table: Table) -> QuerySet[UnreadSnapshot]:
    """The notes of snapshots that may name files of a table."""
    notes = UnreadSnapshot.objects.exclude(table=table)
    names = set(notes.values_list("principal", flat=True).distinct())
    former = recorded_references.former_tables(table) if names else {}
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


def require_none(table: Table) -> None:
    """Require that no unread snapshot may name files of a table. Raises ServiceUnavailable."""
    if leading_to(table).exists():
        raise ServiceUnavailable(
            f"Snapshots that may refer to files of '{table}' are still being read, so no files are"
            " removed yet"
        )
