"""The arguments of a requested job: indexes of a Lance table, and settings in place of the policy's."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from catalog import access, maintenance_actions
from catalog.access import On, Principal
from catalog.engine_profiles import DEFAULT
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.maintenance_actions import MaintenanceAction
from catalog.models import EngineProfile, Table, TableFormat
from catalog.policies import EffectivePolicy, Value, require_rule
from catalog.privileges import Privilege
from catalog.services.maintenance import lance_rebuilds
from catalog.services.maintenance.layouts import table_layouts
from catalog.services.tables import tables

_SOURCE = "the job"
_OF_ICEBERG_COMPACTION = ("strategy", "sort_order")


@dataclass(frozen=True)
class Overrides:
    """Settings of a job in place of those of its policy; None: that of the policy."""

    engine_profile: str | None = None
    strategy: str | None = None
    sort_order: str | None = None

    @property
    def values(self) -> dict[str, str]:
        """The settings that replace those of the policy, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def apply(
        self, row: Table, action: MaintenanceAction, policy: EffectivePolicy
    ) -> EffectivePolicy:
        """The policy with these settings. Raises InvalidInput if a setting is not valid, does not
        belong to the action, or does not fit the table."""
        for name, value in self.values.items():
            require_rule(name).check(value)
        _require_action(row, action, self.values)
        changed = EffectivePolicy(
            {**policy.values, **{name: Value(v, _SOURCE) for name, v in self.values.items()}}
        )
        profile = self.engine_profile or DEFAULT
        if profile != DEFAULT and not EngineProfile.objects.filter(name=profile).exists():
            raise InvalidInput(f"'engine_profile': there is no engine profile '{profile}'")
        if any(name in self.values for name in _OF_ICEBERG_COMPACTION):
            table_layouts.check(row, changed.layout)
        return changed


NO_OVERRIDES = Overrides()


def _require_action(row: Table, action: MaintenanceAction, values: Mapping[str, str]) -> None:
    rules = {rule.name for rule in action.rules if row.format in rule.formats}
    for name in values:
        if name == "engine_profile":
            if not action.implementations[row.format].takes_spark:
                raise InvalidInput(f"'{action.key}' does not take '{name}': it runs in the worker")
        elif name not in rules:
            text = f"'{action.key}' of a table in {row.get_format_display()} format"
            raise InvalidInput(f"{text} does not take '{name}'")


def index_parameters(
    row: Table, action: MaintenanceAction, indexes: Sequence[str] | None
) -> Mapping[str, Any]:
    """Job parameters that name the indexes by their canonical names."""
    if indexes is None and not action.requires_index:
        return {}
    if not action.accepts_indexes:
        accepting = [
            other.key for other in maintenance_actions.registered() if other.accepts_indexes
        ]
        raise InvalidInput(
            f"'{action.key}' does not take 'indexes'; only {' and '.join(accepting)} do"
        )
    if indexes is not None and not indexes:
        raise InvalidInput("'indexes' is empty; leave it out to select all indexes")
    names = lance_rebuilds.resolve_names(table=row.identifier, names=indexes)
    return {} if indexes is None else {"indexes": names}


def index_names(*, actor: Principal, table: Identifier) -> list[str]:
    """Indexes that a job can be limited to; none for an Iceberg table.

    Requires MAINTAIN. Raises TableNotFound, TableHasNoData.
    """
    access.require(actor, Privilege.MAINTAIN, On.table(table))
    row = tables.find_any(actor=actor, table=table)
    if row.format != TableFormat.LANCE:
        return []
    return lance_rebuilds.index_names(table=table)
