"""Why each version or snapshot of a table stays, under its policy, or that it expires."""

from dataclasses import asdict, dataclass
from typing import Any

from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.models import Table, TableFormat
from catalog.policies import EffectivePolicy
from catalog.services.engine import database_clock
from catalog.services.maintenance import iceberg_statistics, lance_retention

MAX_VERSIONS = 1000
"""The newest versions that are explained."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A version of a Lance table, or a snapshot of an Iceberg table."""

    branch: str
    """Empty for the main branch of a Lance table, and for snapshots, which several branches share."""
    version: int
    """The number of the version, or the id of the snapshot."""
    reasons: tuple[str, ...]
    """Why it stays; empty if it expires."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "reasons": list(self.reasons), "expires": not self.reasons}


def explain(table: Table, policy: EffectivePolicy, limit: int = MAX_VERSIONS) -> list[Retention]:
    """The newest versions of a table, each with the reasons why a clean-up keeps it."""
    if table.format == TableFormat.LANCE:
        versions = lance_retention.retention(table, policy, limit)
        return [
            Retention(branch, version, tuple(reasons))
            for (branch, version), reasons in versions.items()
        ]
    current = iceberg_statistics.current_metadata(table)
    if current is None:
        return []
    snapshots = iceberg_maintenance.retention(
        current.document,
        older_than=iceberg_statistics.expire_before_ms(policy),
        retain_last=policy["keep_versions"],
        now=database_clock.cutoff_ms(0),
    )
    newest = list(reversed(snapshots.items()))[:limit]
    return [Retention("", id_, tuple(reasons)) for id_, reasons in newest]
