"""The maintenance actions of this release, each declared in a module of its own.

To add an action, declare it in a new module and list it in ``ACTIONS``; see docs/architecture.md.
"""

from catalog import maintenance_actions
from catalog.services.maintenance.actions import (
    clean_up,
    compact,
    compute_statistics,
    create_indexes,
    measure_recall,
    optimize_indexes,
    rebuild_indexes,
    remove_orphans,
    rewrite_manifests,
    rewrite_position_deletes,
)

ACTIONS = (
    compact.ACTION,
    clean_up.ACTION,
    remove_orphans.ACTION,
    optimize_indexes.ACTION,
    rebuild_indexes.ACTION,
    create_indexes.ACTION,
    measure_recall.ACTION,
    rewrite_manifests.ACTION,
    rewrite_position_deletes.ACTION,
    compute_statistics.ACTION,
)
"""In the order in which the API, the command line and the admin list them."""


def register() -> None:
    """Register the actions. Django's start calls this once."""
    for action in ACTIONS:
        maintenance_actions.register(action)
