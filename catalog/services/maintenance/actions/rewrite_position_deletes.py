"""Rewrites of the position delete files of an Iceberg table."""

from catalog.maintenance_actions import IcebergFiles, Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics, is_worth_rewriting
from catalog.policies import ICEBERG, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions.results import change_of


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    s = statistics
    removed = s.delete_files - s.rewritten_delete_files
    is_many = s.delete_files >= policy["min_delete_files"]
    is_rewritten = is_many and is_worth_rewriting(removed, s.delete_files)
    if not is_rewritten and not s.dangling_deletes:
        return None
    reasons = []
    if is_rewritten:
        reasons.append(f"{s.rewritten_delete_files} delete files can replace {s.delete_files}")
    if s.dangling_deletes:
        reasons.append(f"{s.dangling_deletes} delete files apply to no data file")
    # The rewrite removes dangling files of all kinds.
    removed += s.dangling_deletes - s.dangling_position_deletes
    return Proposal(", ".join(reasons), files_gone=removed, is_for_spark=True)


ACTION = MaintenanceAction(
    key="rewrite_position_deletes",
    title="Rewrite position deletes",
    help="Rewrites position delete files as fewer files.",
    icon="rule",
    group="Iceberg",
    rules=(
        Rule(
            "position_deletes",
            Unit.MODE,
            Mode.DRY_RUN,
            "Rewrite position delete files, and remove delete files that apply to no data file.",
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
            help="merges position delete files (`rewrite_position_delete_files`), and removes delete "
            "files of all kinds that apply to no data file",
            settings="`min_delete_files`, if the rewrite saves at least a quarter of them; any delete "
            "file that applies to no data file",
            promises={
                "delete_files": (("before", "rewritten_delete_files"), ("after", "delete_files")),
            },
        ),
    },
    summarize=change_of("delete_files", "position delete files"),
    order=40,
    plan=_plan,
    depends_on_files_only=True,
    replaced_files=("rewritten_delete_files_count", "added_delete_files_count"),
    iceberg_files=IcebergFiles.DELETES,
)
