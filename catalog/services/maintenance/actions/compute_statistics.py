"""Column statistics of an Iceberg table, in a Puffin file."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from catalog.maintenance_actions import Implementation, MaintenanceAction, Occasion
from catalog.policies import ICEBERG, Mode, Rule, Unit
from catalog.services.maintenance.plans.promises import number

_EVERY = timedelta(days=1)


def _is_due(occasion: Occasion) -> bool:
    """True for a table with rows that changed since the last job, once a day at most."""
    last, statistics = occasion.last_run, occasion.statistics
    if not statistics.rows:
        return False
    if last is None:
        return True
    return occasion.now - last.created_at > _EVERY and (
        last.was_unsuccessful or last.version != statistics.version
    )


def _summarize(result: Mapping[str, Any]) -> str:
    rows = number(result, "before", "rows")
    return "" if rows is None else f"statistics of {rows:,} rows"


ACTION = MaintenanceAction(
    key="compute_statistics",
    title="Compute statistics",
    help="Computes column statistics by reading the columns.",
    icon="query_stats",
    group="Iceberg",
    rules=(
        Rule("statistics", Unit.MODE, Mode.OFF, "Compute column statistics (Puffin).", ICEBERG),
    ),
    implementations={
        "iceberg": Implementation(
            run="catalog.services.maintenance.iceberg_actions.compute_statistics",
            takes_spark=True,
            help="computes the number of distinct values of each column (`compute_table_stats`)",
        ),
    },
    summarize=_summarize,
    order=80,
    is_due=_is_due,
)
