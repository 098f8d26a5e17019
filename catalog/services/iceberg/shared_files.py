"""Metadata files that occur in the ledgers of several Iceberg tables."""

from collections.abc import Iterable
from typing import Any

from django.db.models import QuerySet

from catalog.errors import InvalidLocation
from catalog.models import Table, TableFormat, TableVersion
from catalog.models.versions import file_name
from catalog.storage import locations as storage_locations


def path_of(location: str) -> str | None:
    """The canonical path of a file; None if no table may lie there."""
    try:
        return storage_locations.iceberg_path(location)
    except InvalidLocation:
        return None


def foreign_files(table: Table, locations: Iterable[str]) -> dict[str, Table]:
    """The metadata files of other Iceberg tables, live or in the trash, with the names of these.

    Keyed by path: each ledger has the spelling of its clients.
    """
    versions = list(_foreign_versions(table, locations))
    if not versions:
        return {}
    owners = Table.objects.needed().filter(format=TableFormat.ICEBERG).select_related("namespace")
    present = owners.in_bulk({pk for pk, _ in versions})
    files = {path_of(location): present[pk] for pk, location in versions if pk in present}
    return {path: owner for path, owner in files.items() if path is not None}


def _foreign_versions(table: Table, locations: Iterable[str]) -> QuerySet[Any, tuple[int, str]]:
    versions = TableVersion.objects.in_files_named({file_name(location) for location in locations})
    return versions.exclude(table=table).values_list("table_id", "manifest_path")
