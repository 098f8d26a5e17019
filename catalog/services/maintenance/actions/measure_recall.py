"""Measurements of vector indexes: recall and time of searches, compared with exact searches."""

from collections.abc import Mapping
from typing import Any

from catalog.maintenance_actions import Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics, current_searches
from catalog.policies import LANCE, EffectivePolicy, Mode, Rule, Unit


def _plan(statistics: Statistics, _policy: EffectivePolicy) -> Proposal | None:
    searches = current_searches(statistics)
    names = [
        index.name
        for index in statistics.built_indexes
        if index.trained_version is not None and index.name not in searches
    ]
    if not names or not statistics.rows:
        return None
    listed = ", ".join(f"'{name}'" for name in names[:3])
    return Proposal(
        f"no measured recall of {listed} with the present rows",
        bytes_read=statistics.bytes,
        is_estimate=True,
    )


def _summarize(result: Mapping[str, Any]) -> str:
    after = result.get("after")
    searches = after.get("searches") if isinstance(after, Mapping) else None
    if not isinstance(searches, list):
        return ""
    return ", ".join(
        f"recall of '{search['name']}' {search['recall']:.0%} in {search['search_ms']:.1f} ms"
        for search in searches
    )


ACTION = MaintenanceAction(
    key="measure_recall",
    title="Measure recall",
    help="Searches for sampled vectors with each vector index and without it, and compares the results. "
    "Changes nothing.",
    icon="troubleshoot",
    group="Indexes",
    rules=(
        Rule("recall", Unit.MODE, Mode.OFF, "Measure recall and time of searches by index.", LANCE),
    ),
    implementations={
        "lance": Implementation(
            run="catalog.services.maintenance.indexes.recall.measure_recall",
            help="measures recall and time of searches in vector indexes with sampled vectors",
        ),
    },
    summarize=_summarize,
    order=90,
    plan=_plan,
    unit="searches",
)
