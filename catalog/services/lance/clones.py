"""Copy a version of a Lance table to a new table."""

from typing import Any

from django.conf import settings

from catalog import access
from catalog.access import On, Principal
from catalog.errors import DataTooLarge, InvalidInput
from catalog.identifiers import Identifier, check_table
from catalog.models import Table, TableFormat
from catalog.privileges import Privilege
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets, describe
from catalog.services.lance.errors import refusing
from catalog.storage import locations


def clone_table(
    *,
    actor: Principal,
    table: Identifier,
    location: str,
    version: int | None = None,
    tag: str | None = None,
) -> lance_data.CreatedTable:
    """Create a table with the rows of a version, by default the newest, of the table at a location.

    The new table has files of its own, and no indexes. Raises InvalidInput if the actor sees no table at the
    location, PermissionDenied if it may not read it, DataTooLarge for a version with more data than a request may send, and the errors of
    ``create_table``.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    source = _find(actor, location)
    branch, version = describe.resolve(actor=actor, table=source, version=version, tag=tag)
    dataset = datasets.read(actor=actor, table=source, version=version, branch=branch)
    with refusing(source):
        columns: Any = dataset.stats.data_stats().fields
        if sum(column.bytes_on_disk for column in columns) > settings.MONODON_MAX_DATA_BYTES:
            raise DataTooLarge(settings.MONODON_MAX_DATA_BYTES)
        reader = dataset.scanner().to_reader()
    return lance_data.create_table(actor=actor, table=table, data=reader)


def _find(actor: Principal, location: str) -> Identifier:
    path = locations.lance_path(location)
    row = (
        Table.objects.present()
        .filter(location=path, format=TableFormat.LANCE)
        .select_related("namespace")
        .first()
    )
    if row is None or not access.holds(actor, Privilege.BROWSE, row):
        raise InvalidInput(f"There is no table at '{location}' that you may read")
    access.require(actor, Privilege.READ, row)
    return tuple(row.identifier)
