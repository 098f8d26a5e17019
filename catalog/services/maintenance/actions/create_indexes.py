"""Indexes that the queries of a Lance table lack."""

from collections.abc import Mapping
from typing import Any

from catalog.maintenance_actions import Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics
from catalog.policies import LANCE, EffectivePolicy, Mode, Rule, Unit

_MAX_REASONS = 3  # indexes that a reason names


def _plan(statistics: Statistics, _policy: EffectivePolicy) -> Proposal | None:
    missing = statistics.missing_indexes
    if not missing:
        return None
    reasons = [
        f"{index.index_type} on '{index.column}' ({index.queries} queries in a week)"
        for index in missing[:_MAX_REASONS]
    ]
    return Proposal(
        f"queries lack indexes: {', '.join(reasons)}",
        bytes_read=sum(index.bytes for index in missing),
        is_estimate=True,
    )


def _summarize(result: Mapping[str, Any]) -> str:
    created = result.get("created")
    if not isinstance(created, list):
        return ""
    return f"{len(created)} created: " + ", ".join(created) if created else "0 created"


ACTION = MaintenanceAction(
    key="create_indexes",
    title="Create missing indexes",
    help="Creates the indexes that queries over HTTP lacked in the last week.",
    icon="add_chart",
    group="Indexes",
    rules=(
        Rule(
            "missing_indexes", Unit.MODE, Mode.DRY_RUN, "Create indexes that queries lack.", LANCE
        ),
        Rule(
            "index_queries",
            Unit.COUNT,
            100,
            "Create an index when at least this many queries of the last week would have used it.",
            LANCE,
            low=1,
        ),
        Rule(
            "index_rows",
            Unit.COUNT,
            10_000,
            "Create missing indexes only for tables with at least this many rows.",
            LANCE,
            low=1,
        ),
    ),
    implementations={
        "lance": Implementation(
            run="catalog.services.maintenance.indexes.missing_indexes.create_indexes",
            help="creates the indexes that queries of the last week lacked",
            settings="`index_queries` and `index_rows` are the thresholds",
            promises={"indexes": (("planned", "indexes"), ("done", "indexes"))},
        ),
    },
    summarize=_summarize,
    order=25,
    plan=_plan,
    unit="rows",
)
