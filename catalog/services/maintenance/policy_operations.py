"""Operations of the commit engine that set maintenance policies."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from catalog import access, policies
from catalog.engine_profiles import DEFAULT
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier, label
from catalog.models import MaintenancePolicy, Namespace, Table
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.maintenance.layouts import table_layouts
from catalog.services.tables.table_operations import TableOperation


@dataclass(frozen=True, kw_only=True)
class SetNamespacePolicy(Operation):
    """Set the maintenance policy of a namespace and of everything below it. Returns the policy.

    Names that ``values`` leaves out are inherited; an empty mapping removes the policy.
    """

    name = "SetMaintenancePolicy"
    action = "policy.set"

    namespace: Identifier
    values: Mapping[str, Any]

    def prepare(self) -> "SetNamespacePolicy":
        return replace(self, values=policies.check(self.values))

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> dict[str, Any]:
        row = batch.namespace(self.namespace)
        access.require(batch.actor, Privilege.MAINTAIN, row)
        return _store(batch, label(self.namespace), self.values, namespace=row)


@dataclass(frozen=True, kw_only=True)
class SetTablePolicy(TableOperation):
    """Set the maintenance policy of a table of the given format. Returns the policy."""

    name = "SetMaintenancePolicy"
    action = "policy.set"
    privilege = Privilege.MAINTAIN

    values: Mapping[str, Any]

    def prepare(self) -> "SetTablePolicy":
        super().prepare()
        return replace(self, values=policies.check(self.values))

    def apply(self, batch: Batch) -> dict[str, Any]:
        row = self.locked(batch)
        table_layouts.check_settings(row, self.values)
        return _store(batch, label(self.table), self.values, table=row)


def _store(
    batch: Batch,
    target: str,
    values: Mapping[str, Any],
    *,
    namespace: Namespace | None = None,
    table: Table | None = None,
) -> dict[str, Any]:
    batch.flush()
    _require_profile(values)
    own = MaintenancePolicy.objects.filter(namespace=namespace, table=table)
    before = own.values_list("values", flat=True).first() or {}
    after = dict(values)
    if after == before:
        return after
    if not after:
        own.delete()
    else:
        MaintenancePolicy.objects.update_or_create(
            namespace=namespace,
            table=table,
            defaults={"values": after, "updated_by": batch.actor.name},
        )
    batch.record(target, table=table, before={"policy": before}, after={"policy": after})
    return after


def _require_profile(values: Mapping[str, Any]) -> None:
    """Lock the engine profile of a policy, so that it is not deleted meanwhile.

    Raises InvalidInput if it does not exist.
    """
    name = values.get("engine_profile", DEFAULT)
    if name != DEFAULT and locks.lock_engine_profile(name) is None:
        raise InvalidInput(f"Policy 'engine_profile': there is no engine profile '{name}'")
