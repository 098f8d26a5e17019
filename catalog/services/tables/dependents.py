"""Find the tables that refer to files of a table, and the views that read it."""

from dataclasses import dataclass

from catalog import access
from catalog.access import On, Principal
from catalog.identifiers import Identifier
from catalog.models import Table
from catalog.privileges import Privilege
from catalog.services.storage.file_references import Dependents, dependents_of
from catalog.services.tables import lineage, tables


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
