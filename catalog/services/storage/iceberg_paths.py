"""Directories outside an Iceberg table's location in which the table may have files.

- No table may name a path at or inside the location of another table, because the files there are
  removed together with that table. The same applies to a dropped table whose files still exist.
- No Lance table may lie at or around such a path, because a drop removes its whole directory. The path of a dropped
  table counts as long as the table may be restored.
- An Iceberg table may lie at, inside or around a path of another Iceberg table, or name the same
  path, only if the actor may manage that table without an end. The deepest directory around a file decides which
  table the file belongs to (``table_files``), so the new table would take over the other's files.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping

from django.db.models import Exists, OuterRef, Q, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidLocation, LocationTaken
from catalog.formats.iceberg.files import PATH_PROPERTIES
from catalog.models import (
    IcebergPath,
    Job,
    JobStatus,
    Namespace,
    Table,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.engine import database_clock, locks
from catalog.services.storage import namespace_locations, object_placement
from catalog.services.storage.client_sessions import staged_locations
from catalog.storage import locations, stores


def named(properties: Mapping[str, str]) -> frozenset[str]:
    """The directories that a table's properties name, canonical."""
    paths = set()
    for name in PATH_PROPERTIES:
        if name in properties:
            with contextlib.suppress(
                InvalidLocation
            ):  # The path may come from a root that is no longer configured.
                paths.add(locations.iceberg_path(properties[name]))
    return frozenset(paths)


def taken(actor: Principal, location: str, holder: Table, place: str = "") -> LocationTaken:
    """The refusal of a path that meets a table. It names the table only to actors with BROWSE on it."""
    if not access.holds(actor, Privilege.BROWSE, holder):
        return LocationTaken(location)
    return LocationTaken(location, holder.identifier, kind=holder.kind, place=place)


def claim(actor: Principal, table: Table, paths: Collection[str]) -> set[str]:
    """Enter what a table's properties name, inside the commit that sets them, and return what is new.

    Raises LocationTaken for what is new and lies at or inside another table's location.
    """
    new = _outside(table, paths)
    new.difference_update(table.paths.filter(path__in=new).values_list("path", flat=True))
    if not new:
        return new
    locks.lock_locations()
    require_outside_locations(actor, table.pk, new)
    require_unheld(actor, table.pk, new)
    if any(map(locations.is_object, new)):
        rows = namespace_locations.line(table.identifier[:-1])
        for path in sorted(new):
            object_placement.require_usable(actor, rows, path)
    for path in sorted(new):
        namespace_locations.require_directory(actor, path)
    enter(table, new)
    return new


def require_unheld(
    actor: Principal, pk: int, directories: Collection[str], *, is_location: bool = False
) -> None:
    """Refuse directories in which another table has its files, unless the actor may manage that without an end.

    Those are at a path of the other table, or inside it; of a location, around it as well. A table
    that was dropped counts until its files are removed. Raises LocationTaken.
    """
    if not directories or actor.holds_everywhere(Privilege.MANAGE):
        return
    above = {parent for path in directories for parent in (path, *locations.parents(path))}
    meeting = Q(path__in=above)
    if is_location:
        for directory in directories:
            meeting |= Q(path__startswith=directory + "/")
    held = _of_others(pk).filter(meeting).select_related("table__namespace").order_by("pk")
    holder = _not_managed(actor, held)
    if holder is not None:
        raise taken(actor, min(directories), holder.table, holder.path)


def _not_managed(actor: Principal, held: QuerySet[IcebergPath]) -> IcebergPath | None:
    """The first of the paths whose table the actor may not manage, or only for a limited time."""
    rows = list(held)
    tables = {row.table_id for row in rows}
    manageable = access.tables_with(actor, Privilege.MANAGE, tables, lasting=True)
    return next((row for row in rows if row.table_id not in manageable), None)


def enter_unheld(actor: Principal, table: Table, directory: str) -> None:
    """Enter the directory from which a table was registered, if this table alone may use it.

    Nothing is entered for a directory of another table, for one that contains namespaces (a root, or
    the location of a namespace), for one in the location of a namespace in which the actor may not
    create tables, and for one that meets a location that is reserved for another principal.
    """
    if _holds_namespaces(directory) or not namespace_locations.may_use(actor, directory):
        return
    if locations.is_object(directory) and not staged_locations.is_free(actor, directory):
        return
    above = [directory, *locations.parents(directory)]
    if table.location in above or _of_others(table.pk).filter(path__in=above).exists():
        return
    purged = Job.objects.complete_purges().filter(table=OuterRef("pk"))
    if (
        Table.objects.exclude(pk=table.pk)
        .filter(location__in=above)
        .exclude(Exists(purged), state=TableState.DROPPED)
        .exists()
    ):
        return
    enter(table, [directory])


def _holds_namespaces(directory: str) -> bool:
    roots = [*locations.allowed_roots(), *stores.object_roots()]
    if any(root == directory or locations.is_below(root, directory) for root in roots):
        return True
    if any(at == directory for at, _ in namespace_locations.holding(directory)):
        return True
    inside = Namespace.objects.holding_locations().filter(location__startswith=directory + "/")
    return inside.exists()


def _of_others(pk: int) -> QuerySet[IcebergPath]:
    purged = Job.objects.complete_purges().filter(table=OuterRef("table"))
    return IcebergPath.objects.exclude(table=pk).exclude(
        Exists(purged), table__state=TableState.DROPPED
    )


def require_outside(actor: Principal, table: Table) -> None:
    """Refuse to restore a table with files at or inside another table's location. Raises LocationTaken."""
    paths = _outside(table, table.paths.values_list("path", flat=True))
    require_outside_locations(actor, table.pk, paths)


def require_outside_locations(actor: Principal, pk: int, paths: Collection[str]) -> None:
    """Refuse paths at or inside the location of another table than ``pk``. Raises LocationTaken.

    A dropped table counts until its files are removed. If its files are kept, or some remain after its purge,
    principals that may manage the table without an end may name its directories.
    """
    above = {directory for path in paths for directory in (path, *locations.parents(path))}
    jobs = Job.objects.filter(table=OuterRef("pk"))
    going = jobs.filter(status__in=[JobStatus.QUEUED, JobStatus.RUNNING])
    others = Table.objects.filter(location__in=above).exclude(pk=pk).select_related("namespace")
    holder = others.filter(~Q(state=TableState.DROPPED) | Exists(going)).first()
    if holder is None and not actor.holds_everywhere(Privilege.MANAGE):
        purged = Job.objects.complete_purges().filter(table=OuterRef("pk"))
        with_files = set(others.exclude(Exists(purged)).values_list("pk", flat=True))
        manageable = access.tables_with(actor, Privilege.MANAGE, with_files, lasting=True)
        holder = others.filter(pk__in=with_files - manageable).order_by("pk").first()
    if holder is not None:
        # At or above a requested path, so the actor knows the location already.
        raise taken(actor, holder.location, holder)


def enter(table: Table, paths: Collection[str]) -> None:
    """Enter directories in which a table has files. Other tables may have files there too."""
    IcebergPath.objects.bulk_create(
        [IcebergPath(table=table, path=path) for path in sorted(_outside(table, paths))],
        ignore_conflicts=True,
    )


def move(table: Table, location: str) -> None:
    """Give a table another location; the former one becomes a path, as existing files stay there.

    The path keeps the time at which the table got it: a table that got a directory around it since is no former
    table (``recorded_references``).
    """
    former = IcebergPath(table=table, path=table.location, created_at=table.located_at)
    table.location, table.located_at = location, database_clock.read_clock()
    table.save(update_fields=["location", "located_at", "updated_at"])
    if _outside(table, [former.path]):
        IcebergPath.objects.bulk_create([former], ignore_conflicts=True)


def used_inside(location: str) -> IcebergPath | None:
    """A directory at a location, or inside it, in which a table may have files that is present or may be restored."""
    return IcebergPath.objects.inside(location).select_related("table__namespace").first()


def require_free(actor: Principal, location: str) -> None:
    """Refuse a location where a table may have files that is present or may be restored. Raises LocationTaken."""
    used = used_inside(location)
    if used is not None:
        raise taken(actor, location, used.table, used.path)


def require_no_later_paths(actor: Principal, table: Table) -> None:
    """Refuse to restore a table in whose location another table got a path since it was dropped.

    The other table would hold the files there, and could remove them. Raises LocationTaken.
    """
    held = _later_paths(table, [table.location]).first()
    if held is not None:
        raise taken(actor, held.path, held.table, held.path)


def require_no_later_paths_in_paths(actor: Principal, table: Table) -> None:
    """The same for the table's own paths, and for tables that came there, unless the actor may manage the other table.

    Files at a path of both could be read only by principals that may read both.
    """
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    paths = list(table.paths.values_list("path", flat=True))
    held = _not_managed(actor, _later_paths(table, paths))
    if held is not None:
        raise taken(actor, held.path, held.table, held.path)
    for other in _later_tables(table, paths):
        if not access.holds_lasting(actor, Privilege.MANAGE, other):
            raise taken(actor, other.location, other, other.location)


def _later_paths(table: Table, directories: Collection[str]) -> QuerySet[IcebergPath]:
    """What present tables named at or inside directories of a table after it was dropped."""
    at_or_inside = Q(path__in=directories)
    for directory in directories:
        at_or_inside |= Q(path__startswith=directory + "/")
    others = IcebergPath.objects.exclude(table=table.pk).exclude(table__state=TableState.DROPPED)
    later = others.filter(at_or_inside, created_at__gte=table.dropped_at)
    return later.select_related("table__namespace").order_by("pk")


def _later_tables(table: Table, paths: Collection[str]) -> QuerySet[Table]:
    """The present tables at, in or around paths of a table that were created, moved or restored after it was dropped.

    Tables that were changed in another way are among them.
    """
    meeting = Q(
        location__in={above for path in paths for above in (path, *locations.parents(path))}
    )
    for path in paths:
        meeting |= Q(location__startswith=path + "/")
    # The database sets the former time, and a server the latter.
    since = Q(created_at__gte=table.dropped_at) | Q(updated_at__gte=table.dropped_at)
    others = Table.objects.present().filter(meeting & since)
    return others.exclude(pk=table.pk).select_related("namespace").order_by("pk")


def _outside(table: Table, paths: Iterable[str]) -> set[str]:
    return {path for path in paths if table.location not in (path, *locations.parents(path))}
