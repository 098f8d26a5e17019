"""Optimization of indexes: add unindexed rows to the indexes of a Lance table."""

from catalog.maintenance_actions import Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics, degraded_indexes
from catalog.policies import LANCE, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions import rebuild_indexes
from catalog.services.maintenance.actions.results import change_of


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    stale = [
        index
        for index in statistics.stale_indexes
        if index.unindexed_rows >= policy["unindexed_rows"]
    ]
    if policy.mode(rebuild_indexes.ACTION.mode) is Mode.ON:
        rebuilt = degraded_indexes(statistics, policy)  # a rebuild includes the unindexed rows
        stale = [index for index in stale if index.name not in rebuilt]
    if not stale:
        return None
    most = max(stale, key=lambda index: index.unindexed_rows)
    return Proposal(
        f"{len(stale)} of {statistics.indexes} indexes are behind, '{most.name}' by"
        f" {most.unindexed_rows} rows",
        parameters={"indexes": [index.name for index in stale]},
    )


ACTION = MaintenanceAction(
    key="optimize_indexes",
    title="Optimize indexes",
    help="Adds unindexed rows to the indexes.",
    icon="manage_search",
    group="Indexes",
    rules=(
        Rule("indexes", Unit.MODE, Mode.DRY_RUN, "Update indexes.", LANCE),
        Rule(
            "unindexed_rows",
            Unit.COUNT,
            10_000,
            "Update an index when at least this many rows are not in it.",
            LANCE,
            low=1,
        ),
    ),
    implementations={
        "lance": Implementation(
            run="catalog.services.maintenance.lance_actions.optimize_indexes",
            help="adds unindexed rows to the indexes",
            settings="`unindexed_rows` is the threshold",
            promises={"rows": (("plan", "rows"), ("done", "rows"))},
        ),
    },
    summarize=change_of("unindexed_rows", "unindexed rows"),
    # Before compaction: Lance does not compact indexed fragments together with unindexed ones.
    order=20,
    plan=_plan,
    unit="rows",
    accepts_indexes=True,
)
