"""Rewrites of the position delete files of an Iceberg table."""

from catalog.maintenance_actions import Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics, is_worth_rewriting
from catalog.policies import ICEBERG, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions.results import change_of


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    s = statistics
    removed = s.delete_files - s.rewritten_delete_files
    if s.delete_files < policy["min_delete_files"]:
        return None
    if not is_worth_rewriting(removed, s.delete_files):
        return None
    return Proposal(
        f"{s.rewritten_delete_files} delete files can replace {s.delete_files}",
        files_gone=removed,
        is_for_spark=True,
    )


ACTION = MaintenanceAction(
    key="rewrite_position_deletes",
    title="Rewrite position deletes",
    label="rewrite position delete files",
    help="Rewrites position delete files as fewer files.",
    icon="rule",
    group="Iceberg",
    rules=(
        Rule(
            "position_deletes",
            Unit.MODE,
            Mode.DRY_RUN,
            "Rewrite position delete files and drop deletes of removed files.",
            ICEBERG,
        ),
        Rule(
            "min_delete_files",
            Unit.COUNT,
            10,
            "Rewrite when at least this many delete files exist.",
            ICEBERG,
            low=1,
        ),
    ),
    implementations={
        "iceberg": Implementation(
            run="catalog.services.maintenance.iceberg_actions.rewrite_position_deletes",
            takes_spark=True,
            help="merges position delete files, and drops deletes of removed files "
            "(`rewrite_position_delete_files`)",
            settings="`min_delete_files`, if the rewrite saves at least a quarter of them",
        ),
    },
    summarize=change_of("delete_files", "position delete files"),
    order=40,
    plan=_plan,
    depends_on_files_only=True,
    replaced_files=("rewritten_delete_files_count", "added_delete_files_count"),
)
