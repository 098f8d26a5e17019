"""Reading which tables refer to files of a table."""

from catalog import access
from catalog.access import On, Principal
from catalog.identifiers import Identifier
from catalog.models import Table
from catalog.privileges import Privilege
from catalog.services.storage.file_references import Dependents, dependents_of
from catalog.services.tables import tables


def dependents_of_table(*, actor: Principal, table: Identifier) -> Dependents:
    """The dependents of a table, for who may read it. Raises NamespaceNotFound, TableNotFound."""
    access.require(actor, Privilege.READ, On.table(table))
    row = Table.objects.named(table).first()
    if row is None:
        raise tables.not_found(table)
    return dependents_of(actor, [row.pk]).get(row.pk, Dependents())
