"""Checking the locations of a batch's new tables together.

A location that meets no table, no path of an Iceberg table and no namespace is free for everybody. Most
are, and a few statements show it for all of a batch. The exact location of a table that the batch itself
has deregistered is free too, if the actor may manage that table without an end. Other locations are checked one by one.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from django.db import connection
from django.db.models import Exists, OuterRef

from catalog import access
from catalog.access import Principal
from catalog.models import IcebergPath, Job, JobStatus, Table, TableState
from catalog.privileges import Privilege
from catalog.services.storage import namespace_locations
from catalog.services.storage.namespace_locations import any_of
from catalog.storage import locations

# A path below a directory begins with it and a slash; '0' follows '/' in the order of the index.
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

    def __init__(
        self, actor: Principal, requested: Collection[str], deregistered: AbstractSet[int]
    ) -> None:
        """``deregistered``: keys of the tables that the batch has deregistered, also from now on."""
        self._taken: set[str] = set()
        self._above_taken: set[str] = set()
        self._deregistered = deregistered
        around, others = _meeting(requested)
        self._holders, self._namespaces = _holders(actor, others - around, deregistered)
        """By location, the keys of the tables that must be deregistered before it is free, and of the
        namespaces of all its tables."""
        self._free = (set(requested) - around - others) | set(self._holders)
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
            and all(pk in self._deregistered for pk in self._holders.get(location, ()))
            and location not in self._above_taken
            and self._taken.isdisjoint((location, *locations.parents(location)))
        )

    def is_free_for(self, namespace: int, location: str) -> bool:
        """True if a location is free, and no table of another namespace has been there."""
        return self._namespaces.get(location, set()) <= {namespace} and self.is_free(location)

    def take(self, location: str) -> None:
        """Note that the batch has a table at a location now."""
        self._taken.add(location)
        self._above_taken.update(locations.parents(location))


def _holders(
    actor: Principal, requested: Collection[str], deregistered: AbstractSet[int]
) -> tuple[dict[str, list[int]], dict[str, set[int]]]:
    """The present tables at each location that is free as soon as the batch deregisters them, and the namespaces of
    all tables there.

    Other locations are left out: those with a dropped table that the actor might not manage, with
    a table that it may manage for a limited time only, or with a table that has an active job.
    """
    namespaces: dict[str, set[int]] = {}
    if not requested:
        return {}, namespaces
    active = Job.objects.filter(
        table=OuterRef("pk"), status__in=[JobStatus.QUEUED, JobStatus.RUNNING]
    )
    rows = Table.objects.filter(location__in=any_of(requested)).annotate(has_job=Exists(active))
    may_manage_all = actor.holds_everywhere(Privilege.MANAGE)
    holders: dict[str, list[int]] = {location: [] for location in requested}
    deregistering: dict[int, str] = {}
    for pk, location, state, namespace, has_job in rows.values_list(
        "pk", "location", "state", "namespace", "has_job"
    ):
        namespaces.setdefault(location, set()).add(namespace)
        is_dropped = state == TableState.DROPPED
        is_unusual = (
            not (may_manage_all or pk in deregistered) if is_dropped else pk in deregistered
        )
        if has_job or is_unusual:
            holders.pop(location, None)
        elif not is_dropped and location in holders:
            holders[location].append(pk)
        deregistering[pk] = location
    for pk in set(deregistering) - access.tables_with(
        actor, Privilege.MANAGE, deregistering, lasting=True
    ):
        holders.pop(deregistering[pk], None)
    return holders, namespaces


def _meeting(requested: Collection[str]) -> tuple[set[str], set[str]]:
    """The locations that meet a table, in any state, or a path of an Iceberg table.

    First those with something else than a table at exactly that location, then those with such a table.
    """
    lines = {location: {location, *locations.parents(location)} for location in requested}
    directories = set().union(*lines.values())
    # As arrays: a statement has at most 65,535 parameters.
    tables = set(
        Table.objects.filter(location__in=any_of(directories)).values_list("location", flat=True)
    )
    paths = set(
        IcebergPath.objects.filter(path__in=any_of(directories)).values_list("path", flat=True)
    )
    with connection.cursor() as cursor:
        cursor.execute(_AROUND, [list(requested)])
        around = {location for (location,) in cursor.fetchall()}
    for location, line in lines.items():
        if not (paths.isdisjoint(line) and tables.isdisjoint(line - {location})):
            around.add(location)
    return around, tables.intersection(requested)
