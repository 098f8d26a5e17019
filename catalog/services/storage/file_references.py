"""References of tables to files of other tables, each with its principal.

A reference is recorded by the commit that brings it in. Readers of the table may then read those
files through it while that principal may read the source (``table_files``); removing files of the
source looks for its dependents first.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.identifiers import Identifier, label
from catalog.models import (
    FileReference,
    Job,
    JobKind,
    JobStatus,
    Table,
    TableState,
    UnreadSnapshot,
)

_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Dependents:
    """The tables that refer to files of a table, as somebody may see them."""

    visible: tuple[Identifier, ...] = ()
    """The first of those that they may browse."""
    others: int = 0
    """How many more there are."""

    def __len__(self) -> int:
        return len(self.visible) + self.others

    def __str__(self) -> str:
        """As part of a sentence; empty without dependents."""
        names = [f"'{label(name)}'" for name in self.visible]
        return ", ".join([*names, f"{self.others} more"] if self.others else names)


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


def record_unread(
    *, actor: Principal, table_id: int, snapshots: Collection[int], is_whole: bool = False
) -> None:
    """Note snapshots whose manifests may name files of other tables: ``iceberg_references`` reads them."""
    UnreadSnapshot.objects.bulk_create(
        [
            UnreadSnapshot(
                table_id=table_id, snapshot_id=snapshot, is_whole=is_whole, principal=actor.name
            )
            for snapshot in sorted(snapshots)
        ],
        ignore_conflicts=True,
    )


def dependents(table: Table) -> QuerySet[Table]:
    """The tables, not yet purged, that refer to files of this one."""
    references = FileReference.objects.filter(source=table, table=OuterRef("pk"))
    return _not_purged(Table.objects.filter(Exists(references)))


def dependents_of(
    actor: Principal, tables: Collection[int], limit: int = _SHOWN
) -> dict[int, Dependents]:
    """The dependents of each of these tables that has some. One statement, or two."""
    holders = _not_purged(Table.objects.all())
    rows = FileReference.objects.filter(source__in=tables, table__in=holders)
    pairs = list(rows.order_by("table").values_list("source", "table"))
    if not pairs:
        return {}
    browsed = Table.objects.filter(access.visible_tables(actor), pk__in={pk for _, pk in pairs})
    names = {row.pk: row.identifier for row in browsed.select_related("namespace")}
    by_source = defaultdict(list)
    for source, pk in pairs:
        by_source[source].append(pk)
    dependents_by_source = {}
    for source, holders_of in by_source.items():
        visible = tuple(names[pk] for pk in holders_of if pk in names)[:limit]
        dependents_by_source[source] = Dependents(visible, len(holders_of) - len(visible))
    return dependents_by_source


def names_of_dependents(actor: Principal, table: Table, limit: int = 10) -> str:
    """The names of those that ``actor`` may browse, and how many more there are."""
    return str(dependents_of(actor, [table.pk], limit).get(table.pk, ""))


def _not_purged(tables: QuerySet[Table]) -> QuerySet[Table]:
    purged = Job.objects.filter(
        table=OuterRef("pk"), kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED
    )
    return tables.exclude(Exists(purged), state=TableState.DROPPED)
