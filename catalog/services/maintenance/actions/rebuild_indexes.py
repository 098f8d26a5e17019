"""Rebuilds of degraded indexes of a Lance table."""

from catalog.maintenance_actions import Implementation, MaintenanceAction
from catalog.planning import (
    Proposal,
    Statistics,
    current_searches,
    degraded_indexes,
    rebuild_reason,
)
from catalog.policies import LANCE, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions.results import change_of

_MAX_REASONS = 3  # indexes that a reason names


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    degraded = degraded_indexes(statistics, policy)
    if not degraded:
        return None
    searches = current_searches(statistics)
    reasons = [
        rebuild_reason(index, statistics.rows, policy, searches.get(index.name))
        for index in list(degraded.values())[:_MAX_REASONS]
    ]
    return Proposal(
        f"{len(degraded)} of {statistics.indexes} indexes have degraded: {', '.join(reasons)}",
        bytes_read=sum(index.bytes for index in degraded.values()),
        parameters={"indexes": list(degraded)},
    )


ACTION = MaintenanceAction(
    key="rebuild_indexes",
    title="Rebuild indexes",
    help="Rebuilds indexes from all rows with their current type and "
    "parameters. Readers use the old index until the new one is complete.",
    icon="construction",
    group="Indexes",
    rules=(
        Rule("index_rebuilds", Unit.MODE, Mode.DRY_RUN, "Rebuild degraded indexes.", LANCE),
        Rule(
            "index_segments",
            Unit.COUNT,
            20,
            "Rebuild an index with more segments: a search reads all of them.",
            LANCE,
            low=1,
        ),
        Rule(
            "untrained_ratio",
            Unit.RATIO,
            0.5,
            "Rebuild a vector index when a larger fraction of the rows was added after its training, "
            "unless its recall was measured.",
            LANCE,
            low=0.01,
            high=1.0,
        ),
        Rule(
            "min_recall",
            Unit.RATIO,
            0.9,
            "Rebuild a vector index with a lower measured recall, if rows were added after its training.",
            LANCE,
            low=0.01,
            high=1.0,
        ),
        Rule(
            "max_search_ms",
            Unit.COUNT,
            0,
            "Rebuild a vector index that was extended since it was built if a search takes longer, "
            "in milliseconds. 0: no limit.",
            LANCE,
        ),
    ),
    implementations={
        "lance": Implementation(
            run="catalog.services.maintenance.lance_rebuilds.rebuild_indexes",
            help="rebuilds indexes from all rows",
            settings="`index_segments`, `min_recall`, `max_search_ms` and `untrained_ratio` are the thresholds",
            promises={"segments": (("planned", "segments"), ("after", "segments"))},
        ),
    },
    summarize=change_of("segments", "segments"),
    order=10,
    plan=_plan,
    unit="rows",
    accepts_indexes=True,
    requires_index=True,
)
