"""Removal of orphans: files that no version refers to."""

from catalog import engines
from catalog.maintenance_actions import (
    IcebergFiles,
    Implementation,
    MaintenanceAction,
    Occasion,
)
from catalog.planning import Proposal, Statistics
from catalog.policies import DAY, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions.results import removed_files


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    """A job for the orphans that a dry run has listed; metadata does not show orphans."""
    s = statistics
    if not s.orphan_files:
        return None
    return Proposal(
        f"the last dry run listed {s.orphan_files} orphans",
        files_gone=s.orphan_files,
        bytes_gone=s.orphan_bytes,
        is_estimate=True,
        is_for_spark=s.format == "iceberg"
        or engines.choose_for_removal(policy, s.orphan_files, is_object=s.is_in_object_store)[0]
        == "spark",
    )


def _is_due(occasion: Occasion) -> bool:
    """True if ``orphan_age`` has passed since the last job; metadata does not show orphans."""
    last = occasion.last_run
    since = occasion.table_created_at if last is None else last.created_at
    return bool((occasion.now - since).total_seconds() > occasion.policy["orphan_age"])


ACTION = MaintenanceAction(
    key="remove_orphans",
    title="Remove orphans",
    help="Removes files that no version references and that are older than the "
    "policy's age limit. This cannot be undone.",
    icon="folder_delete",
    group="Orphans",
    rules=(
        Rule("orphans", Unit.MODE, Mode.DRY_RUN, "Remove files that no version refers to."),
        Rule(
            "orphan_age",
            Unit.SECONDS,
            3 * DAY,
            "Minimum age of removed files: a younger file may belong to a pending commit.",
            low=DAY,
        ),
    ),
    implementations={
        "lance": Implementation(
            run="catalog.services.maintenance.lance_orphans.remove_orphans",
            takes_spark=True,
            help="removes files that no version refers to",
            settings="`orphan_age`, at least one day",
            promises={
                "files": (("before", "orphans"), ("files",)),
                "bytes": (("before", "bytes"), ("bytes",)),
            },
        ),
        "iceberg": Implementation(
            run="catalog.services.maintenance.iceberg_cleanup.remove_orphans",
            takes_spark=True,
            help="removes files that the metadata does not refer to (`remove_orphan_files`)",
            settings="`orphan_age`, at least one day",
            promises={
                "files": (("done", "listed_files_count"), ("files",)),
            },
        ),
    },
    summarize=removed_files,
    order=70,
    plan=_plan,
    is_due=_is_due,
    iceberg_files=IcebergFiles.ALL_MANIFESTS,
)
