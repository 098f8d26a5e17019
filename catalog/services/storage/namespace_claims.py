"""Claiming a location for a namespace: conflicts with tables and namespaces, and privileges."""

from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.models import (
    IcebergPath,
    Job,
    JobStatus,
    Namespace,
    Table,
    TableKind,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.storage import iceberg_paths, namespace_locations, object_placement
from catalog.storage import locations

_Keys = QuerySet[Any, Any]
"""A subquery of the primary keys of namespaces."""


def claim(
    actor: Principal, location: str, *, within: Identifier | None, namespace: int | None = None
) -> str:
    """The canonical path of a namespace's new location, inside the commit that sets it.

    ``within`` is the namespace itself, or the parent of a new namespace. In an object store, the
    location must be one that tables of ``within`` may have (``object_placement``). It is None for a
    namespace that is restored from the trash, whose location was checked when it was set.

    A location may not be inside a table, also not inside a dropped one that waits for its purge. The actor must hold MANAGE without an end on all tables and namespaces that
    lie in it, and CREATE on a namespace whose location contains it. ``namespace`` is the primary key
    of an existing namespace, whose own content is not checked. Raises InvalidLocation, LocationTaken.
    """
    path = locations.iceberg_path(location)
    locks.lock_locations()
    if within is not None and locations.is_object(path):
        rows = namespace_locations.line(within)
        if namespace is None or path != namespace_locations.path_of(rows):
            object_placement.require_usable(actor, rows, path, is_namespace=True)
    _require_no_tables(actor, path, namespace)
    _require_no_paths(actor, path, namespace)
    _require_no_namespaces(actor, path, namespace)
    namespace_locations.require_path(actor, path, apart_from=namespace)
    return path


def _require_no_tables(actor: Principal, path: str, namespace: int | None) -> None:
    above = [path, *locations.parents(path)]
    others = Table.objects.select_related("namespace")
    going = Job.objects.filter(
        table=OuterRef("pk"), status__in=[JobStatus.QUEUED, JobStatus.RUNNING]
    )
    held = ~Q(state=TableState.DROPPED) | Exists(going)
    holder = others.filter(held, location__in=above).first()
    if holder is not None:
        raise iceberg_paths.taken(actor, path, holder)
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    purged = Exists(Job.objects.complete_purges().filter(table=OuterRef("pk")))
    met = Table.objects.meeting(path).filter(
        ~Q(state=TableState.DROPPED) | Q(trash__isnull=False) | Q(Q(kind=TableKind.TABLE), ~purged)
    )
    _require_manage(actor, path, met.values("namespace"), namespace)


def _require_no_paths(actor: Principal, path: str, namespace: int | None) -> None:
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    needed = (
        ~Q(table__state=TableState.DROPPED)
        | Q(table__trash__isnull=False)
        | Q(table__remaining_files__isnull=False)
    )
    paths = IcebergPath.objects.meeting(path).filter(needed)
    _require_manage(actor, path, paths.values("table__namespace"), namespace)


def _require_no_namespaces(actor: Principal, path: str, namespace: int | None) -> None:
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    at = [row.pk for directory, row in namespace_locations.holding(path) if directory == path]
    inside = Namespace.objects.holding_locations().filter(
        Q(pk__in=at) | Q(location__startswith=path + "/")
    )
    _require_manage(actor, path, inside.values("pk"), namespace)


def _require_manage(actor: Principal, path: str, namespaces: _Keys, namespace: int | None) -> None:
    """Refuse content of namespaces outside this one, unless the actor manages these namespaces."""
    others = Namespace.objects.filter(pk__in=namespaces)
    if namespace is not None:
        others = others.exclude(ancestors__contains=[namespace])
    for row in others.order_by("pk").iterator():
        if not access.holds_lasting(actor, Privilege.MANAGE, row):
            raise namespace_locations.taken(actor, path, row)
