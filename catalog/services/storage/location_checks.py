"""Checking the locations of a batch's new tables together.

A location that meets no table, no path of an Iceberg table and no namespace is free for everybody. Most
are, and a few statements show it for all of a batch. The others are checked one by one.
"""

from collections.abc import Collection

from django.db import connection

from catalog.access import Principal
from catalog.models import IcebergPath, Table
from catalog.services.storage import namespace_locations
from catalog.storage import locations

# What lies below a directory begins with it and a slash; '0' follows '/' in the order of the index.
_AROUND = """
    SELECT requested.location FROM unnest(%s::text[]) AS requested (location)
    WHERE EXISTS (
        SELECT FROM catalog_table inner_table
        WHERE inner_table.location ~>=~ (requested.location || '/')
            AND inner_table.location ~<~ (requested.location || '0')
    ) OR EXISTS (
        SELECT FROM catalog_icebergpath inner_path
        WHERE inner_path.path ~>=~ (requested.location || '/')
            AND inner_path.path ~<~ (requested.location || '0')
    ) OR EXISTS (
        SELECT FROM catalog_namespace inner_namespace
        WHERE inner_namespace.location ~>=~ (requested.location || '/')
            AND inner_namespace.location ~<~ (requested.location || '0')
    )
"""


class LocationChecks:
    """The requested locations that meet nothing, as long as no operation takes other locations.

    Create it under the lock of locations, with all changes of the batch written.
    """

    def __init__(self, actor: Principal, requested: Collection[str]) -> None:
        self._taken: set[str] = set()
        self._above_taken: set[str] = set()
        self._free = set(requested) - _meeting(requested)
        may_create: dict[tuple[int, ...], bool] = {}
        for location, holders in namespace_locations.holding_each(self._free).items():
            if not holders:
                continue
            nearest = holders[0][0]
            innermost = [row for directory, row in holders if directory == nearest]
            key = tuple(row.pk for row in innermost)
            if key not in may_create:
                may_create[key] = namespace_locations.may_create(actor, innermost)
            if nearest == location or not may_create[key]:
                self._free.discard(location)

    def is_free(self, location: str) -> bool:
        """True if nothing meets a location, neither before this batch nor in it."""
        return (
            location in self._free
            and location not in self._above_taken
            and self._taken.isdisjoint((location, *locations.parents(location)))
        )

    def take(self, location: str) -> None:
        """Note that the batch has a table at a location now."""
        self._taken.add(location)
        self._above_taken.update(locations.parents(location))


def _meeting(requested: Collection[str]) -> set[str]:
    """Those of the locations at, below or above which there is a table, in any state, or a path."""
    lines = {location: {location, *locations.parents(location)} for location in requested}
    directories = set().union(*lines.values())
    occupied = set(
        Table.objects.filter(location__in=directories).values_list("location", flat=True)
    )
    occupied.update(IcebergPath.objects.filter(path__in=directories).values_list("path", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(_AROUND, [list(requested)])
        around = {location for (location,) in cursor.fetchall()}
    return around | {location for location, line in lines.items() if not occupied.isdisjoint(line)}
