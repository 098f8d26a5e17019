"""Find the tables that refer to files of a table, and the views that read it; end lapsed references to its files."""

from dataclasses import dataclass

from catalog import access
from catalog.access import On, Principal
from catalog.identifiers import Identifier, label
from catalog.models import Table, TableKind
from catalog.privileges import Privilege
from catalog.services.engine import audit_records
from catalog.services.engine.batch import Batch
from catalog.services.engine.commit import commit
from catalog.services.storage import recorded_references
from catalog.services.storage.file_references import Dependents, count_dependents, dependents_of
from catalog.services.tables import lineage, tables
from catalog.services.tables.table_operations import TableOperation


@dataclass(frozen=True, slots=True)
class TableDependents:
    """What depends on a table, as somebody may see it."""

    files: Dependents
    """The tables that refer to its files."""
    views: tuple[Identifier, ...]
    """The views and materialized views that read it, directly or through other views."""


def dependents_of_table(*, actor: Principal, table: Identifier) -> TableDependents:
    """Return the dependents of a table that the actor may read.

    Raises NamespaceNotFound, TableNotFound.
    """
    access.require(actor, Privilege.READ, On.table(table))
    row = Table.objects.named(table).select_related("namespace").first()
    if row is None:
        raise tables.not_found(table)
    # Names may have been exchanged since the check.
    access.require(actor, Privilege.READ, row)
    files = dependents_of(actor, [row.pk]).get(row.pk, Dependents())
    graph = lineage.impact_of(actor=actor, rows=[row])
    return TableDependents(files, graph.dependents)


@dataclass(frozen=True, slots=True)
class Detachment:
    """The dependents of a table before and after their lapsed references ended."""

    detached: int
    """The number of tables with such references."""
    remaining: int
    """The number of the dependents that are left."""


@dataclass(frozen=True, kw_only=True)
class DetachDependents(TableOperation):
    """End the references to files of a table whose principals may no longer read it. The result is a Detachment.

    Clean-up and purge of the table no longer keep files for the tables with these references, even if
    their manifests cannot be read.
    """

    name = "DetachDependents"
    action = "table.detach_dependents"
    privilege = Privilege.MANAGE

    def is_own(self, row: Table) -> bool:
        return row.kind == TableKind.TABLE

    def apply(self, batch: Batch) -> Detachment:
        row = self.locked(batch)
        batch.flush()
        detached = recorded_references.end_lapsed(row)
        result = Detachment(len(detached), count_dependents(row))
        batch.record(label(self.table), table=row, after={"detached": result.detached})
        # Not in the transaction: its readers may not know the other tables.
        batch.events += [
            audit_records.event(
                batch.actor,
                "table.detach",
                label(dependent.identifier),
                table=dependent,
                transaction_id=batch.transaction.id,
            )
            for dependent in detached
        ]
        return result


def detach_dependents(*, actor: Principal, table: Identifier) -> Detachment:
    """End the lapsed references to files of a table of either format.

    Requires MANAGE on the table. Raises TableNotFound, PermissionDenied.
    """
    result: Detachment = commit([DetachDependents(table=table)], actor=actor).results[0]
    return result
