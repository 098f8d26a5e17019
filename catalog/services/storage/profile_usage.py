"""What depends on a storage profile, and what a change of it would break."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from catalog import access
from catalog.access import Principal
from catalog.identifiers import label
from catalog.models import (
    IcebergPath,
    Job,
    JobKind,
    JobStatus,
    Namespace,
    StorageProfile,
    Table,
    TableState,
)
from catalog.privileges import Privilege
from catalog.storage.configuration import ClientAccess, ServerIdentity

SHOWN = 10
"""How many tables and namespaces a refusal or a preview names."""
_REACH = ("kind", "endpoint", "region", "path_style")
"""Fields that decide which store, and which bucket there, a location means."""


@dataclass(frozen=True)
class Count:
    """A number of objects, and the names of the first ones that the actor may browse."""

    number: int = 0
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = self.number - len(self.names)
        listed = [*self.names, *([f"{more} more"] if more and self.names else [])]
        return f"{self.number}" + (f" ({', '.join(listed)})" if listed else "")


@dataclass(frozen=True)
class Impact:
    """What a change, or the removal, of a profile would mean."""

    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The changed fields with their values before and after; never a secret."""
    tables: Count = Count()
    """Tables below the present roots, with those in the trash and those with paths there."""
    tables_outside: Count = Count()
    """Those of them that would be below no root any more."""
    namespaces: Count = Count()
    """Namespaces that are bound to the profile, with those in the trash."""
    locations_outside: Count = Count()
    """Namespaces whose property ``location`` would be below no root any more."""
    credentials_valid_until: datetime | None = None
    """Until when credentials of clients may remain valid; None: none were given that expire."""
    obstacles: tuple[str, ...] = ()
    """Why the change is refused; empty: it is possible."""
    warnings: tuple[str, ...] = ()
    """What the change does to tables and clients that remain; it needs confirmation."""

    @property
    def is_possible(self) -> bool:
        return not self.obstacles

    @property
    def needs_confirmation(self) -> bool:
        return bool(self.warnings)


def of_change(
    actor: Principal,
    before: StorageProfile,
    after: StorageProfile,
    changes: Mapping[str, tuple[Any, Any]],
) -> Impact:
    """The impact of a change of a profile's fields. Reads the catalog, and no storage."""
    tables = _tables(actor, before.roots)
    outside = _tables(actor, before.roots, apart_from=after.roots)
    locations = _locations(actor, before.roots, apart_from=after.roots)
    namespaces = bound_namespaces(actor, before)
    obstacles = []
    if outside.number:
        obstacles.append(f"tables would be outside its roots: {outside}")
    if locations.number:
        obstacles.append(f"locations of namespaces would be outside its roots: {locations}")
    if before.kind != after.kind and namespaces.number:
        obstacles.append(f"namespaces are bound to it: {namespaces}")
    moved = [name for name in _REACH if name in changes]
    warnings = []
    if tables.number and moved:
        warnings.append(f"{', '.join(moved)} decide where these tables are looked for: {tables}")
    if namespaces.number and before.roots[0] != after.roots[0]:
        warnings.append(
            f"new tables of these namespaces are placed below {after.roots[0]}: {namespaces}"
        )
    until = _valid_until(before, changes)
    if _gave_static_key(before) and {"client_access", "key"} & changes.keys():
        warnings.append("clients still have the previous key, until it is disabled at the store")
    return Impact(
        changes, tables, outside, namespaces, locations, until, tuple(obstacles), tuple(warnings)
    )


def of_removal(actor: Principal, profile: StorageProfile) -> Impact:
    """The impact of deleting a profile."""
    tables = _tables(actor, profile.roots)
    locations = _locations(actor, profile.roots)
    namespaces = bound_namespaces(actor, profile)
    obstacles = []
    if tables.number:
        obstacles.append(f"tables are below its roots: {tables}")
    if locations.number:
        obstacles.append(f"locations of namespaces are below its roots: {locations}")
    if namespaces.number:
        obstacles.append(f"namespaces are bound to it: {namespaces}")
    until = _valid_until(profile, {"client_access": ()})
    return Impact({}, tables, tables, namespaces, locations, until, tuple(obstacles))


def bound_namespaces(actor: Principal, profile: StorageProfile) -> Count:
    """The namespaces that are bound to a profile, live or in the trash."""
    rows = Namespace.objects.holding_locations().filter(storage_profile=profile)
    return _count(actor, rows.distinct())


def needed_tables() -> QuerySet[Table]:
    """Tables whose files are still needed: present, in the trash, or about to be purged."""
    going = Job.objects.filter(
        table=OuterRef("pk"),
        kind=JobKind.PURGE_TABLE,
        status__in=[JobStatus.QUEUED, JobStatus.RUNNING],
    )
    return Table.objects.filter(
        ~Q(state=TableState.DROPPED) | Q(trash__isnull=False) | Exists(going)
    )


def _tables(actor: Principal, roots: Collection[str], apart_from: Collection[str] = ()) -> Count:
    in_paths = IcebergPath.objects.filter(
        _below("path", roots) & ~_below("path", apart_from), table=OuterRef("pk")
    )
    rows = needed_tables().filter(
        (_below("location", roots) & ~_below("location", apart_from)) | Exists(in_paths)
    )
    return _count(actor, rows.select_related("namespace"))


def _locations(actor: Principal, roots: Collection[str], apart_from: Collection[str] = ()) -> Count:
    rows = Namespace.objects.holding_locations().filter(
        _below("location", roots), ~_below("location", apart_from)
    )
    return _count(actor, rows.distinct())


def _below(column: str, roots: Collection[str]) -> Q:
    condition = Q(pk__in=[])
    for root in roots:
        condition |= Q(**{column: root}) | Q(**{f"{column}__startswith": root + "/"})
    return condition


def _count(actor: Principal, rows: QuerySet[Any]) -> Count:
    first = rows.order_by("pk")[:SHOWN]
    names = [label(row.identifier) for row in first if access.holds(actor, Privilege.BROWSE, row)]
    return Count(rows.count(), tuple(names))


def _valid_until(
    before: StorageProfile, changes: Mapping[str, object] | Sequence[str]
) -> datetime | None:
    """Until when credentials that expire may remain valid after a change that concerns them."""
    concerned = {"client_access", "role", "key", "kind", "roots", "lifetime_seconds"}
    if before.client_access != ClientAccess.STS or not concerned & set(changes):
        return None
    return timezone.now() + timedelta(seconds=before.lifetime_seconds)


def _gave_static_key(profile: StorageProfile) -> bool:
    return profile.client_access == ClientAccess.STATIC and profile.identity == ServerIdentity.KEY
