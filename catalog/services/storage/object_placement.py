"""Which locations in object stores the tables of a namespace may have.

The server's own credentials reach everything below the roots of a profile, and clients get credentials
for the locations of their tables. Whoever could choose any free prefix of a shared bucket would reach
what others put there without cataloguing it. Therefore a location that a client chooses, of a table, of
files of a table or of a namespace, must be

- below the location of the namespace itself, or
- below a root of the profile that the namespace or its nearest ancestor is bound to, if the actor holds
  MANAGE without an end on every namespace that is bound to this profile, as it will own what it creates there, or
- below a root of any profile, if the actor holds MANAGE on the whole catalog.

All other locations are refused in the same words, and nothing is read there. These checks read the
profiles from the database instead of the cache of ``profiles``. Conflicts with other tables, paths and
namespaces are checked as in the local warehouse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from catalog import access
from catalog.access import On, Principal
from catalog.identifiers import Identifier
from catalog.models import Namespace, StorageProfile
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.storage import namespace_locations
from catalog.services.storage.client_sessions import staged_locations
from catalog.storage import locations, object_locations, stores


@dataclass(frozen=True)
class Placement:
    """The object storage of a namespace, as an actor may use it."""

    actor: Principal
    rows: Sequence[Namespace]
    """The namespace with its ancestors, the root first (``namespace_locations.line``)."""

    @cached_property
    def base(self) -> str | None:
        """The directory of new tables; None if it is not in an object store."""
        path = namespace_locations.path_of(self.rows) if self.rows else ""
        return path if locations.is_object(path) else None

    def require(self, location: str, *, is_namespace: bool = False) -> None:
        """Refuse a canonical location that the actor may not choose. Raises InvalidLocation.

        Raises LocationTaken if it is reserved for another principal. ``is_namespace``: the location is for a namespace.
        """
        if not (
            (self.base is not None and locations.is_below(location, self.base))
            or any(locations.is_below(location, root) for root in self._roots)
        ):
            raise locations.outside_profiles(location)
        if self._has_reserved:
            staged_locations.require_free(self.actor, location, is_namespace=is_namespace)

    @cached_property
    def _has_reserved(self) -> bool:
        """True if locations are reserved for others. Under the lock of locations, none is added."""
        return staged_locations.reserved_for_others(self.actor).exists()

    @cached_property
    def _roots(self) -> list[str]:
        """The roots of profiles that the actor may use as a whole."""
        if self.actor.holds_everywhere(Privilege.MANAGE):
            every = StorageProfile.objects.values_list("roots", flat=True)
            return [root for roots in every for root in roots]
        bound = namespace_locations.bound_to_profile(self.rows)
        if bound is None or bound.storage_profile is None:
            return []
        sharing = Namespace.objects.holding_locations().filter(
            storage_profile=bound.storage_profile
        )
        for row in sharing.distinct().order_by("pk").iterator():
            if not access.holds_lasting(self.actor, Privilege.MANAGE, row):
                return []
        return bound.storage_profile.roots


def require_usable(
    actor: Principal, rows: Sequence[Namespace], location: str, *, is_namespace: bool = False
) -> None:
    """Refuse a canonical location that the actor may not choose for a table of a namespace.

    Or for a namespace in that namespace. ``rows`` are the namespace and its ancestors, the root first. Local locations are not checked
    here. Raises InvalidLocation, in the same words for every location in an object store.
    """
    if locations.is_object(location):
        Placement(actor, rows).require(location, is_namespace=is_namespace)


def admit(actor: Principal, table: Identifier, location: str) -> None:
    """Refuse a location that a client chose for a table, before anything is read there.

    Raises InvalidLocation; in an object store also PermissionDenied and NamespaceNotFound if the
    actor may create nothing in the namespace. No statement for a local location.
    """
    if object_locations.scheme_of(location):
        path = locations.check_location(location)
        access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
        require_usable(actor, namespace_locations.line(table[:-1]), path)


def require_usable_in(batch: Batch, namespace: Namespace, location: str) -> None:
    """Check the location of a new table again, inside the commit, and under the lock of locations.

    So no profile loses the root above it meanwhile. Raises InvalidLocation.
    """
    if locations.is_object(location):
        placement_in(batch, namespace).require(location)


def placement_in(batch: Batch, namespace: Namespace) -> Placement:
    """The object storage of a locked namespace, read once for all operations of a batch."""
    placement = batch.placements.get(namespace.pk) if namespace.pk else None
    if placement is None:
        batch.flush()
        locks.lock_locations()
        placement = Placement(batch.actor, namespace_locations.line(namespace.identifier))
        batch.placements[namespace.pk] = placement
    assert isinstance(placement, Placement)  # noqa: S101 -- for the type checker
    return placement


def new_location_in(batch: Batch, namespace: Namespace, stem: str) -> str:
    """A new location for a Lance table in a locked namespace.

    It is in the object storage of the namespace, or else directly in the local warehouse: a local
    property ``location`` is for Iceberg tables. No statement for a namespace in local storage.
    """
    may_be_object = namespace.has_object_storage
    if may_be_object is None or not batch.has_storage_as_locked:
        may_be_object = bool(stores.object_roots(fresh=True))
    return locations.new_location(
        stem, placement_in(batch, namespace).base if may_be_object else None
    )


def new_location(actor: Principal, namespace: Identifier, stem: str) -> str:
    """The same before the commit. One statement if there are no storage profiles."""
    if not stores.object_roots() and not stores.object_roots(fresh=True):
        return locations.new_location(stem)
    return locations.new_location(stem, placement_of(actor, namespace).base)


def placement_of(actor: Principal, namespace: Identifier) -> Placement:
    """The object storage of a namespace before a commit. One statement."""
    return Placement(actor, namespace_locations.line(namespace))
