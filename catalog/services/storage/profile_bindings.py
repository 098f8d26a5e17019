"""Namespaces bound to storage profiles: their new tables, and those below, go to the profile's storage."""

from collections.abc import Iterable
from dataclasses import dataclass

from catalog import access
from catalog.access import On, Principal
from catalog.errors import NamespaceNotFound, StorageProfileNotFound
from catalog.identifiers import Identifier
from catalog.models import Namespace
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.storage import namespace_locations


@dataclass(frozen=True, kw_only=True)
class BindStorageProfile(Operation):
    """Bind a namespace to a profile, or with None inherit the storage from above.

    The result is the namespace's row. Existing tables stay where they are. Requires ALL on the whole
    catalog, as everything that decides which profile is used.
    """

    name = "BindStorageProfile"
    action = "namespace.set_storage_profile"

    namespace: Identifier
    profile: str | None

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> Namespace:
        access.require(batch.actor, Privilege.ALL)
        row = batch.namespace(self.namespace)
        batch.flush()
        # A profile is deleted only under this lock.
        locks.lock_locations()
        before = row.storage_profile.name if row.storage_profile is not None else None
        if before == self.profile:
            return row
        if self.profile is None:
            row.storage_profile = None
        else:
            row.storage_profile = locks.lock_storage_profile(self.profile)
            if row.storage_profile is None:
                raise StorageProfileNotFound(self.profile)
        row.save(update_fields=["storage_profile", "updated_at"])
        batch.record(
            str(row), before={"storage_profile": before}, after={"storage_profile": self.profile}
        )
        return row


@dataclass(frozen=True)
class NamespaceStorage:
    """The storage of new tables of a namespace."""

    namespace: Namespace
    profile: str | None
    """Name of the storage profile in effect; None: the local warehouse, or a property ``location``."""
    bound: Namespace | None
    """The namespace that is bound to the profile: this one, or one above it."""
    location: str
    """The location of the namespace, below which new tables are placed."""

    @property
    def is_inherited(self) -> bool:
        return self.bound is not None and self.bound.pk != self.namespace.pk


def bind_namespace(*, actor: Principal, namespace: Identifier, profile: str) -> NamespaceStorage:
    """Bind a namespace to a profile. Requires ALL on everything.

    Raises NamespaceNotFound and StorageProfileNotFound.
    """
    commit([BindStorageProfile(namespace=namespace, profile=profile)], actor=actor)
    return storage_of(actor=actor, namespace=namespace)


def unbind_namespace(*, actor: Principal, namespace: Identifier) -> NamespaceStorage:
    """Let a namespace inherit its storage. Requires ALL on everything. Raises NamespaceNotFound."""
    commit([BindStorageProfile(namespace=namespace, profile=None)], actor=actor)
    return storage_of(actor=actor, namespace=namespace)


def storage_of(*, actor: Principal, namespace: Identifier) -> NamespaceStorage:
    """The storage of a namespace. Requires READ on it, as its location does.

    Raises NamespaceNotFound and PermissionDenied.
    """
    access.require(actor, Privilege.READ, On.namespace(namespace))
    rows = namespace_locations.line(namespace)
    if not rows or len(rows[-1].path) != len(namespace):
        raise NamespaceNotFound(namespace)
    bound = namespace_locations.bound_to_profile(rows)
    profile = bound.storage_profile if bound is not None else None
    return NamespaceStorage(
        namespace=rows[-1],
        profile=profile.name if profile is not None else None,
        bound=bound,
        location=namespace_locations.location_of(rows),
    )
